# SPDX-License-Identifier: Apache-2.0
"""``koala check``: runs the checks side by side, shows what is going on, and prints each result with its remedy."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import anyio
import click
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from koala_adapter.api.statedirectory import prepare_directory
from koala_adapter.cli.session import EXIT_FAILURE, command_body, json_option, pass_session
from koala_adapter.errors import ConfigurationError
from koala_adapter.sitecheck.hostcheck import check_host
from koala_adapter.sitecheck.sidebyside import CheckOptions, check_clusters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import Console

    from koala_adapter.cli.session import Session
    from koala_adapter.plugin import CheckResult

HOST = "this host"
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
    r"""Check this host, the site file and each cluster.

    Every line says OK or FAIL, and what to do about a FAIL. Two real placeholders are submitted to each cluster, to
    see whether its nodes reach this host. Works with a service running or without.

    \b
    Exit codes:
      0 all OK, 1 at least one FAIL

    \b
    Example:
      koala check --timeout 300
      koala check --outside --cluster a
    """
    for name in only:
        _require_cluster(session, name)
    checked = Checked(session.console, quiet=as_json)
    # Nodes need not reach this host when nothing of ours runs on them.
    checked.add(HOST, (one for one in check_host(session) if not (outside and one.subject == ADDRESS)))
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
                    found=lambda cluster, results: checked.add(cluster or HOST, results),
                )
            )
    if as_json:
        session.print_json(checked.to_json())
    else:
        session.console.print(checked.summary())
    sys.exit(0 if checked.ok else EXIT_FAILURE)


def _require_cluster(session: Session, name: str) -> None:
    known = [cluster.name for cluster in session.site.clusters]
    if name not in known:
        raise ConfigurationError(f"no cluster {name!r}; there are: {', '.join(known)}", hint="give --cluster NAME")


def _progress_text(progress: Mapping[str, str]) -> str:
    return "; ".join(f"[bold]{escape(cluster)}[/] {escape(said)}" for cluster, said in progress.items())


class Checked:
    """The results so far; printed as they come."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        """``quiet``: only collect."""
        self._console = console
        self._quiet = quiet
        self._results: list[tuple[str, CheckResult]] = []

    @property
    def failures(self) -> int:
        """Number of results that are FAIL."""
        return sum(not result.ok for _, result in self._results)

    @property
    def ok(self) -> bool:
        """True while nothing has failed."""
        return not self.failures

    def add(self, where: str, results: Iterable[CheckResult]) -> None:
        """Take in and print the results for this host or for one cluster."""
        if not self._quiet:
            self._console.print(f"[bold]{escape(where)}[/]")
        for result in results:
            self._results.append((where, result))
            if not self._quiet:
                self._console.print(Padding(result_line(result), (0, 0, 0, 2), expand=False))

    def summary(self) -> str:
        """Return the last line."""
        if self.ok:
            return f"[green]all {len(self._results)} checks are OK[/]"
        return f"[red]{self.failures} of {len(self._results)} checks FAIL[/]"

    def to_json(self) -> dict[str, object]:
        """Return all results for a program."""
        checks = [
            {
                "cluster": None if where == HOST else where,
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
