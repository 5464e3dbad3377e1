# SPDX-License-Identifier: Apache-2.0
"""``koala check`` of a Grid Engine cell, and ``koala check --outside``; files of defaults that hide jobs from us."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmRejectedError
from koala_adapter.lrm import CheckResult
from koala_adapter.lrm.commandplugin import Checks, Step, bad, good
from koala_adapter.model import LrmJobState
from koala_sge import heldjobs
from koala_sge.listing import GridEngineCommands, parse_jobs
from koala_sge.settings import SgeSettings, smallest_user

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from koala_adapter.lrm import Lrm
    from koala_adapter.lrm.commands import CommandResult
    from koala_adapter.lrm.lrmhost import LrmHost

    Run = Callable[[Sequence[str]], Awaitable[CommandResult]]


# -- Files of defaults ---------------------------------------------------------------------------------------
# Options that files of the cell and of the user put in front of those of Grid Engine's commands (sge_qstat(5)).
#
# ``SGE_ROOT/CELL/common/sge_qstat`` and ``~/.sge_qstat`` are read by qstat, files named after qselect by qselect. There
# is no way to pass them by. What they add to a listing is read as well; what they hide is refused.

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
        raise LrmRejectedError(message, hint=REMEDY)


async def groups_arrays(settings: SgeSettings, host: LrmHost) -> bool:
    """Return whether a defaults file changes the grouping of qstat (``-g``), which must then be given."""
    return any(option.name == "-g" for option in await default_options(settings, "qstat", host))


async def check_defaults(settings: SgeSettings, host: LrmHost) -> CheckResult:
    """Check defaults files for options that hide jobs or keep placeholders from being followed."""
    harmful = [*await hiding_options(settings, host)]
    harmful += [option for option in await default_options(settings, SUBMISSION, host) if option.name in DELAYING]
    found = ", ".join(f"{option.name} in {option.path}" for option in harmful)
    return bad(found, REMEDY) if harmful else good("none that matter")


# -- Checks of a cell ----------------------------------------------------------------------------------------

BE_A_SUBMIT_HOST = "make this a submit host (qconf -as HOST)"


class SgeChecks(Checks):
    """Checks of commands, cell and rights, ordered so that the first failure is to be mended first."""

    decisive = "qmaster"
    prefer_remedies = True

    def __init__(self, lrm: Lrm, commands: GridEngineCommands, settings: SgeSettings) -> None:
        """``lrm``: that of the cell."""
        super().__init__(commands.host, settings.bin_directory)
        self._lrm = lrm
        self._commands = commands
        self._settings = settings

    def steps(self) -> tuple[Step, ...]:
        settings = self._settings
        queue = f"queue {settings.queue}" if settings.queue else "queues"
        qstat = f"command {self._commands.argv(('qstat',))[0]}"
        return (
            (f"cell {settings.cell} in {settings.root}", self._root, ""),
            ("defaults of commands", partial(check_defaults, settings, self._host), ""),
            (qstat, self._version, "install gridengine-client, or set bin_directory"),
            ("qmaster", self._nodes, f"start sge_qmaster, correct qmaster_port, or {BE_A_SUBMIT_HOST}"),
            (queue, self._queues, BE_A_SUBMIT_HOST),
            ("user", self._user, ""),
        )

    async def _root(self) -> CheckResult:
        common = self._settings.root / self._settings.cell / "common"
        if not await self._host.resolved(str(common / "act_qmaster")):
            return bad(f"no {common}/act_qmaster", "correct root and cell (SGE_ROOT, SGE_CELL)")
        return good(str(common))

    async def _version(self) -> CheckResult:
        return good(await self._lrm.version())

    async def _nodes(self) -> CheckResult:
        nodes = await self._lrm.nodes()
        slots = sum(node.processors for node in nodes)
        if not slots:
            where = f"queue {self._settings.queue}" if self._settings.queue else "any batch queue"
            return bad(f"answers, but there are no slots in {where}", "correct queue")
        idle = sum(node.processors_idle for node in nodes)
        counted = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
        return good(f"answers: {counted}, {slots} slots, {idle} idle")

    async def _queues(self) -> CheckResult:
        names = [queue.name for queue in await self._lrm.queues()]
        if self._settings.queue and self._settings.queue not in names:
            return bad(f"there are {', '.join(names)}", "correct queue")
        return good(", ".join(names) or "none")

    async def _user(self) -> CheckResult:
        """Check that Grid Engine accepts jobs of this user: Debian's rejects those of root."""
        user = (await self._host.facts()).uid
        least = smallest_user((await self._commands.run(heldjobs.SHOW_CONFIGURATION)).text)
        found = f"jobs of users with an id of {least} or more are taken (min_uid), yours is {user}"
        if user < least:
            return bad(found, "use koala as an ordinary user, or lower min_uid (qconf -mconf)")
        return good(found)


