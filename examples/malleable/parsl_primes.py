# SPDX-License-Identifier: Apache-2.0
"""Prime numbers, counted by Parsl with one executor on every cluster of a koala site: python parsl_primes.py [MOST]."""

from __future__ import annotations

import os
import sys
from collections import Counter

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor

from koala_adapter.parsl import KoalaProvider

SHARE = 20_000


@parsl.python_app
def primes(start: int, stop: int) -> tuple[int, str]:
    """Count the primes of a range; tell on which cluster that was done."""
    import os  # noqa: PLC0415 - a task imports what it needs

    count = sum(all(number % by for by in range(2, int(number**0.5) + 1)) for number in range(max(2, start), stop))
    return count, os.environ["KOALA_CLUSTER"]


def main() -> None:
    """Count in shares, and say how many were done where."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    provider = KoalaProvider(
        walltime="00:30:00",
        init_blocks=1,
        max_blocks=8,
        worker_init=f"export PATH={os.environ['PATH']}",
    )
    executor = HighThroughputExecutor(label="everywhere", provider=provider, encrypted=True)
    with parsl.load(Config(executors=[executor])):
        shares = [primes(start, min(start + SHARE, most)) for start in range(0, most, SHARE)]
        results = [share.result() for share in shares]
    print(f"{sum(count for count, _ in results)} primes below {most}")
    for cluster, done in sorted(Counter(cluster for _, cluster in results).items()):
        print(f"{cluster}: {done} of {len(results)} shares")


if __name__ == "__main__":
    main()
