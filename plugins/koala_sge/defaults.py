# SPDX-License-Identifier: Apache-2.0
"""Options that files of the cell and of the user put in front of those of Grid Engine's commands (sge_qstat(5)).

``SGE_ROOT/CELL/common/sge_qstat`` and ``~/.sge_qstat`` are read by qstat, files named after qselect by qselect. There
is no way to pass them by. What they add to a listing is read as well; what they hide is refused.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError
from koala_adapter.lrm import CheckResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_sge.settings import SgeSettings

LISTING_COMMANDS = ("qstat", "qselect")
HIDING = frozenset({"-q", "-pe", "-l", "-U", "-j", "-qs"})
"""Options with which jobs, queues or hosts are left out. ``-s``, ``-u`` and ``-g`` are overridden by ours."""
SUBMISSION = "request"
DELAYING = frozenset({"-a", "-now", "-sync", "-t", "-N"})
"""Options of sge_request(5) with which placeholders could not be followed."""

REMEDY = "take the option out of that file: Grid Engine cannot be told to ignore it"


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultOption:
    """An option in a file of default options."""

    name: str
    path: Path


async def default_options(settings: SgeSettings, command: str, host: LrmHost) -> tuple[DefaultOption, ...]:
    """Return the options that the files of a command have, those of the cell first."""
    home = Path((await host.facts()).home)
    paths = (settings.root / settings.cell / "common" / f"sge_{command}", home / f".sge_{command}")
    return tuple([DefaultOption(name=name, path=path) for path in paths for name in _names(await host.text(str(path)))])


def _names(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        try:
            words = shlex.split(line)
        except ValueError:
            words = line.split()
        yield from (word for word in words if word.startswith("-") and len(word) > 1)


async def hiding_options(settings: SgeSettings, host: LrmHost) -> tuple[DefaultOption, ...]:
    """Return the options with which listings are incomplete."""
    return tuple(
        [
            option
            for command in LISTING_COMMANDS
            for option in await default_options(settings, command, host)
            if option.name in HIDING
        ]
    )


async def require_whole_listings(settings: SgeSettings, host: LrmHost) -> None:
    """Raise LrmRejectedError when a file of defaults hides jobs, queues or hosts."""
    for option in await hiding_options(settings, host):
        message = f"{option.path} has {option.name}, which hides jobs, queues or hosts from koala"
        raise LrmRejectedError(
            message, hint="take the option out of that file: Grid Engine cannot be told to ignore it"
        )


async def groups_arrays(settings: SgeSettings, host: LrmHost) -> bool:
    """Return whether a defaults file changes the grouping of qstat (``-g``), which must then be given."""
    return any(option.name == "-g" for option in await default_options(settings, "qstat", host))


async def check_defaults(settings: SgeSettings, host: LrmHost) -> CheckResult:
    """Check defaults files for options that hide jobs or keep placeholders from being followed."""
    bad = [*await hiding_options(settings, host)]
    bad += [option for option in await default_options(settings, SUBMISSION, host) if option.name in DELAYING]
    found = ", ".join(f"{option.name} in {option.path}" for option in bad) or "none that matter"
    return CheckResult(subject="defaults of commands", ok=not bad, found=found, remedy=REMEDY)
