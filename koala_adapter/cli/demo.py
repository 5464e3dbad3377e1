# SPDX-License-Identifier: Apache-2.0
"""``koala demo``: a job on three embedded clusters, shown as it runs; nothing is left behind.

Two demonstrations, each as its files and its story: a job of fixed size, and a malleable one (``--malleable``). The
command itself comes last. The files are a site of three small clusters, a job file and its program.
"""

from __future__ import annotations

import secrets
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from koala_adapter.api.statedirectory import LogPrinter, ownership
from koala_adapter.cli.display import closing, styled
from koala_adapter.cli.innerservice import everywhere, inner_service, temporary_site
from koala_adapter.cli.session import Session, command_body, pass_session
from koala_adapter.cli.terminal import Interrupts
from koala_adapter.config.tomlfile import toml_text
from koala_adapter.errors import KoalaError
from koala_adapter.host.sockets import free_port
from koala_adapter.lrm import Submission
from koala_adapter.model import BatchKey
from koala_adapter.outcome import JobState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from rich.console import Console, RenderableType

    from koala_adapter.lrm import Lrm
    from koala_adapter.report.sitevalues import ClusterReport
    from koala_adapter.report.values import JobReport, SizeChangeReport


# -- Job of fixed size: its files ----------------------------------------------------------------------------
# A site of three small clusters, a job, its program, and a local user's job.

SITE = """\
[control_center]
listen = "127.0.0.1"
lease = 60
heartbeat = 2

[scheduler]
scan_interval = 1
launch_margin = 20
placeholder_life = 300

[[clusters]]
name = "alpha"
plugin = "local"
poll_interval = 0.5
requests_per_minute = 600
output_directory = {directory}
settings = {{ nodes = 2, processors_per_node = 2, idle_seconds = 60 }}

[[clusters]]
name = "beta"
plugin = "local"
poll_interval = 0.5
requests_per_minute = 600
output_directory = {directory}
settings = {{ nodes = 1, processors_per_node = 4, idle_seconds = 60 }}

[[clusters]]
name = "gamma"
plugin = "local"
poll_interval = 0.5
requests_per_minute = 600
output_directory = {directory}
settings = {{ nodes = 2, processors_per_node = 2, idle_seconds = 60 }}
"""

JOB = """\
name = "pi"
walltime = "5m"
environment = {{ PORT = "{port}" }}

[[components]]
name = "left"
command = ["python3", "pi.py"]
processors = 3
input_files = ["pi.py"]

[[components]]
name = "middle"
command = ["python3", "pi.py"]
processors = 3
input_files = ["pi.py"]

[[components]]
name = "right"
command = ["python3", "pi.py"]
processors = 2
input_files = ["pi.py"]
"""

PROGRAM = '''\
"""Computes pi: each rank integrates its share of 4 / (1 + x * x) and sends it to rank 0, which adds them up."""

import os
import socket
import sys
import time

STEPS = 1200000
rank, size = int(os.environ["KOALA_RANK"]), int(os.environ["KOALA_SIZE"])
first = (os.environ["KOALA_ADDRESSES"].split(",")[0], int(os.environ["PORT"]))

if rank == 0:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(first)
    listener.listen(size)

part = sum(4 / (1 + ((i + 0.5) / STEPS) ** 2) for i in range(rank, STEPS, size)) / STEPS
time.sleep(1)
print("rank %d of %d on cluster %-5s has %.10f" % (rank, size, os.environ["KOALA_CLUSTER"], part), flush=True)

if rank == 0:
    for _ in range(size - 1):
        connection, _ = listener.accept()
        part += float(connection.makefile().read())
    time.sleep(0.5)
    print("the sum of all %d parts is pi = %.10f" % (size, part), flush=True)
else:
    for attempt in range(600):
        try:
            with socket.create_connection(first, timeout=5) as connection:
                connection.sendall(repr(part).encode())
            break
        except OSError:
            time.sleep(0.1)
    else:
        sys.exit("rank 0 does not answer")
'''

LOCAL_USER = "#!/bin/sh\nexec sleep {seconds}\n"


# -- Job of fixed size: its story ----------------------------------------------------------------------------
# What is printed stays; the picture of the clusters moves below it.

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


# -- Malleable job: its files --------------------------------------------------------------------------------
# The site, a job of a head and workers, and their program.

STEERED = """\
[scheduler]
approach = "pwa"
backoff = 2
"""

MALLEABLE_JOB = """\
name = "pi"
kind = "malleable"
runner = "workers"
walltime = "5m"
environment = {{ PORT = "{port}" }}

[[components]]
name = "head"
command = ["python3", "pi.py", "head"]
processors = 1
input_files = ["pi.py", "authkey"]

[[components]]
name = "worker"
command = ["python3", "pi.py"]
minimum = 1
maximum = 11
flexible = true
retire_grace = 5
input_files = ["pi.py", "authkey"]
"""

