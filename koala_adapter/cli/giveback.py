# SPDX-License-Identifier: Apache-2.0
"""``koala schedule --give-back``: the batch system's own scheduler has its queue again."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from koala_adapter.api.statedirectory import ownership
from koala_adapter.batchsystem.startlog import StartLog
from koala_adapter.cli.session import EXIT_FAILURE
from koala_adapter.errors import JournalError, LrmUnsupportedError
from koala_adapter.ordering.givingback import give_back
from koala_adapter.service.clusterdriver import close_lrm, make_lrm

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.cli.session import Session
    from koala_adapter.config.sitefile import ClusterConfig
    from koala_adapter.model import LrmJobId
    from koala_adapter.ordering.givingback import GivenBack

SHOWN = 20
"""Jobs that are named on a line."""


def give_queue_back(session: Session, config: ClusterConfig, directory: Path, record: str, *, as_json: bool) -> None:
    """Release what the site's hook holds in a cluster and say so; exit with 1 when something is still held.

    ``directory``: of the cluster's ``koala schedule``; ``record``: the name of its record of starts there.
    """
    way_out = "stop it first, with Ctrl-C or `kill` and its pid: it would hold jobs again"
    with ownership(directory, role=f"koala schedule --give-back {config.name}", way_out=way_out):
        done, removal = anyio.run(_give_back, session, config, directory / record)
    if as_json:
        held = dict(done.still_held)
        session.print_json(
            {"cluster": config.name, "released": done.released, "running": done.running, "still_held": held}
        )
    else:
        _tell(session, config.name, done)
    session.remark("jobs that their own users hold stay held")
    if removal:
        session.remark(f"new jobs come in held until the hook is taken out: {removal}")
    if done.still_held:
        sys.exit(EXIT_FAILURE)


async def _give_back(session: Session, config: ClusterConfig, record: Path) -> tuple[GivenBack, str]:
    lrm, _ = make_lrm(config, session.plugins, session.directory, owner=True)
    if not lrm.capabilities.hold:
        message = f"the plugin {config.plugin} can neither hold nor release jobs"
        raise LrmUnsupportedError(message, hint="release them with the batch system's own commands")
    try:
        with session.progress.status("looking at the queue") as status:
            await lrm.start()
            return await give_back(lrm, tied=_tied(record), tell=status.update), lrm.hook_removal
    finally:
        await close_lrm(lrm)


def _tied(record: Path) -> frozenset[LrmJobId]:
    """Return the jobs whose start a killed ``koala schedule`` left on record."""
    if record.exists():
        # A damaged record must not keep the queue from its owner.
        with suppress(JournalError):
            log = StartLog(record)
            try:
                return frozenset(pin.job_id for pin in log.pins if not pin.started)
            finally:
                log.close()
    return frozenset()


def _tell(session: Session, cluster: str, done: GivenBack) -> None:
    count = len(done.released)
    jobs = f"released {count} job{'' if count == 1 else 's'}: {_named(done.released)}" if count else "released nothing"
    held = "nothing is held by the site's hook any more" if not done.still_held else "not all is given back"
    session.console.print(f"{cluster}: {jobs}; {held}", markup=False, soft_wrap=True)
    if done.running:
        text = f"running jobs that would have come back in hold and will not now: {_named(done.running)}"
        session.console.print(text, markup=False, soft_wrap=True)
    for job, why in done.still_held.items():
        session.console.print(f"still held: {job}: {why}", markup=False, soft_wrap=True)


def _named(jobs: tuple[LrmJobId, ...]) -> str:
    more = f" and {len(jobs) - SHOWN} more" if len(jobs) > SHOWN else ""
    return ", ".join(jobs[:SHOWN]) + more
