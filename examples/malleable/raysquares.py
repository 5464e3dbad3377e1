# SPDX-License-Identifier: Apache-2.0
"""A program that uses Ray: it begins Ray's head, which has no processors; its workers are wherever koala has some.

python3 raysquares.py TASKS     prints TASKS squares and who worked each out, then the sum

The file `ray.token`, which nobody else may have, is known to all of them; make it with
    (umask 077; python3 -c "import secrets; print(secrets.token_hex(32))" > ray.token)
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import ray

PORT = os.environ.get("RAYSQUARES_PORT", "26379")
SECONDS = float(os.environ.get("RAYSQUARES_SECONDS", "0.5"))
"""How long one task takes."""
RAY = str(Path(sys.executable).with_name("ray"))


@ray.remote(num_cpus=1, max_retries=-1)  # as often as koala takes the node away on which it runs
def square(number: int, seconds: float) -> tuple[int, int, str]:
    """Work one task out."""
    time.sleep(seconds)
    return number, number * number, os.environ.get("KOALA_CLUSTER", "?")


def main(count: int) -> None:
    """Have all tasks worked out by the nodes that come."""
    address = os.environ["KOALA_HEAD_ADDRESS"]
    head = [RAY, "start", "--head", "--block", f"--node-ip-address={address}", f"--port={PORT}", "--num-cpus=0"]
    head += ["--include-dashboard=false", "--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0"]
    head += ["--dashboard-agent-listen-port=0"]
    with subprocess.Popen(head, stdout=subprocess.DEVNULL) as process:
        try:
            ray.init(address=f"{address}:{PORT}", log_to_driver=False)
            waiting = [square.remote(number, SECONDS) for number in range(count)]
            total = 0
            while waiting:
                done, waiting = ray.wait(waiting)
                for number, result, who in ray.get(done):
                    print(f"{number} squared is {result}, says {who}", flush=True)
                    total += result
            print(f"sum {total}", flush=True)
            ray.shutdown()
        finally:
            process.terminate()


if __name__ == "__main__":
    main(int(sys.argv[1]))
