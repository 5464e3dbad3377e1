# SPDX-License-Identifier: Apache-2.0
"""All that Grid Engine tells of single jobs (``qstat -xml -j``): contexts, reasons of error states, groups, accounts.

The plain text of ``qstat -j`` is not read: a resource with a line break in its value would begin a record there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_sge.listing import number_of, parse_xml, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lxml.etree import _Element

# -- Contexts ------------------------------------------------------------------------------------------------
# What stands in the contexts of jobs (``qalter -ac``) for an outside scheduler. The context is the only place of a job
# in which a submission verifier and a scheduler can leave a word that has no other meaning.

USER_HOLD = "koala_user_hold"
"""Set by conf/sge_jsv.sh for a job that its user held, too."""
QUEUES = "koala_queues"
"""The queues that a job asked for before it was pinned to others."""
ANY_QUEUE = "*"
BETWEEN_QUEUES = "+"
"""A comma ends a value, and no name of a queue has a plus sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """What is left of a job for an outside scheduler."""

    user_hold: bool = False
    queues: tuple[str, ...] | None = None
    """The queues that it asked for before it was pinned; empty: any, None: it is not pinned."""


def noted(queues: Sequence[str]) -> str:
    """Return the word in which a context keeps the queues that a job asked for."""
    return f"{QUEUES}={BETWEEN_QUEUES.join(queues) or ANY_QUEUE}"


def _context(element: _Element) -> JobContext:
    words = {text_of(word, "VA_variable"): text_of(word, "VA_value") for word in element.iterfind("JB_context/*")}
    queues = words.get(QUEUES)
    return JobContext(user_hold=USER_HOLD in words, queues=None if queues is None else _queues(queues))


def _queues(word: str) -> tuple[str, ...]:
    return () if word == ANY_QUEUE else tuple(word.split(BETWEEN_QUEUES))


# -- Jobs ----------------------------------------------------------------------------------------------------

ROOT = "detailed_job_info"
NO_ACCOUNT = "sge"
"""Account of jobs that were given none (qsub(1), -A)."""

LATEST = 10**11
"""Seconds since the epoch beyond which a number must be milliseconds."""

_NONE_KNOWN = re.compile(rb"(?:<\?xml[^>]*\?>)?\s*<unknown_jobs\b")
"""Beginning of the answer when none of the jobs is known; some releases print the rest of it as no XML."""
_ORIGIN = re.compile(r"^\S+ \S+ \[\d+:\d+\]: (?:error: )?")
"""Date, time, and [user:process] of the shepherd that complained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedJob:
    """What is told of one job, or of an array as a whole."""

    context: JobContext = JobContext()
    error_reasons: Mapping[int, str] = field(default_factory=dict)
    """Why tasks are in error state, by their numbers; a job that is no array has task 1."""
    group: str = ""
    account: str = ""
    """The account of ``qsub -A``, or else the project of ``qsub -P``."""
    submitted_at: float | None = None


def parse_explained(raw: bytes) -> dict[str, ExplainedJob]:
    """Return what is told of each job that is known, by its number. Raises LrmUnavailableError."""
    if _NONE_KNOWN.match(raw):
        return {}
    root = parse_xml(raw, root=ROOT, source="qstat -j")
    return {
        number: _explained(element)
        for element in root.iterfind("djob_info/element")
        if (number := text_of(element, "JB_job_number"))
    }


def _explained(element: _Element) -> ExplainedJob:
    account = text_of(element, "JB_account")
    return ExplainedJob(
        context=_context(element),
        error_reasons=_error_reasons(element),
        group=text_of(element, "JB_group"),
        account=account if account != NO_ACCOUNT else text_of(element, "JB_project"),
        submitted_at=_moment(text_of(element, "JB_submission_time")),
    )


def _moment(text: str) -> float | None:
    """Return seconds since the epoch; heirs of Grid Engine print milliseconds."""
    number = number_of(text)
    return (number / 1000 if number > LATEST else float(number)) or None


def _error_reasons(element: _Element) -> dict[int, str]:
    reasons: dict[int, str] = {}
    for task in element.iterfind("JB_ja_tasks/*"):
        told = [" ".join(_ORIGIN.sub("", text.text or "").split()) for text in task.iterfind(".//QIM_message")]
        if told:
            reasons[number_of(text_of(task, "JAT_task_number"), 1)] = told[0]
    return reasons
