# SPDX-License-Identifier: Apache-2.0
"""The tables of environment variables: their names are those in the code, and each must have its meaning here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"\bKOALA_[A-Z][A-Z0-9_]*[A-Z0-9]\b")
GUARD = re.compile(r"^\s*#\s*(?:ifndef|define)\s+(KOALA_\w+_H)\b", re.MULTILINE)
PACKAGES = ("koala_adapter", "plugins")
TESTS = ("tests", "tox.ini")
SUFFIXES = frozenset({".py", ".c", ".h", ".sh", ".ini"})
INVENTED = frozenset({"KOALA_NOBODY_SETS_THIS", "KOALA_STDIN", "KOALA_TOKEN", "KOALA_X"})
"""Names in tests that stand for what there is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Variables of one sort."""

    of_tests: bool = False
    meanings: dict[str, str]


GROUPS = {
    "koala": Group(
        meanings={
            "KOALA_SITE": "The site file, where `--site` names none.",
            "KOALA_STATE": "The state directory, where `--state` names none.",
            "KOALA_TRACES": "The directory of the workload traces; default `~/.cache/koala/traces`.",
        }
    ),
    "jobs": Group(
        meanings={
            "KOALA_JOB_ID": "The number of the job.",
            "KOALA_JOB_NAME": "Its name.",
            "KOALA_RANK": "The number of the process in the job, from 0.",
            "KOALA_SIZE": "How many processes the job had when this one was started.",
            "KOALA_COMPONENT": "The name of its component.",
            "KOALA_COMPONENT_RANK": "Its number within the component, from 0.",
            "KOALA_COMPONENT_SIZE": "How many processes the component had then.",
            "KOALA_CLUSTER": "The cluster on which the process runs.",
            "KOALA_THREADS": "The processors that it has. `OMP_NUM_THREADS` says the same, unless the job sets it.",
            "KOALA_ADDRESSES": "Addresses of the nodes of all processes then, by rank, with commas between.",
            "KOALA_HEAD_ADDRESS": "In a job of a head and workers: the address of the head's first process.",
            "KOALA_RELAY_ADDRESS": "In a job with `relay`: the process' own address, which is right on all its nodes.",
            "KOALA_HOST_ADDRESS": "In a job with `host_ports`: the address of koala's host.",
            "KOALA_STDOUT": "The pipe that is its standard output, in the private directory of its agent.",
            "KOALA_STDERR": "The pipe that is its standard error.",
            "KOALA_APP_SOCKET": "In an adaptive job: the Unix socket by which the library speaks with koala.",
            "KOALA_APP_RESUME": "In an adaptive MPI job started anew: the change, and the point to go on at.",
            "KOALA_MPI_RESIZE": "In an adaptive MPI job: how it changes its size, `spawn` or `restart`.",
            "KOALA_SPAWN_FD": "In an adaptive MPI job that spawns: where it says which process it is about to spawn.",
            "KOALA_RANK_SHELL": "In an adaptive MPI job that spawns: what `sh` runs for a process that it spawns.",
            "KOALA_TASK": "In a sweep: the number of the task, from 0.",
            "KOALA_ATTEMPT": "Which attempt of the job this is, from 1; in a sweep, of the task.",
            "KOALA_ARRAY_INDEX": "In a job with `array`: the index of the task.",
        }
    ),
    "inside": Group(
        meanings={
            "KOALA_SETUP": "The text of `setup`, for the shell that runs it.",
            "KOALA_COMMAND": "MPI: the command of the rank, for the shell that starts it.",
            "KOALA_DIRECTORY": "MPI: the working directory of the job, if it has one.",
            "KOALA_FIRST": "MPI that is started anew: the address of the first rank's node.",
            "KOALA_MEMBERS": "MPI that is started anew: the numbers of the ranks it begins with.",
            "KOALA_STATUS": "MPI that is started anew: the file with the exit code of the rank.",
            "KOALA_INDEX": "The number of a placeholder, where its batch system is not trusted to tell it.",
            "KOALA_WIKI_INDEX": "The same, for placeholders by way of WIKI.",
            "KOALA_WIKI_JOB": "The id of the job of a placeholder by way of WIKI.",
            "KOALA_LOCAL_JOB": "Jobs of plugin `local`: the number of the job.",
            "KOALA_LOCAL_TASK": "Jobs of plugin `local`: the number within its array.",
            "KOALA_LOCAL_NODE": "Jobs of plugin `local`: the name of the node.",
            "KOALA_LOCAL_MARK": "Jobs of plugin `local`: what tells their processes from all others.",
        }
    ),
    "tests": Group(
        of_tests=True,
        meanings={
            "KOALA_REQUIRE_REAL": "`1`: a test of a real batch system that cannot run fails, and is not skipped.",
            "KOALA_TEST_SLURM": "A Slurm, with `bin` and `sbin`, that is tested in place of the installed one.",
            "KOALA_TEST_TORQUE": "The directory of the commands of a Torque that is there for tests alone.",
            "KOALA_TEST_SLURM_DRMAA": "The `libdrmaa.so` of slurm-drmaa.",
            "KOALA_TEST_PBS_DRMAA": "The `libdrmaa.so` of pbs-drmaa.",
            "KOALA_ALL_TRACES": "`1`: all published traces are replayed, not one.",
            "KOALA_WIKI_RECORDINGS": "A directory of further recordings of WIKI that are read.",
            "KOALA_CONFORMANCE_CANARY": "Set by the conformance kit: no job may inherit it.",
        },
    ),
}


def names_in(*places: str) -> dict[str, set[str]]:
    """Return each variable that the code in some places names, and the rooms (or files at the top) that do."""
    found: dict[str, set[str]] = {}
    for place in places:
        path = ROOT / place
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                text = file.read_text(encoding="utf-8")
                for name in set(NAME.findall(text)) - set(GUARD.findall(text)):
                    found.setdefault(name, set()).add(_room(file))
    return found


def _room(file: Path) -> str:
    parts = file.relative_to(ROOT).parts
    return "/".join(parts[:2]) if file.suffix != ".ini" and (ROOT / parts[0] / parts[1]).is_dir() else parts[0]


def problems() -> list[str]:
    """Return what the code and the meanings here do not have in common."""
    of_packages, of_tests = names_in(*PACKAGES), names_in(*TESTS)
    ours = {name for group in GROUPS.values() if not group.of_tests for name in group.meanings}
    theirs = GROUPS["tests"].meanings.keys()
    named = {*of_packages, *of_tests} - INVENTED
    written = "is in docs/variables.py"
    return [
        *(f"{name} has no meaning in docs/variables.py" for name in sorted(named - ours - theirs)),
        *(f"{name} {written}, and nothing sets or reads it" for name in sorted(ours - of_packages.keys())),
        *(f"{name} {written}, and no test reads it" for name in sorted(theirs - named)),
        *(f"{name} is not a name of koala's own any more" for name in sorted(INVENTED & of_packages.keys())),
    ]


def table(group: str) -> str:
    """Return the table of a group. Raises ValueError when the code and the meanings do not agree."""
    if found := problems():
        raise ValueError("; ".join(found))
    rows = [f"| `{name}` | {meaning} |" for name, meaning in GROUPS[group].meanings.items()]
    return "\n".join(["| variable | meaning |", "|---|---|", *rows, ""])
