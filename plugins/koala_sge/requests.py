# SPDX-License-Identifier: Apache-2.0
"""What is asked of Grid Engine: qsub options of a submission, and the command lines of all other requests. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import LrmNotFoundError
from koala_drmaa.scripts import ScriptDelivery
from koala_sge.contexts import ANY_QUEUE, NOTE, QUEUES, note_word

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from koala_adapter.model import LrmJobId
    from koala_adapter.plugin import Submission
    from koala_drmaa.protocol import Template
    from koala_sge.settings import SgeSettings
    from koala_sge.wishes import Wishes

LARGEST_EXPLANATION = 200
"""Jobs asked for in one request for all about them."""
LARGEST_ACCOUNTING_REQUEST = 20
"""Arrays asked for in one history request: qacct reads the whole file for each."""


def native_options(settings: SgeSettings, submission: Submission) -> tuple[str, ...]:
    """Return the qsub options of a submission, each as one text, before the site's changes."""
    private = settings.script_delivery is ScriptDelivery.PRIVATE
    queue = submission.queue or settings.queue
    options = [
        # -shell n: start /bin/sh on our file, not the user's login shell that starts it.
        *(("-b y", "-shell n") if private else ("-b n", "-S /bin/sh")),
        # A placeholder that starts twice would show up as a stranger.
        "-r n",
        f"-l h_rt={submission.walltime}",
    ]
    if submission.memory_mib is not None:
        options.append(f"-l {settings.memory_resource}={submission.memory_mib}M")
    if queue:
        options.append(f"-q {queue}")
    if settings.native_specification:
        options.append(settings.native_specification)
    return tuple(options)


def equivalent_qsub(settings: SgeSettings, template: Template, count: int) -> tuple[str, ...]:
    """Return the qsub command that would do the same as the DRMAA call."""
    return (
        settings.command("qsub"),
        "-N",
        template.name,
        "-t",
        f"1-{count}",
        "-wd",
        template.working_directory,
        "-o",
        template.output_path.replace("{index}", "$TASK_ID"),
        "-j",
        "y",
        *(("-h",) if template.held else ()),
        *template.native_specification.split(),
        template.remote_command,
        *template.arguments,
    )


def list_jobs(settings: SgeSettings) -> tuple[str, ...]:
    """All jobs of all users, with whole names and requested walltimes."""
    return (settings.command("qstat"), "-xml", "-r", "-u", "*")


def list_held(settings: SgeSettings, user: str, kind: str) -> tuple[str, ...]:
    """Return the request for a user's jobs, or all users' (``*``), in hold of a kind.

    It is ``u`` of the user, ``o`` of an operator, ``s`` of the system (a manager).
    """
    return (settings.command("qstat"), "-xml", "-u", user, "-s", f"h{kind}")


def list_slots(settings: SgeSettings) -> tuple[str, ...]:
    """All jobs of all users, with a row for each slot of a parallel job."""
    return (settings.command("qstat"), "-xml", "-g", "t", "-r", "-u", "*")


def list_nodes(settings: SgeSettings) -> tuple[str, ...]:
    """All hosts with their queues and the slots that the hosts have left."""
    return (settings.command("qhost"), "-xml", "-q", "-F", "slots")


def list_queues(settings: SgeSettings) -> tuple[str, ...]:
    """All cluster queues with their slots."""
    return (settings.command("qstat"), "-xml", "-g", "c")


def show_queues(settings: SgeSettings) -> tuple[str, ...]:
    """Configuration of all cluster queues."""
    return (settings.command("qconf"), "-sq", "*")


def explain_jobs(settings: SgeSettings, numbers: Iterable[str]) -> tuple[str, ...]:
    """All about these jobs, with the reason of an error state."""
    return (settings.command("qstat"), "-j", ",".join(numbers))


def give_back(settings: SgeSettings, numbers: Iterable[str]) -> tuple[str, ...]:
    """Take the hold of users from these jobs, which is the only one that a submission verifier can set."""
    return (settings.command("qrls"), *numbers)


def account(settings: SgeSettings, number: str) -> tuple[str, ...]:
    """Ends of all tasks of one job."""
    return (settings.command("qacct"), "-j", number)


def select_instances(settings: SgeSettings, wishes: Wishes, queues: Sequence[str]) -> tuple[str, ...]:
    """Queue instances, in these queues, that have what a job asks for; whether they are free now does not matter."""
    given = (
        ("-l", ",".join(f"{name}={value}" for name, value in wishes.resources)),
        ("-pe", wishes.environment),
        ("-q", ",".join(queues)),
        ("-U", wishes.user),
    )
    return (settings.command("qselect"), *(word for pair in given if pair[1] for word in pair))


def pin(
    settings: SgeSettings, number: str, queues: Sequence[str], *, context: str = "", noted: bool = False
) -> tuple[str, ...]:
    """Let a job start in these queue instances only. Works on whole jobs, not on tasks. ``context`` is added to its.

    ``noted``: it has a note, which is taken away.
    """
    added, dropped = ("-ac", context) if context else (), ("-dc", NOTE) if noted else ()
    return (settings.command("qalter"), "-q", ",".join(queues), *added, *dropped, number)


def pin_and_release(
    settings: SgeSettings, number: str, queues: Sequence[str], *, context: str = "", noted: bool = False
) -> tuple[str, ...]:
    """Do that, and take the hold of its user from a job that is no array, in the same request."""
    *pinned, _ = pin(settings, number, queues, context=context, noted=noted)
    return (*pinned, "-h", "U", number)


def unpin(settings: SgeSettings, number: str, queues: Sequence[str]) -> tuple[str, ...]:
    """Let a job start in the queues that it had asked for, and forget that it was pinned."""
    return (settings.command("qalter"), "-q", ",".join(queues) or ANY_QUEUE, "-dc", QUEUES, number)


def annotate(settings: SgeSettings, numbers: Sequence[str], text: str) -> tuple[str, ...]:
    """Leave a note in the contexts of jobs, or take it away when it is empty; the rest of them stays."""
    return (settings.command("qalter"), *(("-ac", note_word(text)) if text else ("-dc", NOTE)), *numbers)


def trigger_scheduler(settings: SgeSettings) -> tuple[str, ...]:
    """Run the scheduler now; a refusal is printed with exit code 0 (seen with 8.1.9)."""
    return (settings.command("qconf"), "-tsm")


def show_version(settings: SgeSettings) -> tuple[str, ...]:
    """Usage, whose first line is the version; does not ask the qmaster."""
    return (settings.command("qstat"), "-help")


def job_number(id_: LrmJobId) -> str:
    """Return the job of a task id such as ``123.4``. Raises LrmNotFoundError for what is no id of Grid Engine."""
    number = id_.partition(".")[0]
    if not number.isdigit():
        message = f"{id_!r} is no job id of Grid Engine"
        raise LrmNotFoundError(message, hint="ids are numbers, tasks of an array are NUMBER.TASK")
    return number
