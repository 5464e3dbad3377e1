# SPDX-License-Identifier: Apache-2.0
"""Jobs with input files on DAS-3: which cluster holds which file, what is read by whom, and how long moving it takes.

A simple table of bandwidths between clusters: transfers do not slow each other down.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.model import ClusterName, Component, InputFile, Job, JobId, JobKind
from koala_adapter.scheduler.parameters import ClusterParameters
from koala_adapter.scheduler.placement.closetofiles import holds, transfer_seconds
from koala_adapter.scheduler.placement.policy import ClusterView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.scheduler.records import JobRecord

CLUSTERS = (("Vrije", 85), ("Amsterdam", 41), ("Delft", 68), ("MultimediaN", 46), ("Leiden", 32))
"""DAS-3: name and nodes, one process on each."""
SIZES = (8, 16, 32, 64)
"""Processors of a job."""
COMPONENTS = (1, 2, 4)
LARGEST_COMPONENT = 32
FILES, REPLICAS = 40, 2
"""Data sets, and the number of clusters that hold each."""
GIB = 1024**3
FILE_SIZE = (1 * GIB, 10 * GIB)
RATES = (10.0, 40.0, 110.0)
"""MiB/s between two clusters, drawn for each pair: a busy, an ordinary and a fast path."""
RUN = (600.0, 1800.0)


@dataclass(frozen=True, slots=True)
class StagedJob:
    """A job of the workload, the same for each policy."""

    at: float
    size: int
    components: int
    run: float
    file: InputFile

    def job(self, number: int, policy: str, *, flexible: bool) -> Job:
        """Return it as a job for one policy; ``flexible``: in one component that may be split."""
        count = 1 if flexible else self.components
        return Job(
            id=JobId(str(number)),
            name=f"job {number}",
            kind=JobKind.RIGID,
            components=tuple(
                Component(
                    name=f"c{index}",
                    command=("program",),
                    minimum=self.size // count,
                    maximum=self.size // count,
                    input_files=(self.file,),
                    flexible=flexible,
                )
                for index in range(count)
            ),
            walltime=int(20 * RUN[1]),
            user="user",
            submitted_at=self.at,
            placement=policy,
        )


def workload(seed: int, *, jobs: int, interval: float, start: float) -> list[StagedJob]:
    """Return the jobs of one repetition: Poisson arrivals ``interval`` seconds apart on average, from ``start`` on."""
    chance = random.Random(f"{seed}/jobs")
    files = [
        InputFile(source=f"/data/{number}", target="input", size=chance.randint(*FILE_SIZE)) for number in range(FILES)
    ]
    made = []
    at = start
    for _ in range(jobs):
        at += chance.expovariate(1.0 / interval)
        size = chance.choice(SIZES)
        counts = [count for count in COMPONENTS if size // count <= LARGEST_COMPONENT]
        made.append(StagedJob(at, size, chance.choice(counts), chance.uniform(*RUN), chance.choice(files)))
    return made


def das3(seed: int) -> list[ClusterParameters]:
    """Return the clusters with the files they hold and the bandwidths between them."""
    chance = random.Random(f"{seed}/site")
    names = [ClusterName(name) for name, _ in CLUSTERS]
    held: dict[ClusterName, list[str]] = {name: [] for name in names}
    for number in range(FILES):
        for name in chance.sample(names, REPLICAS):
            held[name].append(f"/data/{number}")
    rates = {frozenset((one, other)): chance.choice(RATES) for one in names for other in names if one < other}
    return [
        ClusterParameters(
            name=name,
            files=tuple(held[name]),
            bandwidth_from=tuple((other, rates[frozenset((name, other))]) for other in names if other != name),
        )
        for name in names
    ]


class Staging:
    """Moves input files, each cluster's at the same time as the others', and counts."""

    def __init__(self, site: Sequence[ClusterParameters]) -> None:
        """``site``: which cluster holds what, and how fast files get from one to another."""
        self._views: dict[ClusterName, ClusterView] = {
            one.name: ClusterView(
                name=one.name,
                capacity=None,
                room=0,
                available=0,
                load_free=0,
                walltime_limit=None,
                files=one.files,
                bandwidth_from=one.bandwidth_from,
            )
            for one in site
        }
        self.times: dict[JobId, float] = {}
        """Seconds that the files of each job needed."""
        self.moved: dict[JobId, int] = {}
        """Bytes that were moved for it."""

    def seconds(self, record: JobRecord) -> float:
        """Return how long the files of a job need to where it is."""
        longest, moved = 0.0, 0
        for name in {claim.cluster for claim in record.claims if claim.cluster is not None}:
            view = self._views[name]
            missing = [file for file in record.job.components[0].input_files if not holds(view, file.source)]
            longest = max(longest, transfer_seconds(missing, view, self._views))
            moved += sum(file.size or 0 for file in missing)
        self.times[record.job.id], self.moved[record.job.id] = longest, moved
        return longest
