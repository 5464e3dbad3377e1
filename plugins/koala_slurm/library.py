# SPDX-License-Identifier: Apache-2.0
"""Jobs of all users through pyslurm, in a helper process: the choice, the client, the picture of jobs, and changes.

Used for an outside scheduler's listing, which commands give at the price of reading some MiB of text each time. It is
imported with the first such listing. Everything that it gives is also to be had by commands, and is read by the same
code: the helper tells jobs as squeue and scontrol write them.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import structlog

from koala_adapter.errors import LrmError, LrmRejectedError, LrmUnavailableError, ProtocolError
from koala_adapter.lrm import CheckResult
from koala_adapter.lrm.helper import OPEN, HelperClient, HelperDiedError
from koala_adapter.wire.hostlists import expand
from koala_slurm.listing import ENVIRONMENT, ControllerConfig, release_of
from koala_slurm.requests import JobDetails, job_details, parse_wide_row
from koala_slurm.words import COMPLAINTS, job_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.lrm import ClusterContext
    from koala_adapter.model import LrmJob
    from koala_slurm.settings import SlurmSettings

log = structlog.get_logger()

HELPER = Path(__file__).with_name("library_helper.py")
LOG_NAME = "pyslurm-helper.log"
PACKAGE = "pyslurm"


# -- The client ----------------------------------------------------------------------------------------------

Request: TypeAlias = "Mapping[str, Any]"
Result: TypeAlias = "Mapping[str, Any]"


class LibraryError(LrmUnavailableError):
    """The library cannot be used: it is not there, cannot be loaded, or is of another release."""


def _import_path() -> str:
    """Return where modules are found: what can be imported here can be imported by the helper."""
    return os.pathsep.join(str(Path(root).resolve()) for root in sys.path if root)


class LibraryClient(HelperClient[Request, Result]):
    """The pyslurm helper of one cluster."""

    called = "pyslurm"

    def __init__(self, context: ClusterContext, settings: SlurmSettings, config: ControllerConfig) -> None:
        """Nothing is started yet. ``config``: of the controller, whose release the library must have, too."""
        super().__init__(context, log=LOG_NAME, request_timeout=settings.command_timeout)
        self._variables = settings.variables()
        conf = settings.conf or os.environ.get("SLURM_CONF")
        self._open_request = {
            "op": OPEN,
            "conf": str(conf) if conf else None,
            "release": release_of(config.version),
            # pyslurm does not tell of all jobs that they ask for generic resources.
            "details": not config.has_gres,
        }
        self.version = ""
        """Of the library; empty while it is not open."""

    async def open(self) -> str:
        """Start the helper, and return the version of the library that it has opened. Raises LrmError."""
        async with self._turn():
            await self._ready()
            return self.version

    async def ask(self, request: Request, *, action: str, otherwise: type[LrmError] = LrmUnavailableError) -> Result:
        """Send one request. Raises LrmError, a complaint of Slurm's as its commands do.

        ``otherwise``: the error of a complaint whose meaning is not known.
        """
        await self._commands.admit()
        async with self._turn():
            await self._ready()
            operation = str(request.get("change") or request["op"])
            with self._commands.timed(f"pyslurm {operation}"):
                return _expect(await self._exchange(request, operation), action=action, otherwise=otherwise)

    async def _ready(self) -> None:
        await self._running()
        if not self.version:
            with self._commands.timed("pyslurm open"):
                opened = await self._exchange(self._open_request, OPEN)
                self.version = _expect(opened, action="opening pyslurm")["version"]

    async def _launched(self) -> tuple[Sequence[str], Mapping[str, str]]:
        own = {"PYTHONPATH": _import_path(), "PYSLURM_DISABLE_AUTO_INIT": "1", **ENVIRONMENT}
        # Without -P the directory of its file, which has modules of common names, would come first.
        return (sys.executable, "-P", str(HELPER)), {**self._variables, **own}

    def _encode(self, number: int, request: Request) -> bytes:
        return json.dumps({"number": number, **request}, separators=(",", ":")).encode() + b"\n"

    def _decode(self, line: bytes) -> tuple[int, Result]:
        try:
            answer = json.loads(line)
            return int(answer["number"]), answer
        except (KeyError, TypeError, ValueError) as error:
            message = f"line of the pyslurm helper not understood: {error}"
            raise ProtocolError(message, hint=f"look at {self._log}") from error

    def _forget_session(self) -> None:
        self.version = ""


def _expect(answer: Result, *, action: str, otherwise: type[LrmError] = LrmUnavailableError) -> Result:
    error = answer.get("error")
    if error is None:
        result: Result = answer["result"]
        return result
    if error["kind"] == "library":
        raise LibraryError(error["message"], hint="access = 'commands' does without pyslurm")
    raise COMPLAINTS.error(error["message"], action=action, otherwise=otherwise)


# -- The picture of all jobs ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldJob:
    """A record of a job, or of array elements that wait together, from pyslurm."""

    jobs: tuple[LrmJob, ...] = ()
    details: JobDetails | None = None
    """None: only scontrol tells them."""
    asked: str = ""
    """Id by which squeue is asked for it, because pyslurm does not tell it as it is; empty where it does."""


class LibraryReader:
    """Reader of all users' jobs by pyslurm that transfers only changes."""

    def __init__(self, client: LibraryClient) -> None:
        self._client = client
        self._told: dict[int, ToldJob] = {}
        self._order: list[int] = []
        self._whole = True
        self._again: set[int] = set()

    def forget(self, job: str) -> None:
        """Have a job sent again with the next picture: it has just been changed."""
        self._again.add(int(job_number(job)))

    def repeat(self) -> None:
        """Have all jobs sent next time, as some could not be read."""
        self._whole = True

    async def jobs(self) -> tuple[list[ToldJob], list[ToldJob]]:
        """Return all records in squeue's order, and the new or changed ones. Raises LrmError."""
        again, self._again = self._again, set()
        request = {"op": "jobs", "whole": self._whole, "again": sorted(again)}
        # If nobody takes the answer, what it says has been sent for nothing.
        self._whole = True
        result = await self._client.ask(request, action="listing of jobs")
        told = {record["number"]: _told(record) for record in result["changed"]}
        self._order = result.get("order", self._order)
        there = {**self._told, **told}
        self._told = {number: there[number] for number in self._order}
        self._whole = False
        return list(self._told.values()), list(told.values())


