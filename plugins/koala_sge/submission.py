# SPDX-License-Identifier: Apache-2.0
"""What Grid Engine is asked for: slots in its words, and submitting and changing jobs by its commands.

They make the same jobs as DRMAA, and the placeholder's script is the same file in either case. Processors of one host
come from a parallel environment with the allocation rule ``$pe_slots``. What is counted for each processor there is
asked for in shares. All functions are pure, but for the file in which a cell's description is kept.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, field, replace
from html import unescape
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError
from koala_adapter.lrm import readable_text
from koala_adapter.lrm.drmaa.complaints import FailureKind, is_ending, kind_of_text
from koala_adapter.lrm.drmaa.libraries import GRID_ENGINE, error_of
from koala_adapter.lrm.drmaa.protocol import ControlAction, Refusal, Template
from koala_adapter.lrm.drmaa.scripts import ScriptDelivery
from koala_adapter.lrm.drmaa.transport import apply_directives
from koala_adapter.lrm.mapping import Divided, divide
from koala_adapter.model import LrmJobId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.lrm import Submission
    from koala_adapter.lrm.commands import CommandResult
    from koala_adapter.lrm.contract import Directives, ReservationRequest
    from koala_sge.settings import SgeSettings


NATIVE = frozenset({"threads", "exclusive", "features", "licenses", "account", "directives"})
"""Keys of a slot that Grid Engine has options for. There is no usual complex for GPUs and scratch space."""
LIST_COMPLEXES = ("qconf", "-sc")
ON_ONE_HOST = "$pe_slots"
"""Allocation rule by which all processors of a job are on one host."""
EACH_PROCESSOR, WHOLE_JOB = "YES", "JOB"
"""Words of complex(5) for resources that are taken for each processor of a job, and once."""

_LIMIT = re.compile(r"[hs]_(?:vmem|data|stack|rss)")
"""Limits that execd multiplies by the processors of a job, unless they are taken once (queue_conf(5))."""
_COUNTED = re.compile(r"([\w.-]+)=\{n\}")
"""A complex of which a site's map asks for a number."""
_SIZE = re.compile(r"([0-9]+)([kKmMgGtT])")


# -- Description of a cell -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Complexes:
    """Complexes and parallel environment of a cell, as qconf shows them."""

    known: bool = False
    """Qconf has told it."""
    environment: str = ""
    """Parallel environment for several processors of one host; empty: there is none, or it is not known."""
    exclusive: str = ""
    """Complex with which a job has its host for itself (relation EXCL); empty: there is none, or it is not known."""
    consumables: Mapping[str, str] = field(default_factory=dict)
    """EACH_PROCESSOR or WHOLE_JOB of those complexes that jobs take away, by name and shortcut."""
    booleans: tuple[str, ...] = ()
    """Complexes that say what a host is like, and can be asked for."""

    @property
    def expressible(self) -> frozenset[str]:
        """The keys of a slot that jobs of this cell can be asked for natively."""
        lacking = {"threads": not self.environment, "exclusive": not self.exclusive}
        return NATIVE - {key for key, lacks in lacking.items() if lacks}


def is_on_one_host(text: str) -> bool:
    """Tell whether a parallel environment, as qconf shows it, has all processors of a job on one host."""
    return any(line.split() == ["allocation_rule", ON_ONE_HOST] for line in text.splitlines())


def environments_of_queues(text: str, queue: str | None) -> tuple[str, ...]:
    """Return the parallel environments in ``qconf -sq '*'``, of one queue or of all."""
    found: list[str] = []
    name = ""
    for line in text.replace("\\\n", " ").splitlines():
        word, _, value = line.strip().partition(" ")
        if word == "qname":
            name = value.strip()
        elif word == "pe_list" and queue in {None, name}:
            found += re.findall(r"[^\s,=\[\]]+", re.sub(r"\[[^=\]]+=", " ", value))
    return tuple(dict.fromkeys(one for one in found if one != "NONE"))


