# SPDX-License-Identifier: Apache-2.0
"""The commands of the fake. Run by the resident process."""

from __future__ import annotations

import os
import pwd
import signal
import sys
import time
from typing import TYPE_CHECKING

from tests.fakes.scripts import Refusal, say, signal_script
from tests.fakes.slurm.jobs import (
    INVALID_ID,
    Parser,
    create_reservation,
    delete_reservation,
    end,
    schedule,
    selected,
    show_reservations,
    split_jobs,
    update,
)
from tests.fakes.slurm.listings import sacct, show_jobs, sinfo, squeue
from tests.fakes.slurm.state import Job, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.fakes.slurm.state import State

NOT_EXPORTED = ("SLURM_", "SBATCH_")
NO_CONTROLLER = "Unable to contact slurm controller (connect failure)"


def sbatch(store: Store, arguments: list[str]) -> None:
    """Queue an array of jobs with the script on stdin."""
    parser = Parser("sbatch")
    parser.flags("--parsable", "--ignore-pbs", "--no-requeue", "--hold", "--test-only")
    parser.values("--job-name", "--array", "--ntasks", "--cpus-per-task", "--time", "--chdir", "--output")
    parser.values("--nodes", "--open-mode", "--export", "--partition", "--mem", "--account", "--qos", "--comment")
    options = parser.parse_args(arguments)
    script = sys.stdin.buffer.read()
    failed = "sbatch: error: Batch job submission failed:"
    partition = store.settings["partition"]
    if options.partition not in {"", partition}:
        text = f"sbatch: error: invalid partition specified: {options.partition}"
        raise Refusal(f"{text}\n{failed} Invalid partition name specified")
    elements = _elements(options.array)
    if elements[-1] >= store.settings["max_array_size"]:
        raise Refusal(f"{failed} Invalid job array specification")
    threads = int(options.cpus_per_task or 1)
    if threads > max(store.settings["nodes"].values()) or not script.startswith(b"#!"):
        raise Refusal(f"{failed} Requested node configuration is not available")
    if options.test_only:
        sys.stderr.write("sbatch: Job 1 to start at 2026-11-21T11:24:10 using 1 processors on nodes n1\n")
        return
    exported = {name: value for name, value in os.environ.items() if not name.startswith(NOT_EXPORTED)}
    low, _, high = options.nodes.partition("-")
    with store.locked() as state:
        array = state.next_id
        for element in elements:
            job = Job(
                id=state.next_id,
                array=array,
                element=element,
                name=options.job_name,
                user=os.environ.get("USER", "") or pwd.getpwuid(os.geteuid()).pw_name,
                partition=partition,
                minutes=int(options.time),
                output=options.output,
                requeue=not options.no_requeue,
                submitted=time.time(),
                environment=exported,
                reason="JobHeldUser" if options.hold else "None",
                processors=int(options.ntasks) * threads,
                least=threads,
                nodes_low=int(low or 1),
                nodes_high=int(high or low or 0),
                comment=options.comment or "(null)",
                admin_comment=_mark(options.nodes) if store.settings["site_hook"] else "(null)",
            )
            state.next_id += 1
            state.jobs.append(job)
        spooled = store.script(job)
        spooled.touch(mode=0o700)
        spooled.write_bytes(script)
        schedule(store, state)
    say(str(array))


def _mark(nodes: str) -> str:
    """Return what conf/job_submit.lua notes of a job."""
    return "koala outside scheduler" + ("" if nodes else ", any number of nodes")


def _elements(array: str) -> range:
    """Return the elements of an array such as ``1-4``; for no array the one of a job that is none."""
    first, _, last = array.partition("-")
    return range(int(first), int(last) + 1) if array else range(-1, 0)


def scancel(store: Store, arguments: list[str]) -> None:
    """Cancel or signal jobs."""
    parser = Parser("scancel")
    parser.flags("--full")
    parser.values("--signal", "--state")
    parser.add_argument("jobs", nargs="+")
    options = parser.parse_args(arguments)
    complaints: list[str] = []
    with store.locked() as state:
        for text in options.jobs:
            found = selected(state, text)
            if options.signal:
                complaints += [] if found else [f"scancel: error: Kill job error on job id {text}: {INVALID_ID}"]
                for job in found:
                    if job.state == options.state:
                        signal_script(store.process(job), int(options.signal))
            else:
                _cancel(store, found)
        schedule(store, state)
    if complaints:
        raise Refusal("\n".join(complaints), 228)


def _cancel(store: Store, jobs: list[Job]) -> None:
    for job in jobs:
        if job.state == "PENDING":
            job.state, job.ended = "CANCELLED", time.time()
        elif job.state in {"RUNNING", "SUSPENDED"}:
            end(store, job, "CANCELLED")


