# SPDX-License-Identifier: Apache-2.0
"""Exceptions and exit statuses of koala-adapter: one tree of exceptions below ``KoalaError``.

The message of an error says what went wrong, its ``hint`` names the remedy. ``transient`` tells whether the same
request may succeed later; ``exit_code`` is the exit status of the command line.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_REFUSED = 240
EXIT_NOT_PLACED = 241
EXIT_LOST = 242
EXIT_CANCELLED = 243
EXIT_WALLTIME = 244
EXIT_CONFIGURATION = 245
EXIT_SERVICE = 246
EXIT_LRM = 247


class KoalaError(Exception):
    """Base class of all of koala's errors.

    ``message`` is one sentence for a person; ``hint`` is the way out (may be empty).
    """

    exit_code: ClassVar[int] = 1
    transient: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Message and hint in one text."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigurationError(KoalaError):
    """A site file, job file or setting is wrong; the message names file, key path, what was found, what is allowed."""

    exit_code = EXIT_CONFIGURATION


class PluginError(ConfigurationError):
    """A plugin cannot be loaded or breaks the contract of :mod:`koala_adapter.lrm`."""


LONGEST_PROBLEM = 300
"""Characters of what is wrong with the answer of a policy: it may have been made up from anything."""


class PolicyAnswerError(PluginError):
    """An invalid answer of an installed policy; the message names policy, entry point and fault."""

    @classmethod
    def raised(cls, policy: str, error: Exception) -> PolicyAnswerError:
        """Return the error for a policy that raised an exception."""
        return cls.of(policy, f"raises {type(error).__name__}: {error}")

    @classmethod
    def of(cls, policy: str, problem: str) -> PolicyAnswerError:
        """Return the error for an invalid answer; ``policy``: its description."""
        message = f"the answer of {policy} was refused: it {' '.join(problem.split())[:LONGEST_PROBLEM]}"
        return cls(message, hint="mend the policy, or uninstall its distribution; see `koala docs policies`")


class SimulationError(KoalaError):
    """A trace, a platform or an experiment cannot be simulated; the message names file and line, or the setting."""

    exit_code = EXIT_CONFIGURATION


class JobRefusedError(KoalaError):
    """A job that can never run as written: infeasible, not allowed, or already known under this id."""

    exit_code = EXIT_REFUSED


class JobNotFoundError(KoalaError):
    """No job of this id is known."""

    exit_code = EXIT_REFUSED


class JobFailedError(KoalaError):
    """Raised when the result of a job is asked for that ended badly; the message says how."""

    def __init__(self, message: str, *, hint: str = "", job_id: str = "", job_exit_code: int = 1) -> None:
        """``job_id``: the job. ``job_exit_code``: its own exit code, or one of EXIT_* that says what became of it."""
        super().__init__(message, hint=hint)
        self.job_id = job_id
        self.job_exit_code = job_exit_code


class JobTimeoutError(KoalaError, TimeoutError):
    """Raised when a wait for a job reaches its time limit; the job goes on."""

    transient = True


class LrmError(KoalaError):
    """A local resource manager failed to do what was asked; it has exactly four kinds."""

    exit_code = EXIT_LRM


class LrmUnavailableError(LrmError):
    """The LRM gave no answer or a temporary refusal; a submission may have succeeded."""

    transient = True


class LrmUnreachableError(LrmUnavailableError):
    """The LRM could not be asked; a submission has certainly not succeeded."""


class LoginNeededError(LrmUnreachableError):
    """A site asks a person, such as for a password, and could not be reached without."""


class LrmRejectedError(LrmError):
    """The LRM refused a request, and would again; nothing was done."""


class LrmNotFoundError(LrmError):
    """The LRM does not know the job, node or queue (any more)."""


class LrmUnsupportedError(LrmError):
    """The plugin cannot do this; :class:`koala_adapter.lrm.Capabilities` says so beforehand."""


class TransitionError(KoalaError):
    """A defect of the scheduler: a job or placeholder was to go to a state that does not follow the one it is in."""


class ProtocolError(KoalaError):
    """A message that breaks a protocol of ours (agent channel or service socket)."""


class WikiError(ProtocolError):
    """A message of the WIKI protocol that cannot be read, must not be sent, or refuses something.

    ``status`` is the status code (SC) that goes, or came, with it; None when no answer is possible or none was given:
    the connection is closed, or the message is not built.
    """

    def __init__(self, message: str, *, status: int | None = None, hint: str = "") -> None:
        """``message`` is what stands after RESPONSE= when there is a status."""
        super().__init__(message, hint=hint)
        self.status = status


class NegotiationError(ProtocolError):
    """A negotiation template, or its frame, that cannot be read or must not be sent; the message names the field."""


class UnreadableTemplateError(NegotiationError):
    """A peer sent an invalid negotiation template, and was told so."""


class NegotiationStepError(NegotiationError):
    """A message of our own is not allowed in the negotiation's state; nothing was sent or changed."""


class ServiceUnavailableError(KoalaError):
    """The koala service does not run, or does not answer."""

    exit_code = EXIT_SERVICE
    transient = True


class ServiceAbsentError(ServiceUnavailableError):
    """No service listens, or it is about to end; the request has certainly not arrived."""


class ServiceRunningError(KoalaError):
    """Another service already owns the state directory."""

    exit_code = EXIT_SERVICE


class JournalError(KoalaError):
    """The journal cannot be read or written; nothing is done without it."""

    exit_code = EXIT_SERVICE


class JournalBlockedError(JournalError):
    """The journal cannot be written at present, for example for lack of space; nothing was recorded."""

    transient = True


class RecoveryError(JournalError):
    """The scheduler's state cannot be built from the journal; what is in the journal is untouched."""


class DefectError(KoalaError):
    """A defect of koala: the request failed and had no effect."""

    exit_code = EXIT_SERVICE
