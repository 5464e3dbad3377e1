# SPDX-License-Identifier: Apache-2.0
"""Submitting through a DRMAA library, for whoever reads the jobs: by commands (sge, slurm, pbs), or by the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmRejectedError
from koala_adapter.host.privatedirectory import make_directory
from koala_adapter.plugin import CheckResult, RenderedSubmission
from koala_drmaa.classify import error_of
from koala_drmaa.libraries import OTHER
from koala_drmaa.protocol import FailureKind
from koala_drmaa.scripts import ScriptDelivery
from koala_drmaa.template import job_template, render_template

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from koala_adapter.model import BatchKey, LrmJobId
    from koala_adapter.plugin import Submission
    from koala_drmaa.client import DrmaaClient
    from koala_drmaa.libraries import Library
    from koala_drmaa.protocol import Opened, Refusal, Template
    from koala_drmaa.scripts import ScriptStore


class DrmaaTransport:
    """The submissions of one cluster: scripts on disk, templates, and the library that takes them."""

    def __init__(
        self,
        client: DrmaaClient,
        scripts: ScriptStore,
        *,
        delivery: ScriptDelivery = ScriptDelivery.PRIVATE,
        expected: Library = OTHER,
    ) -> None:
        """``expected``: the library of the system whose jobs are read; OTHER: any will do."""
        self.client = client
        self.scripts = scripts
        self._delivery = delivery
        self._expected = expected

    async def start(self) -> None:
        """Start the helper; an LRM that is out of reach now is tried again with the first request."""
        try:
            await self.client.open()
        except LrmError:
            return

    async def close(self) -> None:
        """End the helper; jobs go on."""
        await self.client.close()

    def template(self, submission: Submission, native: Iterable[str]) -> Template:
        """Return the job template of a submission with these native options."""
        script = self.scripts.path(submission.key)
        return job_template(submission, script=script, delivery=self._delivery, native=native)

    def render(
        self, submission: Submission, native: Iterable[str], *, index_variable: str | None
    ) -> RenderedSubmission:
        """Return calls and attributes of the DRMAA requests."""
        return RenderedSubmission(
            command=render_template(self.template(submission, native), submission.count, index_variable),
            script=submission.script,
            note="no command: a call of the DRMAA library"
            if index_variable is None or submission.count == 1
            else f"no command: {submission.count} calls of the DRMAA library, of which this is the first",
        )

    async def submit(
        self, submission: Submission, native: Iterable[str], *, index_variable: str | None
    ) -> tuple[LrmJobId, ...]:
        """Write the script, submit, and delete the script when nobody will read it any more.

        ``index_variable``: where each placeholder finds its number, as a job of its own; None: they go as one bulk.
        Raises LrmRejectedError, too, when the library is that of another system.
        """
        template = self.template(submission, native)
        self.require(await self.client.open())
        self.scripts.write(submission.key, submission.script)
        try:
            ids = await self.client.submit(template, submission.count, index_variable=index_variable)
        except LrmRejectedError:
            self.scripts.remove(submission.key)
            raise
        if self._delivery is ScriptDelivery.COPIED:
            self.scripts.remove(submission.key)
        return ids

    def require(self, opened: Opened) -> None:
        """Raise LrmRejectedError when the library is that of another system than the one that is read."""
        if self._expected not in {OTHER, self.client.library} and self.client.library is not OTHER:
            message = f"the DRMAA library is one for {opened.system}, not for {self._expected.system}"
            raise LrmRejectedError(message, hint="name the library of this cluster's batch system in the settings")

    def sweep(self, live: Collection[str], now: float) -> None:
        """Delete scripts of which no live job has been seen for long."""
        self.scripts.sweep(live, now)

    def forget(self, key: BatchKey) -> None:
        """Delete the script: nobody will read it any more."""
        self.scripts.remove(key)

    async def check(self) -> tuple[CheckResult, ...]:
        """Load the library, ask the LRM, look at the directory of scripts."""
        return (await self._check_library(), check_scripts(self.scripts.directory, self._delivery))

    async def _check_library(self) -> CheckResult:
        subject = f"DRMAA library {self.client.launch.library or 'libdrmaa.so'}"
        try:
            opened = await self.client.open()
            self.require(opened)
            await self.client.reach()
        except LrmError as error:
            remedy = error.hint or "install the batch system's DRMAA library and name it in the settings"
            return CheckResult(subject=subject, ok=False, found=error.message, remedy=remedy)
        found = f"{version_of(opened)}, loaded with {self.client.launch.loading}"
        return CheckResult(subject=subject, ok=True, found=found)


def version_of(opened: Opened) -> str:
    """Return what a library says about itself and its system."""
    return " ".join(f"{opened.system} (DRMAA {opened.version})".split())


def raise_for(refusals: Sequence[Refusal], *, gone_is_fine: bool = False) -> None:
    """Raise the error of the first refusal that matters, with the ids of all."""
    grave = [refusal for refusal in refusals if not (gone_is_fine and refusal.kind is FailureKind.NOT_FOUND)]
    if grave:
        ids = ", ".join(refusal.id for refusal in grave)
        raise error_of(grave[0].kind, f"{ids}: {grave[0].message}")


def check_scripts(directory: Path, delivery: ScriptDelivery) -> CheckResult:
    """Report where scripts go and who can read them."""
    subject = "placeholder scripts"
    if delivery is ScriptDelivery.COPIED:
        return CheckResult(
            subject=subject,
            ok=True,
            found="copied by the batch system: other users of a node may read them while the job runs; "
            "script_delivery = 'private' avoids that",
        )
    try:
        make_directory(directory)
        mode = directory.stat().st_mode & 0o077
    except OSError as error:
        found, remedy = f"{directory}: {error.strerror}", "set script_directory to a directory of yours"
        return CheckResult(subject=subject, ok=False, found=found, remedy=remedy)
    if mode:
        return CheckResult(
            subject=subject, ok=False, found=f"{directory} is open to others", remedy=f"chmod 700 {directory}"
        )
    return CheckResult(subject=subject, ok=True, found=f"private in {directory}, which the nodes must see")
