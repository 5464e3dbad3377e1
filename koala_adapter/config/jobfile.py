# SPDX-License-Identifier: Apache-2.0
"""Job files: what to run, on how many processors, and where it may run.

A Job as a plain dictionary, for the service's socket and the journal, is made and read here too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from koala_adapter.adapters import adapter_of
from koala_adapter.config.diagnosis import Problems, not_among
from koala_adapter.config.formatting import show_duration
from koala_adapter.config.inputfiles import collect_input_files
from koala_adapter.config.jobmodel import ComponentTable, JobHeader, JobTable
from koala_adapter.config.malleablejob import (
    malleability_problems,
    signal_number,
    warned_before,
)
from koala_adapter.config.mpiresize import mpi_resize, mpi_resize_problems
from koala_adapter.config.sweepjob import sweep_of, sweep_problems, within_tasks
from koala_adapter.config.tomlfile import Document, parse_document, read_document
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import ClusterName, Component, Job, JobId, JobKind, Retirement, RunnerName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.config.tomlfile import KeyPath
    from koala_adapter.model import InputFile

HINT = "`koala docs jobfile` describes every key"


def load_job(path: Path, *, job_id: JobId, user: str, submitted_at: float, site: SiteConfig | None = None) -> Job:
    """Return the job that the file at ``path`` describes, checked against ``site`` when one is given.

    ``submitted_at``: seconds since the epoch. Raises ConfigurationError with all problems of the file, one per line.
    """
    directory = path.absolute().parent
    table, files = _table(read_document(path), directory, site)
    return _job(
        table, files, site, directory=directory, name=path.stem, job_id=job_id, user=user, submitted_at=submitted_at
    )


def load_job_text(
    text: str,
    *,
    directory: Path,
    job_id: JobId,
    user: str,
    submitted_at: float,
    source: str = "job",
    typed: bool = True,
    site: SiteConfig | None = None,
) -> Job:
    """Return the job that a TOML text describes, as ``load_job`` does.

    ``directory``: where relative input files are. ``source``: what refusals call the text, and the job's name when it
    has none. ``typed``: a person has written it, to whom its lines mean something.
    """
    document = replace(parse_document(text, source=source), typed=typed)
    table, files = _table(document, directory.absolute(), site)
    return _job(
        table,
        files,
        site,
        directory=directory.absolute(),
        name=source,
        job_id=job_id,
        user=user,
        submitted_at=submitted_at,
    )


def job_of_values(
    values: Mapping[str, object], *, source: str, user: str, directory: Path, site: SiteConfig | None = None
) -> Job:
    """Return the job that values describe which a program has put together, by the keys of a job file.

    ``source``: what refusals call them. ``directory``: where relative input files are. ``site``: as for ``load_job``.
    The service gives the id. Raises ConfigurationError with all that is wrong, one problem per line.
    """
    table, files = _table(Document(source=source, text="", data=values), directory.absolute(), site)
    return _job(
        table,
        files,
        site,
        directory=directory.absolute(),
        name=source,
        job_id=JobId("0"),
        user=user,
        submitted_at=0.0,
    )


def check_job(job: Job, site: SiteConfig) -> None:
    """Raise ConfigurationError when ``site`` cannot take the job: cluster unknown or disabled, walltime too long."""
    pinned = [(index, component.cluster) for index, component in enumerate(job.components)]
    problems = _site_problems(pinned, job.walltime, site)
    if problems:
        lines = [f"job {job.id}: {_place(job, path)}: {text}" for path, text in problems]
        raise ConfigurationError("\n".join(lines), hint="see the site file, or: koala clusters")


def job_from_dict(values: Mapping[str, object]) -> Job:
    """Return the job whose fields these are, as ``asdict`` and JSON give them. Raises ConfigurationError for others."""
    try:
        return adapter_of(Job).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"not the record of a job: {where}: {first['msg']}"
        raise ConfigurationError(message, hint="is it of another version of koala-adapter?") from None


def _table(
    document: Document, directory: Path, site: SiteConfig | None
) -> tuple[JobTable, list[tuple[InputFile, ...]]]:
    """Return the validated file and the input files of each component; refuse with everything that is wrong."""
    problems = Problems(document, hint=HINT)
    table = problems.validated(JobTable, document.data)
    header, components = _valid_parts(document.data)
    before = None if header is None or header.working_directory is None else len(header.working_directory.encode()) + 1
    files = collect_input_files(
        problems, [(index, component.input_files) for index, component in components], directory, before=before
    )
    _check_together(problems, header, components)
    if header is not None:
        for path, text in malleability_problems(header, components):
            problems.add(path, text)
    if header is not None:
        for path, text in sweep_problems(header, components, document.data.get("sweep"), directory):
            problems.add(path, text)
    if site is not None:
        pinned = [(index, _cluster_name(component)) for index, component in components]
        for path, text in _site_problems(pinned, header.walltime if header else None, site):
            problems.add(path, text)
    if header is not None:
        pinned_names = [component.cluster for _, component in components]
        for path, text in mpi_resize_problems(header, pinned_names, site):
            problems.add(path, text)
    problems.refuse()
    if table is None:
        raise AssertionError("a job that is not valid has problems")
    return table, files


def _valid_parts(data: Mapping[str, object]) -> tuple[JobHeader | None, list[tuple[int, ComponentTable]]]:
    """Return the parts that are valid by themselves, so that what they mean is checked even beside one that is not."""
    try:
        header = JobHeader.model_validate(
            {key: value for key, value in data.items() if key not in {"components", "sweep"}}
        )
    except (ValidationError, RecursionError):
        header = None
    components = []
    tables = data.get("components")
    for index, table in enumerate(tables if isinstance(tables, list) else ()):
        try:
            components.append((index, ComponentTable.model_validate(table)))
        except (ValidationError, RecursionError):
            continue
    return header, components


def _check_together(
    problems: Problems, header: JobHeader | None, components: Sequence[tuple[int, ComponentTable]]
) -> None:
    """Check what concerns several tables: names, launchers, and sizes that fit the kind of the job."""
    seen: dict[str, int] = {}
    for index, component in components:
        name = _component_name(index, component)
        if seen.setdefault(name, index) != index:
            text = f'"{name}" is already the name of components[{seen[name]}]: allowed is a name of its own'
            problems.add(("components", index, "name"), text)
        if header is None:
            continue
        if header.kind is JobKind.RIGID and component.minimum is not None:
            text = 'allowed in a moldable or malleable job only: write kind = "moldable" at the top, or processors here'
            problems.add(("components", index, "minimum"), text)
        first = components[0][1].launcher or header.launcher
        if (launcher := component.launcher or header.launcher) is not first:
            text = f'found "{launcher}" where another component has "{first}": allowed is one launcher for all'
            problems.add(("components", index, "launcher"), text)


def _site_problems(
    pinned: Sequence[tuple[int, ClusterName | None]], walltime: int | None, site: SiteConfig
) -> list[tuple[KeyPath, str]]:
    """Return what makes a job impossible at ``site``, by the place in its file."""
    found: list[tuple[KeyPath, str]] = []
    wanted = (walltime or 0) + site.parameters.launch_margin
    enabled = {cluster.name: cluster for cluster in site.enabled_clusters}
    for index, name in pinned:
        path = ("components", index, "cluster")
        if name is None:
            continue
        if name not in enabled:
            known = [cluster.name for cluster in site.clusters]
            disabled = "a cluster that is disabled in the site file; " if name in known else ""
            found.append((path, disabled + not_among(name, enabled, what="a cluster of the site")))
        elif (limit := enabled[name].parameters.walltime_limit) is not None and wanted > limit:
            found.append((("walltime",), _too_long(wanted, limit, site, f'cluster "{name}" grants')))
    if any(path == ("walltime",) for path, _ in found):
        return found
    limits = [cluster.parameters.walltime_limit for cluster in enabled.values()]
    known_limits = [limit for limit in limits if limit is not None]
    if known_limits and len(known_limits) == len(limits) and wanted > max(known_limits):
        found.append((("walltime",), _too_long(wanted, max(known_limits), site, "every cluster grants")))
    return found


def _too_long(wanted: int, limit: int, site: SiteConfig, who: str) -> str:
    margin = site.parameters.launch_margin
    longest = show_duration(max(0, limit - margin))
    return (
        f"found {show_duration(wanted - margin)}, allowed is at most {longest}: {who} at most {show_duration(limit)}, "
        f"of which {margin} s are the site's launch_margin"
    )


def _place(job: Job, path: KeyPath) -> str:
    index = path[1] if len(path) > 1 else None
    return f'cluster of component "{job.components[index].name}"' if isinstance(index, int) else "walltime"


def _cluster_name(component: ComponentTable) -> ClusterName | None:
    return ClusterName(component.cluster) if component.cluster is not None else None


def _component_name(index: int, component: ComponentTable) -> str:
    return component.name or f"c{index + 1}"


def _job(
    table: JobTable,
    files: Sequence[tuple[InputFile, ...]],
    site: SiteConfig | None,
    *,
    directory: Path,
    name: str,
    job_id: JobId,
    user: str,
    submitted_at: float,
) -> Job:
    patience = 0 if table.runner is RunnerName.SWEEP else Retirement().grace
    components = tuple(
        Component(
            name=_component_name(index, component),
            command=component.command,
            minimum=component.size[0],
            maximum=component.size[1],
            cluster=_cluster_name(component),
            launcher=component.launcher or table.launcher,
            input_files=files[index],
            output_files=component.output_files,
            environment=tuple(component.environment.items()),
            initial=component.initial,
            flexible=component.flexible,
            sizes=component.sizes,
            point_patience=component.point_patience,
            done_patience=component.done_patience,
            retirement=Retirement(
                signal=signal_number(component.retire_signal),
                command=component.retire_command,
                grace=patience if component.retire_grace is None else component.retire_grace,
            ),
        )
        for index, component in enumerate(table.components)
    )
    sweep = None if table.sweep is None else sweep_of(table.sweep, directory)
    return Job(
        id=job_id,
        name=table.name or name,
        kind=table.kind,
        components=components if sweep is None else within_tasks(components, sweep),
        walltime=table.walltime,
        user=user,
        submitted_at=submitted_at,
        priority=table.priority,
        placement=table.placement or (site.scheduler.placement if site is not None else "worst-fit"),
        maximum_tries=table.maximum_tries,
        environment=tuple(table.environment.items()),
        working_directory=table.working_directory,
        runner=table.runner,
        sweep=sweep,
        mpi_resize=mpi_resize(table.mpi_resize, [component.cluster for component in table.components], site),
        warn_before=warned_before(table),
    )
