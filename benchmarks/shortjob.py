# SPDX-License-Identifier: Apache-2.0
"""What it costs to run one short job, beside ``sbatch --wait``, and to submit many, on a real Slurm.

In turns and in one run:
- baseline: ``sbatch --wait`` of a script that prints the name of the host, to its end;
- koala: ``koala run -n 1 -- hostname``, which is the service itself, to its end. Its processor time is that of the
  process and of all commands of Slurm that it started; that of the agent, on the node, is not in it.

Then what ``koala status``, ``logs`` and ``explain`` of such a job take without a service, and with one; and with it,
one ``koala submit`` for each of N job files, and one ``koala submit`` of all of them.

    python benchmarks/shortjob.py [--repeat 7] [--files 20] [--json]

Needs the Debian packages slurmctld, slurmd and slurm-client, and root.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ASKING = {"status": ["status"], "logs": ["logs", "1"], "explain": ["explain", "1"]}
"""Commands that ask for a job that is over."""
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from benchmarks import cutoff  # noqa: E402 - needs the path set above
from tests.real.systems import SlurmCluster  # noqa: E402 - needs the path set above


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a command cost, in seconds."""

    elapsed: float
    processor: float


def cost(command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """Run a command, which must succeed."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (command, process.returncode)
    return Cost(elapsed=time.monotonic() - began, processor=usage.ru_utime + usage.ru_stime)


class Bench:
    """A user of koala with one Slurm cluster."""

    def __init__(self, cluster: SlurmCluster, directory: Path) -> None:
        """``directory``: for the site, the state and job files."""
        self._directory = directory
        site = directory / "site.toml"
        # Each `koala run` is a service of its own and asks ten times; the default bound of sixty a minute is for one.
        site.write_text(
            '[control_center]\nlisten = "127.0.0.1"\n'
            '[[clusters]]\nname = "bench"\nplugin = "slurm"\nrequests_per_minute = 6000\n'
            f'[clusters.settings]\nconf = "{cluster.conf}"\n'
        )
        self._environment = {
            **cluster.environment(),
            "HOME": str(directory),
            "PYTHONPATH": os.pathsep.join(sys.path[:2]),
            "KOALA_SITE": str(site),
            "KOALA_STATE": str(directory / "state"),
        }

    def koala(self, *arguments: str) -> Cost:
        """Return what one command of koala cost."""
        return cost([sys.executable, "-m", "koala_adapter.cli", *arguments], self._environment)

    def sbatch(self) -> Cost:
        """Return what it cost to wait for one job of Slurm's own."""
        command = ["sbatch", "--wait", "--output=/dev/null", "--chdir=/", "--wrap=hostname"]
        return cost(command, self._environment)

    def job_files(self, count: int) -> list[str]:
        """Write so many job files and return their paths."""
        paths = [self._directory / f"job{number}.toml" for number in range(count)]
        for path in paths:
            path.write_text('walltime = "1m"\n[[components]]\ncommand = ["true"]\nprocessors = 1\n')
        return [str(path) for path in paths]


def measure(bench: Bench, repeat: int, count: int) -> dict[str, Cost]:
    """Return medians of all that are measured: of one job each, and of one of the files each."""
    bench.koala("run", "-n", "1", "--", "hostname")  # which makes the certificate and compiles what is not compiled
    pairs = [(bench.sbatch(), bench.koala("run", "-n", "1", "--", "hostname")) for _ in range(repeat)]
    without = {
        f"koala {name}, no service": median([bench.koala(*command) for _ in range(repeat)])
        for name, command in ASKING.items()
    }
    files = bench.job_files(count)
    bench.koala("submit", files[0])
    try:
        asked = {
            f"koala {name}, with a service": median([bench.koala(*command) for _ in range(repeat)])
            for name, command in ASKING.items()
        }
        single = [bench.koala("submit", file) for file in files]
        together = bench.koala("submit", *files)
    finally:
        bench.koala("serve", "--stop")
    each = Cost(elapsed=together.elapsed / count, processor=together.processor / count)
    return {
        "sbatch --wait": median([one for one, _ in pairs]),
        "koala run": median([one for _, one in pairs]),
        **without,
        **asked,
        "koala submit, one file at a time": median(single),
        f"koala submit, {count} files at once": each,
    }


def median(costs: Sequence[Cost]) -> Cost:
    """Return the median of the times and that of the processor times."""
    return Cost(
        elapsed=statistics.median(one.elapsed for one in costs),
        processor=statistics.median(one.processor for one in costs),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cutoff.begin()
    with SlurmCluster("bench", nodes=2, cpus=4) as cluster, tempfile.TemporaryDirectory() as directory:
        found = measure(Bench(cluster, Path(directory)), options.repeat, options.files)
    ratio = found["koala run"].elapsed / found["sbatch --wait"].elapsed
    if options.json:
        print(json.dumps({"costs": {name: asdict(one) for name, one in found.items()}, "ratio": ratio}, indent=2))
        return
    print(f"medians of {options.repeat}, seconds for each job; load {os.getloadavg()[0]:.1f} on {os.cpu_count()}")
    print(f"{'':38}{'elapsed':>9}{'processor':>11}")
    for name, one in found.items():
        print(f"{name:38}{one.elapsed:9.2f}{one.processor:11.3f}")
    print(f"koala run / sbatch --wait: {ratio:.2f}")


if __name__ == "__main__":
    main()