def parse_complexes(text: str, environment: str) -> Complexes:
    """Return what ``qconf -sc`` shows; ``environment``: the parallel environment that was chosen."""
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    complexes = [row for row in rows if len(row) == 8]  # noqa: PLR2004 - columns of complex(5)
    consumables: dict[str, str] = {}
    booleans, exclusive = [], ""
    for name, shortcut, kind, relation, requestable, consumable, *_ in complexes:
        if relation == "EXCL":
            exclusive = exclusive or name
        elif consumable in {EACH_PROCESSOR, WHOLE_JOB}:
            consumables |= {name: consumable, shortcut: consumable}
        elif kind == "BOOL" and requestable != "NO":
            booleans.append(name)
    return Complexes(
        known=True,
        environment=environment,
        exclusive=exclusive,
        consumables=consumables,
        booleans=tuple(sorted(booleans)),
    )


def gpu_complex(directives: Directives, complexes: Complexes) -> str:
    """Return the complex by which a site's map asks for GPUs; empty: none that jobs take away is known."""
    words = (word for text in dict(directives.map).get("gpus", ()) for word in _COUNTED.findall(text))
    return next((word for word in words if word in complexes.consumables), "")


def parse_complex_value(text: str, name: str) -> int | None:
    """Return how many of a complex a host has, by what qconf shows of it; None: it does not tell."""
    for line in text.replace("\\\n", " ").splitlines():
        word, _, values = line.partition(" ")
        if word == "complex_values":
            found = re.search(rf"(?:^|[\s,]){re.escape(name)}=([0-9]+)", values)
            return int(found[1]) if found else None
    return None


def keep(path: Path, complexes: Complexes) -> None:
    """Store the description of a cell for showing submissions offline. Raises OSError."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(complexes)), encoding="utf-8")
    new.replace(path)


def kept(path: Path, settings: SgeSettings) -> Complexes:
    """Return the stored description of a cell, or else what the settings say."""
    try:
        values = json.loads(readable_text(path))
        found = Complexes(**{**values, "booleans": tuple(values["booleans"])})
    except (ValueError, LookupError, TypeError):
        found = Complexes()
    if settings.parallel_environment is not None:
        found = Complexes(**{**asdict(found), "environment": settings.parallel_environment})
    return found


# -- Options of a submission ---------------------------------------------------------------------------------


def require_environment(threads: int, complexes: Complexes, divided: Divided) -> None:
    """Raise LrmRejectedError where there is no parallel environment for several processors."""
    if threads > 1 and "threads" not in divided.mapped and not complexes.environment:
        message = f"Grid Engine cannot be asked for {threads} threads, processors of one host, on this cluster"
        raise LrmRejectedError(
            message,
            hint=f"make a parallel environment with allocation_rule {ON_ONE_HOST} (qconf -ap) and put it in pe_list of "
            "the queue, or name one in parallel_environment of [clusters.settings]",
        )


def slot_options(divided: Divided, settings: SgeSettings, complexes: Complexes, *, threads: int) -> Iterator[str]:
    """Yield the options for what is not mapped, each as one text. Raises LrmRejectedError.

    ``threads``: processors of the slot, by whatever they are asked for.
    """
    rest, slot = divided.rest, divided.rest.slot
    require_environment(slot.threads, complexes, divided)
    if slot.threads > 1:
        yield f"-pe {complexes.environment} {slot.threads}"
    if rest.memory_mib is not None:
        yield shared(f"-l {settings.memory_resource}={rest.memory_mib}M", complexes, threads=threads)
    if slot.exclusive:
        yield f"-l {complexes.exclusive}=true"
    for name in slot.features:
        yield f"-l {name}=true"
    for name, count in slot.licenses:
        yield shared(f"-l {name}={count}", complexes, threads=threads)
    if slot.account:
        yield f"-A {slot.account}"


def mapped_options(divided: Divided, complexes: Complexes, *, threads: int) -> tuple[str, ...]:
    """Return the arguments of the site's map, with what is taken for each processor in shares."""
    # Without a parallel environment a job has one processor for Grid Engine, whatever its threads.
    parallel = "threads" not in divided.mapped or any(text.startswith("-pe ") for text in divided.arguments)
    return tuple(shared(text, complexes, threads=threads if parallel else 1) for text in divided.arguments)


