# SPDX-License-Identifier: Apache-2.0
"""``koala demo --malleable``: a job breathes over three clusters while local users come and go, told as it happens."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table

from koala_adapter.api.logprinter import LogPrinter
from koala_adapter.cli.demofiles import LOCAL_USER
from koala_adapter.cli.demostory import SLOT, Story, legend
from koala_adapter.cli.temporarysite import everywhere
from koala_adapter.errors import KoalaError
from koala_adapter.model import BatchKey
from koala_adapter.plugin import Submission

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from koala_adapter.api.clusterreports import ClusterReport
    from koala_adapter.api.reports import JobReport, SizeChangeReport
    from koala_adapter.cli.session import Session
    from koala_adapter.plugin import Lrm

LOCAL_USERS = (("gamma", 3), ("beta", 2))
"""Where local users come, one after the other, and how many processors they want."""
FULL = 11
"""Most workers that the job can have."""
STAY = 4.0
"""Seconds for which each stays."""
CALM = 1.5
"""Seconds for which the job has all there is before the next local user comes."""
LOOK = 0.2
"""Seconds between two looks."""
BARS = "▁▁▂▃▄▅▆▇█"
PER_BAR = 0.5
"""Seconds for which one bar of the chart stands."""
LONGEST_CHART = 60


@dataclass(slots=True)
class Visits:
    """The local users: who is next, and since when nothing has kept the job from having all there is."""

    session: Session
    next: int = 0
    present: bool = False
    full_since: float | None = None

    def look(self, workers: int, clusters: Sequence[ClusterReport]) -> tuple[str, int] | None:
        """Have the next local user come when it is time; return where, and for how many processors."""
        now = time.monotonic()
        self.present = any(one.others for one in clusters)
        if workers < FULL or self.present:
            self.full_since = None
            return None
        self.full_since = self.full_since or now
        if self.next == len(LOCAL_USERS) or now < self.full_since + CALM:
            return None
        visit = LOCAL_USERS[self.next]
        self.next += 1
        self.full_since = None
        everywhere(self.session, partial(_come, visit, self.next))
        return visit


async def _come(visit: tuple[str, int], number: int, name: str, lrm: Lrm) -> None:
    where, processors = visit
    if name == where:
        script = LOCAL_USER.format(seconds=STAY)
        key = BatchKey(f"local-user-{number}")
        await lrm.submit(Submission(key=key, count=processors, script=script, walltime=60))


@dataclass(slots=True)
class MalleableStory(Story):
    """Tells of a job that grows and shrinks."""

    _changes: int = 0
    _begin: float = 0.0
    _sizes: list[int] = field(default_factory=list)

    def title(self) -> None:
        """Say what this is."""
        self.console.print("[bold]koala[/]: one job that grows and shrinks over several batch systems while it runs")

    def job(self, session: Session) -> None:
        """Introduce the job."""
        self.tell(
            "A job of a head and workers. How many workers it has is for koala to say, from one moment to the next:"
        )
        parts = (session.site_file.parent / "job.toml").read_text(encoding="utf-8").split("\n\n")
        shown = "\n".join([*parts[0].splitlines()[1:3], "", *parts[2].splitlines()[:6]])
        self.console.print(Padding(Syntax(shown, "toml", background_color="default"), (0, 0, 0, 3), expand=False))

    def run(self, session: Session) -> JobReport:
        """Run the job, have local users come and go, and tell what happens."""
        self.tell(
            f"It starts with one worker, and takes what is free: {legend('running')}. Local users, {legend('others')}, "
            "submit jobs to the clusters as if there were no koala; it makes room for them."
        )
        client = session.client
        job_id = client.submit(session.job(session.site_file.parent / "job.toml"))
        visits = Visits(session)
        self._begin = time.monotonic()
        report = client.job(job_id)
        printer = LogPrinter(Path(report.output_directory), write=self._output)
        live = Live(console=self.console, refresh_per_second=10, transient=True)
        with live if self.console.is_terminal else nullcontext():
            while not report.over:
                clusters = client.clusters()
                visit = visits.look(workers(report), clusters)
                if visit is not None:
                    where, processors = visit
                    self.console.print(
                        f"   {self._time()}  [yellow]a local user[/] wants {processors} of [bold]{where}[/]"
                    )
                self._tell_changes(report)
                self._note_size(report)
                if self.console.is_terminal:
                    live.update(self._moment(report, clusters))
                time.sleep(LOOK)
                report = client.job(job_id)
        self._tell_changes(report)
        printer.print_new(marked=False, rest=True)
        if report.outcome is None:
            raise KoalaError("the demonstration's service went away", hint="see `koala --verbose demo --malleable`")
        return report

    def _time(self) -> str:
        return f"[dim]{time.monotonic() - self._begin:4.1f} s[/]"

    def _tell_changes(self, report: JobReport) -> None:
        """Print the changes that are new."""
        new = report.size_changes[self._changes :]
        self._changes = len(report.size_changes)
        for change in new:
            if report.outcome is None:
                self.console.print(f"   {self._time()}  {told(change)}", soft_wrap=True)

    def _note_size(self, report: JobReport) -> None:
        wanted = int((time.monotonic() - self._begin) / PER_BAR) + 1
        self._sizes += [workers(report)] * (wanted - len(self._sizes))

    def _moment(self, report: JobReport, clusters: Sequence[ClusterReport]) -> RenderableType:
        """Return the clusters and the size of the job as they are now."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        for cluster in clusters:
            table.add_row(f"   [bold]{cluster.name}[/]", marks(report, cluster), in_words(report, cluster))
        chart = "".join(BARS[round(size * (len(BARS) - 1) / FULL)] for size in self._sizes[-LONGEST_CHART:])
        return Group("", table, f"   workers  [cyan]{chart}[/] {workers(report)}", "")

    def end(self, report: JobReport) -> None:
        """Say how it ended, and where to go from here."""
        sizes = [size for size in self._sizes if size]
        turns = sum((b - a) * (c - b) < 0 for (a, b), (_, c) in pairwise(pairwise(_distinct(sizes))))
        breaths = f", and turned {turns} times between growing and shrinking" if turns else ""
        self.tell(f"The job has ended {report.state.value}. It had {min(sizes, default=0)} to {max(sizes, default=0)} "
                  f"workers{breaths}; no part was lost.")  # fmt: skip
        took = time.monotonic() - self._since
        self.console.print()
        self.console.print(f"[dim]That took {took:.0f} s. The three clusters and their files are removed.[/]")
        self.console.print("Next: [bold]koala docs malleable[/].")


