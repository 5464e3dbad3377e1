# SPDX-License-Identifier: Apache-2.0
"""``koala init``, ``check``, ``reap`` and ``clean``: setting up a site and keeping it in order.

``init`` finds the batch systems of this host and writes a site file; ``check`` tests host, site file and clusters;
``reap`` ends placeholders that no job owns; ``clean`` removes what old jobs have left.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click
from pydantic import TypeAdapter
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from koala_adapter.api.offline import read_record
from koala_adapter.api.statedirectory import prepare_directory
from koala_adapter.cli.display import FittingTable
from koala_adapter.cli.login import log_in
from koala_adapter.cli.session import EXIT_FAILURE, Session, command_body, in_seconds, json_option, pass_session
from koala_adapter.config.locations import SITE_VARIABLE, new_site_file
from koala_adapter.config.tomlfile import printable, show_duration
from koala_adapter.errors import EXIT_LRM, ConfigurationError, LoginNeededError, LrmUnreachableError
from koala_adapter.report.values import counted
from koala_adapter.service.leftovers import Leftover, Owned, Reaper
from koala_adapter.sitesetup.checks import CheckOptions, Place, check_clusters, check_host
from koala_adapter.sitesetup.search import Found, nothing_found, search, sites_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import Console

    from koala_adapter.config.sitefile import RemoteSiteConfig
    from koala_adapter.lrm import CheckResult
    from koala_adapter.report.sitevalues import CleanReport


# -- Command ``init`` ----------------------------------------------------------------------------------------

STANDARD_OUTPUT = Path("-")


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Ask nothing.")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write here; - prints it. Default: $KOALA_SITE, ~/.config/koala/site.toml.",
)
@click.option("--replace", is_flag=True, help="Replace a site file that is there; it is kept as FILE.old.")
@click.option(
    "--ssh",
    "destinations",
    multiple=True,
    metavar="HOST",
    help="Look at another site, too: what `ssh` is given for its login node; may be repeated.",
)
@click.option(
    "--ssh-option", "options", multiple=True, metavar="OPTION", help="Give ssh this before each HOST; may be repeated."
)
@click.option("--python", metavar="PATH", help="Python 3.6 or newer on those login nodes. Default: python3.")
@pass_session
@command_body
def init(
    session: Session,
    yes: bool,
    output: Path | None,
    replace: bool,
    destinations: tuple[str, ...],
    options: tuple[str, ...],
    python: str | None,
) -> None:
    r"""Find the batch systems of this host and of other sites, and write a site file that uses them.

    Looks for Slurm (SLURM_CONF, /etc/slurm, the controller, slurmdbd), Grid Engine (SGE_ROOT and its cells, the usual
    places) and PBS (PBS_CONF_FILE, /etc/pbs.conf), and for what other plugins know of. Each is asked whether it
    answers and takes jobs; nothing is submitted. What is left out is named, with the reason.

    With --ssh the same is done on the login nodes of other sites, through your own ssh. Where one of them cannot be
    used, nothing is written. Where ssh must ask you something, it does so in this terminal.

    \b
    Examples:
      koala init
      koala init --ssh fs3 --ssh me@das5.example.org
      koala init --yes && koala check
      koala init --output -
    """
    path = _where(session, output)
    if path != STANDARD_OUTPUT and path.exists() and not replace:
        hint = f"`koala check` tries it; --replace writes a new one and keeps this as {path.name}.old"
        raise ConfigurationError(f"there is a site file already: {path}", hint=hint)
    if (options or python) and not destinations:
        raise click.UsageError("--ssh-option and --python are for other sites: give --ssh HOST")
    prepare_directory(session.directory)
    found = _search(session, sites_of(destinations, options=options, python=python))
    if not found.clusters:
        raise nothing_found(found.left_out)
    text = found.text(made=f"written by `koala init`, {time.strftime('%Y-%m-%d %H:%M')}")
    _tell(session, found)
    if path == STANDARD_OUTPUT:
        click.echo(text, nl=False)
        return
    # Where nobody can be asked, to have said `koala init` is the answer.
    if not yes and sys.stdin.isatty():
        click.confirm(f"Write {path}?", default=True, abort=True)
    _write(path, text)
    session.remark(f"wrote {path}; now `koala check` tries it with two short jobs in each cluster")


def _search(session: Session, sites: tuple[RemoteSiteConfig, ...]) -> Found:
    """Search here and at sites; where a person must log in, that is done in this terminal."""
    with session.progress.status("looking for batch systems") as status:

        def ask(site: RemoteSiteConfig) -> None:
            status.stop()
            log_in(site, session.directory)
            status.start()

        try:
            return search(
                session.plugins,
                session.directory,
                sites=sites,
                tell=status.update,
                log_in=ask if sys.stdin.isatty() else None,
            )
        except LoginNeededError as error:
            hint = "run it in a terminal, where ssh can ask, or have ssh log in by a key or an agent"
            raise LrmUnreachableError(error.message, hint=hint) from None


def _where(session: Session, output: Path | None) -> Path:
    named = output or session.site_option
    if named is None and os.environ.get(SITE_VARIABLE):
        named = Path(os.environ[SITE_VARIABLE])
    return named if named is not None else new_site_file()


def _tell(session: Session, found: Found) -> None:
    """Say what was found and what was left out."""
    for cluster in found.clusters:
        limit = f", at most {show_duration(cluster.walltime_limit)}" if cluster.walltime_limit is not None else ""
        queue = f", queue {cluster.queue}" if cluster.queue is not None else ""
        size = f"{cluster.processors} processors on {cluster.nodes} node{'' if cluster.nodes == 1 else 's'}"
        session.remark(f"found {cluster.candidate.described}: {cluster.version}, {size}{queue}{limit}")
    for one in found.left_out:
        session.remark(f"left out {one.what}: {one.why}{f'; {one.remedy}' if one.remedy else ''}")


def _write(path: Path, text: str) -> None:
    """Write the whole file or none; what was there is kept beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    if path.exists():
        path.replace(path.with_name(path.name + ".old"))
    new.replace(path)