def shared(option: str, complexes: Complexes, *, threads: int) -> str:
    """Return ``-l name=value,...`` with the share of a processor of what is taken for each of them.

    Sizes are rounded up. Raises LrmRejectedError for a count that cannot be divided.
    """
    flag, _, value = option.partition(" ")
    if flag != "-l" or threads == 1:
        return option
    return f"-l {','.join(_share(part, complexes, threads) for part in value.strip().split(','))}"


def _share(request: str, complexes: Complexes, threads: int) -> str:
    name, _, value = request.partition("=")
    taken = complexes.consumables.get(name, EACH_PROCESSOR if _LIMIT.fullmatch(name) else "")
    size = _SIZE.fullmatch(value)
    if taken != EACH_PROCESSOR or not (size or value.isdecimal()):
        return request
    if size:
        return f"{name}={-(-int(size[1]) // threads)}{size[2]}"
    if int(value) % threads:
        message = f"Grid Engine takes {name} for each of {threads} processors, and {value} cannot be divided among them"
        raise LrmRejectedError(message, hint=f"set consumable of {name} to {WHOLE_JOB} (qconf -mc)")
    return f"{name}={int(value) // threads}"


# -- Commands ------------------------------------------------------------------------------------------------
# qsub, qdel, qhold, qrls and qmod.

CHANGES: Mapping[ControlAction, tuple[str, ...]] = {
    ControlAction.TERMINATE: ("qdel",),
    ControlAction.HOLD: ("qhold",),
    ControlAction.RELEASE: ("qrls",),
    ControlAction.SUSPEND: ("qmod", "-sj"),
    ControlAction.RESUME: ("qmod", "-usj"),
}
"""The command that does what a DRMAA action does."""

_SUBMITTED = re.compile(r"^([0-9]+)(?:\.([0-9]+)-([0-9]+):1)?\s*$", re.MULTILINE)
_GRANTED = re.compile(r"advance reservation ([0-9]+) has been granted")
_RESERVED = re.compile(r"<id>([0-9]+)</id>\s*<name>([^<]*)</name>\s*<owner>([^<]*)</owner>")
_NAMED = re.compile(r"\b([0-9]+(?:\.[0-9]+)?)\b")


def native_options(
    settings: SgeSettings, submission: Submission, complexes: Complexes, site: Directives
) -> tuple[str, ...]:
    """Return the qsub options of a submission, each as one text, with the site's changes. Raises LrmRejectedError."""
    native = complexes.expressible | {"threads"}  # refused with another remedy
    divided = divide(submission, native, site, system="Grid Engine")
    private = settings.script_delivery is ScriptDelivery.PRIVATE
    queue = submission.queue or settings.queue
    options = [
        # -shell n: start /bin/sh on our file, not the user's login shell that starts it.
        *(("-b y", "-shell n") if private else ("-b n", "-S /bin/sh")),
        # A placeholder that starts twice would show up as a stranger.
        "-r n",
        f"-l h_rt={submission.walltime}",
    ]
    threads = submission.slot.threads
    options += slot_options(divided, settings, complexes, threads=threads)
    if queue:
        options.append(f"-q {queue}")
    if submission.reservation:
        options.append(f"-ar {submission.reservation}")
    if settings.native_specification:
        options.append(settings.native_specification)
    divided = replace(divided, arguments=mapped_options(divided, complexes, threads=threads))
    return apply_directives(options, divided.directives, GRID_ENGINE)


