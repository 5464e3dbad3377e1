# SPDX-License-Identifier: Apache-2.0
"""Which of our errors a refusal over WIKI is: by its status, and for one status by Slurm's words. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.errors import (
    LrmError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
)
from koala_adapter.wiki.codec.protocol import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.errors import WikiError

_UNKNOWN_JOB = re.compile(r"no such job|invalid job id|unknown job|job .* (not found|does not exist)", re.IGNORECASE)
_OVER = re.compile(r"already (completing|completed|ended|finished)", re.IGNORECASE)
_HINTS: Mapping[int | None, str] = {
    Status.CLOCK_SKEW: "its clock and ours differ by more than 5 minutes",
    Status.BAD_CHECKSUM: "the key in key_file is not the one that it has",
}
_UNSUPPORTED_VERB = "unsupported request type"


def to_lrm_error(error: WikiError, *, what: str, of_query: bool = False) -> LrmError:
    """Return the error for a refusal. ``what``: what was asked for, such as ``STARTJOB of 7``.

    ``of_query``: it was a list of nodes or jobs, which a resource manager refuses only while it cannot make one.
    """
    said = f"{what} was refused: {error.message} (SC={error.status})"
    if error.status == Status.INITIALIZING or (of_query and error.status in {Status.REFUSED, Status.INVENTORY}):
        return LrmUnavailableError(said, hint="it is starting up, or its own batch system does not answer it")
    if error.status == Status.UNSUPPORTED or error.message == _UNSUPPORTED_VERB:
        return LrmUnsupportedError(said, hint="does the setting `dialect` name the one that it speaks?")
    if _UNKNOWN_JOB.search(error.message):
        return LrmNotFoundError(said)
    return LrmRejectedError(said, hint=_HINTS.get(error.status, error.hint))


def is_gone(error: WikiError) -> bool:
    """Tell whether a job cannot be cancelled because there is nothing left to cancel."""
    return bool(_UNKNOWN_JOB.search(error.message) or _OVER.search(error.message))
