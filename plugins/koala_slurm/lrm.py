# SPDX-License-Identifier: Apache-2.0
"""Plugin ``slurm``: directives of a site, submission, checks, and the LRM of one cluster.

The LRM runs commands; building and reading most of them is in ``listing``, ``client``, ``limits`` and ``words``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import structlog

from koala_adapter.errors import (
    ConfigurationError,
    LrmError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
)
from koala_adapter.lrm import NOWHERE, Capabilities, CheckResult, Lrm, RenderedSubmission, Submission
from koala_adapter.lrm.commands import EXPORTED, child_environment, login_name, portions
from koala_adapter.lrm.drmaa.choice import Submitter, obstacle_in, one_text
from koala_adapter.lrm.drmaa.libraries import SLURM
from koala_adapter.model import BatchKey, LrmJobId, LrmJobState
from koala_slurm import client, releases
from koala_slurm.client import LISTING_REQUESTS, CommandReader, SlurmCommands
from koala_slurm.library import LibraryAccess
from koala_slurm.listing import (
    ADDRESS_COMMAND,
    CONFIG_COMMAND,
    PARTITION_COMMAND,
    VERSION_COMMAND,
    ControllerConfig,
    all_here,
    parse_config,
    parse_history,
    parse_partitions,
    parse_version,
    release_number,
    sacct_command,
    without_default_memory,
)
from koala_slurm.outside import OutsideReader, SlurmOutsideChecks
from koala_slurm.starting import CoreReservation, Reserved, Starting, StartNotes, hold_verb, make_pin
from koala_slurm.words import (
    ARGUMENTS_PER_COMMAND,
    TIME_FORMAT,
    array_ids,
    checked,
    compacted,
    minutes,
    parse_job_id,
    submission_error,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.lrm import ClusterContext
    from koala_adapter.lrm.contract import Directives
    from koala_adapter.model import LrmJob, Node, Queue
    from koala_slurm.settings import SlurmSettings

log = structlog.get_logger()


# -- Directives of a site ------------------------------------------------------------------------------------
# A submission's options, and the changes that a site file makes to them (add, drop, rename).

SHORT_NAMES: Mapping[str, str] = {
    "-A": "--account",
    "-a": "--array",
    "-c": "--cpus-per-task",
    "-D": "--chdir",
    "-H": "--hold",
    "-J": "--job-name",
    "-M": "--clusters",
    "-n": "--ntasks",
    "-o": "--output",
    "-p": "--partition",
    "-q": "--qos",
    "-t": "--time",
    "-W": "--wait",
}

OURS = frozenset({"--parsable", "--job-name", "--array"})
"""Options without which a submission could not be recognized again."""

HARMFUL = frozenset({"--clusters", "--test-only", "--wait", "--wrap"})
"""Options that would send the job elsewhere, nowhere, or make sbatch wait for its end."""


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a command line; ``value`` None for a flag."""

    name: str
    value: str | None = None

    def argument(self) -> str:
        """Return the option as one argument."""
        return self.name if self.value is None else f"{self.name}={self.value}"


def long_name(text: str) -> str:
    """Return the long name in an option as written in a site file (``-p``, ``--time=5`` ...)."""
    name = text.strip().partition("=")[0].split(maxsplit=1)[0] if text.strip() else ""
    if name.startswith("-") and not name.startswith("--"):
        return SHORT_NAMES.get(name[:2], name[:2])
    return name


def arguments(options: Iterable[Option], directives: Directives) -> tuple[str, ...]:
    """Return the arguments of a submission after the site's changes: drop, then rename, then add at the end.

    Raises LrmRejectedError, naming the directive, for one that is malformed or would make the submission unusable.
    """
    problem = problem_of(directives)
    if problem:
        raise LrmRejectedError(problem, hint="correct the directives of this cluster in the site file")
    dropped = {long_name(name) for name in directives.drop}
    renamed = {long_name(old): new.strip() for old, new in directives.rename}
    kept = (option for option in options if option.name not in dropped)
    changed = (replace(option, name=renamed.get(option.name, option.name)) for option in kept)
    return (*(word for option in changed for word in _written(option)), *_added(directives))


def _written(option: Option) -> tuple[str, ...]:
    if option.name.startswith("--") or option.value is None:
        return (option.argument(),)
    return (option.name, option.value)


