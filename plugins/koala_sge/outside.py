# SPDX-License-Identifier: Apache-2.0
"""``koala check --outside`` of a Grid Engine cell: whether ordinary jobs come in held, and we may start them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError
from koala_adapter.model import LrmJobState
from koala_adapter.plugin import CheckResult
from koala_sge import requests
from koala_sge.jobs import parse_jobs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from koala_adapter.plugin.commands import CommandResult
    from koala_sge.settings import SgeSettings

    Run = Callable[[Sequence[str]], Awaitable[CommandResult]]

_NUMBER = re.compile(r"^([0-9]+)$", re.MULTILINE)
_ALLOWED = re.compile(r"^jsv_allowed_mod\s+(\S+)", re.MULTILINE)
_JSV = re.compile(r"^jsv_url\s+(\S+)", re.MULTILINE)


async def check_outside(run: Run, settings: SgeSettings, *, user: str) -> tuple[CheckResult, ...]:
    """Return whether jobs come in held, whether we are a manager, and what would keep us from pinning and starting."""
    try:
        return (await _held(run, settings), await _manager(run, settings, user), await _pinning(run, settings))
    except LrmError as error:
        remedy = error.hint or "see `koala docs wiki`"
        return (CheckResult(subject="outside scheduler", ok=False, found=error.message, remedy=remedy),)


def submission_remedy(complaint: str) -> str:
    """Return what to do about an ordinary submission that was refused."""
    if "minimum" in complaint.lower():
        return (
            "Grid Engine takes no jobs of users with so small an id, such as root (min_uid in qconf -sconf, 1000 on "
            "Debian): run koala as an ordinary user that is made a manager (qconf -am USER)"
        )
    return "submit such a job by hand (qsub -b y true) as the user that koala runs as, and mend what it complains about"


async def _held(run: Run, settings: SgeSettings) -> CheckResult:
    subject = "jobs come in held"
    remedy = "set jsv_url to what `koala conf sge_jsv.sh` prints (qconf -mconf), or put -h into sge_request of the cell"
    # For the end of the year, so that it never runs if nobody holds it.
    options = ("-terse", "-a", "12312359", "-N", "koala-check", "-wd", "/", "-o", "/dev/null", "-j", "y", "-b", "y")
    submitted = await run((settings.command("qsub"), *options, "true"))
    number = _NUMBER.search(submitted.text)
    if number is None:
        found = f"an ordinary submission is refused: {submitted.complaint}"
        return CheckResult(subject=subject, ok=False, found=found, remedy=submission_remedy(submitted.complaint))
    try:
        listing = await run(requests.list_jobs(settings))
        seen = next((job for job in parse_jobs(listing.stdout) if job.id == number[1]), None)
    finally:
        await run((settings.command("qdel"), number[1]))
    ok = seen is not None and seen.state is LrmJobState.HELD
    found = "yes" if ok else "no, they go to Grid Engine's own scheduler"
    return CheckResult(subject=subject, ok=ok, found=found, remedy=remedy)


async def _manager(run: Run, settings: SgeSettings, user: str) -> CheckResult:
    managers = (await run((settings.command("qconf"), "-sm"))).text.split()
    ok = user in managers
    found = f"we are {user}; managers are {', '.join(managers)}"
    remedy = f"make it one (qconf -am {user}): others' jobs can be pinned and released by managers only"
    return CheckResult(subject="rights of a manager", ok=ok, found=found, remedy=remedy)


async def _pinning(run: Run, settings: SgeSettings) -> CheckResult:
    subject, shown = "starting at once", (await run((settings.command("qconf"), "-sconf"))).text
    jsv, allowed = _JSV.search(shown), _ALLOWED.search(shown)
    if jsv and jsv[1] != "none" and allowed and "q_hard" not in allowed[1].split(","):
        remedy = "add q_hard,q_soft to jsv_allowed_mod (qconf -mconf)"
        return CheckResult(subject=subject, ok=False, found="qalter -q is forbidden by jsv_allowed_mod", remedy=remedy)
    remedy = "set trigger_scheduler = true in the settings of this cluster: else a start takes a schedule_interval"
    found = "qconf -tsm after each start" if settings.trigger_scheduler else "only at the next schedule_interval"
    return CheckResult(subject=subject, ok=settings.trigger_scheduler, found=found, remedy=remedy)
