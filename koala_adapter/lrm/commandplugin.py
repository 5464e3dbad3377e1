# SPDX-License-Identifier: Apache-2.0
"""Base of plugins for batch systems that are driven by commands: a plugin is what differs from it.

In order: types for settings; the form of a submission command, with the changes that a site makes to it; the checks of
``koala check`` and of ``koala check --outside``; the LRM, whose placeholders go by commands or through DRMAA.
"""

from __future__ import annotations

import os
import re
import shlex
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from koala_adapter.errors import (
    ConfigurationError,
    LrmError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
)
from koala_adapter.lrm.commands import DEFAULT_PATH
from koala_adapter.lrm.contract import CheckResult, ClusterContext, Directives, Lrm, RenderedSubmission, Submission
from koala_adapter.lrm.drmaa.choice import Submitter, obstacle_in, one_text
from koala_adapter.lrm.mapping import Divided, divide, sample
from koala_adapter.model import BatchKey, HoldOwner, LrmJob, LrmJobId, LrmJobState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from koala_adapter.lrm.lrmhost import LrmHost


# -- Settings ------------------------------------------------------------------------------------------------


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


def _one_word(text: str) -> str:
    if not text or not text.isprintable() or any(character.isspace() for character in text) or text.startswith("-"):
        raise ValueError("must be one word without blanks or control characters")
    return text


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Word = Annotated[str, AfterValidator(_one_word)]


# -- The form of a submission command ------------------------------------------------------------------------
# An option is a tuple of words: its name, and its value if it has one.

Option = tuple[str, ...]

