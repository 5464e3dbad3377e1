# SPDX-License-Identifier: Apache-2.0
"""The contract between koala and a plugin for a local resource manager (LRM), and finding installed plugins.

A plugin package declares an entry point in the group ``koala_adapter.plugins`` that names a :class:`PluginDefinition`.
The definition says what the plugin is called, which settings a site file may give it, what it can do, and how to make a
:class:`Lrm` for one cluster. Koala's own plugins use nothing that others could not. In order: a site's changes to
submissions, the contract itself, entry points, loading of plugins.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, NoReturn, cast

from pydantic import BaseModel

from koala_adapter.errors import LrmError, LrmUnsupportedError, PluginError
from koala_adapter.model import BatchKey, ClusterName, HoldOwner, LrmJob, LrmJobId, LrmJobState, Node, Queue
from koala_adapter.slots import PLAIN, SLOT_KEYS, Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from koala_adapter.lrm.commands import CommandRunner
    from koala_adapter.lrm.discovery import Discovery, Surroundings
    from koala_adapter.lrm.lrmhost import LrmHost


# -- Changes that a site makes to all submissions to a cluster -----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Directives:
    """What a site wants changed in every submission to a cluster (flags by their long or short LRM name)."""

    add: tuple[str, ...] = ()
    """Arguments appended, such as ``--account=physics`` or ``-l h_vmem=2G``."""
    drop: tuple[str, ...] = ()
    """Names of flags left out, such as ``--no-requeue``."""
    rename: tuple[tuple[str, str], ...] = field(default=())
    """Pairs (flag as we write it, flag as this site wants it)."""
    map: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Pairs (key of a slot, or ``memory``; arguments by which this site asks for it, with braces such as ``{n}``)."""


# -- The contract: capabilities, submissions, checks, LRM, definition ----------------------------------------

