# SPDX-License-Identifier: Apache-2.0
"""``koala demo``: a job on three small clusters inside this machine, shown as it runs; nothing is left behind.

There are two demonstrations: a job of fixed size, and with ``--malleable`` one that grows and shrinks as local users
come and go. Their job files and programs are in ``demofiles/``.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from koala_adapter.api.statedirectory import LogPrinter, ownership
from koala_adapter.cli.display import styled
from koala_adapter.cli.following import closing
from koala_adapter.cli.innerservice import inner_service
from koala_adapter.cli.session import Session, command_body, pass_session
from koala_adapter.cli.terminal import Interrupts
from koala_adapter.errors import KoalaError
from koala_adapter.host.sockets import free_port
from koala_adapter.lrm import Submission
from koala_adapter.model import BatchKey
from koala_adapter.outcome import JobState
from koala_adapter.python.localsite import local_site_text, on_all_clusters, temporary_site

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console, RenderableType

    from koala_adapter.lrm import Lrm
    from koala_adapter.report.sitevalues import ClusterReport
    from koala_adapter.report.values import JobReport, SizeChangeReport

DEMO_FILES = files("koala_adapter.cli") / "demofiles"
CLUSTERS = {"alpha": 4, "beta": 4, "gamma": 4}
"""Processors of each cluster."""
LOOK = 0.2
"""Seconds between two looks at the job and the clusters."""


# -- What the processors of a cluster do ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """Use of processors in the picture: its mark, colour and name."""

    label: str
    style: str
    mark: str = "■"

    def __str__(self) -> str:
        """Mark in its colour, as markup of rich."""
        return f"[{self.style}]{self.mark}[/]"

    def drawn(self, number: int) -> str:
        """Return ``count`` coloured marks."""
        return f"[{self.style}]{f'{self.mark} ' * number}[/]" if number else ""


HELD = Use("held", "green")
RUNNING = Use("running", "cyan")
HEAD = Use("head", "bold cyan", "◆")
WORKER = Use("workers", "cyan")
OTHERS = Use("a local user's", "yellow")
IDLE = Use("idle", "dim", "□")
QUEUED = Use("in the queue", "dim green", "▫")
OTHERS_QUEUED = Use("a local user waits for", "yellow", "▫")
WAITING = (QUEUED, OTHERS_QUEUED)


def uses(report: JobReport, cluster: ClusterReport) -> dict[Use, int]:
    """Return processors of a cluster by use, and how many placeholders and local jobs wait."""
    found: dict[Use, int] = {}
    for one in report.components:
        if one.cluster == cluster.name:
            launched = {"head": HEAD, "worker": WORKER}.get(one.name, RUNNING)
            use = HELD if report.launched_at is None else launched
            found[use] = found.get(use, 0) + one.held
            found[QUEUED] = found.get(QUEUED, 0) + one.queued
    left = (cluster.processors or 0) - sum(number for use, number in found.items() if use is not QUEUED)
    others = max(0, min(cluster.others or 0, left))
    return found | {OTHERS: others, IDLE: max(0, left - others), OTHERS_QUEUED: cluster.others_waiting or 0}


def picture(report: JobReport, clusters: Sequence[ClusterReport], last: str) -> RenderableType:
    """Return the drawing of the clusters, with a last line."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for cluster in clusters:
        found = uses(report, cluster)
        marks = "".join(use.drawn(number) for use, number in found.items() if use not in WAITING)
        queue = "".join(use.drawn(found.get(use, 0)) for use in WAITING)
        words = [f"{number} {use.label}" for use, number in found.items() if number and use is not OTHERS_QUEUED]
        words += [f"{OTHERS_QUEUED.label} {found[OTHERS_QUEUED]}"] if found[OTHERS_QUEUED] else []
        queued = f"  [dim]queue:[/] {queue}" if queue else ""
        table.add_row(f"   [bold]{cluster.name}[/]", marks + queued, f"[dim]{', '.join(words)}[/]")
    return Group("", table, f"   {last}")


# -- A story -------------------------------------------------------------------------------------------------


