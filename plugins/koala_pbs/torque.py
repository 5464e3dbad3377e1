# SPDX-License-Identifier: Apache-2.0
"""What Torque lists, in the words of OpenPBS. Pure.

Torque asks for ``nodes=2:ppn=4`` where OpenPBS has chunks, tells slots (``exec_host = n1/0-3+n2/0``) where that tells
processors, and has names of its own for times and ends. Its exit statuses below zero are others, too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_pbs.documents import mapping_of, value_of
from koala_pbs.torquedocuments import read_torque_entries
from koala_pbs.values import mebibytes_of, number_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_pbs.documents import Attributes

_RENAMED = {
    "exit_status": "Exit_status",
    "start_time": "stime",
    "comp_time": "obittime",
    "start_count": "run_count",
    "job_array_id": "array_index",
}
"""Torque's names of attributes, and those of OpenPBS for the same."""

STATUSES = {-10: -27, -11: -29, -12: -28, -13: -3}
"""Torque's exit statuses below zero (pbs_job.h), and those of OpenPBS for the same end: memory, walltime, processor
time, and a start that is tried again. Others have the same numbers there."""

_VARIABLE = re.compile(r"(?:^|,)([A-Za-z_][A-Za-z0-9_]*)=")
_USE = re.compile(r"\s*(?P<slots>[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)/(?P<job>[0-9][^,\s]*)\s*(?:,|$)", re.ASCII)
_PHYSICAL = re.compile(r"(?:^|,)physmem=([0-9]+[kmgt]?b)")
LARGEST_SLOT_RANGE = 100_000


def read_torque(text: str, section: str) -> dict[str, Attributes]:
    """Return what Torque lists as :func:`koala_pbs.documents.read_entries` returns what OpenPBS does.

    Raises ValueError, as that does.
    """
    entries = read_torque_entries(text, section)
    translate = {"Jobs": _job, "nodes": _node, "Server": _server}.get(section)
    if translate is None:
        return entries
    return {name: translate(attributes) for name, attributes in entries.items()}


def _job(attributes: Attributes) -> Attributes:
    found = {_RENAMED.get(name, name): value for name, value in attributes.items()}
    status = value_of(found, "Exit_status")
    if status:
        found["Exit_status"] = str(STATUSES.get(number_of(status), number_of(status)))
    wanted = mapping_of(found, "Resource_List")
    # ncpus is of one node only, or 1 beside nodes=1:ppn=4.
    others = {name: value for name, value in wanted.items() if name != "ncpus"}
    found["Resource_List"] = {**others, **_chunks(wanted)}
    found["exec_vnode"] = "+".join(f"({name}:ncpus={count})" for name, count in _layout(value_of(found, "exec_host")))
    variables = _variables(value_of(found, "Variable_List"))
    directory = value_of(found, "init_work_dir")
    found["Variable_List"] = {**({"PBS_O_WORKDIR": directory} if directory else {}), **variables}
    return found


def _chunks(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return select and place for ``nodes=2:ppn=4+n7:ppn=1``, ``procs=8`` or ``ncpus=4``."""
    if wanted.get("procs", "").isdecimal():
        parts, place = [(wanted["procs"], "1", "")], "free"
    else:
        nodes = wanted.get("nodes", "") or f"1:ppn={number_of(wanted.get('ncpus', ''), 1)}"
        parts, place = [_part(part) for part in nodes.partition("#")[0].split("+")], "scatter"
    # Memory is the job's, and pmem that of each process: one of them, as a share of each chunk.
    count = sum(number_of(number, 1) for number, _, _ in parts) or 1
    whole, each = mebibytes_of(wanted.get("mem", "")), mebibytes_of(wanted.get("pmem", ""))
    texts = []
    for number, processors, host in parts:
        share = each * number_of(processors, 1) if each else -(-whole // count) if whole else 0
        texts.append(f"{number}:ncpus={processors}" + (f":mem={share}mb" if share else "") + host)
    return {"select": "+".join(texts), "place": place if count > 1 else "pack"}


def _part(text: str) -> tuple[str, str, str]:
    """Return number, processors and ``:host=`` of one part of a request for nodes; properties are left out."""
    first, *words = text.split(":")
    processors = next((word.removeprefix("ppn=") for word in words if word.startswith("ppn=")), "1")
    if first.isdecimal():
        return first, processors, ""
    return "1", processors, f":host={first}" if re.fullmatch(r"[A-Za-z0-9][\w.-]*", first) else ""


def _layout(exec_host: str) -> tuple[tuple[str, int], ...]:
    """Return hosts and processors of ``n1/0+n1/1`` or ``n1/0-3,5+n2/0``."""
    found: dict[str, int] = {}
    for part in exec_host.split("+"):
        name, _, slots = part.strip().partition("/")
        if name:
            found[name] = found.get(name, 0) + _slots(slots)
    return tuple(found.items())


def _slots(text: str) -> int:
    """Return how many slots ``0-3,5`` are."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        size = number_of(last or first, -1) - number_of(first, 0) + 1
        if not 0 < size <= LARGEST_SLOT_RANGE:
            raise ValueError(f"{text[:40]!r} are no slots")
        count += size
    return count


def _variables(text: str) -> dict[str, str]:
    """Return the variables of ``A=b,C=d,e``; a comma may stand in a value."""
    found = list(_VARIABLE.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return {match[1]: text[match.end() : end] for match, end in zip(found, ends, strict=True)}


def _node(attributes: Attributes) -> Attributes:
    jobs = value_of(attributes, "jobs")
    used, position = 0, 0
    while match := _USE.match(jobs, position):
        used, position = used + _slots(match["slots"]), match.end()
    if jobs[position:].strip():
        raise ValueError(f"{jobs[position:][:60]!r} is no job on a node")
    memory = _PHYSICAL.search(value_of(attributes, "status"))
    return {
        "state": value_of(attributes, "state"),
        "comment": value_of(attributes, "note"),
        "resources_available": {
            "ncpus": value_of(attributes, "np") or "0",
            **({"mem": memory[1]} if memory else {}),
        },
        "resources_assigned": {"ncpus": str(used)},
    }


def _server(attributes: Attributes) -> Attributes:
    # Ended jobs stay in the listing for keep_completed seconds, and are not kept anywhere else.
    return {**attributes, "job_history_enable": "False", "max_array_size": "1"}
