# SPDX-License-Identifier: Apache-2.0
"""Notices of jobs that start, end or fail: a command, a webhook or a mail, as the site file says.

Nothing waits for a notice: what cannot be told within its time, or comes while too many are waiting, is logged and
dropped.
"""

from __future__ import annotations

import json
import subprocess
from collections import deque
from dataclasses import dataclass
from email.message import EmailMessage
from functools import partial
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import structlog
from anyio import to_thread

from koala_adapter.host.containment import contained
from koala_adapter.lrm.commands import child_environment
from koala_adapter.model import Job, Notified
from koala_adapter.outcome import JobOutcome, JobState
from koala_adapter.service.core import Core, Nudge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


MOST_WAITING = 1000
"""Notices that wait to be told, at most."""
AT_ONCE = 4
"""Notices that are told at the same time."""
PATIENCE = 10.0
"""Seconds that telling one by one way may take."""
LAST_PATIENCE = 15.0
"""Seconds in which those that wait are told when the service ends."""
SENDMAIL = "/usr/sbin/sendmail"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A notification about a job."""

    event: Notified
    job: Job
    outcome: JobOutcome | None = None

    def document(self) -> dict[str, Any]:
        """Return the notification as a JSON object."""
        ended = self.outcome
        return {
            "event": self.event.value,
            "id": self.job.id,
            "name": self.job.name,
            "user": self.job.user,
            "state": JobState.LAUNCHING.value if ended is None else ended.state.value,
            "exit_code": None if ended is None else ended.exit_code,
            "detail": "" if ended is None else ended.detail,
        }

    @property
    def sentence(self) -> str:
        """Event of the job in one line for people."""
        if self.outcome is None:
            return f"koala job {self.job.id} ({self.job.name}) starts"
        detail = f": {self.outcome.detail}" if self.outcome.detail else ""
        return f"koala job {self.job.id} ({self.job.name}) {self.outcome.state.value}{detail}"


class Notices:
    """Sends notifications for jobs that want them, in the background."""

    def __init__(self, core: Core) -> None:
        """The site file of ``core`` names the ways."""
        self._core = core
        self._waiting: deque[Notice] = deque()
        self._come = Nudge()

    def started(self, job: Job) -> None:
        """Notify of a job's start, if wanted."""
        if Notified.START in job.notify:
            self._tell_later(Notice(event=Notified.START, job=job))

    def ended(self, job: Job, outcome: JobOutcome) -> None:
        """Notify of a job's end, if wanted; failures only, where only those are wanted."""
        if Notified.END in job.notify:
            self._tell_later(Notice(event=Notified.END, job=job, outcome=outcome))
        elif Notified.FAIL in job.notify and outcome.state is not JobState.COMPLETED:
            self._tell_later(Notice(event=Notified.FAIL, job=job, outcome=outcome))

    async def run(self) -> None:
        """Send notifications until cancelled, then the remaining ones for a short time."""
        try:
            while True:
                await self._come.wait()
                await self._tell_waiting()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(LAST_PATIENCE):
                await self._tell_waiting()

    def _tell_later(self, notice: Notice) -> None:
        if len(self._waiting) >= MOST_WAITING:
            log.warning("a notice was dropped: too many are waiting", job=notice.job.id, notice=notice.event.value)
            return
        self._waiting.append(notice)
        self._come.set()

    async def _tell_waiting(self) -> None:
        """Send waiting notifications, several at once; those begun are completed at the end."""
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as tasks:
                    for notice in some:
                        tasks.start_soon(self._tell, notice)
            await anyio.lowlevel.checkpoint()

    async def _tell(self, notice: Notice) -> None:
        config = self._core.site.notify
        with contained("telling of a job", job=notice.job.id):
            async with anyio.create_task_group() as tasks:
                text = json.dumps(notice.document())
                if config.command:
                    tasks.start_soon(self._by, "command", notice, partial(_by_command, config.command, text))
                if config.webhook:
                    tasks.start_soon(self._by, "webhook", notice, partial(_by_webhook, config.webhook, notice))
                if config.mail:
                    tasks.start_soon(self._by, "mail", notice, partial(_by_mail, config.mail, notice))

    async def _by(self, way: str, notice: Notice, tell: Callable[[], Awaitable[str]]) -> None:
        """Send by one way with its time limit; log a failure."""
        trouble = await tell()
        if trouble:
            log.warning("a notice could not be told", job=notice.job.id, way=way, trouble=trouble)


async def _by_command(command: tuple[str, ...], text: str) -> str:
    """Run a command with the text as input; return the error."""

    def run() -> str:
        with TemporaryFile() as complaint:  # what outlives the command may keep a pipe open
            try:
                done = subprocess.run(
                    command,
                    input=text.encode(),
                    env=child_environment(),
                    stdout=subprocess.DEVNULL,
                    stderr=complaint,
                    timeout=PATIENCE,
                    start_new_session=True,
                    check=False,
                )
            except OSError as error:
                return f"{command[0]}: {error.strerror}"
            except subprocess.TimeoutExpired:
                return f"{command[0]} took longer than {PATIENCE:g} s"
            complaint.seek(0)
            said = complaint.read(200).decode("utf-8", "replace").strip()
        return "" if done.returncode == 0 else f"{command[0]} ended with status {done.returncode}: {said}"

    return await to_thread.run_sync(run)


async def _by_webhook(address: str, notice: Notice) -> str:
    """Post a notice; return what went wrong."""
    import urllib.request  # noqa: PLC0415 - a megabyte, which a service without webhooks does without

    body = json.dumps({"text": notice.sentence, **notice.document()}).encode()
    request = urllib.request.Request(address, data=body, headers={"Content-Type": "application/json"})  # noqa: S310 - the site file allows http and https only

    def post() -> str:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE):  # noqa: S310 - the site file allows http and https only
                return ""
        except (OSError, ValueError) as error:
            return str(error)

    return await to_thread.run_sync(post)


async def _by_mail(address: str, notice: Notice) -> str:
    """Mail a notice; return what went wrong."""
    message = EmailMessage()
    message["To"] = address
    message["Subject"] = "".join(one for one in notice.sentence if one.isprintable())[:200]
    message.set_content(json.dumps(notice.document(), indent=2))
    return await _by_command((SENDMAIL, "-oi", "-t"), message.as_string())
