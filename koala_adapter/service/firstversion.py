# SPDX-License-Identifier: Apache-2.0
"""Snapshots of version 0.1, whose timers were a list, and what they were for a field of each record, too. Pure.

A timer was never taken off that list when it no longer held; of those with the same kind and subject, the one that was
set last held, if its record said that there was one.
"""

from __future__ import annotations

import json
from typing import Any

_JOB_FIELDS = {"life": "life_ends_at", "retake": "retake_at", "backoff": "not_before"}
"""For each kind of timer the field that was empty when there was none."""


def timers_in_records(body: str) -> str:
    """Return a snapshot, or the head of one, with the timers in the records that they concern."""
    if '"timers"' not in body:
        return body
    found = json.loads(body)
    if not isinstance(found, dict) or "timers" not in found:
        return body
    latest = _latest(found.pop("timers"))
    if found.get("scan_timer_set"):
        found["scan_due"] = latest.get(_key("scan"))
    for id_, job in found["jobs"].items():
        job["timers"] = {
            kind: due
            for kind in (*_JOB_FIELDS, "walltime")
            if _held(job, kind) and (due := latest.get(_key(kind, id_)))
        }
        for change in (claim.get("change") for claim in job["claims"]):
            if change is not None and change.get("due_at") is not None:
                change["due"] = latest.get(_key("change", id_, at=change["due_at"]))
    for placeholder in found["placeholders"]:
        subject = placeholder["id"]
        placeholder["timers"] = {
            kind: due
            for kind in ("registration", "silence", "ending")
            if _held(placeholder, kind) and (due := latest.get(_key(kind, subject)))
        }
    return json.dumps(found)


def _held(record: dict[str, Any], kind: str) -> bool:
    """Tell whether a job or placeholder awaited a timer of a kind."""
    if kind in _JOB_FIELDS:
        return record.get(_JOB_FIELDS[kind]) is not None
    if kind == "silence":
        return record.get("silent_since") is not None and record["state"] != "ending"
    states = {"walltime": ("launching", "running"), "registration": ("started",), "ending": ("ending",)}
    return record["state"] in states[kind]


def _latest(timers: list[dict[str, Any]]) -> dict[str, tuple[float, int]]:
    """Return the timer of each kind and subject that was set last; those of changes also by their time."""
    latest: dict[str, tuple[float, int]] = {}
    for timer in sorted(timers, key=lambda one: int(one["number"])):
        at = timer["at"] if timer["kind"] == "change" else None
        key = _key(timer["kind"], timer.get("job_id") or timer.get("placeholder"), at=at)
        due = (timer["at"], timer["number"])
        if key not in latest or latest[key][0] != due[0]:  # of two for the same time the first one held
            latest[key] = due
    return latest


def _key(kind: str, subject: object = None, *, at: float | None = None) -> str:
    return json.dumps([kind, subject, at])
