# SPDX-License-Identifier: Apache-2.0
"""WIKI: how long the codec takes for the largest replies, and how soon jobs start that a peer starts.

    python -m benchmarks.wiki codec [--nodes 10000] [--jobs 10000] [--repeat 5] [--dialect wiki|wiki2]
    python -m benchmarks.wiki start-job [--repeat 15]
    python -m benchmarks.wiki throughput [--jobs 500]

The last two need the Debian packages slurmctld, slurmd and slurm-client, and root.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import ROOT, Row, growth, main, medians, processor_seconds, until
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
from tests.real.mauistandin import MauiStandIn
from tests.real.serving import WikiServing
from tests.real.systems import SlurmCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# -- The codec -----------------------------------------------------------------------------------------------

KEY = read_key("0x499602d2")
NOW = 1_795_253_272


def codec(*, nodes: int = 10_000, jobs: int = 10_000, repeat: int = 5, dialect: str = "wiki") -> list[Row]:
    """How long the WIKI codec takes for GETNODES and GETJOBS, at a tenth of the size and at the size; milliseconds.

    Maui accepts replies of 2 MiB, which are some 8,000 waiting jobs. *build*: typed records to a signed frame. *parse*:
    frame to typed records, signature checked. The baseline is the standard library's JSON of the same values, which is
    written in C. All is processor time, as nothing here waits for anything. The growth is the slope of log(time) over
    log(records): 1 is linear. The goal is 1 s for each direction.
    """
    rows: list[Row] = []
    for kind, many in (("GETNODES", nodes), ("GETJOBS", jobs)):
        sizes = (many // 10, many)
        small, large = (coded(kind, Dialect(dialect), size, repeat) for size in sizes)
        for name in ("build", "parse"):
            times = (small[name], large[name])
            rows.append({
                "reply": kind, "": name, **{str(size): 1000 * one for size, one in zip(sizes, times, strict=True)},
                "growth": growth(list(zip(sizes, times, strict=True))),
                "JSON": 1000 * large[f"json {name}"], "ratio": large[name] / large[f"json {name}"],
            })  # fmt: skip
    return rows


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


def coded(kind: str, dialect: Dialect, size: int, repeat: int) -> dict[str, float]:
    """Measure one kind of reply at one size."""
    records = [(node if kind == "GETNODES" else job)(number) for number in range(size)]

    def build() -> bytes:
        parts = [
            build_node(one, dialect) if isinstance(one, NodeRecord) else build_job(one, dialect) for one in records
        ]
        return seal(join_records(parts), key=KEY, timestamp=NOW, user="slurm", limit=LARGEST_SIZE)

    def parse() -> Sequence[object]:
        """Return the records of the frame, as a scheduler reads them."""
        payload = FrameReader(limit=LARGEST_SIZE).feed(frame)
        assert payload is not None
        message = parse_reply(open_reply(payload, key=KEY, now=NOW)).require()
        return (parse_nodes if kind == "GETNODES" else parse_jobs)(message)

    frame = build()
    assert len(parse()) == size
    values = [asdict(record) for record in records]
    text = json.dumps(values)
    works: dict[str, Callable[[], object]] = {
        "build": build,
        "parse": parse,
        "json build": lambda: json.dumps(values).encode(),
        "json parse": lambda: json.loads(text),
    }
    return medians([{name: processor_seconds(work) for name, work in works.items()} for _ in range(repeat)])


# -- A job that a peer starts --------------------------------------------------------------------------------
# slurmctld looks at released jobs once a second, so every start begins at a random moment of a second, the same moments
# for both ways, and means are compared.

CASES: Mapping[str, Sequence[str]] = {
    "1 processor": ("n3",),
    "3 and 3": ("n4", "n4", "n4", "n2", "n2", "n2"),
    "4 and 2": ("n4", "n4", "n4", "n4", "n2", "n2"),
}


@contextmanager
def asked_by_peers(
    settings: Mapping[str, str], *options: str
) -> Iterator[tuple[SlurmCluster, WikiServing[SlurmCluster]]]:
    """Have a Slurm with conf/job_submit.lua, and ``koala wiki serve`` for it."""
    cluster = SlurmCluster("wiki", nodes=4, cpus=8, settings={**settings, "JobSubmitPlugins": "lua"})
    (cluster.directory / "job_submit.lua").write_text((ROOT / "conf" / "job_submit.lua").read_text())
    with cluster, tempfile.TemporaryDirectory() as name, WikiServing(Path(name), cluster, *options) as serving:
        yield cluster, serving


def start_job(*, repeat: int = 15) -> list[Row]:
    """How much later a job runs when STARTJOB starts it, than by the same scontrol commands typed by hand; seconds.

    For a job of one processor, one of six on two nodes (three each), and one of six as four and two: from the first
    command until the job's script has begun, which writes the time itself.
    """
    rows: list[Row] = []
    with asked_by_peers({}, "--cache", "1") as (cluster, serving):
        for case, nodes in CASES.items():
            chance = random.Random(1)
            hand, koala, answered = [], [], []
            start = partial(started_by_peer, serving, nodes)
            for _ in range(repeat):
                pause = chance.random()
                hand.append(one(cluster, nodes, partial(by_hand, cluster, nodes), pause=pause)[0])
                # A scheduler has seen the job before it starts it.
                begun, told = one(cluster, nodes, start, seen=lambda _: serving.jobs(), pause=pause)
                koala.append(begun)
                answered.append(told)
            means = {"by hand": statistics.mean(hand), "koala": statistics.mean(koala)}
            ratio = means["koala"] / means["by hand"]
            rows.append({"case": case, **means, "ratio": ratio, "answered": statistics.mean(answered)})
    return rows


def started_by_peer(serving: WikiServing[SlurmCluster], nodes: Sequence[str], job: str) -> object:
    """Start a job as Maui does."""
    return serving.done(f"STARTJOB ARG={job} TASKLIST={':'.join(nodes)}")


def by_hand(cluster: SlurmCluster, nodes: Sequence[str], job: str) -> str:
    """Start a job as an administrator would who knows the commands."""
    names = ",".join(dict.fromkeys(nodes))
    if len(nodes) == 1:
        cluster.run("scontrol", "update", f"JobId={job}", f"ReqNodeList={names}")
        return cluster.run("scontrol", "release", job)
    counts = [nodes.count(name) for name in sorted(set(nodes))]
    places = ["NumNodes=2-2", f"MinCPUsNode={min(counts)}"]
    if len(set(counts)) > 1:
        places.append(f"Reservation=hand{job}")
        cores = ",".join(map(str, counts))
        reserved = (
            f"Nodes={','.join(sorted(set(nodes)))}",
            f"CoreCnt={cores}",
            "Users=root",
            "Flags=PURGE_COMP=00:00:30",
        )
        cluster.run(
            "scontrol", "create", "reservation", f"ReservationName=hand{job}", "StartTime=now", "Duration=60", *reserved
        )
    cluster.run("scontrol", "update", f"JobId={job}", f"ReqNodeList={names}", *places)
    if len(set(counts)) > 1:
        cluster.run("scontrol", "update", f"JobId={job}", f"NumCPUs={len(nodes)}")
    return cluster.run("scontrol", "release", job)


def one(
    cluster: SlurmCluster,
    nodes: Sequence[str],
    start: Callable[[str], object],
    *,
    pause: float,
    seen: Callable[[str], object] = str,
) -> tuple[float, float]:
    """Return the seconds from the first command until the job ran, and until ``start`` returned."""
    trace = cluster.directory / "begun"
    trace.unlink(missing_ok=True)
    script = f"#!/bin/sh\ndate +%s.%N > {trace}.new\nmv {trace}.new {trace}\nexec sleep 600\n"
    job = cluster.submit(script, f"--ntasks={len(nodes)}", "--output=/dev/null", "--time=10")
    time.sleep(1.0 - time.time() % 1.0 + pause)
    seen(job)
    begun = time.time()
    start(job)
    returned = time.time() - begun
    until(f"the start of job {job}", trace.exists, limit=60, look=0.01)
    seconds = float(trace.read_text()) - begun
    cluster.run("scontrol", "update", f"JobId={job}", "Reservation=", check=False)
    cluster.run("scontrol", "delete", f"ReservationName=hand{job}", check=False)
    cluster.reset()
    return seconds, returned


# -- Many short jobs -----------------------------------------------------------------------------------------

LONGEST = 1200.0
USER = "nobody"
SETTINGS = {"SchedulerParameters": "sched_interval=5,bf_interval=10", "MinJobAge": "3600"}
"""Slurm's own pace, but for what the test cluster needs; ended jobs are counted at the end."""


