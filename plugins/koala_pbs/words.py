# SPDX-License-Identifier: Apache-2.0
"""What PBS's complaints mean: try again later, never, or no such job. One table, searched from the top.

The texts are those of the server and of the commands in OpenPBS 19 to 23 and PBS Professional; Torque's are among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.plugin.commandsystem import ComplaintTable, complaints

if TYPE_CHECKING:
    from koala_adapter.errors import LrmError
    from koala_adapter.plugin.commands import CommandResult

_NO_SERVER = "pbs_server does not answer; it is asked again later"
_LIMIT = "a limit on jobs or resources of the queue or server; lower the threshold of this cluster, or wait"
_RIGHTS = "the job is not yours, or this needs an operator or manager of PBS"
_OPTION = "this qsub does not know the option: drop or rename it in the directives"
_RESOURCE = "correct the directives of this cluster in the site file: qmgr -c 'list resource' shows what there is"
_ELEMENT = "PBS does this to whole job arrays only"
_GONE = "it has ended, or never was"

UNKNOWN_JOB_STATUS = 153
"""Exit status of commands that are given an id of no job: the lower byte of its error number, 15001."""

NOT_RERUNNABLE = "job is not rerunnable"
NO_ARRAY = "array job exceeds"
"""What a server says of an array that is larger than it, or the queue, allows: 1 where arrays are forbidden."""
ROUTED_NOWHERE = "rejected by all possible destinations"
"""What a routing queue says, whatever its destinations had against the job."""
_USAGE = ("illegal -", "invalid option", "usage:")

BEING_DELETED = ("request invalid for state of job", "delete already in progress", "invalid request")
"""What qdel says of a job that it has begun to delete, and of an element that its array has not."""

COMPLAINTS = ComplaintTable(
    system="PBS",
    known=(
        # The connection itself failed, so that nothing of the request can have arrived.
        *complaints(
            LrmUnreachableError,
            {
                "cannot connect to server": _NO_SERVER,
                "could not connect to server": _NO_SERVER,
                "couldn't connect to cluster": _NO_SERVER,
                "cannot connect to specified server host": _NO_SERVER,
                "could not connect to trqauthd": "trqauthd of Torque must run on this host",
                "could not connect to batch server": _NO_SERVER,
                "all reserved ports in use": "too many PBS commands in a minute from this host: ask less often",
            },
        ),
        *complaints(
            LrmUnavailableError,
            {
                "connection refused": _NO_SERVER,
                "communication failure": _NO_SERVER,
                "connection timed out": _NO_SERVER,
                "time out": _NO_SERVER,
                "too busy to service this request": _NO_SERVER,
                "premature end of file": _NO_SERVER,
                "trqauthd unable to authorize": "see the log of trqauthd on this host",
                "end of file": _NO_SERVER,
                "could not contact scheduler": "pbs_sched does not run, or is busy",
                "server shutting down": _NO_SERVER,
                "server connection table full": _NO_SERVER,
                "no free connections": _NO_SERVER,
                "system error": "see the server's log",
                "pbs server internal error": "see the server's log",
                "failed to save job": "see the server's log",
                "batch protocol error": "are the commands of another release than the server?",
                "invalid credential": "check pbs_iff, or munge, on this host",
                "expired credential": "check pbs_iff, or munge, on this host",
                "maximum number of jobs": _LIMIT,
                "would exceed": _LIMIT,
                "license": "the site's licences of PBS",
                "resource temporarily unavailable": "",
                "resource busy": "",
                "insufficient amount of": "the nodes are not free",
                "execution server rejected request": "the MoM of the node does not take the job now",
                "server could not connect to mom": "the node does not answer",
                "altered/moved during current scheduling cycle": "the scheduler is at work; it is tried again",
                "double free": "qdel has crashed",
                # Torque 6.1 has begun to run it by then.
                "cannot locate new job": "the script is longer than this Torque can take",
            },
        ),
        *complaints(
            LrmNotFoundError,
            {
                "unknown job id": _GONE,
                "job has finished": _GONE,
                "nonexistent job id": _GONE,
                "unknown array id": _GONE,
                "request invalid for finished array subjob": _GONE,
                "job moved to remote server": "it runs elsewhere",
            },
        ),
        *complaints(
            LrmRejectedError,
            {
                "unknown queue": "name a queue that qstat -Q shows",
                "queue is not enabled": "wait until the site opens the queue, or choose another",
                "access to queue is denied": "the queue is not open to you; choose another",
                "no default queue": "name a queue for this cluster",
                "unknown resource": _RESOURCE,
                "illegal attribute or resource value": _RESOURCE,
                "undefined attribute": _RESOURCE,
                'resource invalid in "select"': _RESOURCE,
                "cannot be used with": _RESOURCE,
                "job violates queue and/or server resource limits": "ask for less, or for another queue: qstat -Qf",
                "resource limit exceeds allowable": "ask for less, or for another queue: qstat -Qf",
                NO_ARRAY: "set max_array_size in the settings of this cluster",
                "queue does not allow": "choose another queue: qstat -Qf says what this one takes",
                "job exceeds queue resource limits": "ask for less, or for another queue: qstat -Qf",
                ROUTED_NOWHERE: "ask for less, or for another queue: qstat -Qf",
                "can not be run as root": "run koala as a user: Torque takes no jobs of root",
                "illegally formed job identifier": _GONE,
                "cannot submit non-rerunable array job": "drop -r in the directives of this cluster",
                "unauthorized request": _RIGHTS,
                "access from host not allowed": "this host may not submit: ask the site (acl_hosts, flatuid)",
                "bad uid for job execution": "this account may not run jobs: ask the site",
                "invalid account": "name an account of yours",
                "request invalid for state of job": "",
                "cannot modify attribute while job running": "",
                NOT_RERUNNABLE: "it was submitted so (qsub -r n)",
                "invalid request": _ELEMENT,
                "unknown node": "name vnodes that pbsnodes -av shows",
                "node(s) specification error": "name vnodes that pbsnodes -av shows",
                "unknown/illegal signal": "",
                "hook": "a hook of the site refuses it",
                **dict.fromkeys(_USAGE, _OPTION),
            },
        ),
    ),
)


def says_usage(complaint: str) -> bool:
    """Tell whether a command complains that it does not know its options."""
    return any(text in complaint.lower() for text in _USAGE)


def refuses_array(complaint: str) -> bool:
    """Tell whether a submission was refused because an array was asked for, or may have been."""
    return any(text in complaint.lower() for text in (NO_ARRAY, ROUTED_NOWHERE))


def submission_error(result: CommandResult) -> LrmError:
    """Return the error of a qsub that printed no id: what it says and is not known is a refusal when it failed.

    It asks the server last, so that whatever it complains of itself has not been sent; silence may mean anything.
    """
    said = result.stderr.decode("utf-8", "replace").strip()
    text = said if COMPLAINTS.find(said) else result.complaint
    refused = LrmRejectedError if result.returncode > 0 and said.startswith("qsub:") else LrmUnavailableError
    return COMPLAINTS.error(" / ".join(text.splitlines()[:2]), action="submission", otherwise=refused)
