# SPDX-License-Identifier: Apache-2.0
"""The commands of the fake Slurm."""

from __future__ import annotations

import grp
import os
import pwd
import re
import signal
import sys
import time
from typing import TYPE_CHECKING

from tests.fakes.scripts import Refusal, say, signal_script
from tests.fakes.slurm.state import (
    INVALID_ID,
    Job,
    Parser,
    Store,
    create_reservation,
    delete_reservation,
    end,
    schedule,
    selected,
    show_reservations,
    split_jobs,
    update,
    used_processors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.fakes.slurm.state import State


NODES_SHOWN_AS_RANGE_SINCE = (23, 11)
"""From here on scontrol shows an upper bound of the nodes also where the user gave none."""

RAW_STATUS_UNTIL = (22, 5)
"""Up to this release squeue prints wait statuses, afterwards exit code and signal."""


def squeue(store: Store, arguments: list[str]) -> None:
    """List jobs."""
    parser = Parser("squeue")
    parser.flags("--noheader", "--local")
    parser.values("--states", "--user", "--jobs", "--sort")
    options = parser.parse_args(arguments)
    if not (options.noheader and options.states == "all"):
        raise Refusal("squeue: the fake lists all jobs, without a header")
    fields = re.findall(r"([A-Za-z_-]+):([^,]*)(?:,|$)", os.environ["SQUEUE_FORMAT2"])
    with store.locked() as state:
        schedule(store, state)
        jobs = _asked_for(state, options.jobs) if options.jobs else state.jobs
        rows = [_job_values(store, job) for job in jobs if options.user in {"", job.user}]
    together = _waiting_together(rows)
    # Of equal priority the real one has the newest first, unless it is told otherwise.
    for values in together if options.sort == "-p,i" else reversed(together):
        say("".join(f"{values[name]}{suffix}" for name, suffix in fields))


def _asked_for(state: State, text: str) -> list[Job]:
    """Return the jobs that a list names; other than scontrol and scancel, squeue shows no ranges of elements."""
    return [job for one in split_jobs(text) if "[" not in one for job in selected(state, one)]


def _group(user: str) -> str:
    """Return the group of a user; for one that is not known here a group of his name."""
    try:
        return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name
    except KeyError:
        return user


def _waiting_together(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows with the waiting elements of an array, that differ in nothing else, as one."""
    together: dict[tuple[str, ...], list[str]] = {}
    shown: list[dict[str, str]] = []
    for row in rows:
        array, _, element = row["JobArrayID"].partition("_")
        alike = (array, *(value for name, value in row.items() if name != "JobArrayID"))
        if row["State"] == "PENDING" and alike in together:
            together[alike].append(element)
        else:
            together[alike] = [element]
            shown.append(row)
    for row in shown:
        array = row["JobArrayID"].partition("_")[0]
        elements = together[(array, *(value for name, value in row.items() if name != "JobArrayID"))]
        if row["State"] == "PENDING" and len(elements) > 1:
            row["JobArrayID"] = f"{array}_[{','.join(elements)}]"
    return shown


def _job_values(store: Store, job: Job) -> dict[str, str]:
    code, number = job.status >> 8, job.status & 0x7F
    return {
        "JobArrayID": job.identity,
        "UserName": job.user,
        "State": job.state,
        "NumCPUs": str(job.processors),
        "Partition": job.partition,
        "NodeList": ",".join(job.places),
        "SubmitTime": _time(job.submitted),
        "StartTime": _time(job.started),
        "EndTime": _time(job.ended or (job.started + job.minutes * 60 if job.started else 0)),
        "exit_code": str(job.status) if store.release <= RAW_STATUS_UNTIL else f"{code}:{number}",
        "Reason": job.reason,
        "Name": job.name,
        "TimeLimit": f"{job.minutes}:00",
        "EligibleTime": _time(job.submitted),
        "Dependency": "(null)",
        "cpus-per-task": "1",
        "NTPerNode": "0",
        "Feature": "(null)",
        "ReqNodes": ",".join(job.wanted),
        "GroupName": _group(job.user),
        "Account": "(null)",
        "RestartCnt": "0",
        "WorkDir": "/",
        "Comment": job.comment,
        "admin_comment": job.admin_comment,
    }


def show_jobs(store: Store, jobs: list[Job]) -> None:
    """Show jobs as scontrol does, as far as the plugin reads it."""
    for job in jobs:
        array, _, element = job.identity.partition("_")
        head = f"JobId={array} ArrayJobId={array} ArrayTaskId={element}" if element else f"JobId={array}"
        say(f"{head} JobName={job.name}\n   JobState={job.state} Reason={job.reason}")
        say(f"   ReqNodeList={','.join(job.wanted) or '(null)'} ExcNodeList=(null)")
        say(f"   NumNodes={_shown_nodes(store, job)} NumCPUs={job.processors} NumTasks={job.processors}")
        tres = "TRES" if store.release < NODES_SHOWN_AS_RANGE_SINCE else "ReqTRES"
        say(f"   {tres}=cpu={job.processors},mem=4000M,node={job.nodes_low},billing={job.processors}")
        for node, count in job.places.items():
            say(f"     Nodes={node} CPU_IDs=0-{count - 1} Mem=0 GRES=")
        say(f"   MinCPUsNode={job.least} MinMemoryNode=0\n   Reservation={job.reservation or '(null)'}")
        say(f"   Comment={job.comment} ")
        say(f"   AdminComment={job.admin_comment} \n")
    if not jobs:
        say(f"No jobs in {store.settings['cluster']}")


def _shown_nodes(store: Store, job: Job) -> str:
    """Return the number of nodes that a job needs, because its user says so or because of its processors."""
    if job.alive:
        return str(len(job.places))
    low = max(job.nodes_low, -(-job.processors // max(store.settings["nodes"].values())))
    if store.release >= NODES_SHOWN_AS_RANGE_SINCE:
        return f"{low}-{max(low, job.nodes_high)}"
    return f"{low}-{job.nodes_high}" if job.nodes_high else str(low)


def _time(moment: float) -> str:
    if os.environ.get("SLURM_TIME_FORMAT") != "%s":
        raise Refusal("the fake tells the time in seconds only")
    return str(int(moment)) if moment else "N/A"


def sinfo(store: Store, arguments: list[str]) -> None:
    """List nodes, or print the version."""
    if arguments == ["--version"]:
        say(f"slurm {store.settings['release']}")
        return
    parser = Parser("sinfo")
    parser.flags("--noheader", "--Node", "--local")
    parser.values("--Format", "--nodes")
    options = parser.parse_args(arguments)
    chosen = options.nodes.split(",") if options.nodes else store.settings["nodes"]
    with store.locked() as state:
        for name, total in ((name, store.settings["nodes"][name]) for name in chosen):
            idle = total - used_processors(state, name)
            word = "idle" if idle == total else "mixed" if idle else "allocated"
            values = {
                "NodeList": name,
                "Partition": f"{store.settings['partition']}*",
                "StateLong": word,
                "CPUsState": f"{total - idle}/{idle}/0/{total}",
                "Memory": "4000",
                "CPUsLoad": "0.50",
                "Features_act": "fake",
                "Disk": "0",
                "Sockets": "1",
                "Cores": str(total),
                "Available": "up",
                "OverSubscribe": "EXCLUSIVE" if store.settings["whole_nodes"] and not store.exclusive_apart else "NO",
                "Gres": "(null)",
                "GresUsed": "gpu:0",
                "AllocMem": "0",
            }
            fields = re.findall(r"([A-Za-z_]+):([^,]*)(?:,|$)", options.Format)
            say("".join(f"{values[field]}{suffix}" for field, suffix in fields))


def sacct(store: Store, arguments: list[str]) -> None:
    """List ended jobs."""
    parser = Parser("sacct")
    parser.flags("--noheader", "--allocations", "--parsable2", "--local")
    parser.values("--delimiter", "--format", "--jobs")
    options = parser.parse_args(arguments)
    if not store.settings["accounting"]:
        raise Refusal("Slurm accounting storage is disabled")
    if "[" in options.jobs:
        raise Refusal(f"sacct: fatal: Bad job array element specified: {options.jobs.partition('_')[0]}")
    with store.locked() as state:
        for text in split_jobs(options.jobs):
            for job in selected(state, text):
                values = {
                    "JobID": job.identity,
                    "User": job.user,
                    "State": f"CANCELLED by {os.geteuid()}" if job.state == "CANCELLED" else job.state,
                    "AllocCPUS": str(job.processors),
                    "Partition": job.partition,
                    "NodeList": ",".join(job.places) or "None assigned",
                    "Submit": _time(job.submitted),
                    "Start": _time(job.started),
                    "End": _time(job.ended),
                    "ExitCode": f"{job.status >> 8}:{job.status & 0x7F}",
                    "JobName": job.name,
                }
                say(options.delimiter.join(values[name] for name in options.format.split(",")))


# -- The commands of the fake. Run by the resident process.

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