# -- Command ``check`` ---------------------------------------------------------------------------------------
# The checks run side by side; each result is printed with its remedy.

ADDRESS = "address for nodes"


@click.command()
@click.option("--no-submit", is_flag=True, help="Submit no placeholder: do not try whether nodes reach this host.")
@click.option(
    "--timeout",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=1.0),
    help="Seconds that a placeholder may take until its agent reports.",
)
@click.option(
    "--outside",
    is_flag=True,
    help="Check instead what `koala wiki serve` and `koala schedule` need: jobs come in held, and we may start them.",
)
@click.option("--cluster", "-c", "only", multiple=True, metavar="NAME", help="Check this cluster; may be repeated.")
@json_option
@pass_session
@command_body
def check(
    session: Session, no_submit: bool, timeout: float, outside: bool, only: tuple[str, ...], as_json: bool
) -> None:
    r"""Check this host, the site file, each site that is reached by ssh, and each cluster.

    Every line says OK or FAIL, and what to do about a FAIL. Two real placeholders are submitted to each cluster, to
    see whether its nodes reach this host, and whether nodes of clusters at different sites connect, which the service
    takes over. Works with a service running or without.

    \b
    Exit codes:
      0 all OK, 1 at least one FAIL

    \b
    Example:
      koala check --timeout 300
      koala check --outside --cluster a
    """
    for name in only:
        session.site.cluster(name)
    checked = Checked(session.console, quiet=as_json)
    # Nodes need not reach this host when nothing of ours runs on them.
    checked.add(Place(), (one for one in check_host(session) if not (outside and one.subject == ADDRESS)))
    if checked.ok:
        prepare_directory(session.directory)
        with session.moving.status("checking the clusters") as status:
            options = CheckOptions(outside=outside, timeout=None if no_submit or outside else timeout, only=only)
            anyio.run(
                partial(
                    check_clusters,
                    session,
                    options,
                    tell=lambda progress: status.update(_progress_text(progress)),
                    found=checked.add,
                )
            )
    if as_json:
        session.print_json(checked.to_json())
    else:
        session.console.print(checked.summary())
    sys.exit(0 if checked.ok else EXIT_FAILURE)


def _progress_text(progress: Mapping[str, str]) -> str:
    return "; ".join(f"[bold]{escape(cluster)}[/] {escape(said)}" for cluster, said in progress.items())


class Checked:
    """The results so far; printed as they come."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        """``quiet``: collect results without printing them."""
        self._console = console
        self._quiet = quiet
        self._results: list[tuple[Place, CheckResult]] = []

    @property
    def failures(self) -> int:
        """Number of results that are FAIL."""
        return sum(not result.ok for _, result in self._results)

    @property
    def ok(self) -> bool:
        """True while nothing has failed."""
        return not self.failures

    def add(self, where: Place, results: Iterable[CheckResult]) -> None:
        """Take in and print the results for one place."""
        if not self._quiet:
            self._console.print(f"[bold]{escape(str(where))}[/]")
        for result in results:
            self._results.append((where, result))
            if not self._quiet:
                self._console.print(Padding(result_line(result), (0, 0, 0, 2), expand=False))

    def summary(self) -> str:
        """Return the line that closes the output: how many checks are OK."""
        if self.ok:
            return f"[green]all {len(self._results)} checks are OK[/]"
        return f"[red]{self.failures} of {len(self._results)} checks FAIL[/]"

    def to_json(self) -> dict[str, object]:
        """Return all results as JSON."""
        checks = [
            {
                "cluster": where.cluster,
                "site": where.site,
                "subject": result.subject,
                "ok": result.ok,
                "found": result.found,
                "remedy": "" if result.ok else result.remedy,
            }
            for where, result in self._results
        ]
        return {"ok": self.ok, "checks": checks}


def result_line(result: CheckResult) -> Table:
    """Return a result as a line whose text goes on below itself where it is long."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=4)
    table.add_column(overflow="fold")
    remedy = f"\n[yellow]remedy:[/] {escape(result.remedy)}" if result.remedy and not result.ok else ""
    mark = "[green]OK[/]" if result.ok else "[bold red]FAIL[/]"
    table.add_row(mark, f"[bold]{escape(result.subject)}[/]: {escape(result.found)}{remedy}")
    return table


