# SPDX-License-Identifier: Apache-2.0
"""``koala login`` in a terminal, with a program that stands for ssh."""

from __future__ import annotations

import os
import pty
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from koala_adapter.cli.login import run_in_foreground

SSH = """#!/bin/sh
sleep 600 </dev/null >/dev/null 2>&1 &
echo $! >"{proxy}"
printf 'password: '
read -r typed </dev/tty
[ "$typed" = right ]
"""
"""As ssh does, it starts a program that goes on when it ends, and asks in the terminal."""
LOGIN = "import sys; from koala_adapter.cli.login import run_in_foreground; print(run_in_foreground(sys.argv[1:]))"


class Login:
    """A login in a terminal of its own, by a process that is the leader of the session there."""

    def __init__(self, directory: Path) -> None:
        self.ssh, self._proxy = directory / "ssh", directory / "proxy"
        self.ssh.write_text(SSH.format(proxy=self._proxy))
        self.ssh.chmod(0o700)
        self.process, self.terminal = pty.fork()
        if not self.process:
            os.execv(sys.executable, [sys.executable, "-c", LOGIN, str(self.ssh)])  # noqa: S606 - a child of ours
        self._shown = b""

    @property
    def proxy(self) -> int:
        return int(self._proxy.read_text())

    def shows(self, text: str) -> None:
        """Wait until the terminal shows a text."""
        while text.encode() not in self._shown:
            self._shown += os.read(self.terminal, 4096)

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def goes_on(self) -> bool:
        """Tell whether the program that ssh left behind runs."""
        return Path(f"/proc/{self.proxy}/stat").read_text().rpartition(")")[2].split()[0] in "SR"


@pytest.fixture
def login(tmp_path: Path) -> Iterator[Login]:
    found = Login(tmp_path)
    yield found
    for process in (found.process, found.proxy):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    os.waitpid(found.process, 0)
    with suppress(OSError):
        os.close(found.terminal)


def test_a_login_outlives_its_terminal(login: Login) -> None:
    """The program by which ssh reaches the site is not told of the end of the terminal, nor of a Ctrl-C there."""
    login.shows("password: ")
    login.type("right\n")
    login.shows("0\r\n")
    os.waitid(os.P_PID, login.process, os.WEXITED | os.WNOWAIT)  # the kernel has told the terminal's group of it
    assert os.getsid(login.proxy) != login.process or os.getpgid(login.proxy) != login.process
    assert login.goes_on()


def test_ctrl_c_ends_a_login_that_asks(login: Login) -> None:
    login.shows("password: ")
    login.type("\x1a\x03")  # Ctrl-Z does nothing: a stopped login could not be continued
    login.shows(f"-{signal.SIGINT:d}\r\n")


def test_without_a_terminal_a_login_is_a_session_of_its_own(tmp_path: Path) -> None:
    """As a service started by cron or systemd has none."""
    session = tmp_path / "session"
    command = f"import os; open({str(session)!r}, 'w').write(str(os.getsid(0) == os.getpid()))"
    if process := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 3
        assert session.read_text() == "True"
        return
    os.setsid()
    code = run_in_foreground([sys.executable, "-c", command + "; raise SystemExit(3)"])
    os._exit(code)
