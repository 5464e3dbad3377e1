# SPDX-License-Identifier: Apache-2.0
"""A stand-in for pyslurm 25.11: the names that our reader uses, with contents from the file FAKE_PYSLURM.

Like the real one it may end the process on import, or raise while it loads.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

_CONTENTS = json.loads(Path(os.environ["FAKE_PYSLURM"]).read_text())

if _CONTENTS.get("exit_on_import"):
    os._exit(1)

__version__: str = _CONTENTS["version"]


class RPCError(Exception):
    """What the real one raises when the controller does not answer."""


class _Collection(dict[object, SimpleNamespace]):
    kind = ""

    @classmethod
    def load(cls) -> _Collection:
        """Return the contents; the real one asks the controller here."""
        if cls.kind not in _CONTENTS:
            raise RPCError("Unable to contact slurm controller (connect failure)")
        found = cls()
        for number, values in enumerate(_CONTENTS[cls.kind]):
            found[number] = SimpleNamespace(**values)
        return found


class Nodes(_Collection):
    """All nodes."""

    kind = "nodes"


class Jobs(_Collection):
    """All jobs."""

    kind = "jobs"
