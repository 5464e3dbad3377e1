# SPDX-License-Identifier: Apache-2.0
"""``koala reap``: finds placeholders that no record of ours owns, and ends them.

What is listed first and owned by nobody in a journal that is read afterwards is certainly no submission under way:
a submission is in the journal before the LRM hears of it. So this is safe beside a running service, too.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import click
from pydantic import TypeAdapter
from rich.markup import escape
from rich.table import Table

from koala_adapter.api.offline import close_lrm, read_record
from koala_adapter.api.statedirectory import prepare_directory
from koala_adapter.cli.session import command_body, json_option, pass_session
from koala_adapter.errors import EXIT_LRM, LrmError
from koala_adapter.model import BatchKey, LrmJobId, LrmJobState, PlaceholderId
from koala_adapter.plugin.attribution import is_users
from koala_adapter.plugin.commands import login_name
from koala_adapter.service.clusterdriver import make_lrm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from koala_adapter.api.offline import Record
    from koala_adapter.cli.session import Session
    from koala_adapter.config.sitefile import ClusterConfig
    from koala_adapter.model import LrmJob
    from koala_adapter.plugin import Lrm

NAME = re.compile(r"koala-([0-9a-f]{8})-\d+")
"""Names of our LRM jobs: koala, the instance (one for each state directory), the number of the submission."""
ASKING = 60.0
"""Seconds that a cluster may take to answer."""
LOOK = 1.0
"""Seconds between two looks at what was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A placeholder that nobody owns."""

    cluster: str
    id: str
    name: str
    instance: str
    ours: bool
    """True when it is of this state directory."""
    state: str
    node: str


LEFTOVERS = TypeAdapter(list[Leftover])


@dataclass(slots=True)
class Reaping:
    """What is known of all clusters."""

    found: list[Leftover] = field(default_factory=list)
    stayed: list[Leftover] = field(default_factory=list)
    """Still there after they were cancelled."""
    trouble: dict[str, str] = field(default_factory=dict)
    """Clusters that did not answer, and why."""


@click.command()
@click.option("--dry-run", is_flag=True, help="Only list what would be cancelled.")
@click.option("--all", "all_instances", is_flag=True, help="Also those of other state directories of this user.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before cancelling those of other state directories.")
@click.option(
    "--timeout",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=1.0),
    help="Seconds to wait until what was cancelled has gone.",
)
@json_option
@pass_session
@command_body
def reap(session: Session, dry_run: bool, all_instances: bool, yes: bool, timeout: float, as_json: bool) -> None:
    r"""Find placeholders that no job owns any more, and cancel them.

    What belongs to a job that is not finished is never touched, whether a service runs or not.

    \b
    Exit codes:
      0 nothing is left, 247 a cluster did not answer, or something stayed

    \b
    Example:
      koala reap --dry-run
    """
    prepare_directory(session.directory)
    reaping = Reaping()
    with session.progress.status("looking for placeholders") as status:
        anyio.run(_find, session, reaping, all_instances, status.update)
    if not as_json:
        _show(session, reaping, dry_run=dry_run)
    if reaping.found and not dry_run:
        _confirm(reaping.found, yes=yes)
        with session.progress.status("cancelling") as status:
            anyio.run(_cancel, session, reaping, timeout, status.update)
        if not as_json:
            _show_end(session, reaping)
    if as_json:
        session.print_json(_to_json(reaping, dry_run=dry_run))
    sys.exit(EXIT_LRM if reaping.trouble or reaping.stayed else 0)


def leftovers(
    cluster: str, listing: Iterable[LrmJob], record: Record, *, user: str, all_instances: bool
) -> list[Leftover]:
    """Return the jobs in a listing that are placeholders of this user's and that nobody is known to own."""
    owned = record.scheduler.state.placeholders
    found = []
    for job in listing:
        name = NAME.fullmatch(job.name)
        if name is None or not is_users(job, user) or job.state in {LrmJobState.ENDED, LrmJobState.ENDING}:
            continue
        ours = name[1] == record.instance
        known = PlaceholderId(batch=BatchKey(job.name), index=job.array_index or 1) in owned
        if (ours and not known) or (all_instances and not ours):
            found.append(
                Leftover(
                    cluster=cluster,
                    id=job.id,
                    name=job.name,
                    instance=name[1],
                    ours=ours,
                    state=job.state.value,
                    node=", ".join(job.nodes),
                )
            )
    return found