def throughput(*, jobs: int = 500) -> list[Row]:
    """How long many short jobs take on a real Slurm by itself, and under a peer that asks koala as Maui does; seconds.

    Jobs of one to three seconds on four nodes of eight processors, the same for both: first Slurm alone, then with
    conf/job_submit.lua and ``koala wiki serve``, asked by a stand-in for Maui that polls every two seconds and sends
    one STARTJOB after the other. Goals: at most twice Slurm's time, STARTJOB answered in 0.2 s in the median.
    """
    chance = random.Random(1)
    lengths = [chance.uniform(1, 3) for _ in range(jobs)]
    Path(tempfile.gettempdir()).chmod(0o711)  # jobs of another user have to find the configuration of the cluster
    with SlurmCluster("alone", nodes=4, cpus=8, settings=SETTINGS) as cluster:
        ids = submitted(cluster, lengths, held=True)
        begun = time.monotonic()
        cluster.run("scontrol", "release", ",".join(ids))

        def over() -> bool:
            return not any(row[0] in ids for row in cluster.squeue("--states=PENDING,RUNNING,COMPLETING"))

        until("the end of all jobs", over, limit=LONGEST, look=0.5)
        slurm = time.monotonic() - begun
    with asked_by_peers(SETTINGS) as (cluster, serving):
        ids = submitted(cluster, lengths, held=False)
        maui = MauiStandIn(serving.peer(Dialect.WIKI))
        begun = time.monotonic()
        left = maui.run(ids, seconds=LONGEST)
        koala = time.monotonic() - begun
        assert not left, (left, serving.details())
    answers = maui.answers
    return [{
        "jobs": jobs, "Slurm alone": slurm, "under koala": koala, "ratio": koala / slurm,
        "answered, median": statistics.median(answers), "answered, most": max(answers), "refusals": len(maui.refusals),
    }]  # fmt: skip


def submitted(cluster: SlurmCluster, lengths: list[float], *, held: bool) -> list[str]:
    """Submit a job for each length; return their ids."""
    options = ("--ntasks=1", "--output=/dev/null", "--time=5", *(("--hold",) if held else ()))
    return [
        cluster.submit(f"#!/bin/sh\nexec sleep {seconds:.2f}\n", *options, user=None if held else USER)
        for seconds in lengths
    ]


if __name__ == "__main__":
    main(codec, start_job, throughput)