CORRECT_DIRECTIVES = "correct the directives of this cluster in the site file"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True)
class SubmissionForm(ABC):
    """How one batch system's submission command spells its options, and what it can express."""

    system: str
    """Name of the batch system, for messages."""
    ours: frozenset[str]
    """Options without which a submission could not be recognized again."""
    harmful: frozenset[str]
    """Options with which a submission goes elsewhere, nowhere, waits, or says no id."""
    in_template: frozenset[str]
    """Options that a DRMAA job template has attributes for, or that concern the command itself."""
    key: re.Pattern[str]
    """Keys that can be the name of a job."""
    queue: re.Pattern[str]
    queue_word: str = "queue"
    no_path: str = "no absolute path"
    """What a directory for output is that the command would misunderstand."""
    no_option: str = "is no option"
    """What is said of a name in a directive that is none."""

    @abstractmethod
    def name(self, word: str) -> str:
        """Return the option name at the beginning of a word, such as ``-p`` of ``-pdebug``."""

    @abstractmethod
    def is_option(self, words: Sequence[str]) -> bool:
        """Return whether words that a site adds begin with an option and not with a script's name."""

    @abstractmethod
    def is_one_option(self, words: Sequence[str]) -> bool:
        """Return whether words are one option with at most one value."""

    @abstractmethod
    def is_name(self, text: str) -> bool:
        """Return whether a text in a directive is the name of an option, as :meth:`is_named` defines it."""

    @abstractmethod
    def is_named(self, option: Option, text: str) -> bool:
        """Return whether a text in a directive is the name of an option."""

    @abstractmethod
    def renamed(self, option: Option, text: str) -> Option:
        """Return an option with the name that a site gives it, and its value."""

    def is_new_name(self, text: str) -> bool:
        """Return whether a site may give an option this name."""
        return self.is_name(text)

    def is_harmful(self, words: Sequence[str]) -> bool:
        """Return whether placeholders could not be followed if a site added this option."""
        return self.name(words[0]) in self.ours | self.harmful

    def is_part(self, text: str) -> bool:  # noqa: ARG002 - most systems have options alone
        """Return whether a mapped argument is part of the value of one of our options instead of an option."""
        return False

    def is_path(self, text: str) -> bool:
        """Return whether the submission command can express a directory for output."""
        return text.startswith("/") and text.isprintable()

    def written(self, option: Option) -> tuple[str, ...]:
        """Return an option with its value as arguments."""
        return option

    def arguments(self, options: Iterable[Option], directives: Directives) -> tuple[str, ...]:
        """Return the arguments of a submission after the site's changes: drop, then rename, then add at the end.

        Raises LrmRejectedError, naming the directive, for one that is malformed or would make the submission unusable.
        """
        problem = self.problem_of(directives)
        if problem:
            raise LrmRejectedError(problem, hint=CORRECT_DIRECTIVES)
        kept = (option for option in options if not any(self.is_named(option, text) for text in directives.drop))
        changed = (self._after_renames(option, directives.rename) for option in kept)
        return (
            *(word for option in changed for word in self.written(option)),
            *(word for text in directives.add for word in shlex.split(text)),
        )

    def _after_renames(self, option: Option, pairs: Iterable[tuple[str, str]]) -> Option:
        new = next((new for old, new in pairs if self.is_named(option, old)), None)
        return option if new is None else self.renamed(option, new)

    def native(self, options: Iterable[Option], directives: Directives) -> str:
        """Return the native specification for a DRMAA library. Raises LrmRejectedError."""
        return one_text(self.arguments((option for option in options if option[0] not in self.in_template), directives))

    def obstacle_to_drmaa(self, directives: Directives) -> str:
        """Return why a site's directives cannot go through DRMAA; empty when they can."""
        return obstacle_in(word for text in directives.add for word in shlex.split(text))

    def problem_of(self, directives: Directives) -> str:
        """Return what is wrong with a site's directives as a sentence; empty when they are valid."""
        return next(filter(None, self._problems(directives)), "")

    def _problems(self, directives: Directives) -> Iterator[str]:
        for text in directives.add:
            yield self._problem_of_added(text, f"directive {text!r} to add")
        for key, texts in directives.map:
            for text in texts:
                if not self.is_part(filled := sample(text)):
                    yield self._problem_of_added(filled, f"{text!r} of {key} in [clusters.map]")
        for text in directives.drop:
            yield self._problem_of_name("drop", text)
        for old, new in directives.rename:
            yield self._problem_of_name("rename", old)
            if _CONTROL.search(new) or not self.is_new_name(new):
                yield f"new name {new!r} of directive {old!r} is no option's name"
            elif self.name(new.split()[0]) in self.ours | self.harmful:
                yield f"new name {new!r} of directive {old!r} would make the placeholders impossible to follow"

    def _problem_of_added(self, text: str, called: str) -> str:
        if _CONTROL.search(text):
            return f"{called} contains a line break or another control character"
        try:
            words = shlex.split(text)
        except ValueError as error:
            return f"{called} cannot be read: {error}"
        if not words or not self.is_option(words):
            return f"{called} is no option"
        if not self.is_one_option(words):
            return f"{called} is more than one option with one value"
        return f"{called} would make the placeholders impossible to follow" if self.is_harmful(words) else ""

    def _problem_of_name(self, verb: str, text: str) -> str:
        called = f"directive {text!r} to {verb}"
        if _CONTROL.search(text):
            return f"{called} contains a line break or another control character"
        if not self.is_name(text):
            return f"{called} {self.no_option}"
        without = f"{called} is one without which the placeholders could not be followed"
        return without if self.name(text.split(maxsplit=1)[0]) in self.ours else ""

    def divided(self, submission: Submission, slots: frozenset[str], directives: Directives) -> Divided:
        """Divide a submission into arguments that the site maps and options of the command.

        Raises LrmRejectedError for one that the command could not take, or would take for another.
        """
        self.require(submission)
        for text in submission.slot.directives:
            if problem := self._problem_of_added(text, f"directive {text!r} of the job"):
                raise LrmRejectedError(problem, hint="correct the directives of the job")
        return divide(submission, slots, directives, system=self.system)

    def require(self, submission: Submission) -> None:
        """Raise LrmRejectedError for a submission that the command would refuse or misunderstand."""
        directory, queue, memory = submission.output_directory, submission.queue, submission.memory_mib
        demands = (
            (self.key.fullmatch(submission.key), f"key {submission.key!r} is no usable job name"),
            (submission.count >= 1, f"{submission.count} placeholders are none"),
            (submission.walltime >= 1, f"walltime of {submission.walltime} s is none"),
            (memory is None or memory >= 1, f"memory of {memory} MiB is none"),
            (queue is None or self.queue.fullmatch(queue), f"{queue!r} is no {self.queue_word}"),
            (directory is None or directory == "" or self.is_path(directory), f"{directory!r} is {self.no_path}"),
            (submission.script.startswith("#!"), "the script does not begin with #!"),
            ("\0" not in submission.script, "the script contains a NUL character"),
        )
        for met, problem in demands:
            if not met:
                raise LrmRejectedError(f"{self.system} cannot take this submission: {problem}")


# -- Checks --------------------------------------------------------------------------------------------------


def good(found: str) -> CheckResult:
    """Return the result of a step that passed."""
    return CheckResult(subject="", ok=True, found=found)


def bad(found: str, remedy: str) -> CheckResult:
    """Return the result of a step that failed, with its remedy."""
    return CheckResult(subject="", ok=False, found=found, remedy=remedy)


Step = tuple[str, "Callable[[], Awaitable[CheckResult]]", str]
"""A check: its subject, which its result gets, the check itself, and the remedy where an error names none."""


