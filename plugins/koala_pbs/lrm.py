# SPDX-License-Identifier: Apache-2.0
"""Plugin ``pbs``: directives of a site, submission, checks, and the LRM of one server.

The LRM runs commands; building and reading most of them is in ``client``, ``jobs``, ``queues`` and ``words``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import (
    ConfigurationError,
    LrmError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
)
from koala_adapter.lrm import NOWHERE, Capabilities, CheckResult, Lrm, RenderedSubmission
from koala_adapter.lrm.commands import child_environment, login_name, only_id, portions
from koala_adapter.lrm.contract import oldest_first
from koala_adapter.lrm.drmaa.choice import Submitter, obstacle_in, one_text
from koala_adapter.lrm.drmaa.libraries import PBS
from koala_adapter.model import LrmJobId, LrmJobState, NodeState
from koala_pbs import client
from koala_pbs.client import ARGUMENTS_PER_COMMAND, Holding, PbsCommands
from koala_pbs.jobs import INDEX_VARIABLE
from koala_pbs.queues import ends_of, largest_array, served, walltime_limit
from koala_pbs.settings import OPENPBS, SET_TORQUE, TORQUE, TORQUE_NAME
from koala_pbs.starting import ByOperator, ByScheduler, PbsOutsideChecks, Starting, TiedNotes
from koala_pbs.torque import packed
from koala_pbs.vnodes import tied
from koala_pbs.words import (
    BEING_DELETED,
    NOT_RERUNNABLE,
    SUBMITTED,
    array_of,
    checked,
    compacted,
    element_ids,
    is_array,
    refuses_array,
    submission_error,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from koala_adapter.lrm import ClusterContext, Submission
    from koala_adapter.lrm.contract import Directives
    from koala_adapter.model import BatchKey, LrmJob, Node, Queue
    from koala_pbs.queues import QueueConfig, ServerConfig
    from koala_pbs.settings import PbsSettings


# -- Directives of a site ------------------------------------------------------------------------------------
# Changes that a site file makes to a submission's options (add, drop, rename). An option is named by its flag (``-r``),
# or by flag and resource (``-l walltime``), as one writes it for qsub.

OURS = frozenset({"-N", "-J", "-v", "-C"})
"""Flags without which a submission could not be recognized again, or its script would be read for directives."""

HARMFUL = frozenset({"-I", "-X", "-z", "-V", "--", "-a"})
"""Flags that make qsub wait, say no id, start no script, start it some day, or export an environment."""

_HARMFUL_ATTRIBUTES = ("block", "interactive", "array_indices")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TWO_WORDS = 2


def arguments(options: Iterable[Sequence[str]], directives: Directives) -> tuple[str, ...]:
    """Return the arguments of a submission after the site's changes: drop, then rename, then add at the end.

    Raises LrmRejectedError, naming the directive, for one that is malformed or would make the submission unusable.
    """
    problem = problem_of(directives)
    if problem:
        raise LrmRejectedError(problem, hint="correct the directives of this cluster in the site file")
    kept = (option for option in options if not any(_is_named(option, name) for name in directives.drop))
    changed = (word for option in kept for word in _renamed(option, directives.rename))
    return (*changed, *(word for text in directives.add for word in shlex.split(text)))


def _is_named(option: Sequence[str], name: str) -> bool:
    flag, *rest = name.split(maxsplit=1)
    return option[0] == flag and (not rest or (len(option) > 1 and option[1].partition("=")[0] == rest[0]))


def _renamed(option: Sequence[str], pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for old, new in pairs:
        if _is_named(option, old):
            flag, *resource = new.split(maxsplit=1)
            value = option[1] if len(option) > 1 else ""
            yield flag
            if resource:
                yield f"{resource[0]}={value.partition('=')[2]}"
            elif value:
                yield value
            return
    yield from option


def problem_of(directives: Directives) -> str:
    """Return what is wrong with a site's directives, as a sentence; empty when nothing is."""
    found = (
        *(_problem_of_added(text) for text in directives.add),
        *(_problem_of_name("drop", text) for text in directives.drop),
        *(_problem_of_rename(old, new) for old, new in directives.rename),
    )
    return next(filter(None, found), "")


