# SPDX-License-Identifier: Apache-2.0
"""A skeleton of a plugin, for an imaginary batch system with one command, ``tinyq``. Copy it and fill in yours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import Capabilities, CheckResult, Lrm, PluginDefinition, RenderedSubmission
from koala_adapter.lrm.commands import CommandSystem, ComplaintTable, complaints, only_id, parsed
from koala_adapter.lrm.mapping import divide
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState, Node, NodeState, Queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.lrm import ClusterContext, Submission


# 1. Settings: what a site file may say. Closed, each field described: the manual and the errors are made from it.
class TinyqSettings(BaseModel):
    """The ``[clusters.settings]`` table of a cluster with ``plugin = "tinyq"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str = Field(default="tinyq", description="Path of the tinyq command.")
    server: str = Field(default="", description="Address of the server. Default: tinyq's own.")


# 2. Tables: what the LRM says, in our words. What is not in them is UNKNOWN, never a guess.
JOB_STATES = {
    "waiting": LrmJobState.QUEUED,
    "held": LrmJobState.HELD,
    "running": LrmJobState.RUNNING,
    "done": LrmJobState.ENDED,
}
NODE_STATES = {"up": NodeState.UP, "draining": NodeState.DRAINING, "down": NodeState.DOWN}
COMPLAINTS = ComplaintTable(
    system="tinyq",
    known=(
        *complaints(LrmUnavailableError, dict.fromkeys(("cannot connect", "timed out", "try again"), "is it up?")),
        *complaints(LrmNotFoundError, {"no such job": "it has ended, or never was"}),
        *complaints(LrmRejectedError, {"": "see the cluster's settings in the site file"}),
    ),
)
"""Complaints that mean "ask again" go first; every other complaint means no."""


# 3. Pure pairs: one function builds a command, another parses what it prints. Test them on recorded output.
def submit_command(settings: TinyqSettings, submission: Submission) -> tuple[str, ...]:
    """Return the command that submits all placeholders at once; it reads the script on standard input."""
    queue = ("--queue", submission.queue) if submission.queue else ()
    hold = ("--hold",) if submission.held else ()
    return (
        settings.command,
        "submit",
        *("--name", submission.key),
        *("--array", str(submission.count)),
        *("--seconds", str(submission.walltime)),
        *("--output", submission.output_pattern("%INDEX%")),
        *queue,
        *hold,
    )


def parse_submitted(stdout: str, count: int) -> tuple[LrmJobId, ...]:
    """Return the ids from the one line that is a number: a site may print banners around it."""
    number = only_id(stdout, re.compile(r"[0-9]+"))
    return tuple(LrmJobId(f"{number}.{index}") for index in range(1, count + 1))


def parse_jobs(stdout: str) -> tuple[LrmJob, ...]:
    """Read lines ``number|index|name|state|user|node``."""
    rows = [line.split("|") for line in stdout.splitlines() if line.count("|") == 5]
    return tuple(
        LrmJob(
            id=LrmJobId(f"{number}.{index}"),
            name=name,
            state=JOB_STATES.get(state, LrmJobState.UNKNOWN),
            user=user,
            processors=1,
            array_index=int(index),
            nodes=(node,) if node else (),
            raw_state=state,
        )
        for number, index, name, state, user, node in rows
    )


def parse_nodes(stdout: str) -> tuple[Node, ...]:
    """Read lines ``name|state|processors|used``."""
    rows = [line.split("|") for line in stdout.splitlines()]
    return tuple(
        Node(
            name=name,
            state=NODE_STATES.get(state, NodeState.UNKNOWN),
            processors=int(processors),
            processors_used=int(used),
            queues=("main",),
            raw_state=state,
        )
        for name, state, processors, used in rows
    )


# 4. The LRM: runs the pairs. Optional operations that are left out raise LrmUnsupportedError by themselves.
class TinyqLrm(Lrm):
    """A cluster under tinyq."""

    capabilities = Capabilities()  # what is written below, and no more
    array_index_variable = "TINYQ_INDEX"
    job_id_variable = "TINYQ_JOB"
    requests_per_poll = 2

    def __init__(self, context: ClusterContext, settings: TinyqSettings) -> None:
        """Start nothing here: that is for `start`."""
        self._context = context
        self._settings = settings
        # The base runs commands: bounded in rate and time, with a built environment. Use nothing else for it.
        environment = {"TINYQ_SERVER": settings.server} if settings.server else {}
        self._commands = CommandSystem(context.commands, COMPLAINTS, environment=environment)

    async def version(self) -> str:
        """Return the version of tinyq."""
        return await self._commands.version((self._settings.command, "version"), lambda text: text.strip() or None)

    async def nodes(self) -> tuple[Node, ...]:
        """Return all nodes."""
        return parsed(parse_nodes, await self._list("nodes"), source="tinyq nodes")

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return jobs by one listing of all."""
        jobs = parsed(parse_jobs, await self._list("list"), source="tinyq list")
        return tuple(job for job in jobs if job.name.startswith(name_prefix))

    async def _list(self, what: str) -> str:
        return await self._commands.read((self._settings.command, what), action=f"tinyq {what}")

    async def queues(self) -> tuple[Queue, ...]:
        """Return the one queue that tinyq has."""
        processors = sum(node.processors for node in await self.nodes())
        return (Queue(name="main", up=True, processors=processors, default=True),)

    def render(self, submission: Submission) -> RenderedSubmission:
        """Return the command and the script. Pure."""
        # Refuses what a placeholder needs beyond a processor, unless the site file says how it is asked for.
        divided = divide(submission, self.capabilities.slots, self._context.directives, system="tinyq")
        command = (*submit_command(self._settings, divided.rest), *divided.words)
        return RenderedSubmission(command=command, script=submission.script)

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit with one request. The script holds a secret: standard input, never an argument."""
        if submission.held:
            raise LrmRejectedError("tinyq cannot submit in hold")
        rendered = self.render(submission)
        # Undecodable bytes of the script pass through as they came.
        result = await self._commands.run(rendered.command, stdin=rendered.script.encode("utf-8", "surrogateescape"))
        if result.returncode != 0:
            raise COMPLAINTS.error(result.complaint, action="submission")
        return parse_submitted(result.text, submission.count)

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Cancel with one request; urgent, so that polling never delays it. Jobs that are gone are no error."""
        if ids:
            await self._commands.cancel((self._settings.command, "cancel", *ids))

    async def check(self) -> tuple[CheckResult, ...]:
        """Report whether the command works. Raises nothing."""
        remedy = "install tinyq, or give the path of its command in the site file; is its server up?"
        try:
            found = f"{await self.version()}, {len(await self.nodes())} nodes"
        except LrmError as error:
            return (CheckResult(subject="tinyq", ok=False, found=str(error), remedy=remedy),)
        return (CheckResult(subject="tinyq", ok=True, found=found, remedy=remedy),)


# 5. The definition, named by the entry point ``tinyq = koala_tinyq:PLUGIN`` of the group koala_adapter.plugins.
PLUGIN = PluginDefinition(
    name="tinyq",
    summary="the imaginary batch system of the manual",
    settings=TinyqSettings,
    capabilities=TinyqLrm.capabilities,
    factory=TinyqLrm,
)
