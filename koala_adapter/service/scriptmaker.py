# SPDX-License-Identifier: Apache-2.0
"""Makes what is submitted: one-time tokens, and job scripts that carry the agent."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.host.privatedirectory import make_directory
from koala_adapter.model import BatchKey, ClusterName
from koala_adapter.plugin import Submission
from koala_adapter.scheduler.actions import SubmitPlaceholders
from koala_adapter.service.samplesubmission import SampleSubmission
from koala_adapter.vjm.jobscript import AgentConfig, render_job_script

if TYPE_CHECKING:
    from koala_adapter.config.sitefile import ClusterConfig, SiteConfig
    from koala_adapter.model import Job, PlaceholderId
    from koala_adapter.plugin import Lrm

SAMPLE_TOKEN = "THE-ONE-TIME-TOKEN-GOES-HERE"  # noqa: S105 - stands where a token would be, in what people are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptMaker:
    """Makes the submissions of one service: knows where its control center is and how it proves itself."""

    site: SiteConfig
    port: int
    fingerprint: str
    """SHA-256 of the control center's certificate, as agents pin it."""
    directory: Path
    """The state directory."""

    def submission(self, action: SubmitPlaceholders, config: ClusterConfig, lrm: Lrm, token: str) -> Submission:
        """Return the submission for an action of the scheduler."""
        token_file = token_path(config, action.batch)
        agent = AgentConfig(
            batch=action.batch,
            token=None if token_file else token,
            token_file=None if token_file is None else str(token_file),
            host=self.site.node_address(config),
            port=self.port,
            fingerprint=self.fingerprint,
            lease=self.site.parameters.lease,
            walltime=float(action.walltime),
        )
        script = render_job_script(
            agent=agent,
            array_index_variable=lrm.array_index_variable,
            job_id_variable=lrm.job_id_variable,
            words_directory=str(words_directory(config, self.directory)),
        )
        return Submission(
            key=action.batch,
            count=action.count,
            script=script,
            walltime=action.walltime,
            queue=config.queue,
            memory_mib=action.memory_mib or config.memory_mib,
        )


def sample_submissions(
    scripts: ScriptMaker, job: Job, config: ClusterConfig, lrm: Lrm, instance: str
) -> list[SampleSubmission]:
    """Return exactly what would be submitted for a job to a cluster, with another text in the place of the token.

    Raises LrmRejectedError when the cluster's directives cannot be applied.
    """
    parameters = scripts.site.parameters
    walltime = int(job.walltime + parameters.launch_margin + parameters.placeholder_life)
    if (limit := config.parameters.walltime_limit) is not None:
        walltime = min(walltime, limit)
    samples = []
    for number, component in enumerate(job.components, start=1):
        action = SubmitPlaceholders(
            batch=BatchKey(f"koala-{instance}-{number}"),
            cluster=ClusterName(config.name),
            count=component.minimum,
            walltime=walltime,
        )
        shown = lrm.render(scripts.submission(action, config, lrm, SAMPLE_TOKEN))
        samples.append(
            SampleSubmission(
                component=component.name,
                command=shown.command,
                environment=dict(shown.environment),
                script=shown.script,
                note=shown.note,
            )
        )
    return samples


def token_path(config: ClusterConfig, batch: BatchKey) -> Path | None:
    """Return where the token of a submission is left for its agents; None when it travels in the job script."""
    return None if config.token_directory is None else Path(config.token_directory) / f"{batch}.token"


def leave_token(path: Path, token: str) -> None:
    """Write a token so that nobody else can read it. Raises OSError."""
    make_directory(path.parent)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)


def words_directory(config: ClusterConfig, directory: Path) -> Path:
    """Return where placeholders keep what they say, on nodes that see it; by default in the state directory."""
    if config.output_directory is not None:
        return Path(config.output_directory)
    return directory / "clusters" / config.name / "output"


def words_paths(directory: Path, placeholder: PlaceholderId) -> tuple[Path, ...]:
    """Return where the words of a placeholder can be: there, or where others can write there, one level deeper."""
    name = f"{placeholder}.out"
    return directory / name, directory / str(placeholder) / name


def tidy_words(directory: Path, batch: BatchKey) -> None:
    """Remove the files of a submission in which nothing was said. Raises OSError."""
    for path in directory.glob(f"{batch}.*.out"):
        if not path.lstat().st_size:
            path.unlink(missing_ok=True)


def remove_token(path: Path) -> None:
    """Remove a token that was left; no error when it is gone."""
    with suppress(FileNotFoundError):
        path.unlink()


def last_words(path: Path, *, most: int = 500) -> str:
    """Return the end of a placeholder's own output in one line; empty when it cannot be read or is not our own."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return ""
        file.seek(max(0, status.st_size - most))
        lines = file.read(most).decode("utf-8", "replace").splitlines()
    return " / ".join(line.strip() for line in lines if line.strip())