def _problem_of_added(text: str) -> str:
    if _CONTROL.search(text):
        return f"directive {text!r} to add contains a line break or another control character"
    try:
        words = shlex.split(text)
    except ValueError as error:
        return f"directive {text!r} to add cannot be read: {error}"
    # A word that belongs to no option would be taken for the name of the script.
    if not words or not re.fullmatch(r"-[A-Za-z].*|--", words[0]):
        return f"directive {text!r} to add is no option"
    if len(words) > _TWO_WORDS or (len(words) == _TWO_WORDS and words[1].startswith("-")):
        return f"directive {text!r} to add is more than one option with one value"
    value = words[1] if len(words) == _TWO_WORDS else words[0][2:]
    if words[0][:2] in OURS | HARMFUL or (words[0][:2] == "-W" and value.startswith(_HARMFUL_ATTRIBUTES)):
        return f"directive {text!r} to add would make the placeholders impossible to follow"
    return ""


def _problem_of_name(verb: str, text: str) -> str:
    if _CONTROL.search(text):
        return f"directive {text!r} to {verb} contains a line break or another control character"
    words = text.split()
    if not words or not re.fullmatch(r"-[A-Za-z]", words[0]) or len(words) > _TWO_WORDS:
        return f"directive {text!r} to {verb} is no option: write a flag such as -r, or flag and resource: -l walltime"
    if words[0] in OURS:
        return f"directive {text!r} to {verb} is one without which the placeholders could not be followed"
    return ""


def _problem_of_rename(old: str, new: str) -> str:
    problem = _problem_of_name("rename", old)
    if problem:
        return problem
    words = new.split()
    if _CONTROL.search(new) or not words or not re.fullmatch(r"-[A-Za-z]", words[0]) or len(words) > _TWO_WORDS:
        return f"new name {new!r} of directive {old!r} is no option's name"
    if words[0] in OURS | HARMFUL:
        return f"new name {new!r} of directive {old!r} would make the placeholders impossible to follow"
    return ""


# -- Submission ----------------------------------------------------------------------------------------------
# The command lines of qsub(1B). Placeholders are elements of an array. One alone is an ordinary job, because PBS can
# hold, release, alter and start an element only with its whole array; so are those that come in held, each to be
# released by itself. It is told its index in the variable that PBS sets for elements. Torque's placeholders are all
# such jobs: it writes the number of an element behind its name, by which it would not be found again, and behind its
# output path, which makes /dev/null-1 of it.

_KEY = re.compile(r"[A-Za-z][A-Za-z0-9._+-]{0,229}", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9][^\s\x00-\x1f\x7f]*")
INDEX_IN_PATH = "^array_index^"
IN_TEMPLATE = frozenset({"-f", "-C", "-N", "-J", "-v", "-j", "-o", "-h"})
"""Flags that a DRMAA job template has attributes for, or that concern qsub itself."""


def pieces(submission: Submission, largest: int) -> tuple[range, ...]:
    """Return the indices of the placeholders that go together in one request.

    ``largest``: array that is taken. Usually all go in one; where they do not, each piece is a request.
    """
    size = 1 if submission.held else max(1, largest)
    numbers = range(1, submission.count + 1)
    return tuple(numbers[start : start + size] for start in range(0, submission.count, size))


def qsub_command(
    submission: Submission, settings: PbsSettings, directives: Directives, piece: range
) -> tuple[str, ...]:
    """Return the command line that submits some placeholders. Raises LrmRejectedError when it cannot be expressed."""
    _require(submission)
    return ("qsub", *arguments(_options(submission, settings, piece), directives))


def obstacle_to_drmaa(settings: PbsSettings, directives: Directives) -> str:
    """Return why submissions of a cluster cannot go through pbs-drmaa; empty when they can."""
    if settings.project is not None:
        return "project cannot be had through DRMAA"
    return obstacle_in(word for text in directives.add for word in shlex.split(text))


