# SPDX-License-Identifier: Apache-2.0
"""A base for plugins of batch systems that are driven by commands: what they all need beside building and parsing.

A plugin says which directory, environment and time-out its commands have and what their complaints mean; it builds
command lines and parses output in functions of its own, and nothing else of it runs anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmUnavailableError
from koala_adapter.plugin.commands import DEFAULT_TIMEOUT

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.plugin.commands import CommandResult, CommandRunner

T = TypeVar("T")

SILENT = "the command failed without a word"
SHOWN = 200
"""Characters of unreadable output that an error quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """A complaint that contains ``text`` (in lower case) is an error of this kind."""

    text: str
    kind: type[LrmError]
    hint: str = ""


def complaints(kind: type[LrmError], texts: Mapping[str, str]) -> tuple[Complaint, ...]:
    """Return complaints of one kind from their texts and hints."""
    return tuple(Complaint(text=text, kind=kind, hint=hint) for text, hint in texts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class ComplaintTable:
    """What the complaints of a batch system mean: the first that is contained decides, so "no answer" goes first."""

    system: str
    """Its name, with which messages begin."""
    known: tuple[Complaint, ...]

    def find(self, text: str) -> Complaint | None:
        """Return the first complaint that a text contains; None: it contains none that is known."""
        lower = text.lower()
        return next((one for one in self.known if one.text in lower), None)

    def error(self, text: str, *, action: str, otherwise: type[LrmError] = LrmUnavailableError) -> LrmError:
        """Return the error that a text means; of kind ``otherwise`` when it is not known.

        ``action`` says what was tried (``submission``, ``listing of jobs`` ...).
        """
        found = self.find(text)
        message = f"{self.system}: {action} failed: {text or SILENT}"
        return otherwise(message) if found is None else found.kind(message, hint=found.hint)

    def cancel_error(self, result: CommandResult, *, gone: Collection[str] = ()) -> LrmError | None:
        """Return the worst error among what is said of each job; None when all are cancelled or were gone.

        ``gone``: further texts (in lower case) that say so. No answer is worse than a refusal: after it nothing is
        known.
        """
        lines = [line.strip() for line in result.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        if result.returncode and not lines:
            return self.error("", action="cancellation")
        told = [line for line in lines if not any(text in line.lower() for text in gone)]
        errors = [self.error(line, action="cancellation") for line in told if result.returncode or self.find(line)]
        serious = [error for error in errors if not isinstance(error, LrmNotFoundError)]
        unanswered = (error for error in serious if isinstance(error, LrmUnavailableError))
        return next(unanswered, serious[0]) if serious else None


class CommandSystem:
    """The commands of one cluster, run within its bounds of rate and time; failures come as the four errors."""

    def __init__(
        self,
        runner: CommandRunner,
        complaints: ComplaintTable,
        *,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Nothing is run yet. ``directory``: of the programs; None: PATH. ``environment``: beside the built one."""
        self._runner = runner
        self.complaints = complaints
        self._directory = directory
        self._timeout = timeout
        self._version: str | None = None
        self.environment: Mapping[str, str] = dict(environment or {})

    def argv(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return a command with its program in the directory of the settings, unless it has a directory already."""
        program, *arguments = command
        found = str(self._directory / program) if self._directory and "/" not in program else program
        return (found, *arguments)

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        urgent: bool = False,
    ) -> CommandResult:
        """Run a command (program first) and return what it printed. Raises LrmUnavailableError: no answer."""
        return await self._runner.run(
            self.argv(command),
            stdin=stdin,
            environment={**self.environment, **(environment or {})},
            timeout=self._timeout,
            urgent=urgent,
        )

    async def read(self, command: Sequence[str], *, action: str, environment: Mapping[str, str] | None = None) -> str:
        """Run a command that lists something and return its standard output. Raises LrmError when it failed."""
        result = await self.run(command, environment=environment)
        error = self.reading_error(result, action=action)
        if error is not None:
            raise error
        return result.text

    async def change(self, command: Sequence[str], *, action: str) -> None:
        """Run a command that changes something. Raises LrmError when it complains."""
        error = self.changing_error(await self.run(command), action=action)
        if error is not None:
            raise error

    async def cancel(self, command: Sequence[str], *, gone: Collection[str] = ()) -> None:
        """Run a command that cancels jobs, before all that is not urgent; those that are gone are no error."""
        error = self.complaints.cancel_error(await self.run(command, urgent=True), gone=gone)
        if error is not None:
            raise error

    async def version(self, command: Sequence[str], parse: Callable[[str], str | None]) -> str:
        """Return what ``parse`` finds in the output of a command, which is run until it was found once."""
        if self._version is None:
            text = await self.read(command, action="asking for the version")
            self._version = parse(text)
            if self._version is None:
                raise LrmUnavailableError(f"{' '.join(command)} printed no version: {text[:SHOWN]!r}")
        return self._version

    def reading_error(self, result: CommandResult, *, action: str) -> LrmError | None:
        """Return the error of a command that lists something; None when its output is complete.

        An exit status other than 0 is always one: a listing that was cut short must never pass for "no jobs".
        """
        return self.complaints.error(result.complaint, action=action) if result.returncode else None

    def changing_error(self, result: CommandResult, *, action: str) -> LrmError | None:
        """Return the error of a command that changes something; None when it did not complain. Its text decides."""
        said = result.complaint if result.returncode or result.stderr.strip() else ""
        if result.returncode or (said and self.complaints.find(said)):
            return self.complaints.error(said, action=action)
        return None


def parsed(parse: Callable[[str], T], text: str, *, source: str) -> T:
    """Return what a listing says. Raises LrmUnavailableError, with the text, when it cannot be read.

    A parser may fail as code does that takes a text for well-formed: ValueError (also of JSON), LookupError, TypeError.
    """
    try:
        return parse(text)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        message = f"{source} printed what cannot be read ({type(error).__name__}: {error}): {text[:SHOWN]!r}"
        hint = "it is asked again; if this stays, report it with what the command prints"
        raise LrmUnavailableError(message, hint=hint) from error


def only_id(text: str, pattern: re.Pattern[str]) -> str:
    """Return the one line that is an id: sites print banners.

    Raises LrmUnavailableError for none and for several: the submission is then looked for by its name.
    """
    found = [line.strip() for line in text.splitlines() if pattern.fullmatch(line.strip())]
    if len(found) != 1:
        raise LrmUnavailableError(f"no job id in {text[:SHOWN]!r}", hint="it is looked for by its name")
    return found[0]


def portions(arguments: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """Yield arguments in portions that fit one command line, or that the command can take."""
    for start in range(0, len(arguments), size):
        yield tuple(arguments[start : start + size])
