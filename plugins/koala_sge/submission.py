# SPDX-License-Identifier: Apache-2.0
"""Submitting and changing jobs of Grid Engine by qsub, qdel, qhold, qrls and qmod.

They make the same jobs as DRMAA, and the placeholder's script is the same file in either case.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from html import unescape
from typing import TYPE_CHECKING

from koala_adapter.lrm.drmaa.complaints import FailureKind, is_ending, kind_of_text
from koala_adapter.lrm.drmaa.libraries import GRID_ENGINE, error_of
from koala_adapter.lrm.drmaa.protocol import ControlAction, Refusal
from koala_adapter.lrm.drmaa.scripts import ScriptDelivery
from koala_adapter.lrm.drmaa.transport import apply_directives
from koala_adapter.lrm.mapping import divide
from koala_adapter.model import LrmJobId
from koala_sge.slots import mapped_options, slot_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.lrm import Submission
    from koala_adapter.lrm.commands import CommandResult
    from koala_adapter.lrm.contract import Directives, ReservationRequest
    from koala_adapter.lrm.drmaa.protocol import Template
    from koala_sge.settings import SgeSettings
    from koala_sge.slots import Complexes

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
