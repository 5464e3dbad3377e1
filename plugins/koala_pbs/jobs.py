# SPDX-License-Identifier: Apache-2.0
"""Jobs from ``qstat -t -f -F json``. Pure.

An element that waits, or was ended before it ran, is printed with the attributes of its array: what it says of holds
and ends is the array's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koala_adapter.model import LrmJob, LrmJobId, LrmJobState
from koala_pbs.documents import mapping_of, read_entries, value_of
from koala_pbs.jobids import array_index, array_of, is_array, is_job_id
from koala_pbs.jobnotes import note_in
from koala_pbs.selection import parse_exec_vnode, parse_select, placement_of
from koala_pbs.states import MOVED, MOVED_LETTER, hold_owner, job_end, job_state
from koala_pbs.values import mebibytes_of, moment_of, number_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_pbs.documents import Attributes, Reader
    from koala_pbs.selection import Chunk

INDEX_VARIABLE = "PBS_ARRAY_INDEX"
"""Set by PBS for elements of arrays, and by us for single placeholders."""

_HAS_PROCESSORS = frozenset({LrmJobState.RUNNING, LrmJobState.SUSPENDED, LrmJobState.ENDING})
_WAITING = frozenset({LrmJobState.QUEUED, LrmJobState.HELD})
_DEPENDS = ("after", "on:", "runone:", "syncwith:")


def parse_jobs(text: str, read: Reader = read_entries, *, moved: bool = False) -> tuple[LrmJob, ...]:
    """Return the jobs of a listing, elements of arrays singly. Raises ValueError that names a job at fault.

    ``moved``: another server than ours lists them.
    """
    entries = read(text, "Jobs")
    strange = next((id_ for id_ in entries if not is_job_id(id_)), None)
    if strange is not None:
        raise ValueError(f"{strange[:60]!r} is no job id")
    return tuple(
        _named(id_, attributes, entries.get(array_of(id_), {}), moved=moved)
        for id_, attributes in entries.items()
        if not is_array(id_)
    )


def servers_of(text: str, read: Reader = read_entries) -> frozenset[str]:
    """Return the servers that have the jobs of a listing. Raises ValueError."""
    return frozenset(value_of(attributes, "server") for attributes in read(text, "Jobs").values())


def parse_requests(text: str, read: Reader = read_entries) -> dict[str, tuple[str, str, str]]:
    """Return select, place and holds of each job, and array, of a listing. Raises ValueError."""
    found = {}
    for id_, attributes in read(text, "Jobs").items():
        wanted = mapping_of(attributes, "Resource_List")
        found[id_] = (wanted.get("select", ""), wanted.get("place", ""), value_of(attributes, "Hold_Types"))
    return found


def parse_held_by_operator(text: str, read: Reader = read_entries) -> tuple[LrmJob, ...]:
    """Return the jobs of a listing that are not over and have an operator's hold. Raises ValueError.

    Of an array they are its elements, which have the holds of their array.
    """
    holds = {id_: hold for id_, (_, _, hold) in parse_requests(text, read).items()}
    found = []
    for job in parse_jobs(text, read):
        own = holds.get(array_of(job.id), "") or holds.get(job.id, "")
        if job.state is not LrmJobState.ENDED and own != "n" and "o" in own:
            found.append(job)
    return tuple(found)


def _named(id_: str, attributes: Attributes, parent: Attributes, *, moved: bool) -> LrmJob:
    try:
        job = _job(id_, attributes, parent)
        return replace(job, elsewhere=_place(attributes)) if moved else job
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"job {id_} cannot be read ({type(error).__name__}: {error})") from error


def _place(attributes: Attributes) -> str:
    """Return queue and server of a job that its own server has moved, such as ``workq@other``."""
    queue, _, server = value_of(attributes, "queue").partition("@")
    return f"{queue}@{server or value_of(attributes, 'server')}"


def _job(id_: str, attributes: Attributes, parent: Attributes) -> LrmJob:
    letter, substate = _required(attributes, "job_state"), value_of(attributes, "substate")
    left = letter == MOVED_LETTER and substate == MOVED
    index = array_index(id_)
    # With an array_index of its own it has begun, and tells of itself.
    is_shadow = index is not None and "array_index" not in attributes
    holds = value_of(parent, "Hold_Types") if parent else value_of(attributes, "Hold_Types")
    state, dependent = _state(letter, substate, holds, attributes)
    wanted, variables = mapping_of(attributes, "Resource_List"), mapping_of(attributes, "Variable_List")
    chunks = parse_select(wanted.get("select", ""))
    layout = () if state in _WAITING or is_shadow else parse_exec_vnode(value_of(attributes, "exec_vnode"))
    begun = state not in _WAITING and not is_shadow
    started = moment_of(value_of(attributes, "stime")) if begun else None
    walltime = seconds_of(wanted.get("walltime", ""))
    status = value_of(attributes, "Exit_status")
    ended = state is LrmJobState.ENDED
    end, code, signal = (
        job_end(number_of(status) if status else None, substate) if ended and not is_shadow else (None, None, None)
    )
    processors = number_of(wanted.get("ncpus", ""), 0) or sum(chunk.processors for chunk in chunks) or 1
    return LrmJob(
        id=LrmJobId(id_),
        name=_required(attributes, "Job_Name"),
        state=state,
        user=value_of(attributes, "euser") or value_of(attributes, "Job_Owner").partition("@")[0],
        processors=processors,
        array_index=index if index is not None else _given_index(variables),
        nodes=tuple(name for name, _ in layout),
        queue=value_of(attributes, "queue"),
        reason=_reason(letter, holds, attributes),
        elsewhere=_place(attributes) if left else "",
        end=end,
        exit_code=code,
        signal=signal,
        submitted_at=moment_of(value_of(attributes, "ctime")),
        started_at=started,
        ends_at=_ends_at(attributes, state, started, walltime),
        raw_state=f"{letter} {substate}".strip(),
        walltime=walltime,
        eligible_at=moment_of(value_of(attributes, "Execution_Time")),
        dependent=dependent,
        blocked=state is LrmJobState.QUEUED and _waits_for_more(value_of(attributes, "comment")),
        hold=hold_owner(holds) if state is LrmJobState.HELD else None,
        note=note_in(value_of(attributes, "comment")),
        layout=layout if state in _HAS_PROCESSORS else (),
        group=value_of(attributes, "egroup"),
        account=value_of(attributes, "Account_Name"),
        working_directory=variables.get("PBS_O_WORKDIR", ""),
        requeues=max(0, number_of(value_of(attributes, "run_count")) - begun) if not is_shadow else 0,
        **_shape(chunks, wanted.get("place", "")),
    )


def _state(letter: str, substate: str, holds: str, attributes: Attributes) -> tuple[LrmJobState, bool]:
    """Return the state of a job, and whether it waits for others."""
    state = job_state(letter, substate)
    dependent = any(part.strip().startswith(_DEPENDS) for part in value_of(attributes, "depend").split(","))
    if letter == "Q" and hold_owner(holds) is not None:
        return LrmJobState.HELD, dependent
    if letter == "H" and dependent and holds == "s":
        # PBS lets it go by itself.
        return LrmJobState.QUEUED, dependent
    return state, dependent and state in _WAITING


def shape_of(job: LrmJob, select: str, place: str) -> LrmJob:
    """Return a job that asks for these chunks, in this arrangement. Raises ValueError."""
    chunks = parse_select(select)
    processors = sum(chunk.processors for chunk in chunks) or job.processors
    return replace(job, processors=processors, **_shape(chunks, place))


def _shape(chunks: tuple[Chunk, ...], place: str) -> dict[str, Any]:
    """Return how a job's processors can be divided among nodes."""
    if not chunks:
        return {}
    sizes = {chunk.processors for chunk in chunks}
    least, most = 1, len(chunks)
    arrangement = placement_of(place)
    if arrangement == "pack":
        most = 1
    elif arrangement in {"scatter", "vscatter"}:
        least = most
    each = sizes.pop() if len(sizes) == 1 else 1
    memory = [mebibytes_of(chunk.value("mem")) or 0 for chunk in chunks]
    per_processor = max(-(-size // max(1, chunk.processors)) for size, chunk in zip(memory, chunks, strict=True))
    return {
        "processors_per_task": max(1, each),
        "nodes_wanted": most if least == most else None,
        "nodes_least": least,
        "nodes_most": most,
        "tasks_per_node": 1 if arrangement in {"scatter", "vscatter"} else None,
        "memory_per_processor_mib": per_processor or None,
        "requested_nodes": tuple(dict.fromkeys(chunk.vnode for chunk in chunks if chunk.vnode)),
    }


def _ends_at(attributes: Attributes, state: LrmJobState, started: float | None, walltime: int | None) -> float | None:
    if state is LrmJobState.ENDED:
        return moment_of(value_of(attributes, "obittime")) or moment_of(value_of(attributes, "history_timestamp"))
    return started + walltime if started is not None and walltime is not None else None


def _reason(letter: str, holds: str, attributes: Attributes) -> str:
    comment = value_of(attributes, "comment").strip()
    said = "" if note_in(comment) else comment
    return said or (f"held ({holds})" if letter == "H" else "")


def _waits_for_more(comment: str) -> bool:
    """Tell whether a job waits for something else than free processors, of the scheduler's comment."""
    if not comment.startswith(("Not Running", "Can Never Run")):
        return False
    return not comment.partition(":")[2].strip().startswith("Insufficient amount of resource: ncpus")


def _given_index(variables: Mapping[str, str]) -> int | None:
    text = variables.get(INDEX_VARIABLE, "")
    return int(text) if text.isdecimal() else None


def _required(attributes: Attributes, name: str) -> str:
    text = value_of(attributes, name)
    if not text:
        raise ValueError(f"it has no {name}")
    return text
