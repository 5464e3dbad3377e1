# SPDX-License-Identifier: Apache-2.0
"""The fake commands: qstat, qhost, qacct, qconf, qalter, qselect. They print what Grid Engine 8.1.9 prints."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from tests.fakes.gridengine.engine import HOST, QUEUE, Engine, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.fakes.gridengine.engine import State, Task

HEADER = "<?xml version='1.0'?>"
COMPLEXES = """\
#name               shortcut   type      relop requestable consumable default  urgency
#--------------------------------------------------------------------------------------
h_vmem              h_vmem     MEMORY    <=    YES         YES        0        0
slots               s          INT       <=    YES         YES        1        1000
exclusive           excl       BOOL      EXCL  YES         YES        0        1000
"""
RUNNING = frozenset({"r", "s"})


def main(words: Sequence[str]) -> int:
    """Be the command that the first word names."""
    name, options = Path(words[0]).name, list(words[1:])
    if options == ["-help"]:
        print("SGE 8.1.9\nusage: ...")  # noqa: T201
        return 0
    engine = Engine(Path(os.environ["SGE_ROOT"]))
    try:
        with engine.open() as state:
            text, complaint = _answer(name, options, state)
    except UnreachableError:
        complaint = 'error: unable to contact qmaster using port 1 on host "fakehost"'
        text = ""
    print(text, end="")  # noqa: T201
    print(complaint, end="", file=sys.stderr)  # noqa: T201
    return 1 if complaint else 0


def _answer(name: str, options: list[str], state: State) -> tuple[str, str]:
    match [name, *options]:
        case ["qacct", "-j", number]:
            return _accounted(state, number)
        case ["qalter", ("-ac" | "-dc") as option, word, *numbers]:
            return _noted(state, option, word, numbers)
        case ["qalter", "-w", "v", _number]:
            return "verification: found suitable queue(s)\n", ""
        case ["qalter", "-q", _queue, *_others, _number]:
            return "", ""
        case ["qselect", *_requests]:
            return f"{QUEUE}@{HOST}\n", ""
    text = _listing(name, options, state)
    return (text, "") if text is not None else ("", f"{name}: invalid option argument {options}\n")


def _listing(name: str, options: list[str], state: State) -> str | None:
    listings: dict[tuple[str, ...], Callable[[State], str]] = {
        ("qstat", "-xml", "-r", "-s", "prs", "-u", "*"): _jobs,
        ("qstat", "-xml", "-g", "c"): _queues,
        ("qhost", "-xml", "-q", "-F", "slots"): _hosts,
        ("qconf", "-sq", "*"): lambda state: (
            f"qname {QUEUE}\npe_list smp\nslots {state.slots}\ns_rt INFINITY\nh_rt 24:00:00\n"
        ),
        ("qconf", "-sc"): lambda _state: COMPLEXES,
        ("qconf", "-sp", "smp"): lambda _state: "pe_name smp\nslots 999\nallocation_rule $pe_slots\n",
        ("qconf", "-tsm"): lambda _state: "",
    }
    if [name, *options[:2], *options[3:4]] == ["qstat", "-xml", "-u", "-s"]:
        return f"{HEADER}\n<job_info><queue_info/><job_info/></job_info>\n"  # nobody holds but users
    if [name, *options[:2]] == ["qstat", "-xml", "-j"]:
        return _explained(state, options[2].split(","))
    listing = listings.get((name, *options))
    return None if listing is None else listing(state)


def _jobs(state: State) -> str:
    live = [task for task in state.tasks if not task.ended_at]
    running = "".join(_job(task, "running") for task in live if task.state in RUNNING)
    pending = "".join(_job(task, "pending") for task in live if task.state not in RUNNING)
    return f"{HEADER}\n<job_info><queue_info>{running}</queue_info><job_info>{pending}</job_info></job_info>\n"


def _job(task: Task, kind: str) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(task.started_at or task.submitted_at))
    moment = "JAT_start_time" if task.started_at else "JB_submission_time"
    queue = f"{QUEUE}@{HOST}" if task.started_at else ""
    limit = "" if task.walltime is None else f'<hard_request name="h_rt">{task.walltime}</hard_request>'
    environment = f'<requested_pe name="smp">{task.slots}</requested_pe>' if task.slots > 1 else ""
    return (
        f'<job_list state="{kind}"><JB_job_number>{task.number}</JB_job_number><JB_name>{escape(task.name)}</JB_name>'
        f"<JB_owner>{task.user}</JB_owner><state>{task.state}</state><{moment}>{stamp}</{moment}>"
        f"<queue_name>{queue}</queue_name><slots>{task.slots}</slots><tasks>{task.index}</tasks>"
        f"<full_job_name>{escape(task.name)}</full_job_name>{environment}{limit}</job_list>\n"
    )


def _queues(state: State) -> str:
    used = state.slots_used
    closed = state.slots if state.queue_letters else 0
    return (
        f"{HEADER}\n<job_info><cluster_queue_summary><name>{QUEUE}</name><load>0.1</load><used>{used}</used>"
        f"<resv>0</resv><available>{state.slots - used}</available><total>{state.slots}</total>"
        f"<temp_disabled>0</temp_disabled><manual_intervention>{closed}</manual_intervention>"
        "</cluster_queue_summary></job_info>\n"
    )


def _hosts(state: State) -> str:
    used = state.slots_used
    values = {
        "qtype_string": "BI",
        "slots_used": used,
        "slots": state.slots,
        "slots_resv": 0,
        "state_string": state.queue_letters,
    }
    queue = "".join(f"<queuevalue qname='{QUEUE}' name='{key}'>{value}</queuevalue>" for key, value in values.items())
    return (
        f"{HEADER}\n<qhost><host name='global'></host><host name='{HOST}'><hostvalue name='load_avg'>0.50</hostvalue>"
        f"<hostvalue name='mem_total'>1.0G</hostvalue><queue name='{QUEUE}'>{queue}</queue></host></qhost>\n"
    )


def _noted(state: State, option: str, word: str, numbers: Sequence[str]) -> tuple[str, str]:
    """Put a word into the contexts of jobs, or take it away."""
    there = {str(task.number) for task in state.tasks if not task.ended_at}
    for number in numbers:
        if number not in there:
            return "", f'denied: job "{number}" does not exist\n'
        state.notes[number] = word if option == "-ac" else ""
    return "".join(f"modified context of job {number}\n" for number in numbers), ""


def _explained(state: State, numbers: Iterable[str]) -> str:
    wanted = [task for task in state.tasks if str(task.number) in numbers and not task.ended_at]
    if not wanted:
        names = "".join(f"    <ST_name>{number}</ST_name>\n" for number in numbers)
        return f"{HEADER}\n<unknown_jobs >\n{names}</unknown_jobs>\n"
    jobs: dict[int, list[Task]] = {}
    for task in wanted:
        jobs.setdefault(task.number, []).append(task)
    elements = "".join(
        f"<element><JB_job_number>{number}</JB_job_number><JB_ja_tasks>{''.join(map(_complaint, tasks))}</JB_ja_tasks>"
        f"{_context(state.notes.get(str(number)))}</element>\n"
        for number, tasks in jobs.items()
    )
    return f"{HEADER}\n<detailed_job_info><djob_info>{elements}</djob_info></detailed_job_info>\n"


def _complaint(task: Task) -> str:
    if task.state != "Eqw":
        return ""
    message = escape(f'11/21/2026 11:22:34 [0:1]: error: can\'t open output file "{task.output}"')
    return (
        f"<ulong_sublist><JAT_task_number>{task.index}</JAT_task_number><JAT_message_list><ulong_sublist>"
        f"<QIM_message>{message}</QIM_message></ulong_sublist></JAT_message_list></ulong_sublist>"
    )


def _context(note: str | None) -> str:
    words = (
        "".join(
            f"<context_list><VA_variable>{escape(name)}</VA_variable><VA_value>{escape(value)}</VA_value></context_list>"
            for name, _, value in (word.partition("=") for word in ("mine=1", note))
        )
        if note
        else ""
    )
    return f"<JB_context>{words}</JB_context>"


def _accounted(state: State, number: str) -> tuple[str, str]:
    ended = [task for task in state.tasks if str(task.number) == number and task.ended_at and (task.pid or task.failed)]
    if not ended:
        return "", f"error: job id {number} not found\n"
    return "".join(_record(task) for task in ended), ""


def _record(task: Task) -> str:
    moments = (task.submitted_at, task.started_at, task.ended_at)
    submitted, started, ended = (time.strftime("%a %b %d %H:%M:%S %Y", time.gmtime(moment)) for moment in moments)
    values = {
        "qname": QUEUE,
        "hostname": HOST,
        "owner": task.user,
        "jobname": task.name,
        "jobnumber": task.number,
        "taskid": task.index,
        "qsub_time": submitted,
        "start_time": started,
        "end_time": ended,
        "slots": 1,
        "failed": f"{task.failed} : fake",
        "exit_status": task.status,
        "category": "NONE" if task.walltime is None else f"-l h_rt={task.walltime}",
    }
    return "=" * 62 + "\n" + "".join(f"{key:12} {value}\n" for key, value in values.items())
