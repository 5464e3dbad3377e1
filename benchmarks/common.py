# SPDX-License-Identifier: Apache-2.0
"""What benchmarks share: options from signatures, tables and JSON, turns and medians, waiting, Parsl and Dask.

A benchmark is a function: its parameters, which all have defaults, are its options, and it returns the rows of a table.

    python -m benchmarks.agents start --repeat 3 --json
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from benchmarks import cutoff

T = TypeVar("T")
Row: TypeAlias = Mapping[str, str | float]
"""One line of a table, by the headings of its columns, with units."""
Benchmark: TypeAlias = Callable[..., Sequence[Row]]

ROOT = Path(__file__).resolve().parent.parent
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
"""For processes that run koala from this repository."""
DEADLINE = 180.0
"""Seconds after which what is waited for is given up."""
TICK = os.sysconf("SC_CLK_TCK")


# -- Command line --------------------------------------------------------------------------------------------


def main(*benchmarks: Benchmark, helpers: Sequence[Callable[..., None]] = ()) -> None:
    """Run the benchmark that the command line names, and print its rows.

    ``helpers``: further processes of a benchmark, which print for it and not for people.
    """
    parser = argparse.ArgumentParser(description="Each benchmark measures its baseline in the same run.")
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK")
    for one in (*benchmarks, *helpers):
        doc = inspect.getdoc(one) or ""
        name = one.__name__.replace("_", "-")
        command = commands.add_parser(
            name,
            help=doc.partition("\n")[0] if one in benchmarks else argparse.SUPPRESS,
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=one)
        for parameter in inspect.signature(one).parameters.values():
            _add(command, parameter)
        command.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = vars(parser.parse_args())
    run, as_json, traces = options.pop("run"), options.pop("json"), options.pop("traces", ())
    if run in helpers:
        run(**options)
        return
    cutoff.begin()
    began = os.getloadavg()[0]
    rows = run(*traces, **options)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print(f"load {began:.1f} to {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print(*lines_of(rows), sep="\n")


def _add(parser: argparse.ArgumentParser, parameter: inspect.Parameter) -> None:
    """Add the option of a parameter, of the type of its default; ``*traces`` are paths."""
    option, default = f"--{parameter.name.replace('_', '-')}", parameter.default
    if parameter.kind is parameter.VAR_POSITIONAL:
        parser.add_argument(parameter.name, nargs="*", type=Path)
    elif isinstance(default, bool):
        parser.add_argument(option, action="store_true")
    elif isinstance(default, tuple):
        kind = type(default[0])
        text = ",".join(map(str, default))
        parser.add_argument(
            option, type=lambda words: tuple(map(kind, words.split(","))), default=default, help=f"default {text}"
        )
    else:
        parser.add_argument(option, type=type(default), default=default, help=f"default {default}")


def lines_of(rows: Sequence[Row]) -> list[str]:
    """Return a table as text: a new heading wherever the columns change."""
    lines: list[str] = []
    for titles, group in groupby(rows, key=list):
        table = [list(row.values()) for row in group]
        cells = [titles, *([_cell(value) for value in values] for values in table)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        texts = [isinstance(value, str) for value in table[0]]
        for row in cells:
            words = [
                word.ljust(width) if text else word.rjust(width)
                for word, width, text in zip(row, widths, texts, strict=True)
            ]
            lines.append("  ".join(words).rstrip())
        lines.append("")
    return lines[:-1]


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"


# -- Measuring -----------------------------------------------------------------------------------------------


def in_turns(ways: Mapping[str, Callable[[], T]], repeat: int) -> dict[str, list[T]]:
    """Return what each way gives each time; the ways take turns, so that all meet the same conditions."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for _ in range(repeat):
        for name, way in ways.items():
            found[name].append(way())
    return found