def native_specification(submission: Submission, settings: PbsSettings, directives: Directives) -> str:
    """Return what pbs-drmaa is asked for beside what a job template says of every system. Raises LrmRejectedError."""
    _require(submission)
    options = _options(submission, settings, range(1, 2))
    return one_text(arguments((option for option in options if option[0] not in IN_TEMPLATE), directives))


def _options(submission: Submission, settings: PbsSettings, piece: range) -> Iterator[tuple[str, ...]]:
    torque = settings.dialect == TORQUE_NAME
    if not torque:
        # Without it qsub leaves a process behind that sends later submissions with the environment of this one.
        yield ("-f",)
    # Lines that look like directives are obeyed otherwise, wherever they stand in the script.
    yield ("-C", "")
    yield ("-N", submission.key)
    if len(piece) > 1:
        yield ("-J", f"{piece[0]}-{piece[-1]}")
        index = INDEX_IN_PATH
    else:
        yield ("-v", f"{INDEX_VARIABLE}={piece[0]}")
        index = str(piece[0])
    if torque:
        yield ("-l", "nodes=1:ppn=1")
        if submission.memory_mib is not None:
            yield ("-l", f"mem={submission.memory_mib}mb")
    else:
        memory = "" if submission.memory_mib is None else f":mem={submission.memory_mib}mb"
        yield ("-l", f"select=1:ncpus=1{memory}")
    yield ("-l", f"walltime={submission.walltime}")
    # A placeholder that starts twice would dial in with a token that has been used. An array must be rerunnable.
    if len(piece) == 1:
        yield ("-r", "n")
    # Not the user's login shell, whatever language that speaks.
    yield ("-S", "/bin/sh")
    yield ("-j", "oe")
    yield ("-o", submission.output_pattern(index))
    yield ("-m", "n")
    if submission.queue is not None:
        yield ("-q", submission.queue)
    if submission.held:
        yield ("-h",)
    if settings.account is not None:
        yield ("-A", settings.account)
    if settings.project is not None:
        yield ("-P", settings.project)


def _require(submission: Submission) -> None:
    demands = (
        (_KEY.fullmatch(submission.key), f"key {submission.key!r} is no usable job name"),
        (submission.count >= 1, f"{submission.count} placeholders are none"),
        (submission.walltime >= 1, f"walltime of {submission.walltime} s is none"),
        (submission.memory_mib is None or submission.memory_mib >= 1, f"memory of {submission.memory_mib} MiB is none"),
        (submission.queue is None or _WORD.fullmatch(submission.queue), f"{submission.queue!r} is no queue"),
        (_is_path(submission.output_directory or NOWHERE), f"{submission.output_directory!r} is no path for PBS"),
        (submission.script.startswith("#!"), "the script does not begin with #!"),
        ("\0" not in submission.script, "the script contains a NUL character"),
    )
    for met, problem in demands:
        if not met:
            raise LrmRejectedError(f"PBS cannot take this submission: {problem}")


def _is_path(text: str) -> bool:
    # What stands before a colon is a host for qsub, and ^ begins its own words.
    return text.startswith("/") and text.isprintable() and not set(":^,") & set(text)


# -- Checks --------------------------------------------------------------------------------------------------
# ``koala check`` of a PBS server: what is there, what answers, and what is set so that koala cannot work well.

PROGRAMS = ("qsub", "qstat", "pbsnodes", "qdel", "qhold", "qrls", "qalter", "qsig")
OPERATORS_PROGRAMS = ("qrun", "qrerun")

OLDEST_RELEASE = (18,)
"""qstat of older releases prints no JSON."""