def _told(record: Mapping[str, Any]) -> ToldJob:
    if record.get("untold"):
        return ToldJob(asked=record["asked"])
    shown = record["details"]
    places = {node: cpus for nodes, cpus in record["places"] for node in expand(nodes)}
    return ToldJob(
        jobs=tuple(parse_wide_row(record["row"])),
        details=None
        if shown is None
        else job_details(shown, places, comment=record["row"][-2], admin_comment=record["row"][-1]),
    )


# -- Changes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of one job, with whether pyslurm can make it."""

    what: str
    verb: str = ""
    """Name of the change for the helper; empty: the commands make it."""
    why: str = ""


CHANGES = (
    Change(what="release a job", verb="release"),
    Change(what="requeue", verb="requeue"),
    Change(what="send a signal", verb="signal"),
    Change(what="write a message to a job's output", verb="notify"),
    Change(what="change the walltime", verb="walltime"),
    Change(what="tie a job of one processor to its node", verb="pin"),
    Change(what="tie a job of several processors", why="pyslurm cannot change the number of nodes or MinCPUsNode"),
    Change(what="untie a job", why="pyslurm cannot empty a list of nodes or a reservation"),
    Change(what="reserve cores", why="asked for in one way for all releases"),
    Change(what="leave a note in a comment, or take it away", why="pyslurm cannot empty a comment"),
    Change(what="hold", why="a user's hold ends the process in pyslurm"),
    Change(what="suspend, resume", why="pyslurm takes an unknown job for no answer"),
    Change(what="cancel", why="scancel names whole arrays and many jobs in one request"),
    Change(what="submit", why="through DRMAA or sbatch"),
    Change(what="any change of an array's elements", why="pyslurm knows jobs by number only"),
)
"""Which changes pyslurm makes where it is in use; the documentation shows this table."""

BY_LIBRARY = frozenset(change.verb for change in CHANGES if change.verb)


# -- The choice ----------------------------------------------------------------------------------------------