class Story:
    """Runs the demonstration with a job of fixed size: printed steps above a moving picture."""

    title = "one parallel job on processors of several batch systems at once"
    job_file = "rigid.toml"
    introduction = "A job for eight of their processors, all at the same time. Where they are does not matter:"
    excerpt = slice(2, 7)
    """Lines of the job file that are shown."""
    more = "...and two more like it: [bold]middle[/] on 3 and [bold]right[/] on 2 processors"
    sites: Mapping[str, str] = {}
    """The sites at which clusters are, by the names of the clusters."""
    places = ""
    """What is told of them."""
    beginning = (
        f"gamma is busy: {OTHERS} is a local user's job. koala submits ordinary jobs of one processor, its "
        f"placeholders, to all three queues. What starts, it holds: {HELD}"
    )
    scheduler: Mapping[str, str | float] = {"scan_interval": 1}
    following = "[bold]koala init[/] finds your clusters, [bold]koala check[/] tries them."

    def __init__(self, console: Console, session: Session) -> None:
        """Tell on ``console`` what happens at the site of ``session``."""
        self.console = console
        self.session = session
        self._steps = 0
        self._told: set[str] = set()
        self._begin = time.monotonic()

    def prepare(self) -> None:
        """Submit a local user's job to cluster gamma."""
        on_all_clusters(self.session.here, partial(submit_as_local_user, cluster="gamma", processors=3, seconds=5.0))

    def run(self) -> JobReport:
        """Run the demonstration to its result. Raises KoalaError if the service ends first."""
        names = ", ".join(f"[bold]{name}[/]" for name in CLUSTERS)
        self.tell(f"Three clusters of four processors: {names}. Each is a batch system with a queue of its own.")
        if self.places:
            self.tell(self.places)
        self.tell(self.introduction)
        text = (DEMO_FILES / self.job_file).read_text(encoding="utf-8")
        excerpt = "\n".join(text.splitlines()[self.excerpt]).strip()
        self._print_indented(Syntax(excerpt, "toml", background_color="default"))
        if self.more:
            self.console.print(f"   [dim]# {self.more}[/]")
        self.tell(self.beginning)
        client = self.session.client
        job = self.session.job(self.session.site_file.parent / self.job_file)
        report = client.job(client.submit(replace(job, environment=(("PORT", str(free_port())),))))
        self._begin = time.monotonic()
        output = LogPrinter(Path(report.output_directory), write=self._print_output)
        live = Live(console=self.console, refresh_per_second=10, transient=True)
        with live if self.console.is_terminal else nullcontext():
            while not report.over:
                clusters = client.clusters()
                self.look(report, clusters)
                if self.console.is_terminal:
                    live.update(picture(report, clusters, self.last_line(report)))
                output.print_new(marked=self.job_file == "rigid.toml")
                time.sleep(LOOK)
                report = client.job(report.id)
        output.print_new(marked=self.job_file == "rigid.toml", rest=True)
        if report.outcome is None:
            raise KoalaError("the demonstration's service went away", hint="see `koala --verbose demo`")
        return report

    def look(self, report: JobReport, clusters: Sequence[ClusterReport]) -> None:
        """Print the steps that have happened since the last call."""
        held = sum(one.held for one in report.components)
        wanted = sum(one.processors for one in report.components)
        lacking = {one.cluster for one in report.components if one.held < one.processors}
        full = any(cluster.name == "gamma" and cluster.idle == 0 for cluster in clusters)
        if report.launched_at is not None:
            ended = f"The local user's job has ended, all {wanted} are held: the placeholders turn into the job,"
            self._tell_once("launched", f"{ended} {RUNNING}")
        elif full and lacking == {"gamma"}:
            told = f"{held} of {wanted} are held. `koala explain {report.id}` says:"
            if self._tell_once("waiting", told):
                self._print_indented(Text(report.explanation, style="italic"))

    def last_line(self, report: JobReport) -> str:
        """Return the line below the picture."""
        return f"job [bold]{report.id}[/] {escape(report.name)}: {styled(report.state)}"

    def end(self, report: JobReport) -> None:
        """Print the result."""
        self.tell("The placeholders have gone back to their clusters; nothing is left of them. The result:")
        closing(report, self.console, where=False)

    def tell(self, text: str) -> None:
        """Print a step."""
        self._steps += 1
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(f"[bold cyan]{self._steps}[/]", text)
        self.console.print()
        self.console.print(line)

    def _tell_once(self, key: str, text: str) -> bool:
        """Print a step once for each ``key``; return whether it was printed."""
        if key in self._told:
            return False
        self._told.add(key)
        self.tell(text)
        return True

    def _print_indented(self, shown: RenderableType) -> None:
        self.console.print(Padding(shown, (0, 3, 0, 3), expand=False))

    def _print_output(self, data: bytes) -> None:
        self._print_indented(Text(data.decode(errors="replace").rstrip("\n")))


