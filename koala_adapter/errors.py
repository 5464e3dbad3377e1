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
    """Root of the tree.

    ``message`` is one sentence for a person; ``hint`` is the way out (may be empty).
    """

    exit_code: ClassVar[int] = 1
    transient: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Keep message and hint apart so that they can be shown and tested on their own."""
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
    """What a site's own policy answers cannot be followed; the message names it, its entry point and what is wrong."""

    @classmethod
    def raised(cls, policy: str, error: Exception) -> PolicyAnswerError:
        """Say that a policy failed instead of answering."""
        return cls.of(policy, f"raises {type(error).__name__}: {error}")

    @classmethod
    def of(cls, policy: str, problem: str) -> PolicyAnswerError:
        """Say what is wrong with the answer of a policy; ``policy`` describes it to a person."""
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
    """A job whose result was asked for ended otherwise than well; the message says how."""

    def __init__(self, message: str, *, hint: str = "", job_id: str = "", job_exit_code: int = 1) -> None:
        """``job_id``: the job. ``job_exit_code``: its own exit code, or one of EXIT_* that says what became of it."""
        super().__init__(message, hint=hint)
        self.job_id = job_id
        self.job_exit_code = job_exit_code


class JobTimeoutError(KoalaError, TimeoutError):
    """What was waited for has not come about in the time that was given; the job goes on."""

    transient = True


class LrmError(KoalaError):
    """A local resource manager did not do what was asked. One of exactly four kinds."""

    exit_code = EXIT_LRM


class LrmUnavailableError(LrmError):
    """No answer, or an answer that says "later". After a submission it means *unknown*: the job may be in."""

    transient = True


class LrmUnreachableError(LrmUnavailableError):
    """The LRM could not even be asked: after a submission it means that the job is certainly not in."""


class LoginNeededError(LrmUnreachableError):
    """A site asks a person, such as for a password, and could not be reached without."""

    def __init__(self, message: str, *, site: str, hint: str = "") -> None:
        """``site``: its name."""
        super().__init__(message, hint=hint)
        self.site = site


class LrmRejectedError(LrmError):
    """The LRM refused for good: asking again in the same way will be refused again. Nothing was done."""


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
    """What a peer sent is no negotiation template; its endpoint has told it so already."""


class NegotiationStepError(NegotiationError):
    """Our own side was to say what does not follow in its negotiation; nothing was sent, and nothing has changed."""


class ServiceUnavailableError(KoalaError):
    """The koala service does not run, or does not answer."""

    exit_code = EXIT_SERVICE
    transient = True


class ServiceAbsentError(ServiceUnavailableError):
    """No koala service listens, or it is about to end: what it was asked has certainly not arrived."""


class ServiceRunningError(KoalaError):
    """Another service already owns the state directory."""

    exit_code = EXIT_SERVICE


class JournalError(KoalaError):
    """The journal cannot be read or written; nothing is done without it."""

    exit_code = EXIT_SERVICE


class JournalBlockedError(JournalError):
    """The journal cannot be written at present, such as for want of space. What was to be written never happened."""

    transient = True


class RecoveryError(JournalError):
    """The scheduler's state cannot be built from the journal; what is in the journal is untouched."""


class DefectError(KoalaError):
    """koala itself failed on what was asked of it, and went on as if it had never been asked."""

    exit_code = EXIT_SERVICE
