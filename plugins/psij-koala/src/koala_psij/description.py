# SPDX-License-Identifier: Apache-2.0
"""Jobs of PSI/J as jobs of koala, and states of koala's jobs as those of PSI/J."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psij import InvalidJobException, JobState, ResourceSpecV1

import koala_adapter as koala

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from psij import JobAttributes, JobSpec

PREFIX = "koala."
"""Begins the names of custom attributes that are for koala; those of others are left alone."""
MPI = frozenset({"mpirun", "mpiexec", "srun", "aprun", "jsrun"})
PLAIN = frozenset({None, "single", "multiple"})
RESERVED = frozenset({"command", "components", "processors", "walltime", "working_directory", "environment", "name"})
"""Keys of a job that PSI/J has words of its own for."""
SHELL = 'input=$1; before=$2; shift 2; [ -z "$before" ] || . "$before"; [ -z "$input" ] || exec <"$input"; exec "$@"'
"""Sources a file, takes its input from another, and becomes the program; empty: neither."""
STATES: Mapping[koala.JobState, JobState] = {
    koala.JobState.WAITING: JobState.QUEUED,
    koala.JobState.CLAIMING: JobState.QUEUED,
    koala.JobState.LAUNCHING: JobState.QUEUED,
    koala.JobState.RUNNING: JobState.ACTIVE,
    koala.JobState.COMPLETED: JobState.COMPLETED,
    koala.JobState.CANCELLED: JobState.CANCELED,
}
"""All others are failures."""


def koala_job(spec: JobSpec) -> koala.Job:
    """Return the job of koala that a specification asks for.

    Raises InvalidJobException with all that koala cannot do for it.
    """
    resources = spec.resources if isinstance(spec.resources, ResourceSpecV1) else ResourceSpecV1()
    problems = list(_problems(spec, resources))
    if problems:
        raise InvalidJobException(f"koala: {'; '.join(problems)}")
    described: dict[str, Any] = {
        "command": _command(spec),
        "processors": resources.computed_process_count,
        "walltime": max(1, math.ceil(spec.attributes.duration.total_seconds())),
        "environment": spec.environment or {},
    }
    if spec.name:
        described["name"] = Path(spec.name).name
    if spec.directory is not None:
        described["working_directory"] = spec.directory
    if spec.attributes.queue_name:
        described["cluster"] = spec.attributes.queue_name
    if spec.launcher in MPI:
        described["launcher"] = "mpi"
    return koala.Job(**described, **_own_attributes(spec))


def _problems(spec: JobSpec, resources: ResourceSpecV1) -> Iterator[str]:
    yield from _program_problems(spec, resources.computed_process_count)
    if (resources.cpu_cores_per_process or 1) > 1:
        yield "cpu_cores_per_process: a process of koala has one processor"
    for name in ("gpu_cores_per_process", "exclusive_node_use", "memory"):
        if getattr(resources, name):
            yield f"{name}: koala counts processors alone; a site file can add it to each submission ([directives])"
    yield from _attribute_problems(spec.attributes)


def _program_problems(spec: JobSpec, processes: int) -> Iterator[str]:
    if not spec.executable:
        yield "there is no executable"
    if not spec.inherit_environment:
        yield "inherit_environment: found False, allowed is True: processes get the environment of their node"
    if spec.post_launch is not None:
        yield "post_launch: koala has none; do it in the program"
    if spec.launcher not in MPI | PLAIN:
        yield f"launcher: found {spec.launcher!r}, allowed is {', '.join(sorted({*MPI, 'single', 'multiple'}))}"
    if spec.launcher == "single" and processes > 1:
        yield f"launcher: found 'single' for {processes} processes, allowed is 'multiple'"


def _attribute_problems(attributes: JobAttributes) -> Iterator[str]:
    for name in ("account", "reservation_id"):
        if getattr(attributes, name):
            yield f"{name}: a site file adds it to each submission ([directives])"
    known = {one.name for one in dataclasses.fields(koala.Job)} - RESERVED
    for name in attributes.custom_attributes or {}:
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in known:
            yield f"custom attribute {name}: allowed is {PREFIX} and one of {', '.join(sorted(known))}"


def _command(spec: JobSpec) -> list[str]:
    command = [str(spec.executable), *(spec.arguments or [])]
    if spec.stdin_path is None and spec.pre_launch is None:
        return command
    input_file, before = (str(one) if one is not None else "" for one in (spec.stdin_path, spec.pre_launch))
    return ["/bin/sh", "-c", SHELL, "sh", input_file, before, *command]


def _own_attributes(spec: JobSpec) -> dict[str, Any]:
    given = spec.attributes.custom_attributes or {}
    return {name.removeprefix(PREFIX): value for name, value in given.items() if name.startswith(PREFIX)}


def psij_state(report: koala.JobReport) -> JobState:
    """Return the state of a job in the words of PSI/J."""
    return STATES.get(report.state, JobState.FAILED)


def copy_output(report: koala.JobReport, spec: JobSpec) -> None:
    """Write what the processes wrote to the files that a specification names, rank after rank. Raises OSError."""
    for path, suffix in ((spec.stdout_path, ".out"), (spec.stderr_path, ".err")):
        if path is None:
            continue
        target = path if spec.directory is None else spec.directory / path
        with target.open("wb") as file:
            for source in _outputs(Path(report.output_directory), suffix):
                file.write(source.read_bytes())


def _outputs(directory: Path, suffix: str) -> list[Path]:
    found = [path for path in directory.glob(f"*/*{suffix}") if path.stem.isdecimal()]
    return sorted(found, key=lambda path: (path.parent.name, int(path.stem)))