async def _find(session: Session, reaping: Reaping, all_instances: bool, tell: Callable[[str], None]) -> None:
    listings: dict[str, tuple[LrmJob, ...]] = {}

    async def ask(config: ClusterConfig) -> None:
        async def jobs(lrm: Lrm) -> None:
            listings[config.name] = await lrm.jobs(name_prefix="koala-")

        await _with_lrm(session, config, reaping, jobs)

    async with anyio.create_task_group() as tasks:
        for config in session.site.clusters:
            tell(f"asking {config.name}")
            tasks.start_soon(ask, config)
    # Only now: see the module's docstring.
    record = read_record(session.directory, session.policies)
    for name, listing in listings.items():
        reaping.found += leftovers(name, listing, record, user=login_name(), all_instances=all_instances)


async def _with_lrm(
    session: Session, config: ClusterConfig, reaping: Reaping, do: Callable[[Lrm], Awaitable[None]]
) -> None:
    """Do something with a cluster's LRM; what goes wrong is noted."""
    lrm, _ = make_lrm(config, session.plugins, session.directory)
    try:
        with anyio.fail_after(ASKING):
            await lrm.start()
        await do(lrm)
    except LrmError as error:
        reaping.trouble[config.name] = error.message
    except TimeoutError:
        reaping.trouble[config.name] = f"no answer within {ASKING:.0f} s"
    finally:
        await close_lrm(lrm)


async def _cancel(session: Session, reaping: Reaping, timeout: float, tell: Callable[[str], None]) -> None:
    by_cluster: dict[str, dict[LrmJobId, Leftover]] = {}
    for one in reaping.found:
        by_cluster.setdefault(one.cluster, {})[_id(one)] = one
    left = dict(by_cluster)

    async def end(name: str, wanted: dict[LrmJobId, Leftover]) -> None:
        async def cancel(lrm: Lrm) -> None:
            await lrm.cancel(list(wanted))
            with anyio.move_on_after(timeout):
                while left[name]:
                    listing = {job.id: job for job in await lrm.jobs(name_prefix="koala-")}
                    left[name] = {id_: one for id_, one in wanted.items() if _is_there(listing.get(id_))}
                    tell(f"{sum(map(len, left.values()))} are still ending")
                    if left[name]:
                        await anyio.sleep(LOOK)

        await _with_lrm(session, session.site.cluster(name), reaping, cancel)

    async with anyio.create_task_group() as tasks:
        for name, wanted in by_cluster.items():
            tasks.start_soon(end, name, wanted)
    reaping.stayed = [one for wanted in left.values() for one in wanted.values()]


def _id(leftover: Leftover) -> LrmJobId:
    return LrmJobId(leftover.id)


def _is_there(job: LrmJob | None) -> bool:
    return job is not None and job.state is not LrmJobState.ENDED


def _confirm(found: list[Leftover], *, yes: bool) -> None:
    """Ask before touching what another state directory may still use. Raises click's errors."""
    others = sorted({one.instance for one in found if not one.ours})
    if not others or yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("--all needs --yes where nobody can be asked")
    text = f"Services of other state directories ({', '.join(others)}) may still use theirs. Cancel all of these?"
    click.confirm(text, abort=True, err=True)


def _show(session: Session, reaping: Reaping, *, dry_run: bool) -> None:
    for cluster, trouble in reaping.trouble.items():
        session.progress.print(f"[red]{escape(cluster)}:[/] {escape(trouble)}", soft_wrap=True)
    if not reaping.found:
        if not reaping.trouble:
            session.console.print("no placeholder is without an owner")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("cluster", "LRM job", "name", "state", "node", "of"):
        table.add_column(heading)
    for one in reaping.found:
        owner = "this state directory" if one.ours else f"another one ({one.instance})"
        table.add_row(one.cluster, one.id, one.name, one.state, one.node or "-", owner)
    session.console.print(table)
    if dry_run:
        session.console.print(f"{len(reaping.found)} would be cancelled")


def _show_end(session: Session, reaping: Reaping) -> None:
    for cluster, trouble in reaping.trouble.items():
        session.progress.print(f"[red]{escape(cluster)}:[/] {escape(trouble)}", soft_wrap=True)
    if reaping.stayed:
        names = ", ".join(f"{one.cluster} {one.id}" for one in reaping.stayed)
        session.console.print(f"[red]{len(reaping.stayed)} are still there:[/] {escape(names)}", soft_wrap=True)
    gone = len(reaping.found) - len(reaping.stayed)
    session.console.print(f"{gone} of {len(reaping.found)} cancelled and gone")


def _to_json(reaping: Reaping, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "found": LEFTOVERS.dump_python(reaping.found, mode="json"),
        "stayed": LEFTOVERS.dump_python(reaping.stayed, mode="json"),
        "trouble": reaping.trouble,
    }