INTERFACE_VERSION = 1
NOWHERE = "/dev/null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Operations that an LRM supports through its plugin. The core asks before a job starts."""

    submit: bool = True
    """``submit`` works. Where it does not, no placeholder can go: the cluster is only scheduled from outside."""
    find_by_name: bool = True
    """``jobs`` finds a submission by its name, also after a crash of ours. Who can submit must: without it, one whose
    outcome is unknown would be sent again."""
    observes_nodes: bool = True
    """``nodes`` tells the truth about idle processors (not only a configured number)."""
    lists_queues: bool = True
    """``queues`` shows those that there are (not only what the site file names): who asks for another asks for none."""
    lists_others: bool = True
    """``jobs`` without a prefix lists the jobs of all users, the waiting ones in the order of their queue."""
    hold: bool = False
    pin: bool = False
    """``start_on`` can have a held job start on chosen nodes."""
    pin_several: bool = True
    """``start_on`` can do so on several nodes at once, with a number of processors on each."""
    pin_elements: bool = True
    """``start_on`` can do so with several elements of one job array at the same time."""
    tells_holders: bool = True
    """The listing tells whose hold a job is in; where it does not, all show as their users'."""
    tells_own_holders: bool = False
    """``jobs`` with a prefix tells whose hold our own jobs are in, although the listing of all jobs does not."""
    suspend: bool = False
    requeue: bool = False
    signal: bool = False
    modify: bool = False
    reserve: bool = False
    """``reserve`` can keep processors for us from a time on, and ``submit`` can have placeholders run there."""
    slots: frozenset[str] = frozenset()
    """Keys of a slot that ``render`` and ``submit`` express natively, of ``koala_adapter.slots.SLOT_KEYS``. A job that
    sets another one is refused before anything is submitted, unless the site file says how it is expressed."""
    accounting: bool = False
    """``history`` can tell the end of jobs that have left the listing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """n identical placeholders for one cluster, to be sent as *one* request."""

    key: BatchKey
    """Becomes the LRM job name."""
    count: int
    """Number of placeholders, each of one slot; they get the indices 1 to ``count``."""
    script: str
    """Complete POSIX shell script, first line ``#!/bin/sh``. It contains a secret: only ever pass it on stdin or in a
    file of mode 0600."""
    walltime: int
    """Seconds; a plugin rounds up to what its LRM can express."""
    queue: str | None = None
    """Partition or queue; None: the LRM's default."""
    memory_mib: int | None = None
    """Memory per placeholder, when the job or the site gives one."""
    slot: Slot = PLAIN
    """What each placeholder needs beyond ``queue`` and ``memory_mib``, which hold what applies here."""
    output_directory: str | None = None
    """Directory on the nodes for the script's stdout and stderr: see :meth:`output_path`. None: they go to /dev/null.

    Always None for placeholders: their scripts keep what they say by themselves, where nobody else can put a link or a
    pipe in the way, which an LRM would follow or wait for.
    """
    held: bool = False
    """Submit in user hold."""
    reservation: str | None = None
    """Reservation in which the placeholders run, as ``reserve`` returned it."""

    def output_path(self, index: int) -> str:
        """Return the file on its node for stdout and stderr together: ``DIRECTORY/KEY.INDEX.out``, or /dev/null."""
        return self.output_pattern(str(index))

    def output_pattern(self, index: str) -> str:
        """Return the file for stdout and stderr with any word in place of the index, such as the LRM's own (``%a``)."""
        if self.output_directory is None:
            return NOWHERE
        return f"{self.output_directory.rstrip('/')}/{self.key}.{index}.out"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRequest:
    """What is to be kept for placeholders of one submission."""

    placeholders: Submission
    """What is to have room there: ``key`` is the name of the reservation, ``walltime`` how long it lasts. Its
    script does nothing."""
    starts_in: float
    """Seconds from now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedSubmission:
    """Exactly what ``submit`` would send: shown by ``koala script``."""

    command: tuple[str, ...]
    """The command line; where a library is called instead, the one that would do the same."""
    script: str
    environment: tuple[tuple[str, str], ...] = ()
    note: str = ""
    call: tuple[str, ...] = ()
    """The call of a library that is made in place of the command, and its attributes, as words; empty: none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One line of ``koala check``."""

    subject: str
    ok: bool
    found: str
    remedy: str = ""
    """What to do when not ok."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """What the core gives a plugin for one cluster."""

    cluster: ClusterName
    commands: CommandRunner
    """Runs the LRM's commands: bounded in rate and time, with a built environment. Nothing else may be used for it."""
    state_directory: Path
    """Private directory (mode 0700) of this cluster's plugin; survives restarts."""
    directives: Directives = field(default_factory=Directives)
    user: str = ""
    """Login name of the user on whose behalf we submit; empty: that of the host."""

    @property
    def host(self) -> LrmHost:
        """Where the batch system's commands and files are: nothing of them is reached in another way."""
        return self.commands.host

    @property
    def submitter(self) -> str:
        """Login name of the user on whose behalf we submit; empty while the host has not told it."""
        return self.user or self.host.user


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedStart:
    """The start of one held job on chosen nodes. The core has it on disk before it asks for it."""

    job: LrmJobId
    nodes: tuple[str, ...]
    """One entry for each processor, equal ones adjacent: ``n4 n4 n4 n2`` is three processors of n4 and one of n2."""
    original: str = ""
    """What `Lrm.original_request` returned before the job was tied to nodes for the first time; empty: not known."""

    @property
    def counts(self) -> dict[str, int]:
        """Processors on each node, in the order asked for."""
        return dict(Counter(self.nodes))


