# SPDX-License-Identifier: Apache-2.0
"""The commands of the fake that list: qstat and pbsnodes, in the forms that were recorded."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.pbs.jobs import FINISHED, parse, schedule, selected
from tests.fakes.pbs.state import MOVED, NO_ELEMENT, OVER, WAITING, Store, processors_of, used_processors
from tests.fakes.scripts import Refusal, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.fakes.pbs.state import Job, State


def qstat(store: Store, arguments: list[str]) -> None:
    """List jobs, queues or the server, or print the version."""
    settings = store.settings
    if arguments == ["--version"]:
        say(f"pbs_version = {settings['release']}")
        return
    options, ids = parse(arguments, "txQBfF:")
    if "-f" not in options or options.get("-F") != ["json"]:
        raise Refusal("the fake prints JSON only", 2)
    with store.locked() as state:
        schedule(store, state)
        if "-Q" in options:
            routes = {name: _route(place) for name, place in settings["routes"].items()}
            _print(store, {"Queue": {settings["queue"]: _queue(store), **routes}})
        elif "-B" in options:
            _print(store, {"Server": {settings["server"]: _server(store, state)}})
        else:
            _jobs(store, state, ids, elements="-t" in options, ended="-x" in options)


def _jobs(store: Store, state: State, ids: list[str], *, elements: bool, ended: bool) -> None:
    try:
        chosen = selected(store, state, ids[0], ended=ended) if ids else state.jobs
    except Refusal as refusal:
        _print(store, {})
        words = f"{ids[0]} Job has finished, use -x or -H to obtain historical job information"
        raise Refusal(words if refusal.status == 35 else refusal.text, refusal.status) from None
    entries: dict[str, object] = {}
    for job in chosen:
        if job.letter in {"F", MOVED} and not ended:
            continue
        if job.element != NO_ELEMENT and (not ids or "[]" in ids[0]):
            entries.setdefault(store.array(job), _array(store, state, job))
        if job.element == NO_ELEMENT or elements:
            entries[store.identity(job)] = _job(store, state, job)
    _print(store, {"Jobs": entries} if entries else {})


def _common(store: Store, state: State, job: Job) -> dict[str, object]:
    return {
        "Job_Name": job.name,
        "Job_Owner": f"{job.user}@localhost",
        "queue": job.queue or store.settings["queue"],
        "server": store.settings["server"],
        "ctime": _time(job.submitted),
        "Join_Path": "oe",
        "Output_Path": f"localhost:{job.output}",
        "Rerunable": str(job.rerunnable),
        "Resource_List": {
            "ncpus": processors_of(job.select),
            "nodect": len(job.select.split("+")),
            "place": job.place,
            "select": job.select,
            "walltime": _duration(job.walltime),
        },
        "Variable_List": {"PBS_O_SYSTEM": "Linux", "PBS_O_WORKDIR": "/", **job.environment},
        "euser": job.user,
        "egroup": job.user,
        "Submit_arguments": job.arguments,
        "Hold_Types": state.holds[str(job.number)] or "n",
        **({"comment": comment} if job.letter in WAITING and (comment := state.comments.get(str(job.number))) else {}),
    }


def _array(store: Store, state: State, job: Job) -> dict[str, object]:
    letters = {one.letter for one in state.siblings(job)}
    held = bool(state.holds[str(job.number)])
    letter = "F" if letters == {"F"} else "H" if held else "B" if letters - set(WAITING) else "Q"
    return {**_common(store, state, job), "job_state": letter, "substate": 70, "array": "True"}


def _job(store: Store, state: State, job: Job) -> dict[str, object]:
    shown = _common(store, state, job)
    # Before it has begun, and when it was deleted before, an element shows what its array shows.
    if job.element != NO_ELEMENT and not job.runs:
        return {**shown, "job_state": job.letter, "substate": 10 if job.letter == "Q" else 70}
    held = bool(state.holds[str(job.number)]) and job.letter in WAITING and job.element == NO_ELEMENT
    shown |= {"job_state": "H" if held else job.letter, "substate": 20 if held else job.substate}
    if job.element != NO_ELEMENT:
        shown |= {"array_id": store.array(job), "array_index": job.element}
        del shown["Hold_Types"]
    if job.runs:
        shown |= {"run_count": job.runs}
    if job.letter == "W":
        shown["Execution_Time"] = _time(job.begin)
    if job.exec_vnode:
        shown |= {"exec_vnode": job.exec_vnode, "exec_host": "vm/0", "stime": _time(job.started)}
    if job.letter == MOVED:
        if _has_ended_elsewhere(store, job):
            shown |= {"substate": FINISHED, "comment": f'Job finished at "{job.queue.rpartition("@")[2]}"'}
        else:
            shown |= {"comment": f'Job has been moved to "{job.queue}"'}
    if job.letter in OVER:
        shown |= {"obittime": _time(job.ended), "history_timestamp": int(job.ended)}
        if job.status is not None:
            shown["Exit_status"] = job.status
    return shown


def _has_ended_elsewhere(store: Store, job: Job) -> bool:
    there = Store(Path(store.settings["peers"][job.queue.rpartition("@")[2]]))
    with there.locked() as state:
        return any(one.known_as == store.identity(job) and one.letter in OVER for one in state.jobs)


def _queue(store: Store) -> dict[str, object]:
    return {"queue_type": "Execution", "enabled": "True", "started": "True", "total_jobs": 0} | (
        {} if store.settings["max_array_size"] > 1 else {"max_array_size": 1}
    )


def _route(destination: str) -> dict[str, object]:
    return {"queue_type": "Route", "enabled": "True", "started": "True", "route_destinations": destination}


def _server(store: Store, state: State) -> dict[str, object]:
    settings = store.settings
    return {
        "server_state": "Active",
        "server_host": "localhost",
        "scheduling": str(state.scheduling),
        "managers": ",".join(f"{user}@*" for user in settings["operators"]),
        "default_queue": settings["queue"],
        "query_other_jobs": "True",
        "max_array_size": settings["max_array_size"],
        "pbs_version": settings["release"],
        **({"job_history_enable": "True"} if settings["history"] else {}),
    }


def pbsnodes(store: Store, arguments: list[str]) -> None:
    """List vnodes."""
    options, _ = parse(arguments, "avF:")
    if "-v" not in options or options.get("-F") != ["json"]:
        raise Refusal("the fake lists vnodes, as JSON", 2)
    entries = {}
    with store.locked() as state:
        schedule(store, state)
        nodes = {store.settings["server"]: 0, **store.settings["nodes"]}
        for name, count in nodes.items():
            used = used_processors(state, name)
            word = "offline" if name in state.offline else "job-busy" if count and used >= count else "free"
            entries[name] = {
                "Mom": "localhost",
                "ntype": "PBS",
                "state": word,
                "resources_available": {"arch": "linux", "host": "localhost", "mem": "4gb", "ncpus": count},
                "resources_assigned": {"ncpus": used} if used else {},
                "sharing": "default_shared",
            }
    _print(store, {"nodes": entries})


def _print(store: Store, document: Mapping[str, object]) -> None:
    head = {
        "timestamp": int(time.time()),
        "pbs_version": store.settings["release"],
        "pbs_server": store.settings["server"],
    }
    say(json.dumps(_numbered({**head, **document}), indent="\t", separators=(",", ":\t")))


def _numbered(value: object) -> object:
    """Return a document whose words are numbers where they can be, as in 23.06."""
    if isinstance(value, dict):
        return {name: _numbered(one) for name, one in value.items()}
    try:
        number = float(str(value))
    except ValueError:
        return value
    return int(number) if number.is_integer() else number


def _time(moment: float) -> str:
    time.tzset()
    return time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(moment))


def _duration(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
