# SPDX-License-Identifier: Apache-2.0
"""``koala reap``: shows placeholders that no record of ours owns, asks, and has them ended."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import anyio
import click
from pydantic import TypeAdapter
from rich.markup import escape

from koala_adapter.api.offline import read_record
from koala_adapter.api.statedirectory import prepare_directory
from koala_adapter.cli.fittingtable import FittingTable
from koala_adapter.cli.session import command_body, json_option, pass_session
from koala_adapter.errors import EXIT_LRM
from koala_adapter.service.reaping import Leftover, Owned, Reaper

if TYPE_CHECKING:
    from koala_adapter.cli.session import Session

LEFTOVERS = TypeAdapter(list[Leftover])


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
    reaper = Reaper(session.site, session.plugins, session.directory)
    with session.progress.status("looking for placeholders") as status:
        anyio.run(partial(reaper.find, partial(_owned, session), all_instances=all_instances, tell=status.update))
    if not as_json:
        _show(session, reaper, dry_run=dry_run)
    if reaper.found and not dry_run:
        _confirm(reaper.found, yes=yes)
        with session.progress.status("cancelling") as status:
            anyio.run(partial(reaper.cancel, timeout, tell=status.update))
        if not as_json:
            _show_end(session, reaper)
    if as_json:
        session.print_json(_to_json(reaper, dry_run=dry_run))
    sys.exit(EXIT_LRM if reaper.trouble or reaper.stayed else 0)


def _owned(session: Session) -> Owned:
    record = read_record(session.directory, session.policies)
    return Owned(instance=record.instance, placeholders=record.scheduler.state.placeholders)


def _confirm(found: list[Leftover], *, yes: bool) -> None:
    """Ask before touching what another state directory may still use. Raises click's errors."""
    others = sorted({one.instance for one in found if not one.ours})
    if not others or yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("--all needs --yes where nobody can be asked")
    text = f"Services of other state directories ({', '.join(others)}) may still use theirs. Cancel all of these?"
    click.confirm(text, abort=True, err=True)


def _show(session: Session, reaper: Reaper, *, dry_run: bool) -> None:
    for cluster, trouble in reaper.trouble.items():
        session.progress.print(f"[red]{escape(cluster)}:[/] {escape(trouble)}", soft_wrap=True)
    if not reaper.found:
        if not reaper.trouble:
            session.console.print("no placeholder is without an owner")
        return
    table = FittingTable()
    for heading in ("cluster", "LRM job", "name", "state", "node", "of"):
        table.add_column(heading)
    for one in reaper.found:
        owner = "this state directory" if one.ours else f"another one ({one.instance})"
        table.add_row(one.cluster, one.id, one.name, one.state, one.node or "-", owner)
    session.console.print(table)
    if dry_run:
        session.console.print(f"{len(reaper.found)} would be cancelled")


def _show_end(session: Session, reaper: Reaper) -> None:
    for cluster, trouble in reaper.trouble.items():
        session.progress.print(f"[red]{escape(cluster)}:[/] {escape(trouble)}", soft_wrap=True)
    if reaper.stayed:
        names = ", ".join(f"{one.cluster} {one.id}" for one in reaper.stayed)
        session.console.print(f"[red]{len(reaper.stayed)} are still there:[/] {escape(names)}", soft_wrap=True)
    gone = len(reaper.found) - len(reaper.stayed)
    session.console.print(f"{gone} of {len(reaper.found)} cancelled and gone")


def _to_json(reaper: Reaper, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "found": LEFTOVERS.dump_python(reaper.found, mode="json"),
        "stayed": LEFTOVERS.dump_python(reaper.stayed, mode="json"),
        "trouble": reaper.trouble,
    }