def _added(directives: Directives) -> Iterator[str]:
    for text in directives.add:
        yield from shlex.split(text)


def problem_of(directives: Directives) -> str:
    """Return what is wrong with a site's directives, as a sentence; empty when nothing is."""
    found = (
        *(_problem_of_added(text) for text in directives.add),
        *(_problem_of_name("drop", text) for text in directives.drop),
        *(_problem_of_rename(old, new) for old, new in directives.rename),
    )
    return next(filter(None, found), "")


def _problem_of_added(text: str) -> str:
    if _has_controls(text):
        return f"directive {text!r} to add contains a line break or another control character"
    try:
        words = shlex.split(text)
    except ValueError as error:
        return f"directive {text!r} to add cannot be read: {error}"
    # A word that belongs to no option would be taken for the name of the script.
    if not words or not words[0].startswith("-") or words[0] in {"-", "--"}:
        return f"directive {text!r} to add is no option"
    option, *values = words
    if values and (len(values) > 1 or "=" in option or values[0].startswith("-")):
        return f"directive {text!r} to add is more than one option with one value"
    if long_name(option) in OURS | HARMFUL:
        return f"directive {text!r} to add would make the placeholders impossible to follow"
    return ""


def _problem_of_name(verb: str, text: str) -> str:
    if _has_controls(text):
        return f"directive {text!r} to {verb} contains a line break or another control character"
    if not text.strip().startswith("-"):
        return f"directive {text!r} to {verb} is no option"
    if long_name(text) in OURS:
        return f"directive {text!r} to {verb} is one without which the placeholders could not be followed"
    return ""


def _problem_of_rename(old: str, new: str) -> str:
    problem = _problem_of_name("rename", old)
    if problem:
        return problem
    if _has_controls(new) or not new.strip().startswith("-") or len(new.split()) != 1 or "=" in new:
        return f"new name {new!r} of directive {old!r} is no option's name"
    if long_name(new) in OURS | HARMFUL:
        return f"new name {new!r} of directive {old!r} would make the placeholders impossible to follow"
    return ""


def _has_controls(text: str) -> bool:
    return _CONTROL.search(text) is not None


# -- Submission ----------------------------------------------------------------------------------------------
# The command line of sbatch(1). The script goes in on stdin: it contains a secret, which must not show in a command
# line or a file.

IN_TEMPLATE = frozenset(
    {
        "--parsable",
        "--ignore-pbs",
        "--job-name",
        "--array",
        "--chdir",
        "--output",
        "--open-mode",
        "--export",
        "--hold",
    }
)
"""Options that a DRMAA job template has attributes for, or that concern sbatch itself."""

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@:-]{0,199}", re.ASCII)
_WORD = re.compile(r"[^\s\x00-\x1f\x7f-]\S*")


def sbatch_command(submission: Submission, settings: SlurmSettings, directives: Directives) -> tuple[str, ...]:
    """Return the command line of a submission. Raises LrmRejectedError when it cannot be expressed."""
    _require(submission)
    return ("sbatch", *arguments(_options(submission, settings), directives))


def native_specification(submission: Submission, settings: SlurmSettings, directives: Directives) -> str:
    """Return what slurm-drmaa is asked for beside what a job template says of every system.

    It knows fewer options than sbatch, hours and minutes, and memory in MiB alone. Raises LrmRejectedError.
    """
    _require(submission)
    options = (option for option in _options(submission, settings) if option.name not in IN_TEMPLATE)
    return one_text(arguments((_as_drmaa_takes(option) for option in options), directives))


def obstacle_to_drmaa(settings: SlurmSettings, directives: Directives) -> str:
    """Return why submissions of a cluster cannot go through slurm-drmaa; empty when they can."""
    if settings.environment != "built":
        return f"environment = {settings.environment!r} cannot be had through DRMAA"
    return obstacle_in(word for text in directives.add for word in shlex.split(text))


def _as_drmaa_takes(option: Option) -> Option:
    if option.name == "--time":
        return Option(name=option.name, value=f"0:{option.value}")
    if option.name == "--mem":
        return Option(name=option.name, value=(option.value or "").removesuffix("M"))
    return option