# -- Command ``reap`` ----------------------------------------------------------------------------------------
# Placeholders that no record of ours owns are shown, and ended when the user agrees.


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
        _show_leftovers(session, reaper, dry_run=dry_run)
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


def _show_trouble(session: Session, reaper: Reaper) -> None:
    for cluster, trouble in reaper.trouble.items():
        session.progress.print(f"[red]{escape(cluster)}:[/] {escape(trouble)}", soft_wrap=True)


def _show_leftovers(session: Session, reaper: Reaper, *, dry_run: bool) -> None:
    _show_trouble(session, reaper)
    if not reaper.found:
        if not reaper.trouble:
            session.console.print("no placeholder is without an owner")
        return

    table = FittingTable("cluster", "LRM job", "name", "state", "node", "of")
    for one in reaper.found:
        owner = "this state directory" if one.ours else f"another one ({one.instance})"
        table.add_row(one.cluster, one.id, one.name, one.state, one.node or "-", owner)
    session.console.print(table)
    if dry_run:
        session.console.print(f"{len(reaper.found)} would be cancelled")


def _show_end(session: Session, reaper: Reaper) -> None:
    _show_trouble(session, reaper)
    if reaper.stayed:
        names = ", ".join(f"{one.cluster} {one.id}" for one in reaper.stayed)
        session.console.print(f"[red]{len(reaper.stayed)} are still there:[/] {escape(names)}", soft_wrap=True)
    gone = len(reaper.found) - len(reaper.stayed)
    session.console.print(f"{gone} of {len(reaper.found)} cancelled and gone")


def _to_json(reaper: Reaper, *, dry_run: bool) -> dict[str, object]:
    leftovers = TypeAdapter(list[Leftover])
    return {
        "dry_run": dry_run,
        "found": leftovers.dump_python(reaper.found, mode="json"),
        "stayed": leftovers.dump_python(reaper.stayed, mode="json"),
        "trouble": reaper.trouble,
    }


# -- Command ``clean`` ---------------------------------------------------------------------------------------
# Removes what is left of jobs that ended long ago.

MIB = 1024**2
MOST_NAMED = 20
"""Jobs in one line."""


@click.command()
@click.option(
    "--older",
    required=True,
    metavar="TIME",
    callback=in_seconds,
    help="Time since the end of a job, at least, such as 30d.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be removed.")
@json_option
@pass_session
@command_body
def clean(session: Session, older: float, dry_run: bool, as_json: bool) -> None:
    r"""Remove what is left of jobs that ended long ago.

    That is the directory with their output, their report, and what was negotiated for them; and counts of requests,
    words of placeholders and a log to which nothing has been added for so long. Jobs that are not finished, and what
    ended later, stay. It works with and without a running service.

    \b
    Examples:
      koala clean --older 30d --dry-run
      koala clean --older 30d
    """
    with session.progress.status("looking" if dry_run else "cleaning"):
        report = session.here.clean(older, dry_run=dry_run)
    if as_json:
        session.print_json({**asdict(report), "size": report.size})
    else:
        _show_cleaned(session, report)
    sys.exit(EXIT_FAILURE if report.trouble else 0)


def _show_cleaned(session: Session, report: CleanReport) -> None:
    """Print what was removed, what was spared, and what could not be removed."""
    lines = []
    done = "would remove" if report.dry_run else "removed"
    if not report.removed and not report.jobs:
        lines.append("nothing is left of jobs that ended so long ago")
    else:
        sorts = ", ".join(f"{one.what}: {one.number:,} ({_mib(one.size)})" for one in report.removed)
        lines.append(f"{done} what is left of {counted(len(report.jobs), 'job')}, {_mib(report.size)} in all")
        lines += [f"  {sorts}"] if sorts else []
    if report.jobs:
        more = f" and {len(report.jobs) - MOST_NAMED:,} more" if len(report.jobs) > MOST_NAMED else ""
        lines.append(f"  jobs: {', '.join(report.jobs[:MOST_NAMED])}{more}")
    lines.append(f"spared: {report.unfinished:,} unfinished, {report.newer:,} that ended later")
    if report.continued:
        lines.append(f"spared, since a later job goes on with their sweep: {', '.join(report.continued)}")
    for line in lines:
        session.console.print(line, markup=False, soft_wrap=True)
    for trouble in report.trouble:
        session.progress.print(f"cannot be removed: {printable(trouble)}", style="red", markup=False, soft_wrap=True)


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
