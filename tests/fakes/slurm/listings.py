# SPDX-License-Identifier: Apache-2.0
"""The commands of the fake that list: squeue, sinfo and sacct, with the fields that the plugin asks for."""

from __future__ import annotations

import grp
import os
import pwd
import re
from typing import TYPE_CHECKING

from tests.fakes.scripts import Refusal, say
from tests.fakes.slurm.jobs import Parser, schedule, selected, split_jobs
from tests.fakes.slurm.state import used_processors

if TYPE_CHECKING:
    from tests.fakes.slurm.state import Job, State, Store

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
