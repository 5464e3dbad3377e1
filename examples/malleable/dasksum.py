# SPDX-License-Identifier: Apache-2.0
"""A program that uses Dask: its scheduler is in this process, its workers are wherever koala has processors.

python3 dasksum.py TASKS     prints TASKS squares and who worked each out, then the sum

The file `dask.pem`, which nobody else may have, is both the key and the certificate of all of them; make it with
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=dask -keyout dask.pem -out dask.pem
"""

from __future__ import annotations

import os
import sys
import time

from distributed import Client, LocalCluster, as_completed, get_worker

PORT = int(os.environ.get("DASKSUM_PORT", "28786"))
SECONDS = float(os.environ.get("DASKSUM_SECONDS", "0.5"))
"""How long one task takes."""


def square(number: int, seconds: float) -> tuple[int, int, str]:
    """Work one task out."""
    time.sleep(seconds)
    return number, number * number, str(get_worker().name)


def main(count: int) -> None:
    """Have all tasks worked out by the workers that come."""
    # Without workers of its own, this is a scheduler alone. DASK_… in the job file say which key it asks for.
    everywhere = {"host": "tls://0.0.0.0", "scheduler_port": PORT, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=0, **everywhere) as cluster, Client(cluster) as client:
        total = 0
        for future in as_completed([client.submit(square, number, SECONDS) for number in range(count)]):
            number, result, who = future.result()
            print(f"{number} squared is {result}, says {who}", flush=True)
            total += result
        print(f"sum {total}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
