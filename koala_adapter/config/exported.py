# SPDX-License-Identifier: Apache-2.0
"""Variables of the submitter's environment that a job takes along: which there are, and which stay behind.

A variable named in full goes along, whatever it is, but for koala's own. What ``"all"`` or a pattern takes leaves out
what belongs to koala, to a batch system (the submitter may be inside one of its jobs), to the login session and to the
account on this host: on a node it would be wrong.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from koala_adapter.config.written import is_text
from koala_adapter.vjm.agent.processes import FOREIGN_NAMES, FOREIGN_PREFIXES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ALL = "*"
"""The pattern that stands for ``"all"``."""
GLOB = frozenset("*?[")

SESSION_PREFIXES = (
    "SSH_", "XDG_SESSION_", "DBUS_", "TMUX", "TERM_", "VSCODE_", "WSL", "SUDO_", "LC_TERMINAL", "SYSTEMD_", "LISTEN_",
)  # fmt: skip
SESSION_NAMES = frozenset((
    "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SEAT", "XDG_VTNR", "SESSION_MANAGER",
    "WINDOWID", "TERM", "COLORTERM", "COLUMNS", "LINES", "STY", "WINDOW", "GPG_AGENT_INFO", "GPG_TTY", "KRB5CCNAME",
    "INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "MAIL", "PWD", "OLDPWD", "SHLVL", "_",
))  # fmt: skip
"""Of the login session, or the terminal in it."""
HOST_NAMES = frozenset(
    ("HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "HOST", "TMPDIR", "TMP", "TEMP", "HOSTTYPE", "MACHTYPE", "OSTYPE")
)
"""Of the account and of the host."""
BATCH_PREFIXES = ("DRMAA", "LSB_", "LSF_", *FOREIGN_PREFIXES)
BATCH_NAMES = FOREIGN_NAMES
"""Of koala, and of batch systems and MPI starters: see the agent, which takes them from each rank's environment."""


def stays_behind(name: str) -> bool:
    """Tell whether neither ``"all"`` nor a pattern takes a variable."""
    named = name in BATCH_NAMES or name in SESSION_NAMES or name in HOST_NAMES
    return named or name.startswith((*BATCH_PREFIXES, *SESSION_PREFIXES))


def exported(patterns: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that names and patterns take from an environment; those that are not set are left out."""
    return {
        name: value
        for name, value in environment.items()
        if any(_takes(pattern, name) for pattern in patterns) and (is_text(name + value) or ALL not in patterns)
    }


def unfit(patterns: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of variables that are asked for and cannot travel: they are not UTF-8."""
    return (name for name, value in exported(patterns, environment).items() if not is_text(name + value))


def _takes(pattern: str, name: str) -> bool:
    if not GLOB & set(pattern):
        return pattern == name
    return fnmatchcase(name, pattern) and not stays_behind(name)