class Checks(ABC):
    """One run of the checks of ``koala check``. Each that fails says what to do."""

    programs: tuple[str, ...] = ()
    missing_remedy: str = ""
    """What to do where programs are missing."""
    prefer_remedies = False
    """The remedies of the steps go before the hints of errors, which are the same for all requests."""
    decisive: str
    """Subject after whose error nothing further is asked: each question would wait until its time-out."""

    def __init__(
        self, host: LrmHost, bin_directory: Path | None, unanswered: LrmUnavailableError | None = None
    ) -> None:
        """``host``: where the commands are. ``bin_directory``: of the commands; None: PATH.

        ``unanswered``: how the batch system failed to answer a moment ago, because to ask once more would take as long.
        """
        self._host = host
        self._bin_directory = bin_directory
        self._unanswered = unanswered
        self.stopped = False
        """Whether checks were left out because the decisive one failed."""

    @abstractmethod
    def steps(self) -> tuple[Step, ...]:
        """Return the checks, in the order in which a person would look."""

    async def run(self) -> tuple[CheckResult, ...]:
        """Run the checks; those after a decisive failure are left out."""
        results: list[CheckResult] = []
        for subject, step, remedy in self.steps():
            try:
                results.append(replace(await step(), subject=subject))
            except LrmError as error:
                first, second = (remedy, error.hint) if self.prefer_remedies else (error.hint, remedy)
                results.append(replace(bad(error.message, first or second), subject=subject))
                if subject == self.decisive:
                    self.stopped = True
                    break
        return tuple(results)

    def require_answer(self) -> None:
        """Raise the error of the last question, which was not answered."""
        if self._unanswered is not None:
            raise self._unanswered

    async def check_programs(self) -> CheckResult:
        """Check that all commands are there."""
        directory = str(self._bin_directory or "")
        places = await self._host.programs(self.programs, directory)
        missing = [program for program in self.programs if program not in places]
        if missing:
            directory = directory or (await self._host.facts()).variables.get("PATH", DEFAULT_PATH)
            return bad(f"no {', '.join(missing)} in {directory}", self.missing_remedy)
        found = sorted({os.path.dirname(place) for place in places.values()})  # noqa: PTH120 - plain text
        return good(f"{', '.join(self.programs)} in {', '.join(found)}")


class OutsideChecks(ABC):
    """One run of `Lrm.check_outside` with a job that would not run for days if it were not held."""

    scheduler: str
    """Where jobs go that do not come in held: ``Slurm's own scheduler``."""
    held_for_us: str
    """In words, of a job that is in the right hold."""
    held_otherwise: str
    """What is said of a job in another hold, behind whose that is."""

    async def run(self) -> tuple[CheckResult, ...]:
        """Return whether jobs come in held, who may start them, and whether we are one of those."""
        try:
            return (await self.rights(), *await self._trial())
        except LrmError as error:
            remedy = error.hint or "see `koala docs wiki`"
            return (CheckResult(subject="outside scheduler", ok=False, found=error.message, remedy=remedy),)

    async def _trial(self) -> tuple[CheckResult, ...]:
        try:
            job = await self.submit()
        except LrmRejectedError as error:
            found = f"an ordinary submission is refused: {error.message}"
            return (CheckResult(subject="jobs come in held", ok=False, found=found, remedy=error.hint),)
        try:
            held = self._held(await self.seen(job))
            error_ = await self.release(job)
            found = "yes" if error_ is None else error_.message
            subject = "we may start them"
            return held, CheckResult(subject=subject, ok=error_ is None, found=found, remedy=self.remedy_of_release())
        finally:
            await self.cancel(job)

    def _held(self, seen: LrmJob | None) -> CheckResult:
        held = seen is not None and seen.state is LrmJobState.HELD
        ok = held and seen is not None and seen.hold is HoldOwner.OPERATOR
        found = self.held_for_us if ok else f"no, they go to {self.scheduler}"
        if seen is not None and held and not ok:
            found = f"held, but as by {seen.hold or 'nobody'}, {self.held_otherwise}"
        return CheckResult(subject="jobs come in held", ok=ok, found=found, remedy=self.remedy_of_hold())

    @abstractmethod
    async def rights(self) -> CheckResult:
        """Check who may start jobs, and whether we may. Raises LrmError, as do the methods below."""

    @abstractmethod
    async def submit(self) -> LrmJobId:
        """Submit the job as an ordinary user does. Raises LrmRejectedError with a remedy when that is refused."""

    @abstractmethod
    async def seen(self, job: LrmJobId) -> LrmJob | None:
        """Return the submitted job as listed; None when it is not listed."""

    @abstractmethod
    async def release(self, job: LrmJobId) -> LrmError | None:
        """Release the job; return why that is refused."""

    @abstractmethod
    async def cancel(self, job: LrmJobId) -> None:
        """Cancel the job."""

    @abstractmethod
    def remedy_of_hold(self) -> str:
        """Return what to do when jobs do not come in held for us."""

    @abstractmethod
    def remedy_of_release(self) -> str:
        """Return what to do when we may not release them."""


# -- The LRM -------------------------------------------------------------------------------------------------


