# SPDX-License-Identifier: Apache-2.0
"""What jobs ask of the queue instances on which they may run, and which Grid Engine itself says have it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from koala_sge.values import seconds_of
from koala_sge.xml import parse_xml, text_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from lxml.etree import _Element

WALLTIMES = frozenset({"h_rt", "s_rt"})
_INSTANCE = re.compile(r"[^\s@]+@\S+")
PLAIN_QUEUE = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)
"""The name of one cluster queue, and no pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The hard requests of one job, as qselect takes them."""

    user: str = ""
    resources: tuple[tuple[str, str], ...] = ()
    queues: tuple[str, ...] = ()
    """Names or patterns of queues, of which any will do; empty: all."""
    master_queues: tuple[str, ...] = ()
    environment: str = ""
    """Of a parallel job."""
    walltime: int | None = None

    @property
    def selected(self) -> Wishes:
        """Return what of them is asked of qselect: jobs have too many walltimes to ask for each."""
        kept = tuple((name, value) for name, value in self.resources if name not in WALLTIMES)
        return replace(self, resources=kept, walltime=None)

    @property
    def in_words(self) -> str:
        """Return them as qsub was given them."""
        resources = ",".join(f"{name}={value}" for name, value in self.resources)
        given = (
            ("-l", resources),
            ("-q", ",".join(self.queues)),
            ("-masterq", ",".join(self.master_queues)),
            ("-pe", self.environment),
        )
        return " ".join(f"{option} {value}" for option, value in given if value)


def parse_wishes(raw: bytes) -> dict[str, Wishes]:
    """Return what each job of ``qstat -xml -r`` asks for, by its number. Raises LrmUnavailableError."""
    root = parse_xml(raw, root="job_info", source="qstat")
    return {text_of(element, "JB_job_number"): _wishes(element) for element in root.iter("job_list")}


def _wishes(element: _Element) -> Wishes:
    resources = {request.get("name") or "": _text(request) for request in element.iterfind("hard_request")}
    environment = element.find("requested_pe")
    return Wishes(
        walltime=seconds_of(resources.get("h_rt", "")),
        user=text_of(element, "JB_owner"),
        resources=tuple(sorted(resources.items())),
        queues=_texts(element, "hard_req_queue"),
        master_queues=_texts(element, "master_hard_req_queue"),
        environment="" if environment is None else environment.get("name") or "",
    )


def _texts(element: _Element, tag: str) -> tuple[str, ...]:
    return tuple(sorted(filter(None, map(_text, element.iterfind(tag)))))


def _text(element: _Element) -> str:
    return (element.text or "").strip()


def parse_instances(text: str) -> frozenset[str]:
    """Return the queue instances that qselect printed."""
    return frozenset(line.strip() for line in text.splitlines() if _INSTANCE.fullmatch(line.strip()))


def nodes_of(instances: Iterable[str], *, by_queue: bool) -> frozenset[str]:
    """Return the nodes on which queue instances are."""
    return frozenset(name if by_queue else name.partition("@")[2] for name in instances)


def instances_on(node: str, instances: Collection[str], *, by_queue: bool) -> tuple[str, ...]:
    """Return the instances of one node."""
    return tuple(sorted(name for name in instances if node in nodes_of([name], by_queue=by_queue)))
