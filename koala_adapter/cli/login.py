# SPDX-License-Identifier: Apache-2.0
"""``koala login``: a site whose login asks a person something, such as a password or a one-time code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from koala_adapter.api.statedirectory import prepare_directory
from koala_adapter.cli.session import EXIT_FAILURE, Session, command_body, pass_session
from koala_adapter.config.diagnosis import not_among
from koala_adapter.errors import ConfigurationError
from koala_adapter.host.privatedirectory import make_private_directory
from koala_adapter.service.opening import login_socket
from koala_adapter.sites.link import login_command, logout_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from koala_adapter.config.sitefile import RemoteSiteConfig

LONGEST_SOCKET = 90
"""Bytes of its path: ssh adds some, and unix(7) takes 107."""


@click.command()
@click.argument("site")
@click.option("--end", is_flag=True, help="End the login: koala has to log in by itself from then on.")
@pass_session
@command_body
def login(session: Session, site: str, end: bool) -> None:
    r"""Log in to a site in this terminal, for koala to use it.

    For a site that asks for a password or a one-time code. OpenSSH asks in this terminal and keeps the connection
    (ControlMaster); commands of koala, and a service that runs, go over it until the site ends it. Koala sees nothing
    of what is typed.

    \b
    Examples:
      koala login delft
      koala login delft --end
    """
    sites = {one.name: one for one in session.site.sites}
    if site not in sites:
        raise ConfigurationError(not_among(site, sites, what="a site of the site file"))
    log_in(sites[site], session.directory, end=end)
    session.remark(f"the login to {site} has ended" if end else f"koala uses this login to {site} while it lasts")


def log_in(site: RemoteSiteConfig, directory: Path, *, end: bool = False) -> None:
    """Have ssh log in to a site in this terminal, or end such a login; exit where it fails.

    ``directory``: the state directory.
    """
    socket = login_socket(directory, site.name)
    if len(str(socket)) > LONGEST_SOCKET:
        raise ConfigurationError(f"the path {socket} is too long for a socket", hint="give a shorter one with --state")
    prepare_directory(directory)
    make_private_directory(socket.parent)
    command = (logout_command if end else login_command)(site.ssh, site.ssh_options, socket, site.program)
    # What ssh starts to reach the site (ProxyCommand) serves the login for as long as that lasts.
    if run_in_foreground(command):
        sys.exit(EXIT_FAILURE)


# -- A program that leaves processes behind ------------------------------------------------------------------


def run_in_foreground(command: Sequence[str]) -> int:
    """Run a program in a process group of its own, in the foreground of our terminal; return its exit status.

    Processes that it leaves behind stay in that group, where Ctrl-C and the end of the terminal do not reach them. As
    no shell knows the group, Ctrl-Z has no effect. Raises OSError when the program cannot be started.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # there is none
        return subprocess.run(command, check=False, start_new_session=True).returncode

    def step_forward() -> None:
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        _bring_forward(terminal, os.getpgrp())

    ours = os.getpgrp()
    try:
        if os.tcgetpgrp(terminal) != ours:  # it may not ask in the terminal until a shell lets all of us
            return subprocess.run(command, check=False).returncode
        try:
            return subprocess.run(command, check=False, process_group=0, preexec_fn=step_forward).returncode
        finally:
            with suppress(OSError):  # the terminal is gone
                _bring_forward(terminal, ours)
    finally:
        os.close(terminal)


def _bring_forward(terminal: int, group: int) -> None:
    """Put a process group in the foreground of a terminal, from wherever we are."""
    former = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(terminal, group)
    finally:
        signal.signal(signal.SIGTTOU, former)
