# SPDX-License-Identifier: Apache-2.0
"""How long the WIKI codec takes for the largest replies: GETNODES and GETJOBS of 10,000 nodes or jobs.

Maui accepts replies of 2 MiB, which are some 8,000 waiting jobs.

Of each reply: to build and sign it from typed records; to send it again when one record of a hundred has changed and
the others were kept as bytes; the part of that which is the signature; to take the frame apart, check it and read it
into typed records. The baseline of the same run is the standard library's JSON of the same values (``json.dumps`` of
dictionaries to bytes, ``json.loads`` back to dictionaries), which is written in C. Seconds are processor time, as
nothing here waits for anything. Memory is what Python allocates at
the peak, over the size of the frame. The growth exponent is the slope of log(time) over log(records), from a tenth of
the size: 1 is linear.

    python benchmarks/wiki.py [--nodes 10000] [--jobs 10000] [--repeat 5] [--dialect wiki|wiki2] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import tracemalloc
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from koala_adapter.wiki.codec.frames import LARGEST_SIZE, FrameReader, open_reply, read_key, seal
from koala_adapter.wiki.codec.records import (
    Count,
    JobRecord,
    NodeRecord,
    build_job,
    build_node,
    join_records,
    parse_jobs,
    parse_nodes,
)
from koala_adapter.wiki.codec.verbs import parse_reply
from koala_adapter.wiki.codec.words import Dialect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Record = NodeRecord | JobRecord

KEY = read_key("0x499602d2")
NOW = 1_795_253_272
GOAL = 1.0
"""Seconds, for each direction."""
CHANGED = 100
"""One record of so many has changed since the last poll."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Median seconds for one kind of reply at one size."""

    kind: str
    records: int
    frame: int
    """Bytes."""
    build: float
    """Typed records to a signed frame."""
    again: float
    """The same with one record of a hundred built anew, the others kept as bytes."""
    sign: float
    """Message to signed frame, which is part of both."""
    parse: float
    """Frame to typed records, signature checked."""
    json_build: float
    json_parse: float
    build_memory: float
    """Bytes allocated at the peak for each byte of the frame."""
    parse_memory: float


def node(number: int) -> NodeRecord:
    """Return a node as our server reports it."""
    return NodeRecord(
        name=f"node{number:05d}",
        state="Running" if number % 3 else "Idle",
        updated_at=NOW - number % 4000,
        load=(number % 800) / 100,
        classes=(Count("batch", 64), Count("small", 64)),
        classes_free=(Count("batch", 64 - number % 64), Count("small", 64 - number % 64)),
        architecture="x86_64",
        operating_system="Linux",
        features=("fast", "gpu") if number % 4 else ("fast",),
        memory=256_000,
        disk=1_000_000,
        processors=64,
        processors_free=64 - number % 64,
    )


