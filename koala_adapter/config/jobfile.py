# SPDX-License-Identifier: Apache-2.0
"""Job files: what to run, on how many processors, and where; read, checked, and made into a ``Job``.

In this order: keys of malleable jobs, how malleable MPI programs are resized, the environment of the program, and the
job file as a whole. A ``Job`` as a plain dictionary, for the service's socket and the journal, is read here too.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from koala_adapter.config.diagnosis import Problems, not_among
from koala_adapter.config.fields import MpiResizeWanted, after_of, exported, unfit
from koala_adapter.config.inputfiles import collect_input_files
from koala_adapter.config.jobtables import ComponentTable, JobHeader, JobTable
from koala_adapter.config.slottable import slots_of, unknown_clusters
from koala_adapter.config.sweeps import OF_ARRAY, array_problems, launchers, sweep_of, sweep_problems, within_tasks
from koala_adapter.config.tomlfile import Document, parse_document, printable, read_text, show_duration
from koala_adapter.config.written import DescribedJob, is_text
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import (
    ClusterName,
    Component,
    InputFile,
    Job,
    JobId,
    JobKind,
    Launcher,
    MpiResize,
    Retirement,
    RunnerName,
)
from koala_adapter.wire.messages import adapter_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.config.tomlfile import KeyPath


# -- Malleable jobs: keys that must fit together -------------------------------------------------------------

WARN_BEFORE = 60
"""Seconds before the end of its walltime at which an adaptive program is told of it, unless its job file says."""

_OF_MALLEABLE = {
    "initial",
    "sizes",
    "retire_signal",
    "retire_command",
    "retire_grace",
    "point_patience",
    "done_patience",
}
_OF_RUNNERS = {
    "retire_signal": (RunnerName.WORKERS,),
    "retire_command": (RunnerName.WORKERS,),
    "retire_grace": (RunnerName.WORKERS, RunnerName.SWEEP),
    "point_patience": (RunnerName.ADAPTIVE,),
    "done_patience": (RunnerName.ADAPTIVE,),
}
"""Keys of a component that have a meaning with some runners only."""
MOST_RELAYED = 256
"""Ranks of a job with ``relay``: each agent listens for all of them."""
_OF_RANKS = {"checkpoint_signal", "requeue_on_walltime", "retries", "retry_on"}
"""Keys of a job that have a meaning where no process of it comes or goes by itself."""


def signal_number(name: str) -> int:
    """Return the number of a signal that a job file names."""
    return int(signal.Signals[f"SIG{name}"])


def malleability_problems(
    header: JobHeader, components: Sequence[tuple[int, ComponentTable]]
) -> Iterator[tuple[KeyPath, str]]:
    """Yield what does not fit together, by the place in the file."""
    malleable = header.kind.varies
    if malleable and header.runner is RunnerName.RANKS:
        article = "an" if header.kind is JobKind.EVOLVING else "a"
        text = f"allowed in {article} {header.kind} job is {_runners(header.kind)}: it says how its size can change"
        yield ("runner",), text
    if header.kind is JobKind.EVOLVING and header.runner is RunnerName.SWEEP:
        yield ("runner",), f'found "sweep", allowed in an evolving job is {_runners(header.kind)}'
    if not malleable and header.runner is not RunnerName.RANKS:
        yield ("runner",), f'found "{header.runner}", allowed in a malleable job only: write kind = "malleable"'
    if malleable and components and all(component.minimum is None for _, component in components):
        text = "no component can change its size: allowed is minimum and maximum in at least one of them"
        yield ("components",), text
    adaptive_mpi = header.runner is RunnerName.ADAPTIVE and header.launcher is Launcher.MPI
    if malleable and adaptive_mpi and len(components) > 1:
        yield ("components",), 'allowed with runner = "adaptive" and launcher = "mpi" is one component'
    yield from _ending_problems(header)
    yield from _relay_problems(header, components)
    for index, component in components:
        yield from _malleable_component_problems(header, index, component)


def _runners(kind: JobKind) -> str:
    return '"workers" or "adaptive"' if kind is JobKind.EVOLVING else '"workers", "adaptive" or "sweep"'


def _ending_problems(header: JobHeader) -> Iterator[tuple[KeyPath, str]]:
    """Yield what does not fit together of the keys about the end of the walltime, and about running again."""
    if header.warn_before is not None:
        yield from _warning_problems(header)
    if header.runner is not RunnerName.RANKS:
        own = _OF_RANKS if header.array is None else _OF_RANKS - {"retries"}
        for key in sorted(own & header.model_fields_set):
            yield (key,), f'allowed with runner = "{RunnerName.RANKS}" only'
    elif "retry_on" in header.model_fields_set and not header.retries:
        yield ("retry_on",), "allowed together with retries only"


def _relay_problems(
    header: JobHeader, components: Sequence[tuple[int, ComponentTable]]
) -> Iterator[tuple[KeyPath, str]]:
    mpi = Launcher.MPI in {header.launcher, *(component.launcher for _, component in components)}
    for key in sorted({"relay", "host_ports"} & header.model_fields_set):
        if mpi or header.runner is RunnerName.SWEEP:
            yield (key,), 'allowed without launcher = "mpi" and runner = "sweep" only'
    ranks = sum(component.size[1] for _, component in components)
    if header.relay and ranks > MOST_RELAYED:
        yield ("relay",), f"the job has up to {ranks} ranks, allowed with relay are {MOST_RELAYED}"


def _warning_problems(header: JobHeader) -> Iterator[tuple[KeyPath, str]]:
    if header.runner not in {RunnerName.ADAPTIVE, RunnerName.WORKERS} and header.checkpoint_signal is None:
        yield ("warn_before",), 'allowed with runner = "adaptive" or "workers", or with checkpoint_signal, only'
    elif header.warn_before is not None and header.warn_before >= header.walltime:
        yield ("warn_before",), f"found {header.warn_before}, allowed is less than walltime ({header.walltime} s)"


def warned_before(header: JobHeader) -> int:
    """Return how many seconds before the end of its walltime a job is warned; 0: it is not."""
    if header.warn_before is not None:
        return header.warn_before
    if header.checkpoint_signal is not None:
        return min(WARN_BEFORE, header.walltime // 2)
    return WARN_BEFORE if header.runner is RunnerName.ADAPTIVE else 0


def _malleable_component_problems(
    header: JobHeader, index: int, component: ComponentTable
) -> Iterator[tuple[KeyPath, str]]:
    malleable = header.kind.varies
    alone = header.runner in {RunnerName.WORKERS, RunnerName.SWEEP}
    if malleable and alone and (component.launcher or header.launcher) is Launcher.MPI:
        text = f'found "mpi", allowed with runner = "{header.runner}" is "process"'
        yield ("components", index, "launcher"), text
    # A sweep of one task has one launcher; here, a component that cannot change would be the head.
    changes = header.runner in {RunnerName.WORKERS, RunnerName.ADAPTIVE}
    if malleable and changes and component.minimum is not None and component.minimum == component.maximum:
        text = (
            f'found {component.maximum}, which is minimum, too: allowed with runner = "{header.runner}" is a larger '
            f"maximum; in a component that keeps its size write processors = {component.maximum} instead of the two"
        )
        yield ("components", index, "maximum"), text
    for key in sorted(_OF_MALLEABLE & component.model_fields_set):
        if not malleable:
            yield ("components", index, key), 'allowed in a malleable job only: write kind = "malleable" at the top'
        elif component.minimum is None:
            yield ("components", index, key), "allowed in a component with minimum and maximum only"
    yield from _problems_with_runner(header, index, component)
    yield from _problems_of_shared_slots(header, index, component)
    if "retire_signal" in component.model_fields_set and component.retire_command:
        yield ("components", index, "retire_signal"), "given together with retire_command: allowed is one of them"


def _problems_of_shared_slots(
    header: JobHeader, index: int, component: ComponentTable
) -> Iterator[tuple[KeyPath, str]]:
    """Yield what keeps ranks from sharing slots."""
    each = component.ranks_per_slot
    if header.runner is not RunnerName.RANKS and each > 1:
        text = 'allowed with runner = "ranks" only: a job that changes its size gets, and gives back, single ranks'
        yield ("components", index, "ranks_per_slot"), text
        return
    for key in ("processors", "minimum", "maximum"):
        if (ranks := getattr(component, key) or 0) % each:
            yield ("components", index, key), f"found {ranks}, allowed is a multiple of ranks_per_slot ({each})"


def _problems_with_runner(header: JobHeader, index: int, component: ComponentTable) -> Iterator[tuple[KeyPath, str]]:
    """Yield the keys of a component that mean nothing to the runner of the job."""
    if not header.kind.varies or header.runner is RunnerName.RANKS or component.minimum is None:
        return
    for key in sorted(_OF_RUNNERS.keys() & component.model_fields_set):
        if header.runner not in _OF_RUNNERS[key]:
            names = " or ".join(f'"{runner}"' for runner in _OF_RUNNERS[key])
            yield ("components", index, key), f"allowed with runner = {names} only"


# -- How a malleable MPI program changes its size ------------------------------------------------------------
# Where the job file leaves that to the clusters, the least capable cluster decides.


def unable_to_spawn(pinned: Sequence[str | None], site: SiteConfig) -> list[str]:
    """Return the clusters on which a job may run and whose MPI cannot spawn. ``pinned``: of each component, or None."""
    possible = [one for one in site.enabled_clusters if None in pinned or one.name in pinned]
    return [one.name for one in possible if one.mpi_resize is not MpiResize.SPAWN]


def mpi_resize(wanted: MpiResizeWanted, pinned: Sequence[str | None], site: SiteConfig | None) -> MpiResize:
    """Return how a job changes its size; without a site as if its clusters could do nothing."""
    if wanted is not MpiResizeWanted.ANY:
        return MpiResize(wanted)
    return MpiResize.RESTART if site is None or unable_to_spawn(pinned, site) else MpiResize.SPAWN


def mpi_resize_problems(
    header: JobHeader, pinned: Sequence[str | None], site: SiteConfig | None
) -> Iterator[tuple[KeyPath, str]]:
    """Yield what of a job file does not fit together, or not to the site, by the place in the file."""
    adaptive = header.kind.varies and header.runner is RunnerName.ADAPTIVE
    if not adaptive or header.launcher is not Launcher.MPI:
        if header.mpi_resize is not MpiResizeWanted.ANY:
            yield ("mpi_resize",), 'allowed with kind = "malleable", runner = "adaptive" and launcher = "mpi" only'
        return
    unable = [] if site is None else unable_to_spawn(pinned, site)
    if header.mpi_resize is MpiResizeWanted.SPAWN and unable:
        text = (
            f'found "spawn", which the MPI of {", ".join(unable)} cannot do, as the site file has it: allowed is '
            '"restart" or "any", or cluster = with one that can (mpi_resize in the site file says which do)'
        )
        yield ("mpi_resize",), text
    restarts = mpi_resize(header.mpi_resize, pinned, site) is MpiResize.RESTART
    if restarts and header.working_directory is None and (site is not None or header.mpi_resize == "restart"):
        why = (
            f" (by the site file, the MPI of {', '.join(unable)} cannot spawn)"
            if unable and header.mpi_resize == "any"
            else ""
        )
        text = f"missing: this program is started anew with each change of its size{why}, and keeps its state there"
        yield ("working_directory",), f"{text}; allowed is a directory that all nodes share"


def explained(job: Job, site: SiteConfig) -> str:
    """Say how a malleable MPI program will change its size; empty for other jobs."""
    if job.runner is not RunnerName.ADAPTIVE or job.launcher is not Launcher.MPI:
        return ""
    if job.mpi_resize is MpiResize.SPAWN:
        return "its size changes while it runs: processes are spawned, and leave, one at a time"
    unable = unable_to_spawn([one.cluster for one in job.components], site)
    why = f" (by the site file, the MPI of {', '.join(unable)} cannot spawn)" if unable else ""
    return (
        f"with each change of its size the program is started anew{why}; its state goes through {job.working_directory}"
    )


# -- The environment of the program: exported variables, software, containers --------------------------------


def _exported(
    table: JobHeader | ComponentTable, environment: Mapping[str, str], before: Collection[str] = ()
) -> dict[str, str]:
    """Return the variables that a table exports and sets; ``before``: those that no export of it may set."""
    found = exported(table.export, environment)
    return {name: value for name, value in found.items() if name not in before} | table.environment


def _software(header: JobHeader, component: ComponentTable) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*header.software, *component.software)))


def environment_problems(
    header: JobHeader,
    components: Sequence[tuple[int, ComponentTable]],
    environment: Mapping[str, str],
    site: SiteConfig | None,
) -> Iterator[tuple[KeyPath, str]]:
    """Yield variables that cannot travel, and software and containers that no cluster of the site has."""
    tables: list[tuple[KeyPath, JobHeader | ComponentTable]] = [((), header)]
    tables += [(("components", index), component) for index, component in components]
    for path, table in tables:
        for name in unfit(table.export, environment):
            yield (*path, "export"), f"the value of {name} is not UTF-8: allowed is a list without it"
    if site is None:
        return
    for index, component in components:
        needed = Component(
            name=_component_name(index, component),
            command=component.command,
            minimum=1,
            maximum=1,
            cluster=_cluster_name(component),
            launcher=component.launcher or header.launcher,
            software=_software(header, component),
            container=component.container or header.container or "",
        )
        if (lack := _lacking_everywhere(needed, site)) is not None:
            key = "software" if needed.software else "container"
            yield ("components", index, key) if getattr(component, key) else (key,), lack


def _lacking_everywhere(component: Component, site: SiteConfig) -> str | None:
    """Return what all clusters lack on which a component may run; None when one has all that it needs."""
    if not component.software and not component.container:
        return None
    possible = [one for one in site.enabled_clusters if component.cluster in {None, one.name}]
    lacks = [(one.name, one.parameters.lacks(component)) for one in possible]
    if not possible or not all(lack for _, lack in lacks):
        return None
    found = [*component.software, *([component.container] if component.container else [])]
    said = "; ".join(f"{name}: {lack}" for name, lack in lacks)
    return f"found {', '.join(found)}, allowed is what one cluster has all of ({said})"


# -- The job file as a whole ---------------------------------------------------------------------------------

HINT = "`koala docs jobfile` describes every key"


NEW = JobId("0")
"""Stands for the id that the service gives at submission."""


def load_job(
    path: Path, *, user: str, job_id: JobId = NEW, submitted_at: float = 0.0, site: SiteConfig | None = None
) -> Job:
    """Return the job that the file at ``path`` describes, checked against ``site`` when one is given.

    ``submitted_at``: seconds since the epoch. Raises ConfigurationError with all problems of the file, one per line.
    """
    job = job_as_described(DescribedJob.of_file(path, read_text(path)), user=user, site=site)
    return replace(job, id=job_id, submitted_at=submitted_at)


def load_job_text(
    text: str,
    *,
    user: str,
    directory: Path,
    source: str = "job",
    job_id: JobId = NEW,
    submitted_at: float = 0.0,
    site: SiteConfig | None = None,
) -> Job:
    """Return the job that a TOML text describes, as ``load_job`` does.

    ``directory``: where relative input files are. ``source``: what refusals call the text, and the job's name when it
    has none.
    """
    described = DescribedJob(
        source=source, name=source, directory=str(directory.absolute()), text=text, environment=dict(os.environ)
    )
    job = job_as_described(described, user=user, site=site)
    return replace(job, id=job_id, submitted_at=submitted_at)


def job_of_values(
    values: Mapping[str, object], *, source: str, user: str, directory: Path, site: SiteConfig | None = None
) -> Job:
    """Return the job that a program describes by the keys of a job file, as ``load_job`` does.

    ``source``: what refusals call them. ``directory``: where relative input files are.
    """
    described = replace(DescribedJob.of_values(values, source=source), directory=str(directory.absolute()))
    return job_as_described(described, user=user, site=site)


def check_job(job: Job, site: SiteConfig) -> None:
    """Raise ConfigurationError when ``site`` cannot take the job: unknown cluster, long walltime, missing software."""
    pinned = [(index, component.cluster) for index, component in enumerate(job.components)]
    problems = _site_problems(pinned, job.walltime, site)
    lines = [f"job {job.id}: {_place(job, path)}: {text}" for path, text in problems]
    lacks = [(one.name, _lacking_everywhere(one, site)) for one in job.components]
    lines += [f'job {job.id}: component "{name}": {lack}' for name, lack in lacks if lack is not None]
    if lines:
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
    document: Document, directory: Path, environment: Mapping[str, str], site: SiteConfig | None
) -> tuple[JobTable, list[tuple[InputFile, ...]]]:
    """Return the validated file and the input files of each component; refuse with everything that is wrong."""
    problems = Problems(document, hint=HINT)
    found = problems.validated(JobTable, document.data)
    header, components = _valid_parts(document.data)
    before = None if header is None or header.working_directory is None else len(header.working_directory.encode()) + 1
    files = collect_input_files(
        problems, [(index, component.input_files) for index, component in components], directory, before=before
    )
    _check_together(problems, header, components)
    if site is not None:
        pinned = [(index, _cluster_name(component)) for index, component in components]
        problems.add_all(_site_problems(pinned, header.walltime if header else None, site))
        if header is not None and header.notify and not site.notify.ways:
            problems.add(("notify",), "allowed where the site file says how to tell: write [notify] there")
        problems.add_all(unknown_clusters(components, [cluster.name for cluster in site.clusters]))
    if header is not None:
        if header.array is not None:
            problems.add_all(array_problems(components, document.data))
            components = launchers(header.array, components)
            header = header.model_copy(update=OF_ARRAY)
        problems.add_all(malleability_problems(header, components))
        problems.add_all(sweep_problems(header, components, document.data.get("sweep"), directory))
        problems.add_all(environment_problems(header, components, environment, site))
        problems.add_all(mpi_resize_problems(header, [component.cluster for _, component in components], site))
    table = problems.accepted(found)
    if table.array is not None:
        table = table.model_copy(update={**OF_ARRAY, "components": tuple(one for _, one in components)})
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


def job_as_described(described: DescribedJob, *, user: str, site: SiteConfig | None) -> Job:
    """Return a job as it was written, checked against ``site`` when one is given.

    Raises ConfigurationError with all that is wrong, one problem per line.
    """
    source, directory, environment = described.source, Path(described.directory), described.environment
    if not is_text(described.directory):
        message = f"{printable(source)}: the name of its directory is not UTF-8: {printable(described.directory)}"
        raise ConfigurationError(message, hint="rename it, or submit from another one")
    if described.text is None:
        document = Document(source=source, text="", data=described.values)
    else:
        document = parse_document(described.text, source=source)
    table, files = _table(document, directory, environment, site)
    patience = 0 if table.runner is RunnerName.SWEEP else Retirement().grace
    needed = [slots_of(component, component.ranks_per_slot) for component in table.components]
    components = tuple(
        Component(
            name=_component_name(index, component),
            command=component.command,
            minimum=component.size[0] // component.ranks_per_slot,
            maximum=component.size[1] // component.ranks_per_slot,
            cluster=_cluster_name(component),
            launcher=component.launcher or table.launcher,
            input_files=files[index],
            output_files=component.output_files,
            environment=tuple(_exported(component, environment, before=table.environment).items()),
            setup=(*table.setup, *component.setup),
            software=_software(table, component),
            container=component.container or table.container or "",
            slot=needed[index][0],
            slots=needed[index][1],
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
    sweep = sweep_of(table, directory)
    return Job(
        id=NEW,
        name=table.name or described.name,
        kind=table.kind,
        components=components if sweep is None else within_tasks(components, sweep),
        walltime=table.walltime,
        user=user,
        submitted_at=0.0,
        priority=table.priority,
        claiming=table.claiming,
        placement=table.placement or (site.scheduler.placement if site is not None else "worst-fit"),
        maximum_tries=table.maximum_tries,
        environment=tuple(_exported(table, environment).items()),
        working_directory=table.working_directory,
        runner=table.runner,
        sweep=sweep,
        mpi_resize=mpi_resize(table.mpi_resize, [component.cluster for component in table.components], site),
        warn_before=warned_before(table),
        after=tuple(map(after_of, table.after)),
        notify=table.notify,
        checkpoint_signal=0 if table.checkpoint_signal is None else signal_number(table.checkpoint_signal),
        requeue_on_walltime=table.requeue_on_walltime,
        retries=table.retries if table.array is None else 0,  # they are those of its tasks
        retry_on=table.retry_on,
        relay=table.relay,
        host_ports=tuple(dict.fromkeys(table.host_ports)),
    )
