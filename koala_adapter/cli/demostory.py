# SPDX-License-Identifier: Apache-2.0
"""What ``koala demo`` tells of its job: what is printed stays, and the clusters move below it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from koala_adapter.api.logprinter import LogPrinter
from koala_adapter.cli.following import closing
from koala_adapter.cli.tables import styled
from koala_adapter.errors import KoalaError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from koala_adapter.api.clusterreports import ClusterReport
    from koala_adapter.api.reports import JobReport
    from koala_adapter.cli.session import Session

BUSY = "gamma"
"""The cluster in which a local user is at work."""
SLOT = "■"


@dataclass(slots=True)
class Story:
    """Tells what happens: what is printed stays, and the clusters move below it."""

    console: Console
    _step: int = 0
    _told: set[str] = field(default_factory=set)
    _since: float = field(default_factory=time.monotonic)

    def tell(self, text: str) -> None:
        """Print the next step."""
        self._step += 1
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(f"[bold cyan]{self._step}[/]", text)
        self.console.print()
        self.console.print(line)

    def once(self, key: str, text: str, *more: RenderableType) -> None:
        """Print a step, and what belongs to it, the first time that ``key`` is given."""
        if key not in self._told:
            self._told.add(key)
            self.tell(text)
            for one in more:
                self.console.print(one)

    def title(self) -> None:
        """Say what this is."""
        self.console.print("[bold]koala[/]: one parallel job on processors of several batch systems at once")

    def clusters(self, session: Session) -> None:
        """Introduce the clusters."""
        names = ", ".join(f"[bold]{config.name}[/]" for config in session.site.clusters)
        self.tell(f"Three clusters of four processors: {names}. Each is a batch system with a queue of its own.")

    def job(self, session: Session) -> None:
        """Introduce the job."""
        self.tell("A job for eight of their processors, all at the same time. Where they are does not matter:")
        text = (session.site_file.parent / "job.toml").read_text(encoding="utf-8")
        shown = text.split("\n\n", maxsplit=2)
        short = "\n".join(shown[1].splitlines()[:4])
        more = "...and two more like it: [bold]middle[/] on 3 and [bold]right[/] on 2 processors"
        self.console.print(Padding(Syntax(short, "toml", background_color="default"), (0, 0, 0, 3), expand=False))
        self.console.print(f"   [dim]# {more}[/]")

    def run(self, session: Session) -> JobReport:
        """Run the job and tell what happens."""
        self.tell(
            f"{BUSY} is busy: {legend('others')} is a local user's job. koala submits ordinary jobs of one processor, "
            f"its placeholders, to all three queues. What starts, it holds: {legend('held')}"
        )
        client = session.client
        job_id = client.submit(session.job(session.site_file.parent / "job.toml"))
        printer: LogPrinter | None = None
        report: JobReport | None = None
        live = Live(console=self.console, refresh_per_second=10, transient=True)
        with live if self.console.is_terminal else nullcontext():
            for report in client.watch(job_id):
                clusters = client.clusters()
                self._progress(report, clusters)
                printer = printer or LogPrinter(Path(report.output_directory), write=self._output)
                printer.print_new(marked=report.processes() > 1, rest=report.over)
                if self.console.is_terminal and not report.over:
                    live.update(moment(report, clusters))
        if report is None:
            raise KoalaError("the demonstration's service went away", hint="see `koala --verbose demo`")
        return report

    def _progress(self, report: JobReport, clusters: list[ClusterReport]) -> None:
        held = sum(one.held for one in report.components)
        wanted = sum(one.processors for one in report.components)
        full = any(cluster.name == BUSY and cluster.idle == 0 for cluster in clusters)
        lacking = {one.cluster for one in report.components if one.held < one.processors}
        if report.launched_at is None and full and lacking == {BUSY}:
            said = Padding(Text(report.explanation, style="italic"), (0, 3, 0, 3), expand=False)
            self.once("waiting", f"{held} of {wanted} are held. `koala explain {report.id}` says:", said)
        if report.launched_at is not None:
            ended = f"The local user's job has ended, all {wanted} are held: the placeholders turn into the job,"
            self.once("launched", f"{ended} {legend('running')}")

    def _output(self, data: bytes) -> None:
        self.console.print(Padding(Text(data.decode(errors="replace").rstrip("\n")), (0, 0, 0, 3), expand=False))

    def end(self, report: JobReport) -> None:
        """Say how it ended, and where to go from here."""
        self.tell("The placeholders have gone back to their clusters; nothing is left of them. The result:")
        closing(report, self.console, where=False)
        took = time.monotonic() - self._since
        self.console.print()
        self.console.print(f"[dim]That took {took:.0f} s. The three clusters and their files are removed.[/]")
        self.console.print("Next: [bold]koala init[/] finds your clusters, [bold]koala check[/] tries them.")


STYLES = {"held": "green", "running": "cyan", "others": "yellow", "queued": "dim green", "idle": "dim"}
LABELS = {"held": "held", "running": "running", "others": "a local user", "queued": "in the queue", "idle": "idle"}


def legend(kind: str) -> str:
    """Return the mark of a kind of processor."""
    return f"[{STYLES[kind]}]{SLOT}[/]"


def moment(report: JobReport, clusters: list[ClusterReport]) -> RenderableType:
    """Return the clusters and the job as they are now."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for cluster in clusters:
        table.add_row(f"   [bold]{cluster.name}[/]", processors(report, cluster), words(report, cluster))
    state = f"   job [bold]{report.id}[/] {escape(report.name)}: {styled(report.state)}"
    return Group("", table, state)


def counts(report: JobReport, cluster: ClusterReport) -> dict[str, int]:
    """Return how many processors of a cluster are in which use, and how many placeholders wait for one."""
    ours = [one for one in report.components if one.cluster == cluster.name]
    held = sum(one.held for one in ours)
    kind = "held" if report.launched_at is None else "running"
    total = cluster.processors or 0
    others = min(cluster.others or 0, total - held)
    return {
        kind: held,
        "others": others,
        "idle": max(0, total - held - others),
        "queued": sum(one.queued for one in ours),
    }


def processors(report: JobReport, cluster: ClusterReport) -> str:
    """Return the processors of a cluster as marks in colours, and the placeholders that wait for one."""
    found = counts(report, cluster)
    marks = {kind: f"{SLOT} " * number for kind, number in found.items() if kind != "queued"}
    marks["idle"] = "□ " * found["idle"]
    queued = f"  [dim]queue:[/] [{STYLES['queued']}]{'▫ ' * found['queued']}[/]" if found["queued"] else ""
    return "".join(f"[{STYLES[kind]}]{text}[/]" for kind, text in marks.items() if text) + queued


def words(report: JobReport, cluster: ClusterReport) -> str:
    """Return the same in words."""
    shown = [f"{number} {LABELS[kind]}" for kind, number in counts(report, cluster).items() if number]
    return f"[dim]{', '.join(shown)}[/]"
