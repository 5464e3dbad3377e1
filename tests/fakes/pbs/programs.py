# SPDX-License-Identifier: Apache-2.0
"""The commands of the fake. Run by the resident process."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from typing import TYPE_CHECKING

from tests.fakes.pbs.jobs import (
    BAD_STATE,
    NO_ANSWER,
    UNAUTHORIZED,
    delete,
    end,
    followed,
    is_over,
    move,
    parse,
    qmove,
    schedule,
    selected,
    start,
    whole,
)
from tests.fakes.pbs.listings import pbsnodes, qstat
from tests.fakes.pbs.state import NO_ELEMENT, WAITING, Job, Store, is_selection, places_of
from tests.fakes.scripts import Refusal, say, signal_script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.fakes.pbs.state import State

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
