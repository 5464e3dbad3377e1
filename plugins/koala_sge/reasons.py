# SPDX-License-Identifier: Apache-2.0
"""Why jobs are in error state, from ``qstat -j``. Pure."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"job_number:\s+(\d+)")
_REASON = re.compile(r"error reason\s+(\d+):\s+(.*\S)")
_ORIGIN = re.compile(r"^\S+ \S+ \[\d+:\d+\]: (?:error: )?")
"""Date, time, and [user:process] of the shepherd that complained."""


def parse_error_reasons(text: str) -> dict[str, str]:
    """Return error reasons by task, under the ids ``NUMBER.TASK``, and under ``NUMBER`` the first of each job."""
    reasons: dict[str, str] = {}
    number = ""
    for line in text.splitlines():
        if job := _NUMBER.match(line):
            number = job.group(1)
        elif (found := _REASON.match(line)) and number:
            reason = _ORIGIN.sub("", found.group(2))
            reasons[f"{number}.{found.group(1)}"] = reason
            reasons.setdefault(number, reason)
    return reasons