def qrsub_command(
    request: ReservationRequest, environment: str, native: Sequence[str], begins_at: float
) -> tuple[str, ...]:
    """Return the command line that reserves slots from a time on, which it is told in UTC.

    ``native``: options of the placeholders, whose queue and requests of resources it repeats.
    """
    placeholders, seconds = request.placeholders, request.placeholders.walltime
    repeated = (one for one in native if one.startswith(("-l ", "-q ")) and not one.startswith("-l h_rt="))
    return (
        "qrsub",
        *("-a", time.strftime("%Y%m%d%H%M.%S", time.gmtime(begins_at))),
        *("-d", f"{seconds // 3600}:{seconds // 60 % 60}:{seconds % 60}"),
        *("-pe", environment, str(placeholders.count * placeholders.slot.threads)),
        *("-N", placeholders.key),
        *(word for one in repeated for word in one.split(maxsplit=1)),
    )


def slots_granted(shown: str, threads: int) -> int:
    """Return for how many slots of several processors there is room in what ``qrstat -ar`` shows of a reservation."""
    granted = next((line for line in shown.splitlines() if line.startswith("granted_slots_list")), "")
    return sum(int(number) // threads for number in re.findall(r"=(\d+)", granted))


def parse_granted(output: str) -> str:
    """Return the number in what qrsub prints of a reservation that it has made; empty: it has made none."""
    found = _GRANTED.search(output)
    return found[1] if found else ""


def parse_reservations(document: str, user: str) -> Mapping[str, str]:
    """Return the numbers of a user's reservations, by name, from ``qrstat -xml``."""
    return {unescape(name): number for number, name, owner in _RESERVED.findall(document) if owner == user}


def qsub_command(template: Template, count: int) -> tuple[str, ...]:
    """Return the command line that submits an array, and prints its id alone."""
    return (
        "qsub",
        "-terse",
        "-N",
        template.name,
        "-t",
        f"1-{count}",
        "-wd",
        template.working_directory,
        "-o",
        template.output_path.replace("{index}", "$TASK_ID"),
        "-j",
        "y",
        *(("-h",) if template.held else ()),
        *template.native_specification.split(),
        template.remote_command,
        *template.arguments,
    )


def parse_submitted(output: str) -> tuple[LrmJobId, ...]:
    """Return the ids in what ``qsub -terse`` prints: ``123.1-10:1``; nothing where there is none."""
    found = _SUBMITTED.search(output)
    if found is None:
        return ()
    if found[2] is None:
        return (LrmJobId(found[1]),)
    return tuple(LrmJobId(f"{found[1]}.{task}") for task in range(int(found[2]), int(found[3]) + 1))


def parse_refusals(result: CommandResult, action: ControlAction, ids: Sequence[str]) -> tuple[Refusal, ...]:
    """Return what a command that changes jobs refused, from all that it printed.

    Its exit status tells nothing: qdel says 1 when one of many jobs is gone. Raises LrmUnavailableError where nothing
    that it printed is a refusal, and the exit status is not 0.
    """
    refusals = []
    lines = [line.strip() for line in f"{result.text}\n{result.complaint}".splitlines() if line.strip()]
    for line in dict.fromkeys(lines):
        kind = kind_of_text(line, FailureKind.UNSUPPORTED)
        if kind is FailureKind.UNSUPPORTED or (action is ControlAction.TERMINATE and is_ending(line)):
            continue
        if kind is FailureKind.UNAVAILABLE:
            raise error_of(kind, f"{result.argv[0]}: {line}")
        refusals.append(Refusal(id=_named_in(line, ids), kind=kind, message=line))
    if result.returncode and not lines:
        raise error_of(FailureKind.UNAVAILABLE, f"{result.argv[0]}: exit code {result.returncode} and no output")
    return tuple(refusals)


def _named_in(line: str, ids: Sequence[str]) -> str:
    """Return the job that a complaint names, or all that were given."""
    numbers = _NAMED.findall(line)
    return next((id_ for id_ in ids if id_ in numbers or id_.partition(".")[0] in numbers), ", ".join(ids))