@dataclass(slots=True, kw_only=True)
class Checks:
    """One run of all checks; each that fails says what to do. Without a server the rest is left out."""

    commands: PbsCommands
    settings: PbsSettings
    unanswered: LrmUnavailableError | None = None
    """How the server failed to answer a moment ago: to ask once more would take as long."""
    _config: ServerConfig | None = None

    async def run(self) -> tuple[CheckResult, ...]:
        """Return one result for each subject, in the order in which a person would look."""
        steps: tuple[tuple[str, Callable[[], Awaitable[CheckResult]], str], ...] = (
            ("commands", self._programs, "install the PBS client commands, or give bin_directory"),
            ("version", self._version, f"give bin_directory, that of qstat of this server; {SET_TORQUE}"),
            ("server", self._server, f"start pbs_server, or give {self._chooser}, which chooses this server"),
            ("vnodes", self._vnodes, "ask the site for vnodes that jobs may use"),
            ("queues", self._queues, "ask the site which queues you may use"),
            ("jobs", self._jobs, "report it with what qstat -t -f -F json prints"),
            ("history", self._history, "qmgr -c 'set server job_history_enable=True'"),
        )
        results: list[CheckResult] = []
        for subject, step, remedy in steps:
            try:
                results.append(await step())
            except LrmError as error:
                results.append(_bad(subject, error.message, error.hint or remedy))
            # Each further question would wait for the server until its time-out.
            if subject == "server" and not results[-1].ok:
                break
        return tuple(results)

    @property
    def _chooser(self) -> str:
        return "conf, the path of a pbs.conf" if self.commands.dialect is OPENPBS else "server, its host"

    async def _programs(self) -> CheckResult:
        directory = str(self.settings.bin_directory) if self.settings.bin_directory else child_environment()["PATH"]
        wanted = (*PROGRAMS, *(OPERATORS_PROGRAMS if self.settings.operator else ()))
        places = {program: shutil.which(program, path=directory) for program in wanted}
        missing = [program for program, place in places.items() if place is None]
        if missing:
            remedy = "install the PBS client commands, or give bin_directory (PBS_EXEC/bin)"
            return _bad("commands", f"no {', '.join(missing)} in {directory}", remedy)
        found = sorted({os.path.dirname(place) for place in places.values() if place})  # noqa: PTH120 - plain text
        return _good("commands", f"{', '.join(wanted)} in {', '.join(found)}")

    async def _version(self) -> CheckResult:
        if self.unanswered is not None and self.commands.dialect is TORQUE:  # the server says its version
            raise self.unanswered
        version = await self.commands.release()
        numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
        if self.commands.dialect is OPENPBS and numbers and numbers < OLDEST_RELEASE:
            return _bad("version", version, f"PBS 18 or later is needed: older ones print no JSON; {SET_TORQUE}")
        return _good("version", version if self.commands.dialect is OPENPBS else f"Torque {version}")

    async def _server(self) -> CheckResult:
        if self.unanswered is not None:
            raise self.unanswered
        config = self._config = await self.commands.server()
        if not config.scheduling and not self.settings.operator:
            found = f"{config.name} answers, and its scheduling is off: nothing starts"
            return _bad("server", found, "qmgr -c 'set server scheduling=True', or wait for the site")
        others = "" if config.lists_others else "; it shows us our own jobs only (query_other_jobs)"
        return _good("server", f"{config.name} of release {config.version}{others}")

    async def _vnodes(self) -> CheckResult:
        nodes = await self.commands.nodes()
        processors = sum(node.processors for node in nodes)
        idle = sum(node.processors_idle for node in nodes)
        up = sum(node.state is NodeState.UP for node in nodes)
        if not up:
            return _bad("vnodes", f"none of {len(nodes)} is up", "see pbsnodes -avS, and the MoM's log on a node")
        return _good("vnodes", f"{up} of {len(nodes)} up, {processors} processors, {idle} idle")

    async def _queues(self) -> CheckResult:
        queues = await self.commands.queues(home=self._config.name if self._config is not None else "")
        if not any(queue.up for queue in queues):
            return _bad("queues", "none is enabled and started", "wait until the site opens one")
        by_name = {queue.name: queue for queue in queues}
        return _good("queues", "; ".join(self._described(queue, by_name) for queue in queues))

    def _described(self, queue: QueueConfig, queues: Mapping[str, QueueConfig]) -> str:
        longest = walltime_limit(queue, queues)
        limit = f"{longest // 60} min" if longest else "no walltime limit"
        largest = largest_array(self._config, queues, queue.name)
        arrays = f"arrays of at most {largest}" if largest > 1 else "no arrays"
        default = ("default",) if self._config is not None and queue.name == self._config.default_queue else ()
        words = (
            *(() if queue.executes else (f"routing to {', '.join(queue.destinations) or 'nowhere'}",)),
            limit,
            arrays,
            *default,
        )
        return f"{queue.name} {'up' if queue.up else 'down'} ({', '.join(words)})"

    async def _jobs(self) -> CheckResult:
        jobs = await self.commands.jobs()
        return _good("jobs", f"{len(jobs)} listed")

    async def _history(self) -> CheckResult:
        if self.commands.dialect is TORQUE:
            return _good("history", "none; ended jobs stay listed for keep_completed seconds of server or queue")
        kept = self._config is not None and self._config.history
        found = "ended jobs can be asked for" if kept else "none kept; how jobs ended is not known afterwards"
        return _good("history", found)