def job(number: int) -> JobRecord:
    """Return a job as our server reports it; every tenth runs, on two nodes."""
    running = number % 10 == 0
    hosts = (f"node{number % 10_000:05d}",) * 8 + (f"node{(number + 1) % 10_000:05d}",) * 8
    return JobRecord(
        id=str(1_000_000 + number),
        state="Running" if running else "Idle",
        task_list=hosts if running else (),
        eligible_at=NOW - number % 90_000,
        directory=f"/home/user{number % 500}/run",
        updated_at=NOW - number % 80_000,
        walltime=3600 * (1 + number % 48),
        tasks=16,
        nodes=2,
        processors_per_task=1,
        queued_at=NOW - number % 90_000,
        started_at=NOW - number % 3600 if running else 0,
        memory=2000,
        queue="batch",
        account=f"project{number % 40}",
        user=f"user{number % 500}",
        group="users",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One kind of reply: how a record is written and how the list is read."""

    kind: str
    make: Callable[[int], Record]
    build: Callable[[Record], bytes]
    parse: Callable[[str], Sequence[Record]]


def replies(dialect: Dialect) -> dict[str, Reply]:
    """Return both kinds."""

    def build(record: Record) -> bytes:
        if isinstance(record, NodeRecord):
            return build_node(record, dialect)
        return build_job(record, dialect)

    return {
        "GETNODES": Reply(kind="GETNODES", make=node, build=build, parse=parse_nodes),
        "GETJOBS": Reply(kind="GETJOBS", make=job, build=build, parse=parse_jobs),
    }


def sealed(message: bytes) -> bytes:
    """Return the signed frame of a message."""
    return seal(message, key=KEY, timestamp=NOW, user="slurm", limit=LARGEST_SIZE)


def read(reply: Reply, frame: bytes) -> Sequence[Record]:
    """Return the records in a frame, as a scheduler reads them."""
    payload = FrameReader(limit=LARGEST_SIZE).feed(frame)
    assert payload is not None
    return reply.parse(parse_reply(open_reply(payload, key=KEY, now=NOW).message).require())


def median(repeat: int, work: Callable[[], object]) -> float:
    """Return the median processor seconds of some work."""
    times = []
    for _ in range(repeat):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return statistics.median(times)


def peak(work: Callable[[], object]) -> int:
    """Return the bytes that some work allocates at its peak."""
    tracemalloc.start()
    work()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def measured(reply: Reply, size: int, repeat: int) -> Measured:
    """Measure one kind of reply at one size."""
    records = [reply.make(number) for number in range(size)]
    kept = [reply.build(record) for record in records]
    message = join_records(kept)
    frame = sealed(message)
    assert [record.id for record in read(reply, frame)] == [record.id for record in records]
    values = [asdict(record) for record in records]
    text = json.dumps(values).encode()

    def build() -> bytes:
        return sealed(join_records([reply.build(record) for record in records]))

    def again() -> bytes:
        changed = {number: reply.build(records[number]) for number in range(0, size, CHANGED)}
        return sealed(join_records([changed.get(number, old) for number, old in enumerate(kept)]))

    assert build() == again() == frame
    return Measured(
        kind=reply.kind,
        records=size,
        frame=len(frame),
        build=median(repeat, build),
        again=median(repeat, again),
        sign=median(repeat, lambda: sealed(message)),
        parse=median(repeat, lambda: read(reply, frame)),
        json_build=median(repeat, lambda: json.dumps(values).encode()),
        json_parse=median(repeat, lambda: json.loads(text)),
        build_memory=peak(build) / len(frame),
        parse_memory=peak(lambda: read(reply, frame)) / len(frame),
    )


def exponent(small: Measured, large: Measured, name: str) -> float:
    """Return how a time grows with the number of records."""
    times: float = getattr(large, name) / getattr(small, name)
    return math.log(times) / math.log(large.records / small.records)


def shown(results: list[Measured]) -> None:
    """Print the tables."""
    columns = ("build", "again", "sign", "parse", "json_build", "json_parse")
    print("milliseconds")
    print(f"{'reply':>9} {'records':>8} {'MiB':>6}", *(f"{name:>11}" for name in columns), "   memory: build  parse")
    for one in results:
        cells = [f"{getattr(one, name) * 1e3:11.1f}" for name in columns]
        memory = f"{one.build_memory:13.1f}x {one.parse_memory:5.1f}x"
        print(f"{one.kind:>9} {one.records:>8} {one.frame / 2**20:6.1f}", *cells, memory)
    for small, large in zip(results[::2], results[1::2], strict=True):
        grown = ", ".join(f"{name} {exponent(small, large, name):.2f}" for name in columns)
        print(f"growth of {large.kind}: {grown}")
        for direction in ("build", "parse"):
            seconds = getattr(large, direction)
            ratio = seconds / getattr(large, f"json_{direction}")
            verdict = "within" if seconds <= GOAL else "beyond"
            print(
                f"{large.kind} {direction}: {seconds:.2f} s, {verdict} the goal of {GOAL:g} s; {ratio:.1f} times JSON"
            )


def main() -> None:
    """Measure both kinds of reply at a tenth of the size and at the size, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--dialect", type=Dialect, choices=list(Dialect), default=Dialect.WIKI)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    kinds = replies(given.dialect)
    sizes = {"GETNODES": given.nodes, "GETJOBS": given.jobs}
    results = [measured(kinds[kind], many, given.repeat) for kind, size in sizes.items() for many in (size // 10, size)]
    if given.json:
        print(json.dumps({"dialect": given.dialect, "results": [asdict(one) for one in results]}, indent=2))
    else:
        shown(results)


if __name__ == "__main__":
    main()