def medians(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each value; one that is not in a turn counts as 0 there."""
    names = dict.fromkeys(name for turn in turns for name in turn)
    return {name: statistics.median(turn.get(name, 0.0) for turn in turns) for name in names}


def least(ways: Mapping[str, Callable[[], float]], repeat: int) -> dict[str, float]:
    """Return the least that each way gives, in turns: what is more came from other work on the machine."""
    return {name: min(turns) for name, turns in in_turns(ways, repeat).items()}


def beside(found: Mapping[str, Mapping[str, float]], key: str, base: str = "") -> list[Row]:
    """Return a row for each way, with the ratio of a value to that of ``base`` (default: the first way)."""
    unit = found[base or next(iter(found))][key]
    return [{"": name, **values, "ratio": values[key] / unit} for name, values in found.items()]


def median_rows(ways: Mapping[str, Callable[[], Mapping[str, float]]], repeat: int, key: str) -> list[Row]:
    """Return a row of medians for each way, in turns, with the ratio of a value to that of the first way."""
    return beside({name: medians(turns) for name, turns in in_turns(ways, repeat).items()}, key)


def growth(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of log(time) over log(size): 0 is no growth, 1 is linear."""
    return statistics.linear_regression(*zip(*((math.log(x), math.log(y)) for x, y in points), strict=True)).slope


def processor_seconds(action: Callable[[], object]) -> float:
    """Return the processor time that an action takes in this process: others work on the machine as well."""
    begun = time.process_time()
    action()
    return time.process_time() - begun


def command_cost(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Run a command, which must succeed; return its seconds, and those of processor time with all it started."""
    began = time.monotonic()
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, env=environment, stdin=nothing, stdout=nothing, stderr=nothing)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (command, process.returncode)
    return {"elapsed, s": time.monotonic() - began, "processor, s": usage.ru_utime + usage.ru_stime}


@contextmanager
def process(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:  # noqa: ANN401 - of Popen
    """Run a process during the block, whose output is read as text; at the end it is told to end, by SIGTERM."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as one:
        try:
            yield one
        finally:
            one.terminate()


def succeeds(command: Sequence[str]) -> bool:
    """Run a command without output; return whether it succeeds."""
    nothing = subprocess.DEVNULL
    return not subprocess.run(command, stdout=nothing, stderr=nothing, check=False).returncode


def processor_time(process: int) -> float:
    """Return the seconds of processor time that a process has used, without its children (proc(5), stat)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def resident_mib(process: int) -> float:
    """Return the resident memory of a process (proc(5), statm)."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024**2


def until(what: str, condition: Callable[[], object], *, limit: float = DEADLINE, look: float = 0.02) -> None:
    """Look every ``look`` seconds until a condition holds. Raises SystemExit after ``limit`` seconds."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not come to pass within {limit:g} s")
        time.sleep(look)


def slurm_site(directory: Path, conf: Path, *, head: str = "", **keys: float) -> Path:
    """Write a site file with one cluster of Slurm; ``keys``: further ones of the cluster."""
    path = directory / "site.toml"
    more = "".join(f"{key} = {value}\n" for key, value in keys.items())
    path.write_text(
        f'[control_center]\nlisten = "127.0.0.1"\n{head}[[clusters]]\nname = "bench"\nplugin = "slurm"\n{more}'
        f'[clusters.settings]\nconf = "{conf}"\n'
    )
    return path


# -- Parsl and Dask ------------------------------------------------------------------------------------------
# As benchmarks set them up: imported when they are used, as they need not be installed.

MEMORY = "400MB"
"""Of a worker of Dask."""


def untyped(module: str) -> Any:  # noqa: ANN401 - that is what it is for
    """Import a module that has no types, or need not be here, when it is used."""
    return importlib.import_module(module)


def parsl_executor(provider: Any, workers: int, **more: object) -> Any:  # noqa: ANN401 - Parsl's
    """Return a HighThroughputExecutor with so many workers on each node; ``more``: further arguments of it."""
    package = "parsl.executors.high_throughput"
    launch = untyped(f"{package}.executor").DEFAULT_LAUNCH_CMD
    return untyped("parsl.executors").HighThroughputExecutor(
        address="127.0.0.1",
        provider=provider,
        encrypted=False,
        max_workers_per_node=workers,
        launch_cmd=launch.replace("process_worker_pool.py", f"{sys.executable} -m {package}.process_worker_pool", 1),
        interchange_launch_cmd=[sys.executable, "-m", f"{package}.interchange"],
        **more,
    )


def parsl_loaded(executor: Any, directory: Path) -> Any:  # noqa: ANN401 - Parsl's
    """Return Parsl's kernel, loaded with one executor that is scaled by hand; ``directory``: for what it writes."""
    parsl = untyped("parsl")
    parsl.clear()
    config = parsl.Config(executors=[executor], run_dir=str(directory), strategy="none", initialize_logging=False)
    return parsl.load(config)


def dask_on_slurm(directory: Path, *, walltime: str, **more: object) -> Any:  # noqa: ANN401 - it has no types
    """Return a SLURMCluster of dask-jobqueue without workers yet; ``more``: further arguments of it."""
    return untyped("dask_jobqueue").SLURMCluster(
        cores=1,
        processes=1,
        memory=MEMORY,
        walltime=walltime,
        interface="lo",
        death_timeout=DEADLINE,
        python=sys.executable,
        log_directory=str(directory),
        local_directory=str(directory),
        scheduler_options={"dashboard_address": ":0"},
        **more,
    )