def _good(subject: str, found: str) -> CheckResult:
    return CheckResult(subject=subject, ok=True, found=found)


def _bad(subject: str, found: str, remedy: str) -> CheckResult:
    return CheckResult(subject=subject, ok=False, found=found, remedy=remedy)


# -- The LRM -------------------------------------------------------------------------------------------------

CAPABILITIES = Capabilities(hold=True, pin=True, suspend=True, requeue=True, signal=True, modify=True, accounting=True)
"""What PBS can do. For who is no operator, and where the server keeps no history, :class:`PbsLrm` says less."""

BE_OPERATOR = "set operator = true where koala is an operator of PBS"
LARGEST_HISTORY_REQUEST = 20
"""Jobs asked for in one history request: each is a command."""


def make_lrm(context: ClusterContext, settings: PbsSettings) -> PbsLrm:
    """Return the LRM of one cluster. Raises ConfigurationError for directives of the site that cannot be used."""
    problem = problem_of(context.directives)
    if problem:
        raise ConfigurationError(f"cluster {context.cluster}: {problem}", hint="correct it in the site file")
    return PbsLrm(context, settings)


class PbsLrm(Lrm):
    """One PBS server."""

    hook_removal = "qmgr -c 'delete hook koala_hold'"
    array_index_variable = INDEX_VARIABLE
    job_id_variable = "PBS_JOBID"
    requests_per_poll = 2

    def __init__(self, context: ClusterContext, settings: PbsSettings) -> None:
        """Nothing is run yet; see :meth:`start`."""
        self._context = context
        self._settings = settings
        self._user = context.user or login_name()
        self._commands = PbsCommands(context.commands, settings)
        self._server: ServerConfig | None = None
        self._queues: Mapping[str, QueueConfig] = {}
        self._holding = Holding(self._commands, operator=settings.operator)
        self._sizes: dict[str, int] = {}
        self._suspended: frozenset[LrmJobId] = frozenset()
        self._unanswered: LrmUnavailableError | None = None
        self._without_arrays: set[str | None] = set()
        self._starting: Starting = (
            ByOperator(self._commands)
            if settings.operator
            else ByScheduler(self._commands, TiedNotes(context.state_directory / "tied"))
        )
        self._submitter = Submitter(
            settings,
            context,
            expected=PBS,
            variables=settings.variables(),
            timeout=settings.command_timeout,
            obstacle=obstacle_to_drmaa(settings, context.directives),
        )
        self.capabilities = self._capabilities()

    def _capabilities(self) -> Capabilities:
        operator, server = self._settings.operator, self._server
        return replace(
            CAPABILITIES,
            # Torque has no chunks that could be tied to vnodes.
            pin=operator or self._commands.dialect is OPENPBS,
            pin_elements=operator,
            suspend=operator,
            requeue=operator,
            accounting=server is not None and server.history,
            lists_others=server is None or server.lists_others or operator,
        )

    async def start(self) -> None:
        """Ask the server once what it can do. Raises LrmError when it does not answer."""
        self._unanswered = None
        try:
            await self._learn()
        except LrmUnavailableError as error:
            self._unanswered = error
            raise
        # Not before the server has answered: pbs-drmaa aborts without it.
        await self._submitter.start()

    async def close(self) -> None:
        """End the DRMAA helper, where there is one."""
        await self._submitter.close()

    async def _learn(self) -> None:
        self._server = await self._commands.server()
        queues = await self._commands.queues(home=self._server.name)
        self._queues = {queue.name: queue for queue in queues}
        self.capabilities = self._capabilities()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def version(self) -> str:
        """Return ``pbs`` or ``torque`` and the version of the commands, such as ``pbs 23.06.06``."""
        name = "torque" if self._commands.dialect is TORQUE else "pbs"
        return f"{name} {await self._commands.release()}"

    async def nodes(self) -> tuple[Node, ...]:
        """Return the vnodes that have processors."""
        chunk = {} if self._server is None else self._server.default_chunk
        ties = {queue.name: queue.tie.with_defaults(chunk) for queue in self._queues.values() if queue.executes}
        default = self._queues.get(self._server.default_queue) if self._server is not None else None
        ends = ends_of(default, self._queues) if default is not None else ()
        nodes = await self._commands.nodes(queues=tuple(ties))
        return tied(nodes, self._commands.vnodes, ties, default=[queue.name for queue in ends])

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return the jobs of all users from one listing; elements stay in it until their whole array has ended."""
        jobs = self._starting.as_asked(await self._commands.jobs())
        self._suspended = frozenset(job.id for job in jobs if job.state is LrmJobState.SUSPENDED)
        self._submitter.sweep({job.name for job in jobs if job.state is not LrmJobState.ENDED})
        return tuple(oldest_first(job for job in jobs if job.name.startswith(name_prefix)))

    async def queues(self) -> tuple[Queue, ...]:
        """Return the queues, routing queues among them."""
        await self._learn()
        nodes = await self.nodes()
        default = self._server.default_queue if self._server is not None else ""
        return served(self._queues, nodes, default=default)

    async def history(self, ids: Sequence[LrmJobId]) -> tuple[LrmJob, ...]:
        """Return the ends of jobs that the server still knows (job_history_duration)."""
        if not self.capabilities.accounting:
            self._unsupported("history", ids)
        found: list[LrmJob] = []
        for job in list(dict.fromkeys(map(array_of, ids)))[:LARGEST_HISTORY_REQUEST]:
            try:
                found += await self._commands.ended(job)
            except LrmNotFoundError:
                continue
        wanted = set(ids)
        return tuple(job for job in found if job.id in wanted and job.state is LrmJobState.ENDED)

    # -- submitting --------------------------------------------------------------------------------------------------

    def render(self, submission: Submission) -> RenderedSubmission:
        """Return the command line and the script that qsub gets on stdin, or the DRMAA call; of several the first."""
        parts = self._pieces(submission)
        note = "the script goes to qsub on its standard input"
        if len(parts) > 1:
            note = f"the first of {len(parts)} requests; {note}"
        shown = RenderedSubmission(
            command=self._qsub(submission, parts[0] if parts else range(1, 1)),
            script=self._script(submission),
            environment=tuple(self._commands.environment.items()),
            note=note,
        )
        if (drmaa := self._submitter.drmaa) is None:
            return shown
        return drmaa.render(submission, self._native(submission), index_variable=INDEX_VARIABLE, equivalent=shown)

    def _script(self, submission: Submission) -> str:
        return packed(submission.script) if self._commands.dialect is TORQUE else submission.script

    def _pieces(self, submission: Submission) -> tuple[range, ...]:
        if self._commands.dialect is TORQUE or submission.queue in self._without_arrays:
            return pieces(submission, 1)
        limit = largest_array(self._server, self._queues, submission.queue)
        return pieces(submission, min(limit, self._settings.max_array_size or limit))

    def _qsub(self, submission: Submission, piece: range) -> tuple[str, ...]:
        return self._commands.argv(qsub_command(submission, self._settings, self._context.directives, piece))

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit an array of ``count`` elements with one qsub, where the queue takes it, else with several.

        When one of several is refused, those before it are cancelled. A queue that says only by its refusal that it
        takes no such arrays, because it passes jobs on to another, gets single jobs from then on. Through DRMAA each
        placeholder is a job of its own, because pbs-drmaa tells the elements of a bulk no index.
        """
        await self._submitter.settle()
        if (drmaa := self._submitter.drmaa) is not None:
            return await drmaa.submit(submission, self._native(submission), index_variable=INDEX_VARIABLE)
        parts = self._pieces(submission)
        try:
            return await self._submit_pieces(submission, parts)
        except LrmRejectedError as error:
            if not refuses_array(error.message) or not any(len(piece) > 1 for piece in parts):
                raise
        # A refusal of single jobs, too, says that something else is wrong, such as too long a walltime.
        ids = await self._submit_pieces(submission, pieces(submission, 1))
        self._without_arrays.add(submission.queue)
        return ids

    async def _submit_pieces(self, submission: Submission, parts: Sequence[range]) -> tuple[LrmJobId, ...]:
        commands = [(piece, self._qsub(submission, piece)) for piece in parts]
        if not commands:
            self._qsub(submission, range(1, 1))
        ids: list[LrmJobId] = []
        for piece, command in commands:
            try:
                ids += await self._submit(submission, command, piece)
            except LrmRejectedError:
                with anyio.CancelScope(shield=True):
                    await self.cancel(ids)
                raise
        return tuple(ids)

    @property
    def submission_way(self) -> str:
        """How placeholders are submitted, and why."""
        return str(self._submitter.choice)

    @property
    def submission_obstacle(self) -> str:
        """What is wrong with the DRMAA library on which the site insists."""
        return self._submitter.obstacle

    async def look_for_obstacle(self) -> None:
        """Try that library again."""
        await self._submitter.look_for_obstacle()

    def _native(self, submission: Submission) -> tuple[str, ...]:
        return (native_specification(submission, self._settings, self._context.directives),)

    def forget(self, key: BatchKey) -> None:
        """Delete the script that DRMAA needed: nobody will read it any more."""
        self._submitter.forget(key)

    async def _submit(self, submission: Submission, command: Sequence[str], piece: range) -> tuple[LrmJobId, ...]:
        result = await self._commands.run(command, stdin=self._script(submission).encode())
        if result.returncode and not SUBMITTED.search(result.text):
            raise submission_error(result)
        job = only_id(result.text, SUBMITTED)
        if not is_array(job):
            return (LrmJobId(job),)
        self._sizes[job] = len(piece)
        return element_ids(job, piece)

    # -- control -----------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Delete jobs, one request for each job and each range of elements. Running ones take up to kill_delay."""
        error: LrmError | None = None
        await self._continue(ids)
        ranges = self._commands.dialect is OPENPBS
        for argument in compacted(ids, whole=self._whole(ids)) if ranges else self._checked(ids):
            try:
                await self._commands.cancel(client.cancel(argument), gone=BEING_DELETED)
            except LrmError as refused:
                # No answer is worse than a refusal: after it nothing is known.
                error = refused if error is None or isinstance(refused, LrmUnavailableError) else error
        if error is not None:
            raise error

    async def _continue(self, ids: Iterable[LrmJobId]) -> None:
        """Resume those of these jobs that are suspended: when one is deleted PBS leaves it so for twice kill_delay."""
        suspended = [job for job in ids if job in self._suspended]
        if self._settings.operator and suspended:
            with contextlib.suppress(LrmError):
                await self._commands.change(client.signal(self._checked(suspended), "resume"), action="resume")

    def _whole(self, ids: Iterable[LrmJobId]) -> list[str]:
        """Return the arrays of ours of which all elements are named."""
        counts: dict[str, int] = {}
        for job in set(ids):
            counts[array_of(job)] = counts.get(array_of(job), 0) + 1
        return [array for array, count in counts.items() if self._sizes.get(array) == count]

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        """Put jobs in user hold, or in an operator's if that is what we are; arrays as a whole only."""
        await self._holding.hold(ids)

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        """Release held jobs; arrays as a whole only."""
        await self._holding.release(ids)

    async def held_by_hook(self) -> tuple[LrmJob, ...]:
        """Return the jobs that have an operator's hold."""
        return await self._commands.held_by_operator()

    async def give_back(self, ids: Sequence[LrmJobId]) -> None:
        """Take the operator's hold from jobs, and leave their users'; from arrays as a whole."""
        await self._holding.give_back(ids)

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """Suspend running jobs; needs operator rights."""
        await self._operate("suspend", ids, client.signal(self._checked(ids), "suspend"))

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """Resume suspended jobs; needs operator rights, and that PBS's scheduler is at work."""
        await self._operate("resume", ids, client.signal(self._checked(ids), "resume"))

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        """Stop running jobs and queue them again, also those of ours that were submitted to run once only."""
        try:
            await self._operate("requeue", ids, client.requeue(self._checked(ids)))
        except LrmRejectedError as error:
            if NOT_RERUNNABLE not in error.message.lower():
                raise
            await self._operate("requeue", ids, client.make_rerunnable(self._checked(ids)))
            await self._operate("requeue", ids, client.requeue(self._checked(ids)))

    async def _operate(self, operation: str, ids: Sequence[LrmJobId], command: Sequence[str]) -> None:
        if not self._settings.operator:
            message = f"PBS lets only its operators {operation} jobs ({', '.join(ids)})"
            raise LrmUnsupportedError(message, hint=BE_OPERATOR)
        if ids:
            await self._commands.change(command, action=operation)

    def _checked(self, ids: Iterable[LrmJobId]) -> list[str]:
        return [checked(job) for job in ids]

    async def signal(self, ids: Sequence[LrmJobId], signal: int) -> None:
        """Send a signal to all processes of running jobs."""
        for part in portions(self._checked(ids), ARGUMENTS_PER_COMMAND):
            await self._commands.change(client.signal(part, str(int(signal))), action="signal")

    async def modify(self, job: LrmJobId, *, walltime: int) -> None:
        """Change the walltime of a job, not of an element; only operators make that of a running job longer."""
        await self._commands.change(client.set_walltime(job, walltime), action="modify")

    async def notify(self, job: LrmJobId, text: str) -> None:
        """Write a line to the job's standard error (qmsg). Torque's qmsg may never return, and is not used."""
        if self._commands.dialect is TORQUE:
            raise LrmUnsupportedError("Torque's qmsg may never return", hint="write to the job's user instead")
        await self._commands.change(client.notify(job, text), action="notify")

    async def start_on(self, job: LrmJobId, nodes: Sequence[str]) -> None:
        """Have a held job start on vnodes, with one entry for each of its processors: see koala_pbs.starting."""
        if not self.capabilities.pin:
            message = f"Torque lets only its operators start jobs on chosen nodes ({job})"
            raise LrmUnsupportedError(message, hint=BE_OPERATOR)
        await self._starting.start_on(checked(job), nodes)

    async def confirm_start(self, job: LrmJobId) -> None:
        """Have a job that runs come back in hold."""
        await self._starting.confirm(checked(job))

    async def undo_start(self, job: LrmJobId) -> None:
        """Hold a job that waits after it was started, and untie it."""
        await self._starting.undo_start(checked(job))

    # -- checking ----------------------------------------------------------------------------------------------------

    async def check(self) -> tuple[CheckResult, ...]:
        """Verify commands, version, server, scheduler, vnodes, queues and history."""
        checks = Checks(commands=self._commands, settings=self._settings, unanswered=self._unanswered)
        found = await checks.run()
        return found if self._unanswered is not None else (*found, *await self._submitter.check())

    async def check_outside(self) -> tuple[CheckResult, ...]:
        """Verify with a job for next week that the site's hook holds jobs, and that we may start them."""
        return await PbsOutsideChecks(self._commands, self._settings, user=self._user, uid=os.geteuid()).run()
