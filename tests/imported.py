# SPDX-License-Identifier: Apache-2.0
"""What a Python program imports while it runs, as the interpreter itself tells it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

NO_PACKAGES = frozenset({"imported package", "org"})
"""The heading, and what the module ``copy`` looks for in case that it runs in Java."""


def imported_packages(arguments: Sequence[str], environment: Mapping[str, str]) -> frozenset[str]:
    """Run ``python ARGUMENTS`` and return the packages that it imported, without those of Python itself.

    What every program here imports, such as the finder of an editable installation, is not counted.
    """
    return _packages(arguments, environment) - _packages(["-c", "pass"], environment)


def _packages(arguments: Sequence[str], environment: Mapping[str, str]) -> frozenset[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:") and "|" in line]
    assert done.returncode == 0, done.stderr.splitlines()[-5:]
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    return frozenset(names - sys.stdlib_module_names - NO_PACKAGES)
