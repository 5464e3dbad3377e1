# SPDX-License-Identifier: Apache-2.0
"""What became of the files that ranks left: those that arrived, were refused, are still awaited, or are gone.

The files themselves are in ``jobs/ID/COMPONENT/RANK/`` of the state directory; what agents say of them at the end is a
line for each rank in ``jobs/ID/files.jsonl``.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from pydantic import ValidationError

from koala_adapter.adapters import adapter_of
from koala_adapter.service.filesreport import FilesReport
from koala_adapter.vjm.channel import FileAck, TaskFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from koala_adapter.model import PlaceholderId
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.service.resultstore import ResultStore
    from koala_adapter.vjm.channel import FilePiece

LEDGER_NAME = "files.jsonl"
NAMED = 20
"""Most files, or ranks, of each sort that a report names."""
STALLED = 30.0
"""Seconds without a piece of a file after which an agent is not waited for any longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """What is known of the output files of one rank: a line of the file in which that is kept."""

    rank: str
    """``COMPONENT/RANK``."""
    files: TaskFiles


class Results:
    """Takes the output files of all jobs in, and knows what became of them."""

    def __init__(
        self,
        rank_directory: Callable[[PlaceholderId, str], Path | None],
        store: ResultStore,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``rank_directory`` gives the directory for the files of a task; None: the task is not that agent's."""
        self._rank_directory = rank_directory
        self._store = store
        self._clock = clock
        self._ledgers: dict[Path, dict[str, TaskFiles]] = {}
        self._latest: dict[PlaceholderId, float] = {}
        self._opened_at = clock()

    def take(self, placeholder: PlaceholderId, piece: FilePiece) -> FileAck:
        """Keep a piece of a file, or refuse the file. Raises ProtocolError for what no agent says."""
        directory = self._rank_directory(placeholder, piece.task)
        if directory is None:
            return FileAck(task=piece.task, number=piece.number, offset=0, refusal="its job is not known any more")
        self._latest[placeholder] = self._clock()
        return self._store.take(directory, piece)

    def conclude(self, placeholder: PlaceholderId, files: TaskFiles) -> None:
        """Keep what is said of a rank's files when all that come are there. Raises OSError."""
        directory = self._rank_directory(placeholder, files.task)
        if directory is None:
            return
        self._store.settle(directory)
        job, rank = directory.parents[1], f"{directory.parent.name}/{directory.name}"
        ledger = self._ledger(job)
        if rank not in ledger:
            _note(job, RankFiles(rank=rank, files=files))
            ledger[rank] = files
        self._latest.pop(placeholder, None)

    def concluded(self, job_directory: Path) -> Mapping[str, TaskFiles]:
        """Return what was said so far, by ``COMPONENT/RANK``."""
        return self._ledgers.get(job_directory) or read_ledger(job_directory)

    def under_way(self, placeholder: PlaceholderId, task: str) -> bool:
        """Tell whether output files of a task are coming in, or may come when its agent has found us again."""
        directory = self._rank_directory(placeholder, task)
        if directory is None or f"{directory.parent.name}/{directory.name}" in self._ledger(directory.parents[1]):
            return False
        return self._clock() - self._latest.get(placeholder, self._opened_at) < STALLED

    def forget(self, job_directory: Path) -> None:
        """Nothing more comes from any rank of a job."""
        self._store.forget(job_directory)
        self._ledgers.pop(job_directory, None)

    def _ledger(self, job_directory: Path) -> dict[str, TaskFiles]:
        if job_directory not in self._ledgers:
            self._ledgers[job_directory] = read_ledger(job_directory)
        return self._ledgers[job_directory]


def read_ledger(job_directory: Path) -> dict[str, TaskFiles]:
    """Return what was said of the files of a job's ranks, by ``COMPONENT/RANK``; what cannot be read is left out."""
    found: dict[str, TaskFiles] = {}
    with suppress(OSError), (job_directory / LEDGER_NAME).open("rb") as lines:
        for line in lines:
            with suppress(ValidationError):
                one = adapter_of(RankFiles).validate_json(line)
                found[one.rank] = one.files
    return found


def _note(job_directory: Path, one: RankFiles) -> None:
    for path in reversed((job_directory, *job_directory.parents[:1])):
        path.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(job_directory / LEDGER_NAME, flags, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        # Begins on a new line, too, whatever became of the one before when the disk was full.
        file.write(b"\n" + adapter_of(RankFiles).dump_json(one) + b"\n")


def _name(rank: Rank) -> str:
    return f"{rank.component}/{rank.component_rank}"


def files_report(record: JobRecord, said: Mapping[str, TaskFiles]) -> FilesReport:
    """Return what became of the files of a job's ranks, from what was ``said`` of each."""
    wanting = {component.name for component in record.job.components if component.output_files}
    ranks = [rank for rank in record.ranks if rank.component in wanting and rank.rank in record.started]
    names = [_name(rank) for rank in ranks]
    said = {name: said[name] for name in map(_name, record.ranks) if name in said}
    awaited = [name for name in names if name not in said]
    refusals = (f"{rank}: {one.path}: {one.reason}" for rank, files in said.items() for one in files.omissions)
    left_names = (f"{rank}: {name}" for rank, files in said.items() for name in files.left_names)
    return FilesReport(
        arrived=sum(files.arrived for files in said.values()),
        size=sum(files.size for files in said.values()),
        refused=sum(files.omitted for files in said.values()),
        refusals=tuple(islice(refusals, NAMED)),
        left=sum(files.left for files in said.values()),
        left_names=tuple(islice(left_names, NAMED)),
        awaited=len(awaited),
        awaited_ranks=tuple(awaited[:NAMED]),
    )