DEATHS = 3
"""Helpers that may die one after another before commands are used instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessChoice:
    """Choice between pyslurm and commands for listing all users' jobs, with the reason."""

    by: Literal["pyslurm", "commands"]
    reason: str

    def __str__(self) -> str:
        """Choice and reason in one line."""
        return f"by {self.by}: {self.reason}"


class LibraryAccess:
    """Use of pyslurm; once given up for commands, it is not tried again."""

    def __init__(self, context: ClusterContext, settings: SlurmSettings, config: ControllerConfig) -> None:
        """Nothing is started yet. ``config``: of the controller."""
        self._context = context
        self._wanted = settings.access == "pyslurm"
        self.matters = self._wanted or find_spec(PACKAGE) is not None
        """A site wants pyslurm, or has it."""
        self.choice = self._choose(settings, here=context.host.here)
        self._opened = False
        self._changes = True
        if self.choice.by == "commands":
            log.info("how jobs of all users are read", cluster=context.cluster, how=str(self.choice))
        self.client = LibraryClient(context, settings, config)
        self.reader = LibraryReader(self.client)

    def _choose(self, settings: SlurmSettings, *, here: bool) -> AccessChoice:
        if not here:
            return AccessChoice(by="commands", reason="the batch system is at another site")
        if settings.access == "commands":
            return AccessChoice(by="commands", reason="access = 'commands'")
        if find_spec(PACKAGE) is None:
            return AccessChoice(by="commands", reason="pyslurm is not installed (pip install 'koala-adapter[pyslurm]')")
        return AccessChoice(by="pyslurm", reason=f"access = {settings.access!r}")

    async def is_used(self) -> bool:
        """Tell whether pyslurm is used, after it was tried the first time."""
        await self.settle()
        return self._opened and self.choice.by == "pyslurm"

    async def settle(self) -> None:
        """Open the library if that was not done; if it is unusable, choose commands for good."""
        if self._opened or self.choice.by == "commands":
            return
        try:
            version = await self.client.open()
        except LrmError as error:
            await self.failed(error)
            return
        self._opened = True
        self.choice = AccessChoice(by="pyslurm", reason=f"for Slurm {version}, as the controller")
        log.info("how jobs of all users are read", cluster=self._context.cluster, how=str(self.choice))

    async def failed(self, error: LrmError) -> bool:
        """Handle a failure; return whether commands are used instead, now or for good."""
        useless = isinstance(error, LibraryError | LrmRejectedError)
        died = isinstance(error, HelperDiedError) and (not self._opened or self.client.deaths >= DEATHS)
        if useless or died:
            await self.client.close()
            self.choice = AccessChoice(by="commands", reason=f"pyslurm cannot be used: {error.message}")
            log.warning("pyslurm is not used", cluster=self._context.cluster, reason=error.message)
            return True
        # It is the helper that failed, and not Slurm.
        return self.client.deaths > 0

    async def change(self, verb: str, ids: Sequence[str], value: object = None) -> bool:
        """Make a change of whole jobs; return False, with nothing done, where it is for commands. Raises LrmError."""
        usable = self._opened and self._changes and self.choice.by == "pyslurm"
        if not usable or verb not in BY_LIBRARY:
            return False
        if not all(job.isascii() and job.isdecimal() for job in ids):
            return False
        for job in ids:
            request = {"op": "change", "change": verb, "job": job, "value": value}
            try:
                await self.client.ask(request, action=verb, otherwise=LrmRejectedError)
            except HelperDiedError as error:
                # Whether this one was made is not known. Others are made by commands.
                self._changes = False
                log.warning("pyslurm changes no more jobs", cluster=self._context.cluster, reason=error.message)
                raise
            except LibraryError as error:
                # It was not asked of Slurm; what was made for other jobs may be asked for again.
                log.warning("pyslurm cannot change a job", cluster=self._context.cluster, reason=error.message)
                return False
        return True

    async def check(self) -> tuple[CheckResult, ...]:
        """Report the choice; commands are a fault only where the site requires pyslurm."""
        await self.settle()
        ok = self.choice.by == "pyslurm" or not self._wanted
        remedy = "install pyslurm of the controller's release, or set access = 'auto'"
        return (
            CheckResult(subject="jobs of all users", ok=ok, found=f"read {self.choice}", remedy="" if ok else remedy),
        )

    async def close(self) -> None:
        """End the helper."""
        await self.client.close()