class SitesStory(Story):
    """Runs the job of fixed size on clusters of which two are at other sites."""

    title = "one parallel job over several sites, each reached by one connection alone"
    sites: Mapping[str, str] = {"alpha": "delft", "beta": "amsterdam"}
    places = (
        "gamma is on this host; alpha is at site [bold]delft[/], beta at [bold]amsterdam[/]. koala reaches each by "
        "one connection to a gateway on its login node: commands, job scripts and all that agents say go through it. "
        "Here, the connections are `ssh localhost`, or plain processes where that would ask something."
    )
    following = "[bold]koala init --ssh HOST[/] finds the clusters at your sites; [bold]koala docs sites[/] tells more."


class MalleableStory(Story):
    """Runs the demonstration with a malleable job, while local users come and go."""

    title = "one job that grows and shrinks over several batch systems while it runs"
    job_file = "malleable.toml"
    introduction = (
        "A job of a head and workers. How many workers it has is for koala to say, from one moment to the next:"
    )
    excerpt = slice(12, 18)
    more = ""
    beginning = (
        f"It starts with one worker, and takes what is free: {WORKER}. Local users, {OTHERS}, submit jobs to the "
        "clusters as if there were no koala; it makes room for them."
    )
    scheduler: Mapping[str, str | float] = {"scan_interval": 1, "approach": "pwa", "backoff": 2}
    following = "[bold]koala docs malleable[/]."
    local_users = (("gamma", 3), ("beta", 2))
    """Where local users come, one after the other, and how many processors they want."""
    calm = 1.5
    """Seconds for which the job has all there is before the next local user comes."""

    def __init__(self, console: Console, session: Session) -> None:
        """Tell on ``console`` what happens at the site of ``session``."""
        super().__init__(console, session)
        self._visits = 0
        self._full_since: float | None = None
        self._changes = 0
        self._sizes: list[int] = []

    def prepare(self) -> None:
        """Submit nothing: local users come later."""

    def look(self, report: JobReport, clusters: Sequence[ClusterReport]) -> None:
        """Print changes of size; submit the next local job when the job has had all processors for a while."""
        changes, self._changes = report.size_changes[self._changes :], len(report.size_changes)
        for change in changes:
            self._tell_now(in_words(change))
        self._sizes.append(workers(report))
        now = time.monotonic()
        if self._sizes[-1] < sum(CLUSTERS.values()) - 1 or any(one.others for one in clusters):
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        elif now >= self._full_since + self.calm and self._visits < len(self.local_users):
            cluster, processors = self.local_users[self._visits]
            self._visits += 1
            self._full_since = None
            submit = partial(submit_as_local_user, cluster=cluster, processors=processors, seconds=4.0)
            on_all_clusters(self.session.here, submit)
            self._tell_now(f"[yellow]a local user[/] wants {processors} of [bold]{cluster}[/]")

    def last_line(self, report: JobReport) -> str:
        """Return a chart of the number of workers, one bar for three calls."""
        bars = "▁▁▂▃▄▅▆▇█"
        chart = "".join(bars[round(size * (len(bars) - 1) / 11)] for size in self._sizes[::3][-60:])
        return f"workers  [cyan]{chart}[/] {workers(report)}\n"

    def end(self, report: JobReport) -> None:
        """Print the result and the number of changes of size."""
        sizes = [size for size in self._sizes if size]
        distinct = [size for before, size in pairwise([-1, *sizes]) if size != before]
        turns = sum((b - a) * (c - b) < 0 for (a, b), (_, c) in pairwise(pairwise(distinct)))
        turned = f", and turned {turns} times between growing and shrinking" if turns else ""
        least, most = min(sizes, default=0), max(sizes, default=0)
        self.tell(
            f"The job has ended {report.state.value}. It had {least} to {most} workers{turned}; no part was lost."
        )

    def _tell_now(self, text: str) -> None:
        since = time.monotonic() - self._begin
        self.console.print(f"   [dim]{since:4.1f} s[/]  {text}", soft_wrap=True)


