# SPDX-License-Identifier: Apache-2.0
"""``koala demo``: the main job on three embedded clusters, told as it happens; it leaves nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import click

from koala_adapter.api.statedirectory import ownership
from koala_adapter.cli.demofiles import JOB, LOCAL_USER, PROGRAM, SITE
from koala_adapter.cli.demostory import BUSY, Story
from koala_adapter.cli.innerservice import inner_service
from koala_adapter.cli.interrupts import Interrupts
from koala_adapter.cli.session import Session, command_body, pass_session
from koala_adapter.cli.temporarysite import everywhere, temporary_site
from koala_adapter.model import BatchKey
from koala_adapter.net.freeport import free_port
from koala_adapter.plugin import Submission
from koala_adapter.scheduler.outcome import JobState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from koala_adapter.plugin import Lrm

BUSY_PROCESSORS = 3
BUSY_SECONDS = 5.0


@click.command()
@click.option("--malleable", is_flag=True, help="A job that grows and shrinks as local users come and go.")
@pass_session
@command_body
def demo(session: Session, malleable: bool) -> None:
    r"""See it work: one job on three clusters at once, in ten seconds.

    Needs no batch system, no site file and no rights. Three small clusters run inside this machine, in a temporary
    directory, and are gone afterwards. With --malleable the job breathes over them, in half a minute.

    \b
    Examples:
      koala demo
      koala demo --malleable
    """
    if malleable:
        from koala_adapter.cli.malleabledemo import MalleableStory
        from koala_adapter.cli.malleabledemofiles import malleable_files

        _tell(MalleableStory(session.console), malleable_files)
    _tell(Story(session.console), files, before=local_users_job)


def _tell(
    story: Story,
    make_files: Callable[[Path], Mapping[str, str]],
    before: Callable[[str, Lrm], Awaitable[None]] | None = None,
) -> NoReturn:
    """Tell a story on a site of its own, and exit as its job did; ``before``: what each cluster has to do first."""
    story.title()
    with Interrupts() as interrupts, temporary_site(interrupts, make_files) as inner:
        story.clusters(inner)
        if before is not None:
            everywhere(inner, before)
        story.job(inner)
        with ownership(inner.directory, "koala demo"), inner_service(inner, interrupts):
            report = story.run(inner)
    story.end(report)
    raise SystemExit(0 if report.state is JobState.COMPLETED else report.outcome.exit_code if report.outcome else 1)


def files(directory: Path) -> Mapping[str, str]:
    """Return the files of the demonstration, by their names."""
    return {"site.toml": SITE.format(directory=directory), "job.toml": JOB.format(port=free_port()), "pi.py": PROGRAM}


async def local_users_job(name: str, lrm: Lrm) -> None:
    """Have somebody else be at work in one of the clusters."""
    if name != BUSY:
        return
    script = LOCAL_USER.format(seconds=BUSY_SECONDS)
    job = Submission(key=BatchKey("local-user"), count=BUSY_PROCESSORS, script=script, walltime=60)
    await lrm.submit(job)