# -- Checks of starting from outside -------------------------------------------------------------------------
# Whether ordinary jobs come in held, and we may start them.

_NUMBER = re.compile(r"^([0-9]+)$", re.MULTILINE)
_ALLOWED = re.compile(r"^jsv_allowed_mod\s+(\S+)", re.MULTILINE)
_JSV = re.compile(r"^jsv_url\s+(\S+)", re.MULTILINE)


async def check_outside(run: Run, settings: SgeSettings, host: LrmHost, *, user: str) -> tuple[CheckResult, ...]:
    """Return whether jobs come in held, whether we are a manager, and what would keep us from pinning and starting."""
    try:
        return (await _held(run, settings, host), await _manager(run, user), await _pinning(run, settings))
    except LrmError as error:
        remedy = error.hint or "see `koala docs wiki`"
        return (CheckResult(subject="outside scheduler", ok=False, found=error.message, remedy=remedy),)


def submission_remedy(complaint: str) -> str:
    """Return what to do about an ordinary submission that was refused."""
    if "minimum" in complaint.lower():
        return (
            "Grid Engine takes no jobs of users with so small an id, such as root (min_uid in qconf -sconf, 1000 on "
            "Debian): run koala as an ordinary user that is made a manager (qconf -am USER)"
        )
    return "submit such a job by hand (qsub -b y true) as the user that koala runs as, and mend what it complains about"


async def _held(run: Run, settings: SgeSettings, host: LrmHost) -> CheckResult:
    subject = "jobs come in held"
    remedy = "set jsv_url to what `koala conf sge_jsv.sh` prints (qconf -mconf), or put -h into sge_request of the cell"
    # For the end of the year, so that it never runs if nobody holds it.
    options = ("-terse", "-a", "12312359", "-N", "koala-check", "-wd", "/", "-o", "/dev/null", "-j", "y", "-b", "y")
    submitted = await run(("qsub", *options, "true"))
    number = _NUMBER.search(submitted.text)
    if number is None:
        found = f"an ordinary submission is refused: {submitted.complaint}"
        return CheckResult(subject=subject, ok=False, found=found, remedy=submission_remedy(submitted.complaint))
    try:
        listing = await run(heldjobs.list_jobs(singly=await groups_arrays(settings, host)))
        seen = next((job for job in parse_jobs(listing.stdout) if job.id == number[1]), None)
    finally:
        await run(("qdel", number[1]))
    ok = seen is not None and seen.state is LrmJobState.HELD
    found = "yes" if ok else "no, they go to Grid Engine's own scheduler"
    return CheckResult(subject=subject, ok=ok, found=found, remedy=remedy)


async def _manager(run: Run, user: str) -> CheckResult:
    managers = (await run(("qconf", "-sm"))).text.split()
    ok = user in managers
    found = f"we are {user}; managers are {', '.join(managers)}"
    remedy = f"make it one (qconf -am {user}): others' jobs can be pinned and released by managers only"
    return CheckResult(subject="rights of a manager", ok=ok, found=found, remedy=remedy)


async def _pinning(run: Run, settings: SgeSettings) -> CheckResult:
    subject, shown = "starting at once", (await run(heldjobs.SHOW_CONFIGURATION)).text
    jsv, allowed = _JSV.search(shown), _ALLOWED.search(shown)
    if jsv and jsv[1] != "none" and allowed and "q_hard" not in allowed[1].split(","):
        remedy = "add q_hard,q_soft to jsv_allowed_mod (qconf -mconf)"
        return CheckResult(subject=subject, ok=False, found="qalter -q is forbidden by jsv_allowed_mod", remedy=remedy)
    remedy = "set trigger_scheduler = true in the settings of this cluster: else a start takes a schedule_interval"
    found = "qconf -tsm after each start" if settings.trigger_scheduler else "only at the next schedule_interval"
    return CheckResult(subject=subject, ok=settings.trigger_scheduler, found=found, remedy=remedy)