def workers(report: JobReport) -> int:
    """Return the job's number of workers."""
    return sum(one.held for one in report.components if one.name == "worker" and report.launched_at is not None)


def in_words(change: SizeChangeReport) -> str:
    """Return a change of size as a sentence."""
    where = f"on [bold]{change.cluster}[/]: {change.reason}"
    if change.after > change.before:
        return f"[cyan]grew[/] from {change.before} to {change.after} {where}"
    return f"[green]gave back[/] {change.before - change.after} of {change.before} {where}"


async def submit_as_local_user(name: str, lrm: Lrm, *, cluster: str, processors: int, seconds: float) -> None:
    """Submit a job past koala to cluster ``name``, as a local user does."""
    if name == cluster:
        key = BatchKey(f"local-user-{secrets.token_hex(4)}")
        script = f"#!/bin/sh\nexec sleep {seconds}\n"
        await lrm.submit(Submission(key=key, count=processors, script=script, walltime=60))


# -- The command ---------------------------------------------------------------------------------------------


STAND_IN = '#!/bin/sh\nwhile [ "$#" -gt 1 ]; do shift; done\nexec sh -c "$1"\n'
"""Program of a site in place of ssh, for hosts whose sshd asks for a password: runs the gateway here."""


def reaches_itself() -> bool:
    """Tell whether ssh logs in to this host without a question."""
    command = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=2", "localhost", "true")
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=5)
        return done.returncode == 0
    return False


def demo_files(story: type[Story], directory: Path) -> Mapping[str, str]:
    """Return the files of a demonstration by name; ``directory``: where they will be written."""
    way = {} if not story.sites or reaches_itself() else {"program": str(directory / "ssh")}
    sites = {
        cluster: {
            "name": site,
            "ssh": "localhost",
            "python": sys.executable,
            "directory": str(directory / "state" / "there" / site),
            "listen": "127.0.0.1",
            **way,
        }
        for cluster, site in story.sites.items()
    }
    return {
        "site.toml": local_site_text(directory, CLUSTERS, story.scheduler, sites=sites),
        **({"ssh": STAND_IN} if way else {}),
        "authkey": secrets.token_hex(32),
        **{file.name: file.read_text(encoding="utf-8") for file in DEMO_FILES.iterdir() if file.is_file()},
    }


@click.command()
@click.option("--malleable", is_flag=True, help="A job that grows and shrinks as local users come and go.")
@click.option("--sites", is_flag=True, help="Two of the clusters are at other sites, as if each were reached by ssh.")
@pass_session
@command_body
def demo(session: Session, malleable: bool, sites: bool) -> None:
    r"""See it work: one job on three clusters at once, in ten seconds.

    Needs no batch system, no site file and no rights. Three small clusters run inside this machine, in a temporary
    directory, and are gone afterwards. With --malleable the job breathes over them, in half a minute. With --sites two
    of them are reached through gateways: by `ssh localhost` where that asks nothing, else by plain processes.

    \b
    Examples:
      koala demo
      koala demo --malleable
      koala demo --sites
    """
    if malleable and sites:
        raise click.UsageError("these are two demonstrations: give --malleable or --sites")
    kind = MalleableStory if malleable else SitesStory if sites else Story
    began = time.monotonic()
    session.console.print(f"[bold]koala[/]: {kind.title}")
    with (
        Interrupts() as interrupts,
        temporary_site(partial(demo_files, kind), prefix="koala-demo-", undisturbed=interrupts.deferred) as site,
    ):
        inner = Session(site_option=site.file, state_option=site.directory)
        story = kind(session.console, inner)
        story.prepare()
        with ownership(inner.directory, "koala demo"), inner_service(inner, interrupts):
            report = story.run()
    story.end(report)
    session.console.print(
        f"\n[dim]That took {time.monotonic() - began:.0f} s. The three clusters and their files are removed.[/]"
    )
    session.console.print(f"Next: {kind.following}")
    raise SystemExit(0 if report.state is JobState.COMPLETED else report.outcome.exit_code if report.outcome else 1)