def _distinct(sizes: Sequence[int]) -> list[int]:
    return [size for before, size in pairwise([-1, *sizes]) if size != before]


def workers(report: JobReport) -> int:
    """Return how many workers the job has."""
    return sum(one.held for one in report.components if one.name == "worker" and report.launched_at is not None)


def told(change: SizeChangeReport) -> str:
    """Return a change in words."""
    if change.after > change.before:
        return f"[cyan]grew[/] from {change.before} to {change.after} on [bold]{change.cluster}[/]: {change.reason}"
    gone = change.before - change.after
    return f"[green]gave back[/] {gone} of {change.before} on [bold]{change.cluster}[/]: {change.reason}"


def _counts(report: JobReport, cluster: ClusterReport) -> dict[str, int]:
    here = [one for one in report.components if one.cluster == cluster.name]
    head = sum(one.held for one in here if one.name == "head")
    mine = sum(one.held for one in here if one.name == "worker")
    total = cluster.processors or 0
    others = max(0, min(cluster.others or 0, total - head - mine))
    return {"head": head, "workers": mine, "others": others, "idle": max(0, total - head - mine - others)}


STYLES = {"head": "bold cyan", "workers": "cyan", "others": "yellow", "idle": "dim"}
LABELS = {"head": "the head", "workers": "workers", "others": "a local user's", "idle": "idle"}


def marks(report: JobReport, cluster: ClusterReport) -> str:
    """Return the processors of a cluster as marks in colours, and those that local users wait for."""
    found = _counts(report, cluster)
    signs = {"head": "◆", "workers": SLOT, "others": SLOT, "idle": "□"}
    shown = "".join(f"[{STYLES[kind]}]{f'{signs[kind]} ' * number}[/]" for kind, number in found.items() if number)
    waiting = f"  [dim]queue:[/] [yellow]{'▫ ' * cluster.others_waiting}[/]" if cluster.others_waiting else ""
    return shown + waiting


def in_words(report: JobReport, cluster: ClusterReport) -> str:
    """Return the same in words."""
    found = [LABELS[kind] if kind == "head" else f"{number} {LABELS[kind]}"
             for kind, number in _counts(report, cluster).items() if number]  # fmt: skip
    waits = [f"a local user waits for {cluster.others_waiting}"] if cluster.others_waiting else []
    return f"[dim]{', '.join([*found, *waits])}[/]"
