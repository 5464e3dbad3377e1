# SPDX-License-Identifier: Apache-2.0
"""Programs that use KoalaCluster, as people write them. Run as a script: ``daskprograms.py NAME [NUMBER …]``.

Which site and which state directory they use is in KOALA_SITE and KOALA_STATE. What they have to say is one line each.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from distributed import Client

from koala_adapter.dask import KoalaCluster

if TYPE_CHECKING:
    from collections.abc import Callable

TASKS = 30
LIVENESS = 240.0


def square(number: int, seconds: float = 0.05) -> int:
    """Work one task out."""
    time.sleep(seconds)
    return number * number


def until(condition: Callable[[], object]) -> None:
    """Wait for something."""
    end = time.monotonic() + LIVENESS
    while not condition():
        if time.monotonic() > end:
            sys.exit("it did not come true")
        time.sleep(0.05)


def clusters_of(cluster: KoalaCluster) -> set[str]:
    """Return the names of koala's clusters where workers are."""
    return {name.rpartition("-")[0] for name in map(str, cluster.observed)}


def breathe(many: int, few: int, threads: int = 1) -> None:
    """Compute with ``many`` workers, then with ``few``, when koala has taken the others; whatever there was is kept."""
    with KoalaCluster(minimum=1, maximum=many, threads=threads) as cluster, Client(cluster) as client:
        until(lambda: len(cluster.observed) == many)
        # Before workers are asked to leave: Dask gives nothing to one that does.
        scattered = client.scatter([b"a" * 1000, b"b" * 1000])
        print("threads", *set(client.nthreads().values()), flush=True)
        print("many on", *sorted(clusters_of(cluster)), flush=True)
        before = client.map(square, range(TASKS))
        print("sum", sum(client.gather(before)), flush=True)
        during = client.map(square, range(TASKS))
        while len(cluster.observed) > few:
            latest = client.map(square, range(len(during), len(during) + TASKS))
            client.gather(latest)
            during += latest
        print("during", sum(client.gather(during)) == sum(n * n for n in range(len(during))), flush=True)
        print("sum", client.submit(sum, before).result(), flush=True)
        print("scattered", b"".join(client.gather(scattered)) == b"a" * 1000 + b"b" * 1000, flush=True)
        with client.get_executor() as executor:
            print("executor", *executor.map(square, range(5)), flush=True)
        lost = [event for _, event in client.get_events("all") if event.get("lost-computed-tasks")]
        print("lost", len(lost), flush=True)
    print("closed", flush=True)


async def _notebook() -> None:
    async with (
        KoalaCluster(minimum=1, maximum=4, n_workers=0, asynchronous=True) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        print("none", cluster.job_id or "-", len(cluster.plan), flush=True)
        await cluster.scale(3)
        print("sum", sum(await client.gather(client.map(square, range(TASKS)))), flush=True)
        first = cluster.job_id
        cluster.adapt(minimum=0, interval="200ms")
        while cluster.plan or cluster.observed:  # noqa: ASYNC110 - as in a cell of a notebook
            await asyncio.sleep(0.05)
        print("sum", sum(await client.gather(client.map(square, range(TASKS, 2 * TASKS)))), flush=True)
        print("another job", cluster.job_id not in {"", first}, flush=True)
    with KoalaCluster(maximum=2) as cluster, Client(cluster) as client:  # which has a loop and a thread of its own
        print("executor", *client.get_executor().map(square, range(5)), flush=True)
    print("closed", flush=True)


def notebook() -> None:
    """Use a cluster where an event loop runs already: the one that belongs to it, and one that does not."""
    asyncio.run(_notebook())


def compute(workers: int) -> None:
    """Compute until somebody ends this process."""
    with KoalaCluster(minimum=1, maximum=workers) as cluster, Client(cluster) as client:
        client.wait_for_workers(workers)
        print("job", cluster.job_id, flush=True)
        for number in range(10_000):
            client.submit(square, number).result()


def forget() -> None:
    """End without closing anything."""
    cluster = KoalaCluster(maximum=2)
    print("executor", *Client(cluster).get_executor().map(square, range(5)), flush=True)


def go_on(workers: int) -> None:
    """Compute while the service is away, and ask for more workers when a file says that it is back."""
    with KoalaCluster(minimum=1, maximum=workers, n_workers=1) as cluster, Client(cluster) as client:
        client.wait_for_workers(1)
        print("job", cluster.job_id, flush=True)
        until(Path("killed").exists)
        print("executor", *client.get_executor().map(square, range(5)), flush=True)
        cluster.scale(workers)
        until(lambda: "no koala service answers" in cluster.get_logs(scheduler=False, workers=False)["Cluster"])
        print("asked", flush=True)
        client.wait_for_workers(workers)
    print("closed", flush=True)


def fail(python: str) -> None:
    """Have workers that cannot start; say what is told of that."""
    with KoalaCluster(maximum=2, python=python) as cluster:
        until(lambda: not cluster.plan)
        print(cluster.get_logs(scheduler=False, workers=False)["Cluster"], flush=True)


PROGRAMS: dict[str, Callable[..., None]] = {
    one.__name__: one for one in (breathe, notebook, compute, forget, go_on, fail)
}


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*(int(word) if word.isdecimal() else word for word in sys.argv[2:]))
