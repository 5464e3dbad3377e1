# SPDX-License-Identifier: Apache-2.0
"""What ``koala check`` says about a Grid Engine cell: each thing that can be wrong, and what to do about it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_adapter.plugin import CheckResult
from koala_sge.discovery import smallest_user

if TYPE_CHECKING:
    from koala_adapter.plugin import Lrm
    from koala_drmaa.transport import DrmaaTransport
    from koala_sge.client import GridEngineCommands
    from koala_sge.settings import SgeSettings


async def run_checks(
    lrm: Lrm, commands: GridEngineCommands, transport: DrmaaTransport, settings: SgeSettings
) -> tuple[CheckResult, ...]:
    """Check from the outside in, so that the first complaint is the one to mend first.

    Without a qmaster the rest is left out.
    """
    results = [_root(settings), await _commands(lrm, settings)]
    try:
        results.append(await _nodes(lrm, settings))
    except LrmUnavailableError as error:
        # Each further question would wait for the qmaster until its time-out.
        return (*results, _no_nodes(error))
    results.append(await _queue(lrm, settings))
    return (*results, *await transport.check(), await check_user(commands, settings))


async def check_user(commands: GridEngineCommands, settings: SgeSettings) -> CheckResult:
    """Check that Grid Engine takes jobs of this user at all: Debian's takes none of root."""
    subject, user = "user", os.geteuid()
    try:
        least = smallest_user((await commands.run((settings.command("qconf"), "-sconf"))).text)
    except LrmError as error:
        return CheckResult(subject=subject, ok=False, found=error.message, remedy=error.hint)
    found = f"jobs of users with an id of {least} or more are taken (min_uid), yours is {user}"
    remedy = "use koala as an ordinary user, or lower min_uid (qconf -mconf)"
    return CheckResult(subject=subject, ok=user >= least, found=found, remedy=remedy)


def _root(settings: SgeSettings) -> CheckResult:
    common = settings.root / settings.cell / "common"
    subject = f"cell {settings.cell} in {settings.root}"
    if not (common / "act_qmaster").is_file():
        return CheckResult(
            subject=subject,
            ok=False,
            found=f"no {common}/act_qmaster",
            remedy="correct root and cell (SGE_ROOT, SGE_CELL)",
        )
    return CheckResult(subject=subject, ok=True, found=str(common))


async def _commands(lrm: Lrm, settings: SgeSettings) -> CheckResult:
    subject = f"command {settings.command('qstat')}"
    try:
        return CheckResult(subject=subject, ok=True, found=await lrm.version())
    except LrmError as error:
        remedy = "install gridengine-client, or set bin_directory"
        return CheckResult(subject=subject, ok=False, found=error.message, remedy=remedy)


def _no_nodes(error: LrmError) -> CheckResult:
    remedy = "start sge_qmaster, correct qmaster_port, or make this a submit host (qconf -as HOST)"
    return CheckResult(subject="qmaster", ok=False, found=error.message, remedy=remedy)


async def _nodes(lrm: Lrm, settings: SgeSettings) -> CheckResult:
    """Raises LrmUnavailableError when the qmaster does not answer."""
    subject = "qmaster"
    try:
        nodes = await lrm.nodes()
    except LrmUnavailableError:
        raise
    except LrmError as error:
        return _no_nodes(error)
    slots = sum(node.processors for node in nodes)
    if not slots:
        where = f"queue {settings.queue}" if settings.queue else "any batch queue"
        return CheckResult(
            subject=subject, ok=False, found=f"answers, but there are no slots in {where}", remedy="correct queue"
        )
    idle = sum(node.processors_idle for node in nodes)
    counted = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    return CheckResult(subject=subject, ok=True, found=f"answers: {counted}, {slots} slots, {idle} idle")


async def _queue(lrm: Lrm, settings: SgeSettings) -> CheckResult:
    subject = f"queue {settings.queue}" if settings.queue else "queues"
    try:
        queues = await lrm.queues()
    except LrmError as error:
        remedy = "make this a submit host (qconf -as HOST)"
        return CheckResult(subject=subject, ok=False, found=error.message, remedy=remedy)
    names = ", ".join(queue.name for queue in queues)
    if settings.queue and settings.queue not in {queue.name for queue in queues}:
        return CheckResult(subject=subject, ok=False, found=f"there are {names}", remedy="correct queue")
    return CheckResult(subject=subject, ok=True, found=names or "none")
