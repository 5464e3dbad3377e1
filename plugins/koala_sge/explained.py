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
    from collections.abc import Mapping

    from lxml.etree import _Element

USER_HOLD = "koala_user_hold"
"""Word in the context of a job, set by conf/sge_jsv.sh for one that its user held, too."""
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
    """Details of one job or array by ``qstat -j``."""

    user_hold: bool = False
    """Its user holds it, too."""
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
        user_hold=any(text_of(word, "VA_variable") == USER_HOLD for word in element.iterfind("JB_context/*")),
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