class Lrm(ABC):
    """One cluster's local resource manager.

    Every method may raise the four errors of :class:`koala_adapter.errors.LrmError`. A submission that ends in
    :class:`~koala_adapter.errors.LrmUnavailableError` has an unknown outcome; the core then looks for its key.
    Unknown ids are no error for ``cancel`` and raise LrmNotFoundError for the other operations on jobs.
    Inside, a plugin is pure pairs: build the command, parse its output.
    """

    capabilities: Capabilities
    array_index_variable: str
    """Environment variable that tells a running placeholder its index (``SLURM_ARRAY_TASK_ID``)."""
    job_id_variable: str
    """Environment variable with the LRM's job id of a running placeholder (``SLURM_ARRAY_JOB_ID``)."""
    requests_per_start: int = 5
    """LRM requests that one ``start_on`` and its ``confirm_start`` usually cost."""
    hook_removal: str = ""
    """How the piece that has jobs come in held is taken out again: said after the queue was given back."""
    requests_per_poll: int
    """LRM requests that one ``nodes`` plus one ``jobs`` of our own jobs cost at most: part of the overload contract."""
    requests_per_listing: int = 0
    """LRM requests that one ``nodes`` plus one ``jobs_to_schedule`` cost at most; 0: no more than a poll."""

    @property
    def submission_way(self) -> str:
        """How placeholders are submitted, and why, for a person; empty where there is one way only.

        Final after ``start``, or after the first submission where the LRM could not be asked before.
        """
        return ""

    @property
    def submission_obstacle(self) -> str:
        """Why each submission fails until something is changed by hand, and the remedy; empty where none is known.

        New jobs that only such clusters could run are refused. Submissions of earlier jobs are tried again, and should
        raise :class:`~koala_adapter.errors.LrmUnreachableError` for that reason.
        """
        return ""

    async def look_for_obstacle(self) -> None:  # noqa: B027 - most plugins know of none
        """Check again whether ``submission_obstacle`` is still true. Raises nothing."""

    async def start(self) -> None:  # noqa: B027 - most plugins need nothing here
        """Make ready (start a helper process, open a session). Called once before any other method."""

    async def close(self) -> None:  # noqa: B027 - most plugins need nothing here
        """Give everything back except the jobs in the LRM. Called once, last."""

    @abstractmethod
    async def version(self) -> str:
        """Return the LRM's name and version, such as ``slurm 22.05.8``."""

    @abstractmethod
    async def nodes(self) -> tuple[Node, ...]:
        """Return all nodes that this cluster may use."""

    @abstractmethod
    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return the LRM's jobs (array elements singly) whose name begins with ``name_prefix``; of all users if empty.

        Each with its user, or an empty one where the LRM does not tell: by it the core knows ours from a stranger's of
        the same name. With a prefix, other users' jobs may be left out.
        Jobs that ended a short while ago may be included with state ENDED. One listing for all, never a query by id.
        Queued jobs come in the order of their queue; of equal priority, as all jobs in hold are, the oldest comes first
        (``koala_adapter.lrm.contract.oldest_first``): who starts jobs from outside keeps that order.
        """

    async def jobs_to_schedule(self) -> tuple[LrmJob, ...]:
        """Return the jobs of all users as `jobs` does, with all that a scheduler from outside must know of them.

        That is beside the rest where each job in hold may run now, and what keeps it from starting. Only such a
        scheduler asks for it, because it may cost further requests.
        """
        return await self.jobs()

    @abstractmethod
    async def queues(self) -> tuple[Queue, ...]:
        """Return partitions or queues."""

    @abstractmethod
    def render(self, submission: Submission) -> RenderedSubmission:
        """Return what ``submit`` would send. Pure. Raises LrmRejectedError when it cannot be expressed."""

    @abstractmethod
    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit ``count`` placeholders in one request and return their ids in the order of their indices."""

    @abstractmethod
    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Cancel jobs, whatever their state. Ids that are already gone are no error. Returns when the LRM accepted."""

    def forget(self, key: BatchKey) -> None:  # noqa: B027 - most plugins keep nothing
        """Drop what is kept of a submission, such as a file with its script: all of its placeholders are gone.

        Must not ask the LRM. May be called more than once, and for submissions that an earlier process made.
        """

    async def reserve(self, request: ReservationRequest) -> str:
        """Reserve processors for the submitter and return what ``Submission.reservation`` is then. Needs ``reserve``.

        Raises LrmRejectedError where they cannot be had, the user may not reserve, or the batch system cannot keep
        what a placeholder needs.
        """
        self._unsupported("reserve", (request.placeholders.key,))

    async def reservations(self) -> Mapping[str, str]:
        """Return the reservations of the submitter, by name, as ``reserve`` returns them. Needs ``reserve``."""
        return {}

    async def unreserve(self, reservation: str) -> None:
        """Remove a reservation that ``reserve`` returned. Needs ``reserve``.

        One that is not there any more is no error. Raises LrmUnavailableError while jobs run in it.
        """
        self._unsupported("unreserve", (reservation,))

    async def history(self, ids: Sequence[LrmJobId]) -> tuple[LrmJob, ...]:
        """Return the ends of jobs from accounting, for those of ``ids`` it knows. Needs ``accounting``."""
        self._unsupported("history", ids)

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        """Put queued jobs in hold. Needs ``hold``."""
        self._unsupported("hold", ids)

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        """Release held jobs. Needs ``hold``."""
        self._unsupported("release", ids)

    async def original_request(self, job: LrmJobId) -> str:  # noqa: ARG002 - most need nothing
        """Return what `undo_start` must know of a job in hold that is tied to no nodes, in the plugin's own words.

        The core keeps the text on disk until the job is over, and reads nothing in it. Empty where the LRM keeps what
        its user asked for.
        """
        return ""

    async def start_on(self, start: PinnedStart) -> None:
        """Have one held job start on exactly these nodes; return when the LRM has accepted that. Needs ``pin``.

        Nothing is waited for: the caller sees in a listing whether the job runs, and ends each start with
        :meth:`confirm_start` or :meth:`undo_start`. Raises LrmRejectedError, with the job still held and as it was,
        when the LRM cannot be made to start it so; after LrmUnavailableError it is undone if the job still waits.
        """
        self._unsupported("start_on", (start.job, *start.nodes))

    async def confirm_start(self, start: PinnedStart) -> None:  # noqa: B027 - most have nothing to do
        """Confirm that a job runs after ``start_on``: whatever was reserved for its start is given back.

        Where the LRM can, the job is made to come back in hold, should it be queued again.
        """

    async def confirm_starts(self, starts: Sequence[PinnedStart]) -> Mapping[LrmJobId, LrmError]:
        """Confirm several starts, in one request where the LRM can; return what went wrong, by job."""
        errors: dict[LrmJobId, LrmError] = {}
        for start in starts:
            try:
                await self.confirm_start(start)
            except LrmError as error:
                errors[start.job] = error
        return errors

    async def undo_start(self, start: PinnedStart) -> None:
        """Hold a job that waits after ``start_on``, and untie it from its nodes. Needs ``hold``.

        It did not start, or ran and was queued again, or is gone by now; whatever was reserved for its start is given
        back. Harmless when it is held and free already; one that has started meanwhile runs on. The start may have been
        asked for by an earlier process.
        """
        await self.hold([start.job])

    async def held_by_hook(self) -> tuple[LrmJob, ...]:
        """Return the jobs that are in hold because the site has jobs come in held for an outside scheduler.

        Running ones, too, that would wait in that hold if they were queued again. Not those that anybody else holds,
        as far as the LRM can tell: what is returned may be released. Needs ``hold``.
        """
        return tuple(
            job for job in await self.jobs() if job.state is LrmJobState.HELD and job.hold is HoldOwner.OPERATOR
        )

    async def give_back(self, ids: Sequence[LrmJobId]) -> None:
        """Take the hold of `held_by_hook`, and no other: the LRM's own scheduler starts the jobs. Needs ``hold``.

        May be asked again of jobs that have none any more.
        """
        await self.release(ids)

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """Suspend running jobs. Needs ``suspend``."""
        self._unsupported("suspend", ids)

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """Resume suspended jobs. Needs ``suspend``."""
        self._unsupported("resume", ids)

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        """Stop running jobs and queue them again. Needs ``requeue``."""
        self._unsupported("requeue", ids)

    async def signal(self, ids: Sequence[LrmJobId], signal: int) -> None:
        """Send a signal to running jobs. Needs ``signal``."""
        self._unsupported("signal", (*ids, str(signal)))

    async def modify(self, job: LrmJobId, *, walltime: int) -> None:
        """Change the walltime (seconds) of a job. Needs ``modify``."""
        self._unsupported("modify", (job, str(walltime)))

    async def notify(self, job: LrmJobId, text: str) -> None:
        """Tell the user of a running job something, where the LRM has a way; most have none."""
        self._unsupported("notify", (job, text))

    async def check(self) -> tuple[CheckResult, ...]:
        """Verify commands, versions, libraries and rights without side effects; raises nothing, reports failures."""
        return ()

    async def check_outside(self) -> tuple[CheckResult, ...]:
        """Verify what an outside scheduler needs: ordinary jobs come in held, and we may start and stop everybody's.

        May submit one job that never runs, and cancels it. Raises nothing, reports failures.
        """
        missing = [name for name in ("hold", "pin") if not getattr(self.capabilities, name)]
        found = (
            f"{type(self).__name__} cannot {' or '.join(missing)} jobs" if missing else "jobs can be held and pinned"
        )
        remedy = "schedule another cluster from outside: see the table in `koala docs wiki`"
        return (CheckResult(subject="outside scheduler", ok=not missing, found=found, remedy=remedy),)

    def _unsupported(self, operation: str, _arguments: Sequence[str]) -> NoReturn:
        message = f"{type(self).__name__} cannot {operation}"
        raise LrmUnsupportedError(message, hint="see the table of capabilities in `koala docs plugins`")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginDefinition:
    """Definition of a plugin, the target of an entry point of group ``koala_adapter.plugins``."""

    name: str
    """Same as the entry point's name; the word after ``plugin =`` in a site file."""
    summary: str
    settings: type[BaseModel]
    """pydantic model (``extra="forbid"``) of the ``[clusters.settings]`` table of a site file."""
    capabilities: Capabilities
    factory: Callable[[ClusterContext, Any], Lrm]
    """Makes the LRM of one cluster from its context and its validated settings."""
    identified_by: tuple[str, ...] = ()
    """Settings that together say which batch system it is, so that requests to the same one are counted together.

    Empty: all settings, and the state directory, say so.
    """
    sites: bool = False
    """All that the plugin runs, reads and writes on the side of the batch system goes through the host of its context,
    so that a cluster of it can be at another site (``site =`` in a site file)."""
    discover: Callable[[Surroundings], Discovery] | None = None
    """Returns the batch systems of this kind that this host can reach, for `koala init`; raises nothing.

    Looks at variables and files, and asks a command or two at most; what it returns is tried by the core.
    """
    interface_version: int = INTERFACE_VERSION