def dry_run_command(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the same command line for sbatch --test-only, which asks the controller and submits nothing."""
    return (command[0], "--test-only", *command[1:])


def _options(submission: Submission, settings: SlurmSettings) -> Iterator[Option]:
    yield Option(name="--parsable")
    # sbatch obeys lines that look like directives of PBS or LSF, wherever they stand in the script.
    yield Option(name="--ignore-pbs")
    yield Option(name="--job-name", value=submission.key)
    yield Option(name="--array", value=f"1-{submission.count}")
    yield Option(name="--ntasks", value="1")
    yield Option(name="--cpus-per-task", value="1")
    yield Option(name="--time", value=str(minutes(submission.walltime)))
    # A requeued placeholder would dial in with a token that has been used.
    yield Option(name="--no-requeue")
    # Our own directory may not exist on the nodes.
    yield Option(name="--chdir", value="/")
    yield Option(name="--output", value=_output(submission))
    # The directory may be everybody's: truncating would destroy a file that somebody else has put in the way.
    yield Option(name="--open-mode", value="append")
    # Anything but ALL makes slurmd run the user's login shell on the node and wait for it, NIL too before 23.11. The
    # environment of sbatch is built by us, so ALL exports nothing that is not meant to be.
    yield Option(name="--export", value="ALL" if settings.environment == "built" else "NONE")
    if submission.queue is not None:
        yield Option(name="--partition", value=submission.queue)
    if submission.memory_mib is not None:
        yield Option(name="--mem", value=f"{submission.memory_mib}M")
    if submission.held:
        yield Option(name="--hold")
    for name in ("account", "qos", "reservation"):
        value = getattr(settings, name)
        if value is not None:
            yield Option(name=f"--{name}", value=value)


def _output(submission: Submission) -> str:
    directory = submission.output_directory
    return NOWHERE if directory is None else f"{directory.rstrip('/').replace('%', '%%')}/%x.%a.out"


def _require(submission: Submission) -> None:
    demands = (
        (_KEY.fullmatch(submission.key), f"key {submission.key!r} is no usable job name"),
        (submission.count >= 1, f"{submission.count} placeholders are none"),
        (submission.walltime >= 1, f"walltime of {submission.walltime} s is none"),
        (submission.memory_mib is None or submission.memory_mib >= 1, f"memory of {submission.memory_mib} MiB is none"),
        (submission.queue is None or _WORD.fullmatch(submission.queue), f"{submission.queue!r} is no partition"),
        (_is_path(submission.output_directory or "/"), f"{submission.output_directory!r} is no absolute path"),
        (submission.script.startswith("#!"), "the script does not begin with #!"),
        ("\0" not in submission.script, "the script contains a NUL character"),
    )
    for met, problem in demands:
        if not met:
            raise LrmRejectedError(f"Slurm cannot take this submission: {problem}")


def _is_path(text: str) -> bool:
    return text.startswith("/") and text.isprintable()


# -- Checks --------------------------------------------------------------------------------------------------
# ``koala check`` of a Slurm cluster: what is there, what answers, and whether a submission would be taken.

PROGRAMS = ("sbatch", "squeue", "sinfo", "scontrol", "scancel")

_GIVEN = re.compile(r"using ([0-9]+) processors", re.ASCII)
"""What ``sbatch --test-only`` says of what a job would get."""

_TRIAL = Submission(key=BatchKey("koala-check"), count=1, script="#!/bin/sh\nexit 0\n", walltime=60)


@dataclass(slots=True, kw_only=True)
class Checks:
    """One run of all checks; each that fails says what to do. Without a controller the rest is left out."""

    commands: SlurmCommands
    settings: SlurmSettings
    directives: Directives
    unanswered: LrmUnavailableError | None = None
    """How the controller failed to answer a moment ago: to ask once more would take as long."""
    _partition: str | None = None
    _config: ControllerConfig | None = None

    async def run(self) -> tuple[CheckResult, ...]:
        """Return one result for each subject, in the order in which a person would look."""
        steps: tuple[tuple[str, Callable[[], Awaitable[CheckResult]], str], ...] = (
            ("commands", self._programs, "install slurm-client, or give bin_directory"),
            ("version", self._version, "give conf, the path of this cluster's slurm.conf"),
            ("controller", self._controller, "start slurmctld, or give conf, the path of this cluster's slurm.conf"),
            ("partitions", self._partitions, "ask the site which partitions you may use"),
            ("memory", self._memory, "ask the site how much memory jobs get by default"),
            ("submission", self._submission, "correct the settings and directives of this cluster in the site file"),
            ("accounting", self._accounting, "tell the site that sacct does not work"),
        )
        results: list[CheckResult] = []
        for subject, step, remedy in steps:
            results.append(await _guarded(subject, step, remedy))
            # Each further question would wait for the controller until its time-out.
            if subject == "controller" and not results[-1].ok:
                return tuple(results)
        return tuple(results)

    async def _programs(self) -> CheckResult:
        directory = str(self.settings.bin_directory) if self.settings.bin_directory else child_environment()["PATH"]
        places = {program: shutil.which(program, path=directory) for program in PROGRAMS}
        missing = [program for program, place in places.items() if place is None]
        if missing:
            remedy = "install slurm-client, or give bin_directory, the directory of the commands"
            return _bad("commands", f"no {', '.join(missing)} in {directory}", remedy)
        found = sorted({os.path.dirname(place) for place in places.values() if place})  # noqa: PTH120 - plain text
        return _good("commands", f"{', '.join(PROGRAMS)} in {', '.join(found)}")

    async def _version(self) -> CheckResult:
        output = await self.commands.read(VERSION_COMMAND, action="asking for the version")
        version = parse_version(output)
        if version is None:
            return _bad("version", f"no version in {output.strip()[:100]!r}", "check what sinfo --version prints")
        if release_number(version) < releases.OLDEST:
            return _bad("version", version, f"Slurm {releases.name_of(releases.OLDEST)} or later is needed")
        return _good("version", version)

    async def _controller(self) -> CheckResult:
        if self.unanswered is not None:
            raise self.unanswered
        config = self._config = parse_config(await self.commands.read(CONFIG_COMMAND, action="asking the controller"))
        elements = config.max_array_size - 1
        return _good("controller", f"cluster {config.cluster}, at most {elements} placeholders in one submission")

    async def _partitions(self) -> CheckResult:
        partitions = parse_partitions(await self.commands.read(PARTITION_COMMAND, action="listing of partitions"))
        up = [partition for partition in partitions if partition.up]
        if not up:
            return _bad("partitions", "none is up", "wait until the site opens one")
        # Without a default the site file names one; any that is up tells whether submissions work at all.
        if not any(partition.default for partition in up):
            self._partition = up[0].name
        return _good("partitions", "; ".join(_described(partition) for partition in partitions))

    async def _memory(self) -> CheckResult:
        shown = await self.commands.read(PARTITION_COMMAND, action="listing of partitions")
        names = without_default_memory(shown) if self._config is not None and self._config.whole_memory else ()
        if not names:
            return _good("memory", "a placeholder takes none from others, or the site's default")
        where = ", ".join(names)
        return _good(
            "memory",
            f"in {where} a placeholder that asks for none gets all of a node, and keeps others from it (there is no "
            "DefMemPerCPU or DefMemPerNode): set memory_mib for this cluster in the site file",
        )

    async def _submission(self) -> CheckResult:
        trial = Submission(
            key=_TRIAL.key, count=1, script=_TRIAL.script, walltime=_TRIAL.walltime, queue=self._partition
        )
        command = dry_run_command(sbatch_command(trial, self.settings, self.directives))
        result = await self.commands.run(command, stdin=trial.script.encode())
        if result.returncode:
            raise submission_error(result)
        return _good("submission", _with_surplus(result.complaint) or "would be taken")

    async def _accounting(self) -> CheckResult:
        if self._config is None:
            raise LrmUnavailableError("the controller did not say whether there is any")
        if not self._config.accounting:
            return _good("accounting", "none configured; how jobs ended is known for as long as squeue shows them")
        await self.commands.read(sacct_command(("1",)), action="accounting")
        return _good("accounting", "sacct works")


def _with_surplus(said: str) -> str:
    """Return what sbatch says of a trial job of one processor, and that it would be given more than one."""
    match = _GIVEN.search(said)
    if match is None or int(match[1]) <= 1:
        return said
    return f"{said} (a placeholder asks for one processor and is given {match[1]}: whole cores, or a whole node)"


async def _guarded(subject: str, step: Callable[[], Awaitable[CheckResult]], remedy: str) -> CheckResult:
    try:
        return await step()
    except LrmError as error:
        return _bad(subject, error.message, error.hint or remedy)


def _described(partition: Queue) -> str:
    limit = f"{partition.walltime_limit // 60} min" if partition.walltime_limit is not None else "no walltime limit"
    words = (f"{partition.processors} processors", limit, *(("default",) if partition.default else ()))
    return f"{partition.name} {'up' if partition.up else 'down'} ({', '.join(words)})"


def _good(subject: str, found: str) -> CheckResult:
    return CheckResult(subject=subject, ok=True, found=found)


def _bad(subject: str, found: str, remedy: str) -> CheckResult:
    return CheckResult(subject=subject, ok=False, found=found, remedy=remedy)


# -- The LRM -------------------------------------------------------------------------------------------------

CAPABILITIES = Capabilities(
    hold=True,
    pin=True,
    suspend=True,
    requeue=True,
    signal=True,
    modify=True,
    accounting=True,
)
"""What Slurm can do. Without accounting, and for users who may not suspend, :class:`SlurmLrm` says less."""


def make_lrm(context: ClusterContext, settings: SlurmSettings) -> SlurmLrm:
    """Return the LRM of one cluster. Raises ConfigurationError for directives of the site that cannot be used."""
    problem = problem_of(context.directives)
    if problem:
        raise ConfigurationError(f"cluster {context.cluster}: {problem}", hint="correct it in the site file")
    return SlurmLrm(context, settings)


class SlurmLrm(Lrm):
    """One Slurm cluster."""

    hook_removal = "take lua out of JobSubmitPlugins in slurm.conf, then `scontrol reconfigure`"
    array_index_variable = "SLURM_ARRAY_TASK_ID"
    job_id_variable = "SLURM_ARRAY_JOB_ID"
    requests_per_start = 3

    def __init__(self, context: ClusterContext, settings: SlurmSettings) -> None:
        """Nothing is run yet; see :meth:`start`."""
        self._context = context
        self._settings = settings
        self._user = context.user or login_name()
        self._commands = SlurmCommands(context.commands, settings)
        self._reader = CommandReader(
            self._commands,
            reserved_is_up=settings.reservation is not None,
            has_default=not any(long_name(text) == "--partition" for text in context.directives.add),
        )
        self._config: ControllerConfig | None = None
        self._unanswered: LrmUnavailableError | None = None
        self._notes = StartNotes(context.state_directory / "starts")
        self._sizes: dict[str, int] = {}
        """Elements of each array of ours that is not forgotten."""
        self._arrays: dict[BatchKey, str] = {}
        """Their ids, by key."""
        self._threads: dict[str, int] = {}
        """Processors of a core, by node, where they are given together."""
        self.library: LibraryAccess | None = None
        """pyslurm, and whether it is used; None where it is not, or all users' jobs were not asked for yet."""
        self._submitter = Submitter(
            settings,
            context,
            expected=SLURM,
            variables=settings.variables(),
            timeout=settings.command_timeout,
            obstacle=obstacle_to_drmaa(settings, context.directives),
        )
        self.capabilities = replace(CAPABILITIES, accounting=False, suspend=False)
        # Of all users' jobs there are details to be asked for now and then.
        self.requests_per_poll = self._reader.requests + 1
        self.requests_per_listing = 1 + LISTING_REQUESTS

    async def start(self) -> None:
        """Ask the controller once what it can do, and set right what a killed process left.

        Raises LrmError when it does not answer.
        """
        self._unanswered = None
        try:
            config = await self._read_config()
        except LrmUnavailableError as error:
            self._unanswered = error
            raise

        async def misfit(library: Path) -> str:
            # Later than at the start, the controller may have been updated meanwhile.
            told = config if self._config is None else await self._read_config()
            return releases.misfit(library, release_number(told.version))

        await self._submitter.start(nodes_are_here=self._nodes_are_here, misfit=misfit)
        self.capabilities = replace(
            CAPABILITIES,
            suspend=config.may_suspend(user=self._user, uid=os.geteuid()),
            accounting=config.accounting and await self._accounting_works(),
        )
        self._config = config
        await self._reader.start(config)
        for note in self._notes.left():
            try:
                await self._starting(note.job, note.nodes).undo_start(note, after_kill=True)
            except LrmRejectedError as error:
                # Perhaps an operator began it, and we are none: the note stays for the next one.
                log.warning(
                    "a start that was cut off cannot be undone",
                    cluster=self._context.cluster,
                    job=note.job,
                    error=str(error),
                )

    @cached_property
    def _outside(self) -> OutsideReader:
        """What reads all that an outside scheduler must know: imported for that alone."""
        return OutsideReader(self._commands, self._notes)

    def _access(self) -> LibraryAccess | None:
        """Return pyslurm for an outside scheduler's listing, or why not; None where it is not to be used.

        Nor is it before the controller has told its release.
        """
        if self.library is None and self._config is not None and self._settings.access != "commands":
            self.library = LibraryAccess(self._context, self._settings, self._config)
        return self.library

    @cached_property
    def _reserved(self) -> Reserved:

        return Reserved()

    async def _by_library(self, verb: str, ids: Sequence[LrmJobId], value: object = None) -> bool:
        """Make a change through pyslurm where it is in use and can; False: the commands must."""
        return self.library is not None and await self.library.change(verb, ids, value)

    async def close(self) -> None:
        """End the helpers, where there are any."""
        await self._submitter.close()
        if self.library is not None:
            await self.library.close()

    async def _nodes_are_here(self) -> bool:
        output = await self._commands.read(ADDRESS_COMMAND, action="listing of the nodes' addresses")
        return all_here(output, host=socket.gethostname())

    async def _read_config(self) -> ControllerConfig:
        return parse_config(await self._commands.read(CONFIG_COMMAND, action="reading the configuration"))

    async def _accounting_works(self) -> bool:
        try:
            result = await self._commands.run(sacct_command(("1",)), environment=TIME_FORMAT)
        except LrmUnavailableError:
            # A database that hangs must not keep us from a controller that answers.
            return False
        return result.returncode == 0 and not result.stderr.strip()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def version(self) -> str:
        """Return ``slurm`` and a version, such as ``slurm 22.05.8``: that which the controller has told.

        Only where none is known are the commands asked for theirs: each request counts against the bound of a minute.
        """
        if self._config is not None and self._config.version:
            return f"slurm {self._config.version}"
        return f"slurm {await self._commands.version(VERSION_COMMAND, parse_version)}"

    async def nodes(self) -> tuple[Node, ...]:
        """Return the nodes of all partitions that we may see."""
        nodes = await self._reader.nodes()
        self._threads = {node.name: node.grain for node in nodes if node.grain > 1}
        return nodes

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return jobs; with a prefix only our user's, and without what only an outside scheduler must know.

        That costs the controller least.
        """
        if not name_prefix:
            self._outside.access = self._access()
            return await self._outside.jobs()
        jobs = await self._reader.jobs(user=self._user)
        self._submitter.sweep({job.name for job in jobs if job.state is not LrmJobState.ENDED})
        return tuple(job for job in jobs if job.name.startswith(name_prefix))

    async def queues(self) -> tuple[Queue, ...]:
        """Return the partitions that we may see."""
        return parse_partitions(await self._commands.read(PARTITION_COMMAND, action="listing of partitions"))

    async def history(self, ids: Sequence[LrmJobId]) -> tuple[LrmJob, ...]:
        """Return the ends of jobs that accounting knows."""
        if not self.capabilities.accounting:
            self._unsupported("history", ids)
        found: list[LrmJob] = []
        # sacct takes no ranges of elements: an array's number stands for all of them.
        numbers = dict.fromkeys(checked(job).partition("_")[0] for job in ids)
        for part in portions(tuple(numbers), ARGUMENTS_PER_COMMAND):
            output = await self._commands.read(sacct_command(part), action="accounting", environment=TIME_FORMAT)
            found += parse_history(output)
        wanted = set(ids)
        return tuple(job for job in found if job.id in wanted and job.state is LrmJobState.ENDED)

    # -- submitting --------------------------------------------------------------------------------------------------

    def render(self, submission: Submission) -> RenderedSubmission:
        """Return the command line and the script that sbatch gets on stdin, and what goes to the DRMAA library."""
        command = sbatch_command(submission, self._settings, self._context.directives)
        shown = RenderedSubmission(
            command=self._commands.argv(command),
            script=submission.script,
            environment=tuple(self._commands.environment.items()),
            note="the script goes to sbatch on its standard input",
        )
        if (drmaa := self._submitter.drmaa) is None:
            return shown
        return drmaa.render(submission, self._native(submission), index_variable=None, equivalent=shown)

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit an array of ``count`` elements with one sbatch, or as one bulk through DRMAA."""
        self._require_array_size(submission.count)
        await self._submitter.settle()
        if (drmaa := self._submitter.drmaa) is not None:
            ids = await drmaa.submit(submission, self._native(submission), index_variable=None)
            self._note_size(submission, ids[0].partition("_")[0])
            return ids
        rendered = self.render(submission)
        result = await self._commands.run(rendered.command, stdin=rendered.script.encode(), environment=EXPORTED)
        job = parse_job_id(result.text)
        if job is None:
            raise submission_error(result)
        self._note_size(submission, job)
        return array_ids(job, submission.count)

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

    def _note_size(self, submission: Submission, array: str) -> None:
        self._sizes[array] = submission.count
        self._arrays[submission.key] = array

    def forget(self, key: BatchKey) -> None:
        """Drop the size of its array, and delete the script that DRMAA needed: nobody will read it any more."""
        self._sizes.pop(self._arrays.pop(key, ""), None)
        self._submitter.forget(key)

    def _require_array_size(self, count: int) -> None:
        limit = self._config.max_array_size if self._config else None
        if limit is not None and count >= limit:
            message = f"{count} placeholders in one submission are more than Slurm takes here, {limit - 1}"
            raise LrmRejectedError(
                message, hint="MaxArraySize in slurm.conf; ask for fewer processors of this cluster in one component"
            )

    # -- control -----------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Cancel jobs; those of a whole array of ours by its bare id. After no answer nothing is known: it is worst."""
        errors: list[LrmError] = []
        for part in _arguments(ids, self._sizes):
            result = await self._commands.run(client.cancel_command(part), urgent=True)
            if (error := client.cancel_error(result)) is not None:
                errors.append(error)
        if errors:
            raise next((error for error in errors if isinstance(error, LrmUnavailableError)), errors[0])

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        """Put jobs in user hold, also when we are an operator, so that their owner can release them."""
        await self._control("uhold", ids)

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        """Release held jobs."""
        if await self._by_library("release", ids):
            return
        await self._control("release", ids)

    async def held_by_hook(self) -> tuple[LrmJob, ...]:
        """Return the jobs with the mark of conf/job_submit.lua that no user holds on top."""
        return await self._outside.held_by_hook()

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """Suspend running jobs; needs operator rights."""
        self._need_suspend("suspend", ids)
        await self._control("suspend", ids)

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """Resume suspended jobs; needs operator rights."""
        self._need_suspend("resume", ids)
        await self._control("resume", ids)

    def _need_suspend(self, operation: str, ids: Sequence[LrmJobId]) -> None:
        if not self.capabilities.suspend:
            message = f"Slurm lets only its operators {operation} jobs ({', '.join(ids)})"
            raise LrmUnsupportedError(message, hint="koala runs as an ordinary user here")

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        """Stop running jobs and queue them again; first allows it, because we submit with --no-requeue."""
        if await self._by_library("requeue", ids):
            return
        for part in _arguments(ids):
            await self._commands.change(client.requeueable_command(part), action="requeue")
        await self._control("requeue", ids)

    async def signal(self, ids: Sequence[LrmJobId], signal: int) -> None:
        """Send a signal to the scripts of running jobs and all their processes."""
        if await self._by_library("signal", ids, int(signal)):
            return
        for part in _arguments(ids):
            await self._commands.change(client.signal_command(part, signal), action="signal")

    async def modify(self, job: LrmJobId, *, walltime: int) -> None:
        """Change the walltime; that of a running job can be made longer by operators only."""
        if not await self._by_library("walltime", [job], minutes(walltime)):
            await self._commands.change(client.walltime_command(job, walltime), action="modify")

    async def notify(self, job: LrmJobId, text: str) -> None:
        """Write a line to where the job's standard error goes (scontrol notify)."""
        if not await self._by_library("notify", [job], client.message_line(text)):
            await self._commands.change(client.notify_command(job, text), action="notify")

    async def start_on(self, job: LrmJobId, nodes: Sequence[str]) -> None:
        """Tie a held job to nodes, with one entry for each of its processors, and release it.

        Different numbers of processors on its nodes need an operator's rights.
        """
        if self._config is None:
            self._config = await self._read_config()
        if self._notes.is_open(job):
            await self.undo_start(job)
        try:
            await self._starting(job, nodes).begin(self._outside.known(job))
        except LrmRejectedError:
            # The controller may have been upgraded: before the next start it is asked again.
            self._config = None
            raise

    async def confirm_start(self, job: LrmJobId) -> None:
        """Give the cores back that were reserved for the start of a job, and hold it: it comes back in hold."""
        for error in (await self.confirm_starts([job])).values():
            raise error

    async def confirm_starts(self, jobs: Sequence[LrmJobId]) -> Mapping[LrmJobId, LrmError]:
        """Do so for several jobs: those that were held alike are put in hold again in one request."""
        by_verb: dict[str, list[LrmJobId]] = {}
        for job in jobs:
            note = self._notes.of(job)
            by_verb.setdefault("uhold" if note is None else hold_verb(note.before()), []).append(job)
        errors: dict[LrmJobId, LrmError] = {}
        for verb, alike in by_verb.items():
            for part in portions(alike, ARGUMENTS_PER_COMMAND):
                try:
                    await self._hold_again(verb, part)
                except LrmError as error:
                    errors.update(dict.fromkeys(map(LrmJobId, part), error))
        for job in jobs:
            note = self._notes.of(job)
            if note is not None and job not in errors:
                try:
                    await self._starting(job, note.nodes).confirm()
                except LrmError as error:
                    errors[job] = error
        return errors

    async def _hold_again(self, verb: str, jobs: Sequence[str]) -> None:
        """Put running jobs in hold, of which some may be over by now. Raises LrmUnavailableError."""
        with suppress(LrmRejectedError, LrmNotFoundError):
            await self._commands.change(client.job_command(verb, jobs), action="confirm_start")

    async def undo_start(self, job: LrmJobId) -> None:
        """Hold a job that waits after it was started, and give it back what it had before it was tied."""
        note = self._notes.of(job)
        if note is None:
            await self.hold([job])
            return
        await self._starting(job, note.nodes).undo_start(note)
        self._outside.forget(job)

    def _starting(self, job: str, nodes: Sequence[str]) -> Starting:

        pin, numbers_by_node = make_pin(job, nodes), self._config is None or self._config.takes_cores_by_node
        reservation = CoreReservation(
            self._commands, pin, self._reserved, numbers_by_node=numbers_by_node, threads=self._threads
        )
        return Starting(self._commands, pin, self._notes, reservation=reservation, library=self.library)

    async def _control(self, verb: str, ids: Sequence[LrmJobId]) -> None:
        for part in _arguments(ids):
            result = await self._commands.run(client.job_command(verb, part))
            error = client.control_error(result, action=verb)
            if error is not None and client.is_ambiguous(result):
                error = await self._missing(part) or error
            if error is not None:
                raise error

    async def _missing(self, jobs: Sequence[str]) -> LrmError | None:
        for job in jobs:
            result = await self._commands.run(client.show_command(job))
            error = client.control_error(result, action="looking at a job")
            if error is not None:
                return error
        return None

    # -- checking ----------------------------------------------------------------------------------------------------

    async def check(self) -> tuple[CheckResult, ...]:
        """Verify commands, versions, controller, partitions and a submission that is only tried."""
        checks = Checks(
            commands=self._commands,
            settings=self._settings,
            directives=self._context.directives,
            unanswered=self._unanswered,
        )
        found = await checks.run()
        if self._unanswered is not None:
            return found
        # Where pyslurm is neither there nor wanted, nothing need be said of it.
        access = self._access()
        told = await access.check() if access is not None and access.matters else ()
        return (*found, *await self._submitter.check(), *told)

    async def check_outside(self) -> tuple[CheckResult, ...]:
        """Verify with a job for next week that the site's submission hook holds jobs, and that we may start them."""
        checks = SlurmOutsideChecks(self._commands, self._outside, user=self._user, uid=os.geteuid())
        access = self._access()
        return (*(await access.check() if access is not None else ()), *await checks.run())


def _arguments(ids: Iterable[LrmJobId], sizes: Mapping[str, int] | None = None) -> Iterator[tuple[str, ...]]:
    """Yield the fewest arguments that name these jobs, in portions that fit one command line."""
    return portions(compacted(ids, sizes), ARGUMENTS_PER_COMMAND)
