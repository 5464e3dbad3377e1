# SPDX-License-Identifier: Apache-2.0
"""``koala check``: runs the checks side by side, shows what is going on, and prints each result with its remedy."""

from __future__ import annotations

import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from koala_adapter.api.statedirectory import prepare_directory
from koala_adapter.cli.checks import ClusterCheck, check_host
from koala_adapter.cli.session import EXIT_FAILURE, command_body, json_option, pass_session
from koala_adapter.cli.trial import TrialCenter
from koala_adapter.errors import KoalaError
from koala_adapter.plugin import CheckResult

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.status import Status

    from koala_adapter.cli.session import Session
    from koala_adapter.config.sitefile import ClusterConfig

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
@json_option
@pass_session
@command_body
def check(session: Session, no_submit: bool, timeout: float, outside: bool, as_json: bool) -> None:
    r"""Check this host, the site file and each cluster.

    Every line says OK or FAIL, and what to do about a FAIL. One real placeholder is submitted to each cluster, to see
    whether its nodes reach this host. Works with a service running or without.

    \b
    Exit codes:
      0 all OK, 1 at least one FAIL

    \b
    Example:
      koala check --timeout 300
    """
    checked = Checked(session.console, quiet=as_json)
    # Nodes need not reach this host when nothing of ours runs on them.
    checked.add(HOST, (one for one in check_host(session) if not (outside and one.subject == ADDRESS)))
    if checked.ok:
        prepare_directory(session.directory)
        with session.moving.status("checking the clusters") as status:
            limit = None if no_submit or outside else timeout
            anyio.run(_check_clusters, session, checked, status, limit, outside)
    if as_json:
        session.print_json(checked.to_json())
    else:
        session.console.print(checked.summary())
    sys.exit(0 if checked.ok else EXIT_FAILURE)


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


async def _check_clusters(
    session: Session, checked: Checked, status: Status, timeout: float | None, outside: bool
) -> None:
    """Check all clusters side by side; print each when those before it are printed."""
    progress: dict[str, str] = {}
    done: dict[str, list[CheckResult]] = {}
    clusters = [config for config in session.site.clusters if config.enabled or _is_for_outside(session, config)]
    names = [config.name for config in clusters]

    def tell(name: str, text: str) -> None:
        progress[name] = text
        status.update("; ".join(f"[bold]{escape(one)}[/] {escape(said)}" for one, said in progress.items()))

    async def one(check_: ClusterCheck, name: str) -> None:
        done[name] = await check_.run()
        progress.pop(name, None)
        while names and names[0] in done:
            checked.add(names[0], done[names.pop(0)])

    async with AsyncExitStack() as stack:
        center_tasks = await stack.enter_async_context(anyio.create_task_group())
        center: TrialCenter | None = None
        if timeout is not None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="koala-check-")))
            center = await _listen(session, checked, directory, center_tasks)
        async with anyio.create_task_group() as tasks:
            for config in clusters:
                check_ = ClusterCheck(
                    session=session,
                    config=config,
                    tell=lambda text, name=config.name: tell(name, text),  # type: ignore[misc]
                    center=center,
                    timeout=timeout or 0.0,
                    outside=outside,
                )
                tasks.start_soon(one, check_, config.name)
        center_tasks.cancel_scope.cancel()


def _is_for_outside(session: Session, config: ClusterConfig) -> bool:
    """Tell whether nothing can be submitted there: such a cluster is disabled, and yet scheduled from outside."""
    return not session.plugins[config.plugin].capabilities.submit


async def _listen(
    session: Session, checked: Checked, directory: Path, tasks: anyio.abc.TaskGroup
) -> TrialCenter | None:
    """Return a control center that listens; None, with the failure noted, when it cannot."""
    center = TrialCenter(session.site, directory, state=session.directory)
    try:
        await center.serve(tasks)
    except KoalaError as error:
        checked.add(HOST, [CheckResult(subject="control center", ok=False, found=error.message, remedy=error.hint)])
        return None
    return center