_NUMBERS = re.compile(r"[0-9]+", re.ASCII)


def oldest_first(jobs: Iterable[LrmJob]) -> list[LrmJob]:
    """Return jobs as :meth:`Lrm.jobs` has them: those in the queue in its order, behind all others, by age.

    The age of a job is its time of submission, then the numbers in its id.
    """
    listed = list(jobs)
    queued = [job for job in listed if job.state is LrmJobState.QUEUED]
    others = (job for job in listed if job.state is not LrmJobState.QUEUED)
    aged = sorted(others, key=lambda job: (job.submitted_at or 0.0, [int(text) for text in _NUMBERS.findall(job.id)]))
    return [*aged, *queued]


def expressible(capabilities: Capabilities, directives: Directives) -> frozenset[str]:
    """Return the keys of a slot (SLOT_KEYS) that a cluster can express: natively, or as its site file maps them."""
    return capabilities.slots | (frozenset(SLOT_KEYS) & {key for key, _ in directives.map})


# -- Entry points of all installed distributions -------------------------------------------------------------


@cache
def installed_entry_points() -> metadata.EntryPoints:
    """Return the entry points of all plugins, read once for each process, without importing them."""
    # Up to 3.11 it is said to be a mapping, from which can be selected in the same way.
    return cast("metadata.EntryPoints", metadata.entry_points())