MALLEABLE_PROGRAM = '''\
"""Computes pi: a head hands out parts of the integral of 4 / (1 + x * x) to workers that come and go."""

import os
import queue
import signal
import sys
import threading
import time
from multiprocessing.managers import BaseManager

STEPS, PARTS, SECONDS = 340000, 340, 0.5


class Queues(BaseManager):
    """Two queues that the workers reach over the network."""


with open("authkey", "rb") as file:
    key = file.read()
port = int(os.environ["PORT"])
if "head" in sys.argv:
    parts, results, found, missed = queue.Queue(), queue.Queue(), {}, 0
    Queues.register("parts", callable=lambda: parts)
    Queues.register("results", callable=lambda: results)
    server = Queues(("127.0.0.1", port), authkey=key).get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while len(found) < PARTS:
        if parts.empty():
            for number in range(PARTS):
                if number not in found:
                    parts.put(number)
        try:
            while True:
                number, part = results.get(timeout=4 * SECONDS)
                found[number] = part
                if len(found) == PARTS:
                    break
        except queue.Empty:
            continue  # whoever had the others is gone: they are handed out again
    print("the sum of all %d parts is pi = %.10f" % (PARTS, sum(found.values()) / STEPS), flush=True)
else:
    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    Queues.register("parts")
    Queues.register("results")
    queues = Queues((os.environ["KOALA_HEAD_ADDRESS"], port), authkey=key)
    while not leave.is_set():
        try:
            queues.connect()
            break
        except ConnectionRefusedError:  # the head is not there yet
            leave.wait(0.1)
    parts, results = (queues.parts(), queues.results()) if not leave.is_set() else (None, None)
    while not leave.is_set():
        try:
            number = parts.get_nowait()
        except queue.Empty:
            leave.wait(0.1)
            continue
        except (EOFError, OSError):  # all is done
            break
        part = sum(4 / (1 + ((i + 0.5) / STEPS) ** 2) for i in range(number, STEPS, PARTS))
        time.sleep(SECONDS)
        results.put((number, part))
'''


def malleable_files(directory: Path) -> Mapping[str, str]:
    """Return the files by their names."""
    return {
        "site.toml": SITE.format(directory=toml_text(str(directory))).replace("[scheduler]\n", STEERED),
        "job.toml": MALLEABLE_JOB.format(port=free_port()),
        "pi.py": MALLEABLE_PROGRAM,
        "authkey": secrets.token_hex(32),
    }


# -- Malleable job: its story --------------------------------------------------------------------------------
# The job grows and shrinks over three clusters while local users come and go.

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


MALLEABLE_STYLES = {"head": "bold cyan", "workers": "cyan", "others": "yellow", "idle": "dim"}
MALLEABLE_LABELS = {"head": "the head", "workers": "workers", "others": "a local user's", "idle": "idle"}


def marks(report: JobReport, cluster: ClusterReport) -> str:
    """Return the processors of a cluster as marks in colours, and those that local users wait for."""
    found = _counts(report, cluster)
    signs = {"head": "◆", "workers": SLOT, "others": SLOT, "idle": "□"}
    shown = "".join(
        f"[{MALLEABLE_STYLES[kind]}]{f'{signs[kind]} ' * number}[/]" for kind, number in found.items() if number
    )
    waiting = f"  [dim]queue:[/] [yellow]{'▫ ' * cluster.others_waiting}[/]" if cluster.others_waiting else ""
    return shown + waiting


def in_words(report: JobReport, cluster: ClusterReport) -> str:
    """Return the same in words."""
    found = [MALLEABLE_LABELS[kind] if kind == "head" else f"{number} {MALLEABLE_LABELS[kind]}"
             for kind, number in _counts(report, cluster).items() if number]  # fmt: skip
    waits = [f"a local user waits for {cluster.others_waiting}"] if cluster.others_waiting else []
    return f"[dim]{', '.join([*found, *waits])}[/]"


# -- The command ---------------------------------------------------------------------------------------------

BUSY_PROCESSORS = 3
BUSY_SECONDS = 5.0


@click.command()
@click.option("--malleable", is_flag=True, help="A job that grows and shrinks as local users come and go.")
@pass_session
@command_body
def demo(session: Session, malleable: bool) -> None:
    r"""See it work: one job on three clusters at once, in ten seconds.

    Needs no batch system, no site file and no rights. Three small clusters run inside this machine, in a temporary
    directory, and are gone afterwards. With --malleable the job breathes over them, in half a minute.

    \b
    Examples:
      koala demo
      koala demo --malleable
    """
    if malleable:
        _tell(MalleableStory(session.console), malleable_files)
    _tell(Story(session.console), files, before=local_users_job)


def _tell(
    story: Story,
    make_files: Callable[[Path], Mapping[str, str]],
    before: Callable[[str, Lrm], Awaitable[None]] | None = None,
) -> NoReturn:
    """Tell a story on a site of its own, and exit as its job did; ``before``: what each cluster has to do first."""
    story.title()
    with Interrupts() as interrupts, temporary_site(interrupts, make_files) as inner:
        story.clusters(inner)
        if before is not None:
            everywhere(inner, before)
        story.job(inner)
        with ownership(inner.directory, "koala demo"), inner_service(inner, interrupts):
            report = story.run(inner)
    story.end(report)
    raise SystemExit(0 if report.state is JobState.COMPLETED else report.outcome.exit_code if report.outcome else 1)


def files(directory: Path) -> Mapping[str, str]:
    """Return the files of the demonstration, by their names."""
    return {
        "site.toml": SITE.format(directory=toml_text(str(directory))),
        "job.toml": JOB.format(port=free_port()),
        "pi.py": PROGRAM,
    }


async def local_users_job(name: str, lrm: Lrm) -> None:
    """Have somebody else be at work in one of the clusters."""
    if name != BUSY:
        return
    script = LOCAL_USER.format(seconds=BUSY_SECONDS)
    job = Submission(key=BatchKey("local-user"), count=BUSY_PROCESSORS, script=script, walltime=60)
    await lrm.submit(job)
