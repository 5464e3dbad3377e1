# SPDX-License-Identifier: Apache-2.0
"""Sites that are reached by a stand-in for ssh."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.local_koala import end_daemon

SSH = """#!/bin/sh
while [ "$#" -gt 2 ]; do shift; done
[ "$1" != shut ] || { echo "me@shut: Permission denied (publickey)." >&2; exit 255; }
[ "$1" != changed ] || { echo "Host key verification failed." >&2; exit 255; }
echo "Welcome!"
export SHELL=/bin/sh HOME="$SITE_HOME"
exec sh -c "$2"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the home directory at all sites, whose login files set a variable; ssh is the stand-in."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    home = tmp_path / "home"
    (home / "tools").mkdir(parents=True)
    (home / "tools" / "far-tool").write_text("#!/bin/sh\necho said $ASKED\n")
    (home / "tools" / "far-tool").chmod(0o755)
    (home / ".profile").write_text(f"echo Today is a holiday.\nexport FAR=1 PATH={home}/tools:$PATH\n")
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SITE_HOME", str(home))
    yield home
    for cluster in (tmp_path / "state").rglob("clusters/*"):
        anyio.run(end_daemon, cluster)