# -- Finding installed plugins; refusing those that break the contract ---------------------------------------

ENTRY_POINT_GROUP = "koala_adapter.plugins"


class InstalledPlugins(Mapping[str, PluginDefinition]):
    """Installed plugins by name, each imported when it is looked up: a site pays only for the plugins that it uses.

    Looking one up raises PluginError, naming the distribution at fault, when it cannot be imported or breaks the
    contract. Going through the values looks up all.
    """

    def __init__(self, entry_points: Iterable[metadata.EntryPoint]) -> None:
        """Raise PluginError when two have the same name."""
        self._entry_points: dict[str, metadata.EntryPoint] = {}
        self._definitions: dict[str, PluginDefinition] = {}
        for entry_point in entry_points:
            if entry_point.name in self._entry_points:
                message = f"two plugins are called {entry_point.name!r} (second: {entry_point.value})"
                raise PluginError(message, hint="uninstall one of them")
            self._entry_points[entry_point.name] = entry_point

    def __getitem__(self, name: str) -> PluginDefinition:
        """Return one, imported now if it was not before."""
        if name not in self._definitions:
            self._definitions[name] = _load(self._entry_points[name])
        return self._definitions[name]

    def __contains__(self, name: object) -> bool:
        """Tell whether one is installed, without importing it."""
        return name in self._entry_points

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, without importing anything."""
        return iter(self._entry_points)

    def __len__(self) -> int:
        """Return the number of installed plugins."""
        return len(self._entry_points)


def load_plugins(entry_points: Iterable[metadata.EntryPoint] | None = None) -> Mapping[str, PluginDefinition]:
    """Return all installed plugins by name; each is imported when it is looked up (InstalledPlugins)."""
    installed = installed_entry_points().select(group=ENTRY_POINT_GROUP)
    return InstalledPlugins(installed if entry_points is None else entry_points)


def _load(entry_point: metadata.EntryPoint) -> PluginDefinition:
    where = f"plugin {entry_point.name!r} ({entry_point.value})"
    try:
        definition = entry_point.load()
    except Exception as error:
        message = f"{where} cannot be imported: {type(error).__name__}: {error}"
        raise PluginError(message, hint="reinstall it, or uninstall its distribution") from error
    problem = _contract_problem(entry_point.name, definition)
    if problem:
        message = f"{where} breaks the plugin contract: {problem}"
        raise PluginError(message, hint="see `koala docs plugins`")
    checked: PluginDefinition = definition
    return checked


def _contract_problem(name: str, definition: object) -> str | None:  # noqa: PLR0911 - one return for each clause
    if not isinstance(definition, PluginDefinition):
        return f"expected a PluginDefinition, found {type(definition).__name__}"
    if definition.name != name:
        return f"it calls itself {definition.name!r}"
    if definition.interface_version != INTERFACE_VERSION:
        return f"it is written for interface {definition.interface_version}, this is interface {INTERFACE_VERSION}"
    if not (isinstance(definition.settings, type) and issubclass(definition.settings, BaseModel)):
        return "settings must be a pydantic model class"
    if definition.settings.model_config.get("extra") != "forbid":
        return 'its settings model must have extra="forbid", or a misspelt key would go unnoticed'
    if not callable(definition.factory):
        return "factory must be callable"
    if not (definition.discover is None or callable(definition.discover)):
        return "discover must be callable, or be left out"
    return _capability_problem(definition.capabilities)


def _capability_problem(capabilities: object) -> str | None:
    if not isinstance(capabilities, Capabilities):
        return f"capabilities must be Capabilities, not {type(capabilities).__name__}"
    if capabilities.submit and not capabilities.find_by_name:
        return (
            "it can submit and cannot find its submissions by name (submit without find_by_name): one whose outcome is "
            "unknown would be submitted again"
        )
    return None
