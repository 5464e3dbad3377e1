# SPDX-License-Identifier: Apache-2.0
"""The commands of the fake PBS."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.pbs.state import (
    BAD_STATE,
    FINISHED,
    MOVED,
    NO_ANSWER,
    NO_ELEMENT,
    OVER,
    UNAUTHORIZED,
    WAITING,
    Job,
    Store,
    delete,
    end,
    followed,
    is_over,
    is_selection,
    move,
    parse,
    places_of,
    processors_of,
    qmove,
    schedule,
    selected,
    start,
    used_processors,
    whole,
)
from tests.fakes.scripts import Refusal, say, signal_script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.fakes.pbs.state import State


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


# -- The commands of the fake. Run by the resident process.

SIGNALS = {"suspend": signal.SIGSTOP, "resume": signal.SIGCONT}
KNOWN_RESOURCES = frozenset({"select", "place", "walltime", "ncpus", "mem"})


def qsub(store: Store, arguments: list[str]) -> None:
    """Queue a job, or an array, with the script on stdin."""
    options, _ = parse(arguments, "fhC:N:J:v:l:r:S:j:o:m:q:A:P:a:p:")
    if options.get("-C") != [""] and "-a" not in options:
        raise Refusal("the fake does not look for directives in scripts", 2)
    settings = store.settings
    queue = options.get("-q", [settings["queue"]])[-1]
    route = settings["routes"].get(queue)
    if route is None and queue != settings["queue"]:
        raise Refusal("Unknown queue", 170)
    wanted = _resources(options.get("-l", []))
    elements = _elements(options.get("-J", [""])[0], rerunnable=options.get("-r", ["y"]) != ["n"])
    if len(elements) > settings["max_array_size"]:
        raise Refusal("Array job exceeds server or queue size limit", 143)
    script = sys.stdin.buffer.read()
    given = dict(word.split("=", 1) for word in options.get("-v", [""])[0].split(",") if word)
    begin = time.mktime(time.strptime(options["-a"][0], "%Y%m%d%H%M")) if "-a" in options else 0.0
    holds = ("u" if "-h" in options else "") + ("o" if settings["site_hook"] else "")
    with store.locked() as state:
        number = state.next_number
        state.next_number += 1
        state.holds[str(number)] = holds
        for element in elements:
            job = Job(
                number=number,
                element=element,
                name=options.get("-N", ["STDIN"])[0],
                user=_user(),
                select=wanted.get("select", "1:ncpus=1"),
                place=wanted.get("place", "free" if "select" in wanted else "pack"),
                walltime=int(wanted.get("walltime", 5 * 365 * 86400)),
                output=options["-o"][0],
                rerunnable=options.get("-r", ["y"]) != ["n"],
                submitted=time.time(),
                arguments=shlex.join(arguments),
                environment=given,
                letter="W" if begin else "Q",
                substate=30 if begin else 10,
                begin=begin,
                queue="" if route is None else queue,
            )
            state.jobs.append(job)
        store.script(job).touch(mode=0o700)
        store.script(job).write_bytes(script)
        if route is not None and job.element == NO_ELEMENT:
            move(store, state, job, route)
        schedule(store, state)
    say(store.identity(job) if elements[0] == NO_ELEMENT else store.array(job))


def _user() -> str:
    return os.environ.get("USER", "nobody")


def _resources(texts: list[str]) -> dict[str, str]:
    wanted = dict(text.split("=", 1) for text in texts)
    unknown = sorted(wanted.keys() - KNOWN_RESOURCES)
    if unknown:
        raise Refusal(f"Unknown resource Resource_List.{unknown[0]}", 187)
    if "select" in wanted and not is_selection(wanted["select"]):
        raise Refusal("Illegal attribute or resource value Resource_List.select", 166)
    return wanted


def _elements(text: str, *, rerunnable: bool) -> range:
    if not text:
        return range(NO_ELEMENT, NO_ELEMENT + 1)
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise Refusal("illegal -J value\nusage: qsub [-a date_time] ...", 2)
    if not rerunnable:
        raise Refusal(" cannot submit non-rerunnable Array Job", 1)
    return range(int(first), int(last) + 1)


def qdel(store: Store, arguments: list[str]) -> None:
    """Delete one job, array or range of elements: of several ids the real one may crash."""
    if len(arguments) != 1:
        raise Refusal("double free or corruption (fasttop)", 134)
    with store.locked() as state:
        jobs = selected(store, state, arguments[0])
        for job in jobs:
            if job.letter == "E":
                if len(jobs) == 1:
                    raise Refusal(f"Request invalid for state of job {arguments[0]}", BAD_STATE)
            elif job.letter in WAITING:
                delete(state, job)
            elif job.letter == "S":
                # Its signal arrives when the job goes on; nobody waits here until it is killed.
                job.fate = "deleted"
            elif not is_over(job):
                end(store, job, "deleted")
        schedule(store, state)


def qhold(store: Store, arguments: list[str]) -> None:
    """Put jobs in hold."""
    _change_holds(store, arguments, lambda has, kinds: "".join(sorted(set(has) | set(kinds))))


def qrls(store: Store, arguments: list[str]) -> None:
    """Take holds away."""
    _change_holds(store, arguments, lambda has, kinds: "".join(kind for kind in has if kind not in kinds))


def _change_holds(store: Store, arguments: list[str], change: Callable[[str, str], str]) -> None:
    options, ids = parse(arguments, "h:")
    kinds = options.get("-h", ["u"])[0]
    with store.locked() as state:
        for text in ids:
            job = whole(store, state, text)
            if set(kinds) & set("os"):
                _require_operator(store, text)
            state.holds[str(job.number)] = change(state.holds[str(job.number)], kinds)
        schedule(store, state)


def _require_operator(store: Store, text: str, status: int = UNAUTHORIZED) -> None:
    if _user() not in store.settings["operators"]:
        raise Refusal(f"Unauthorized Request  {text}", status)


def qalter(store: Store, arguments: list[str]) -> None:
    """Change what a job asks for."""
    options, ids = parse(arguments, "l:r:W:")
    wanted = _resources(options.get("-l", []))
    with store.locked() as state:
        for text in ids:
            job = whole(store, state, text)
            for comment in options.get("-W", []):
                _require_operator(store, text)
                state.comments[str(job.number)] = comment.removeprefix("comment=")
            running = job.letter not in WAITING
            if running and "select" in wanted:
                raise Refusal(f"Cannot modify attribute while job running  select {text}", 1)
            walltime = int(wanted.get("walltime", job.walltime))
            if running and walltime > job.walltime:
                _require_operator(store, text)
            for one in state.siblings(job):
                one.walltime = walltime
                one.select, one.place = wanted.get("select", one.select), wanted.get("place", one.place)
                one.rerunnable = options.get("-r", ["y" if one.rerunnable else "n"]) == ["y"]
        schedule(store, state)


def qrun(store: Store, arguments: list[str]) -> None:
    """Start a job on vnodes, without a look at whether there is room, or at its holds."""
    options, (text,) = parse(arguments, "H:")
    _require_operator(store, text, 2)
    places = places_of(options["-H"][0])
    unknown = places.keys() - store.settings["nodes"].keys()
    if unknown:
        raise Refusal(f"Unknown node  {min(unknown)}", 2)
    with store.locked() as state:
        (job,) = selected(store, state, text)
        if job.letter not in WAITING:
            raise Refusal(f"Request invalid for state of job {text}", 2)
        start(store, job, options["-H"][0])


def qsig(store: Store, arguments: list[str]) -> None:
    """Signal running jobs."""
    options, ids = parse(arguments, "s:")
    name = options["-s"][0]
    with store.locked() as state:
        for text in ids:
            for job in selected(store, state, text):
                _signal(store, job, text, name)
        schedule(store, state)


def _signal(store: Store, job: Job, text: str, name: str) -> None:
    if name in SIGNALS:
        _require_operator(store, text)
    if job.letter != ("S" if name == "resume" else "R"):
        raise Refusal(f"Request invalid for state of job {text}", BAD_STATE)
    signal_script(store.process(job), SIGNALS[name] if name in SIGNALS else int(name))
    if name == "suspend":
        job.letter, job.substate = "S", 43
    elif name == "resume":
        job.letter, job.substate = "R", 42
        if job.fate == "deleted":
            end(store, job, job.fate)


def qrerun(store: Store, arguments: list[str]) -> None:
    """Queue running jobs again."""
    with store.locked() as state:
        for text in arguments:
            found = selected(store, state, text)
            _require_operator(store, text)
            for job in found:
                _rerun(store, state, job, text)


def _rerun(store: Store, state: State, job: Job, text: str) -> None:
    if job.letter not in {"R", "S"}:
        raise Refusal(f"Request invalid for state of job {text}", BAD_STATE)
    if not job.rerunnable:
        raise Refusal(f"job is not rerunnable {text}", 161)
    end(store, job, "requeued")
    schedule(store, state)


def qmsg(store: Store, arguments: list[str]) -> None:
    """Write a line to a job's standard error."""
    _, (line, text) = parse(arguments, "E")
    with store.locked() as state:
        for job in selected(store, state, text):
            with open(job.output.replace("^array_index^", str(job.element)), "a") as output:  # noqa: PTH123 - as it is
                output.write(f"{line}\n")


