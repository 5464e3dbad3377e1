# SPDX-License-Identifier: Apache-2.0
"""Submitting through a DRMAA library: job templates, and the transport of one cluster.

It serves plugins that read jobs by commands (sge, slurm, pbs), and plugin ``drmaa``, which reads them by the library.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import CheckResult, RenderedSubmission
from koala_adapter.lrm.drmaa.complaints import FailureKind
from koala_adapter.lrm.drmaa.libraries import OTHER, Library, error_of
from koala_adapter.lrm.drmaa.protocol import Opened, Refusal, Template
from koala_adapter.lrm.drmaa.scripts import ScriptDelivery, ScriptStore

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from koala_adapter.lrm import Submission
    from koala_adapter.lrm.contract import Directives
    from koala_adapter.lrm.drmaa.client import DrmaaClient
    from koala_adapter.model import LrmJobId


# -- Job templates, with the site's changes applied ----------------------------------------------------------
# These functions are pure.

SHELL = "/bin/sh"
EVERYWHERE = "/tmp"  # noqa: S108 - working directory that exists on each node; nothing is written there by us


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def apply_directives(native: Iterable[str], directives: Directives, library: Library) -> tuple[str, ...]:
    """Return native options after a site's changes.

    An option is one text such as ``-r n`` or ``-l h_rt=3600``. A site names it by its flag (``-r``, ``-l``: all of
    that flag) or by flag and resource (``-l h_rt``).

    Raises LrmRejectedError for an option with which the jobs could not be followed, such as another name.
    """
    kept = [option for option in native if not any(_named(option, name) for name in directives.drop)]
    renamed = [_renamed(option, directives.rename) for option in kept]
    options = (*renamed, *directives.add)
    problem = next(filter(None, (_problem_of(option, library.reserved) for option in options)), "")
    if problem:
        raise LrmRejectedError(problem, hint="correct the directives or native_specification of this cluster")
    return options


def _problem_of(option: str, reserved: Collection[str]) -> str:
    if _CONTROL.search(option):
        return f"option {option!r} contains a line break or another control character"
    for word in option.split():
        flag = word.partition("=")[0]
        if flag in reserved:
            return f"option {option!r} would make the placeholders impossible to follow: {flag} is set by koala"
    return ""


def _named(option: str, name: str) -> bool:
    return option == name or option.startswith((f"{name} ", f"{name}="))


def _renamed(option: str, pairs: Iterable[tuple[str, str]]) -> str:
    for old, new in pairs:
        if _named(option, old):
            return new + option[len(old) :]
    return option


def job_template(submission: Submission, scripts: ScriptStore, native: Iterable[str]) -> Template:
    """Return the template of a submission whose script is, or will be, among ``scripts``.

    Raises LrmRejectedError for a path that libraries do not pass on as it is.
    """
    script = scripts.path(submission.key)
    if _CONTROL.search(str(script)):
        message = f"the path of the placeholder's script, {str(script)!r}, contains a line break or control character"
        raise LrmRejectedError(message, hint="use another state directory, or set script_directory")
    private = scripts.delivery is ScriptDelivery.PRIVATE
    return Template(
        name=submission.key,
        remote_command=SHELL if private else str(script),
        arguments=(str(script),) if private else (),
        working_directory=EVERYWHERE,
        output_path=submission.output_pattern("{index}"),
        native_specification=" ".join(native),
        held=submission.held,
        processors=submission.slot.threads,
    )


def render_template(template: Template, count: int, index_variable: str | None = None) -> tuple[str, ...]:
    """Return the request to the library in readable words: the DRMAA 1.0 names of call and attributes.

    ``index_variable``: as for DrmaaTransport.submit; the first of several calls is shown then.
    """
    single = index_variable is not None
    call = ("drmaa_run_job",) if single else ("drmaa_run_bulk_jobs", "1", str(count), "1")
    output = template.output_path.replace("{index}", "1") if single else template.output_path
    state = "drmaa_hold" if template.held else "drmaa_active"
    words = [
        *call,
        f"drmaa_job_name={template.name}",
        f"drmaa_remote_command={template.remote_command}",
        *(f"drmaa_v_argv={argument}" for argument in template.arguments),
        f"drmaa_wd={template.working_directory}",
        f"drmaa_output_path=:{output}",
        "drmaa_join_files=y",
        *((f"drmaa_v_env={index_variable}=1",) if single else ()),
        f"drmaa_js_state={state}",
        f"drmaa_native_specification={template.native_specification}",
    ]
    return tuple(words)


# -- The transport of one cluster ----------------------------------------------------------------------------


class DrmaaTransport:
    """The submissions of one cluster: scripts on disk, templates, and the library that takes them."""

    def __init__(self, client: DrmaaClient, scripts: ScriptStore, *, expected: Library = OTHER) -> None:
        """``expected``: the library of the system whose jobs are read; OTHER: any will do."""
        self.client = client
        self.scripts = scripts
        self._expected = expected
        self.doubtful = False
        """Whether the last submission came to an end that is not known."""

    async def close(self) -> None:
        """End the helper; jobs go on."""
        await self.client.close()

    def render(
        self,
        submission: Submission,
        native: Iterable[str],
        *,
        index_variable: str | None,
        equivalent: RenderedSubmission | None = None,
    ) -> RenderedSubmission:
        """Return the DRMAA request in words, with the command of the same effect if there is one."""
        call = render_template(job_template(submission, self.scripts, native), submission.count, index_variable)
        single = index_variable is None or submission.count == 1
        calls = "a call" if single else f"{submission.count} calls"
        note = f"{calls} of the DRMAA library" + ("" if single else ", of which this is the first")
        if equivalent is None:
            return RenderedSubmission(command=call, script=submission.script, note=f"no command: {note}")
        return replace(equivalent, call=call, note=f"{note}; the command below would do the same")

    async def submit(
        self, submission: Submission, native: Iterable[str], *, index_variable: str | None
    ) -> tuple[LrmJobId, ...]:
        """Write the script, submit, and delete the script when it is no longer needed.

        ``index_variable``: where each placeholder finds its number, as a job of its own; None: they go as one bulk.
        Raises LrmRejectedError, too, when the library is that of another system.
        """
        self.require(await self.client.open())
        async with self.scripts.submitted(submission.key, submission.script):
            # Where scripts are at a site is known when one is there.
            template = job_template(submission, self.scripts, native)
            try:
                return await self.client.submit(template, submission.count, index_variable=index_variable)
            except LrmUnavailableError:
                self.doubtful = True
                raise

    def require(self, opened: Opened) -> None:
        """Raise LrmRejectedError when the library belongs to another system than the listed one."""
        if self._expected not in {OTHER, self.client.library} and self.client.library is not OTHER:
            message = f"the DRMAA library is one for {opened.system}, not for {self._expected.system}"
            raise LrmRejectedError(message, hint="name the library of this cluster's batch system in the settings")

    async def check(self) -> tuple[CheckResult, ...]:
        """Load the library, ask the LRM, look at the directory of scripts."""
        library = await self._check_library()
        return (library, await self.scripts.check())

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
