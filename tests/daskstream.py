# SPDX-License-Identifier: Apache-2.0
"""A head of a job with Dask workers: one round of tasks after another until a file says that it is enough.

python3 daskstream.py FILE     prints how many there were, the sum of their results, and how many results were lost
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from distributed import Client, Future, LocalCluster

PORT = int(os.environ["DASKSUM_PORT"])
SECONDS = float(os.environ["DASKSUM_SECONDS"])
ROUND = 20


def square(number: int, seconds: float) -> int:
    """Work one task out."""
    time.sleep(seconds)
    return number * number


def main(enough: Path) -> None:
    """Keep all results with the workers, and look at them again in the end."""
    with (
        LocalCluster(
            n_workers=0, host="tls://0.0.0.0", scheduler_port=PORT, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        futures: list[Future[int]] = []
        while not enough.exists():
            first = len(futures)
            futures += client.map(square, range(first, first + ROUND), seconds=SECONDS)
            client.gather(futures[first:])
        print(len(futures), flush=True)
        print(sum(client.gather(futures)), flush=True)
        removals = [event for _, event in client.get_events("all") if event["action"] == "remove-worker"]
        print(sum(len(event["lost-computed-tasks"]) for event in removals), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