PROGRAMS: Mapping[str, Callable[[Store, list[str]], None]] = {
    "qsub": qsub,
    "qstat": qstat,
    "pbsnodes": pbsnodes,
    "qdel": qdel,
    "qhold": qhold,
    "qrls": qrls,
    "qalter": qalter,
    "qrun": qrun,
    "qsig": qsig,
    "qrerun": qrerun,
    "qmsg": qmsg,
    "qmove": qmove,
}
FOLLOWING = frozenset({"qstat", "qdel", "qhold", "qrls", "qalter", "qsig"})
"""Commands that ask another server for a job that was moved there."""
STATUS_WITHOUT_SERVER = {"qstat": 255, "pbsnodes": 1}


def main(program: str, arguments: list[str]) -> int:
    """Run one command; return its exit status."""
    store = Store.of_environment()
    if store.down and arguments != ["--version"]:
        words = "Couldn't connect to cluster: vm" if program == "qdel" else f"{program}: cannot connect to server vm"
        sys.stderr.write(f"Connection refused\n{words}\n")
        return STATUS_WITHOUT_SERVER.get(program, 162)
    try:
        PROGRAMS[program](*(followed(store, arguments) if program in FOLLOWING else (store, arguments)))
    except Refusal as refusal:
        if program == "qdel" and refusal.status == NO_ANSWER and "@" not in arguments[-1]:
            # The real one looks for a moved job on the other server, gets no answer, and says nothing.
            return 0
        sys.stderr.write(f"{program}: {refusal.text}\n")
        return refusal.status
    return 0