def require_directives(context: ClusterContext, problem: str) -> None:
    """Raise ConfigurationError when there is a problem with the directives that a site file gives a cluster."""
    if problem:
        raise ConfigurationError(f"cluster {context.cluster}: {problem}", hint="correct it in the site file")


class CommandPlugin(Lrm):
    """One cluster that is read and changed by commands, and whose placeholders go by commands or through DRMAA."""

    index_by_drmaa: str | None = None
    """Variable that tells a placeholder its index where DRMAA submits each as a job of its own; None: they are one."""
    operators_only: str
    """What is said of an operation that this user may not do: ``Slurm lets only its operators``."""
    be_operator: str
    """Remedy for it."""

    def __init__(self, context: ClusterContext, submitter: Submitter) -> None:
        self._context = context
        self._submitter = submitter
        self._unanswered: LrmUnavailableError | None = None
        """How the batch system failed to answer at the start."""

    @property
    def _user(self) -> str:
        return self._context.submitter

    async def start(self) -> None:
        """Ask once what the batch system can do. Raises LrmError when it does not answer."""
        self._unanswered = None
        try:
            await self.learn()
        except LrmUnavailableError as error:
            self._unanswered = error
            raise
        # Not before the batch system has answered: some DRMAA libraries abort without it.
        await self.choose_submission()

    @abstractmethod
    async def learn(self) -> None:
        """Find out what the batch system can do. Raises LrmError."""

    async def choose_submission(self) -> None:
        """Choose and verify the way in which placeholders are submitted."""
        await self._submitter.start()

    async def close(self) -> None:
        """End the DRMAA helper, where there is one."""
        await self._submitter.close()

    @property
    def submission_way(self) -> str:
        """The way in which placeholders are submitted, and the reason for it."""
        return str(self._submitter.choice)

    @property
    def submission_obstacle(self) -> str:
        """What is wrong with the DRMAA library on which the site insists."""
        return self._submitter.obstacle

    async def look_for_obstacle(self) -> None:
        """Try the DRMAA library again, after an earlier failure."""
        await self._submitter.look_for_obstacle()

    # -- submitting --------------------------------------------------------------------------------------------------

    @abstractmethod
    def native(self, submission: Submission) -> tuple[str, ...]:
        """Return the options of a submission for which a DRMAA job template has no attributes."""

    @abstractmethod
    def rendered(self, submission: Submission) -> RenderedSubmission:
        """Return the submission command with its script."""

    @abstractmethod
    async def submit_by_command(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit by command; return the ids in the order of the indices."""

    def render(self, submission: Submission) -> RenderedSubmission:
        """Return the command that makes a submission, and the DRMAA call in its place where there is a library."""
        shown = self.rendered(submission)
        if (drmaa := self._submitter.drmaa) is None:
            return shown
        return drmaa.render(submission, self.native(submission), index_variable=self.index_by_drmaa, equivalent=shown)

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit in the chosen way. After a crash or time-out the jobs are found by their name."""
        await self._submitter.settle()
        if (drmaa := self._submitter.drmaa) is not None:
            return await drmaa.submit(submission, self.native(submission), index_variable=self.index_by_drmaa)
        return await self.submit_by_command(submission)

    def forget(self, key: BatchKey) -> None:
        """Delete the script that DRMAA needed: it will not be read any more."""
        self._submitter.forget(key)

    # -- the rest ----------------------------------------------------------------------------------------------------

    async def history(self, ids: Sequence[LrmJobId]) -> tuple[LrmJob, ...]:
        """Return the ends of those of these jobs that accounting knows."""
        if not self.capabilities.accounting:
            self._unsupported("history", ids)
        wanted = set(ids)
        return tuple(job for job in await self.accounted(ids) if job.id in wanted and job.state is LrmJobState.ENDED)

    @abstractmethod
    async def accounted(self, ids: Sequence[LrmJobId]) -> Sequence[LrmJob]:
        """Return accounting records for jobs; others may be among them. Raises LrmError."""

    def require_operator(self, operation: str, ids: Sequence[LrmJobId], *, may: bool) -> None:
        """Raise LrmUnsupportedError for an operation on jobs that only operators may do."""
        if not may:
            raise LrmUnsupportedError(
                f"{self.operators_only} {operation} jobs ({', '.join(ids)})", hint=self.be_operator
            )

    async def check(self) -> tuple[CheckResult, ...]:
        """Verify commands, versions, what answers, and how placeholders are submitted."""
        checks = self.checks()
        found = await checks.run()
        return found if checks.stopped else (*found, *await self.check_submission())

    async def check_submission(self) -> tuple[CheckResult, ...]:
        """Say how placeholders are submitted; verify the library, where there is one."""
        return await self._submitter.check()

    @abstractmethod
    def checks(self) -> Checks:
        """Return the checks of this cluster."""
