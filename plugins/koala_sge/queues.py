# SPDX-License-Identifier: Apache-2.0
"""Cluster queues from ``qstat -xml -g c`` and their walltime limits from ``qconf -sq '*'``. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.model import Queue
from koala_sge.values import seconds_of
from koala_sge.xml import number_of, parse_xml, text_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

LIMITS = ("s_rt", "h_rt")
"""Soft and hard limit of the run time (queue_conf(5)); the soft one already ends a job that does not catch SIGUSR1."""

ACCESS_LISTS = frozenset({"user_lists", "xuser_lists"})

_OVERRIDE = re.compile(r"\[[^=\]]+=([^\]]*)\]")


def parse_queues(raw: bytes, limits: Mapping[str, int | None], *, default: str | None) -> tuple[Queue, ...]:
    """Return cluster queues; ``limits`` as from :func:`parse_limits`. Raises LrmUnavailableError."""
    root = parse_xml(raw, root="job_info", source="qstat -g c")
    summaries = list(root.iterfind("cluster_queue_summary"))
    names = [text_of(summary, "name") for summary in summaries]
    preferred = default or (names[0] if len(names) == 1 else None)
    queues = []
    for name, summary in zip(names, summaries, strict=True):
        total, closed = (number_of(text_of(summary, tag)) for tag in ("total", "manual_intervention"))
        queues.append(
            Queue(
                name=name,
                up=total > closed,
                processors=total,
                walltime_limit=limits.get(name),
                default=name == preferred,
            )
        )
    return tuple(queues)


def parse_limits(text: str, *, names: Collection[str] = LIMITS) -> dict[str, int | None]:
    """Return the walltime limit of each queue in seconds; None where there is none. ``names`` of those that count.

    Where hosts differ it is the longest: a job within it can run somewhere.
    """
    limits: dict[str, int | None] = {}
    name = ""
    for line in text.replace("\\\n", " ").splitlines():
        word, _, value = line.strip().partition(" ")
        if word == "qname":
            name = value.strip()
            limits[name] = None
        elif word in names and name:
            limit, known = _longest(value), limits[name]
            if limit is not None:
                limits[name] = limit if known is None else min(known, limit)
    return limits


def _longest(value: str) -> int | None:
    common = value.strip().partition(",")[0]
    values = [seconds_of(text) for text in (common, *_OVERRIDE.findall(value))]
    return None if None in values else max((limit for limit in values if limit is not None), default=None)


def has_access_lists(text: str) -> bool:
    """Tell whether any queue, of ``qconf -sq '*'``, may be used by some users only."""
    lines = (line.split(None, 1) for line in text.replace("\\\n", " ").splitlines())
    return any(len(words) > 1 and words[0] in ACCESS_LISTS and words[1].strip() != "NONE" for words in lines)