def scontrol(store: Store, arguments: list[str]) -> None:
    """Show settings and partitions, and change jobs."""
    words = [word for word in arguments if word not in {"--oneliner", "--details", "--local"}]
    match words:
        case ["show", *subject]:
            _show(store, subject)
        case ["update", job, *changes] if changes:
            update(store, job.removeprefix("JobId="), changes)
        case ["create", "reservation", *pairs]:
            create_reservation(store, pairs)
        case ["delete", name]:
            delete_reservation(store, name.removeprefix("ReservationName="))
        case [verb, text] if verb in CHANGES:
            with store.locked() as state:
                for part in split_jobs(text):
                    _change(store, state, verb, part)
                schedule(store, state)
        case _:
            raise Refusal(f"invalid keyword: {' '.join(words)}")


def _show(store: Store, subject: list[str]) -> None:
    settings = store.settings
    match subject:
        case ["config"]:
            storage = "accounting_storage/slurmdbd" if settings["accounting"] else "accounting_storage/none"
            say(f"Configuration data as of 2026-11-21T11:24:10\nAccountingStorageType   = {storage}")
            say(f"ClusterName             = {settings['cluster']}")
            say(f"MaxArraySize            = {settings['max_array_size']}")
            say(f"SLURM_VERSION           = {settings['release']}\nSlurmUser               = root(0)")
        case ["partition"]:
            total = sum(settings["nodes"].values())
            apart = f"Exclusive={'NODE' if settings['whole_nodes'] else 'NO'} " if store.exclusive_apart else ""
            say(
                f"PartitionName={settings['partition']} Default=YES {apart}MaxTime=UNLIMITED State=UP TotalCPUs={total}"
            )
        case ["job", *texts]:
            with store.locked() as state:
                jobs = selected(state, texts[0]) if texts else state.jobs
                if texts and not jobs:
                    raise Refusal(f"slurm_load_jobs error: {INVALID_ID}")
                show_jobs(store, jobs)
        case ["reservation", *names]:
            show_reservations(store, names)
        case _:
            raise Refusal(f"invalid entity: {' '.join(subject)} for keyword: show")


def _hold(_store: Store, job: Job) -> str:
    if job.state in {"PENDING", "RUNNING", "SUSPENDED"}:  # one that runs is held when it is queued again
        job.reason = "JobHeldUser"
    return ""


def _release(_store: Store, job: Job) -> str:
    if job.state in {"PENDING", "RUNNING", "SUSPENDED"}:
        job.reason = "None"
    return ""


def _suspend(store: Store, job: Job) -> str:
    if job.state != "RUNNING":
        return "Job is pending execution" if job.state == "PENDING" else "Job has already finished"
    job.state = "SUSPENDED"
    signal_script(store.process(job), signal.SIGSTOP)
    return ""


def _resume(store: Store, job: Job) -> str:
    if job.state != "SUSPENDED":
        return "Job is not suspended"
    job.state = "RUNNING"
    signal_script(store.process(job), signal.SIGCONT)
    return ""


def _requeue(store: Store, job: Job) -> str:
    if not job.requeue:
        return "Requested operation is presently disabled"
    if job.state == "RUNNING":
        end(store, job, "PENDING")
    return ""


CHANGES: Mapping[str, Callable[[Store, Job], str]] = {
    "uhold": _hold,
    "release": _release,
    "suspend": _suspend,
    "resume": _resume,
    "requeue": _requeue,
}


def _change(store: Store, state: State, verb: str, text: str) -> None:
    jobs = selected(state, text)
    if not jobs:
        unknown = f"Unexpected message received for job {text}"
        raise Refusal(unknown if verb in {"suspend", "resume"} else f"{text}: {INVALID_ID}")
    for job in jobs:
        complaint = CHANGES[verb](store, job)
        if complaint:
            raise Refusal(f"{job.identity}: {complaint}")


PROGRAMS: Mapping[str, Callable[[Store, list[str]], None]] = {
    "sbatch": sbatch,
    "squeue": squeue,
    "sinfo": sinfo,
    "scontrol": scontrol,
    "scancel": scancel,
    "sacct": sacct,
}


def main(program: str, arguments: list[str]) -> int:
    """Run one command; return its exit status."""
    store = Store.of_environment()
    if store.down and arguments != ["--version"]:
        sys.stderr.write(f"{program}: error: {NO_CONTROLLER}\n")
        return 1
    try:
        PROGRAMS[program](store, arguments)
    except Refusal as refusal:
        sys.stderr.write(f"{refusal.text}\n")
        return refusal.status
    return 0
