# SPDX-License-Identifier: Apache-2.0
"""From a submission to a DRMAA job template, with the site's changes applied. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_drmaa.protocol import Template
from koala_drmaa.scripts import ScriptDelivery

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import PurePath

    from koala_adapter.plugin import Submission
    from koala_adapter.plugin.directives import Directives

SHELL = "/bin/sh"
EVERYWHERE = "/tmp"  # noqa: S108 - working directory that exists on each node; nothing is written there by us


def apply_directives(native: Iterable[str], directives: Directives) -> tuple[str, ...]:
    """Return native options with a site's changes.

    An option is one text such as ``-r n`` or ``-l h_rt=3600``. A site names it by its flag (``-r``, ``-l``: all of
    that flag) or by flag and resource (``-l h_rt``).
    """
    kept = [option for option in native if not any(_named(option, name) for name in directives.drop)]
    renamed = [_renamed(option, directives.rename) for option in kept]
    return (*renamed, *directives.add)


def _named(option: str, name: str) -> bool:
    return option == name or option.startswith((f"{name} ", f"{name}="))


def _renamed(option: str, pairs: Iterable[tuple[str, str]]) -> str:
    for old, new in pairs:
        if _named(option, old):
            return new + option[len(old) :]
    return option


def job_template(
    submission: Submission, *, script: PurePath, delivery: ScriptDelivery, native: Iterable[str]
) -> Template:
    """Return the template of a submission whose script is, or will be, at ``script``."""
    private = delivery is ScriptDelivery.PRIVATE
    return Template(
        name=submission.key,
        remote_command=SHELL if private else str(script),
        arguments=(str(script),) if private else (),
        working_directory=EVERYWHERE,
        output_path=submission.output_pattern("{index}"),
        native_specification=" ".join(native),
        held=submission.held,
    )


def render_template(template: Template, count: int, index_variable: str | None = None) -> tuple[str, ...]:
    """Return what goes to the library as words that a person can read: the DRMAA 1.0 names of call and attributes.

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
