# SPDX-License-Identifier: Apache-2.0
"""The example of Dask, as a user would copy it, with this Python, a port of its own, and fewer or shorter tasks."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

from distributed import Security

from koala_adapter.host.sockets import free_port
from tests.taskqueue import EXAMPLE

if TYPE_CHECKING:
    from pathlib import Path


def write_dasksum(directory: Path, *, tasks: int, seconds: float, replaced: dict[str, str] | None = None) -> Path:
    """Return the path of its job file in a directory; ``replaced``: what of its text is to be something else."""
    for name in ("dasksum.py", "leave.py"):
        shutil.copy(EXAMPLE / name, directory)
    temporary = Security.temporary()
    key = directory / "dask.pem"
    key.write_text(temporary.tls_scheduler_key + temporary.tls_scheduler_cert)
    key.chmod(0o600)
    text = (EXAMPLE / "dasksum.toml").read_text().replace('"200"', f'"{tasks}"')
    text = text.replace('"python3"', json.dumps(sys.executable)).replace("exec python3", f"exec {sys.executable}")
    for old, new in (replaced or {}).items():
        assert old in text
        text = text.replace(old, new)
    own = f'DASKSUM_PORT = "{free_port()}"\nDASKSUM_SECONDS = "{seconds}"\n'
    path = directory / "dasksum.toml"
    path.write_text(text.replace("[environment]\n", f"[environment]\n{own}"))
    return path
