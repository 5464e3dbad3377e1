# SPDX-License-Identifier: Apache-2.0
"""``koala top``: clusters, jobs and recent events on one screen that is refreshed.

First the size of a job over time, then the lines of the screen, made of reports without I/O, then the loop that asks
the service, draws and reads keys.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import textwrap
import time
import tty
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from koala_adapter.cli.display import held, seconds, state_style
from koala_adapter.cli.session import Session, command_body, pass_session
from koala_adapter.config.tomlfile import printable, show_size
from koala_adapter.errors import ConfigurationError, KoalaError
from koala_adapter.host.regularfile import paths_matching
from koala_adapter.model import JobKind
from koala_adapter.outcome import JobState
from koala_adapter.report.values import JobReport, run_time, waiting_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console

    from koala_adapter.api.client import Client
    from koala_adapter.report.sitevalues import ClusterReport, NegotiationReport


# -- Size of a job over time ---------------------------------------------------------------------------------
# One line of characters, made of a report without I/O.


def size_now(report: JobReport) -> int:
    """Return the number of processors of a job."""
    return sum(component.processors for component in report.components)


def sizes_over_time(report: JobReport, points: int) -> list[int]:
    """Return a job's processors at ``points`` times, evenly from launch to end or now.

    What its latest changes tell of, of which so many are kept; before them it is taken to have had one size.
    """
    if report.launched_at is None or points < 1:
        return []
    until = report.finished_at or report.reported_at
    span = max(0.0, until - report.launched_at)
    moments = [report.launched_at + span * (number + 1) / points for number in range(points)]
    places = {(one.name, one.cluster) for one in report.components if one.cluster}
    size = sum(report.size_at_last(name, cluster) for name, cluster in places)
    sizes, changes = [], list(report.size_changes)
    for moment in reversed(moments):
        while changes and changes[-1].at > moment:
            change = changes.pop()
            size -= change.after - change.before
        sizes.append(size)
    return sizes[::-1]


STEPS = "▁▂▃▄▅▆▇█"
"""Heights, from little to much."""


def sparkline(values: Sequence[int]) -> str:
    """Return one bar character for each value, scaled to the largest."""
    largest = max(values, default=0)
    if largest <= 0:
        return STEPS[0] * len(values)
    return "".join(STEPS[max(0, -(-value * len(STEPS) // largest) - 1)] for value in values)


# -- Lines of the screen -------------------------------------------------------------------------------------
# Reports in, lines as wide and as many as the terminal has out.

COLOURS = ("green", "cyan", "magenta", "blue", "bright_green", "bright_cyan", "bright_magenta", "bright_blue")
IDLE, OTHERS, CHANGING = "░", "▒", "▓"
WIDEST_BAR = 48
NARROWEST_BAR = 8
NAMES = 12
"""Characters of a cluster's or job's name."""
FEWEST_EVENTS = 2
MOST_EVENTS = 6
KEYS = "q quit  j/k choose  e explain  l logs  c cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Clusters, jobs and negotiations read from the service at one time."""

    at: float
    """Time of day."""
    clusters: tuple[ClusterReport, ...] = ()
    jobs: tuple[JobReport, ...] = ()
    negotiations: tuple[NegotiationReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Selected job, text and messages of the screen."""

    chosen: str = ""
    """Job that keys are for; empty: none."""
    heading: str = ""
    """Of the text below; empty: there is none."""
    text: tuple[str, ...] = ()
    trouble: str = ""
    """Why nothing new is shown."""
    question: str = ""
    """What the next key answers."""


def choose(view: View, snapshot: Snapshot, by: int) -> View:
    """Return the view with the selection moved by ``by`` jobs."""
    ids = [report.id for report in shown_jobs(snapshot)]
    if not ids:
        return replace(view, chosen="")
    now = ids.index(view.chosen) if view.chosen in ids else 0
    return replace(view, chosen=ids[max(0, min(len(ids) - 1, now + by))])


def shown_jobs(snapshot: Snapshot) -> list[JobReport]:
    """Return the jobs in screen order: running, waiting, then the latest ended ones."""

    def rank(report: JobReport) -> tuple[int, float]:
        if report.outcome is not None:
            return 2, -(report.finished_at or 0.0)
        return (0 if report.launched_at is not None else 1), report.submitted_at

    return sorted(snapshot.jobs, key=rank)


def screen(snapshot: Snapshot, view: View, *, width: int, height: int) -> list[Text]:
    """Return the lines of the screen, at most ``height`` lines of ``width`` characters."""
    top = [_title(snapshot, view), *_clusters(snapshot, width)]
    text = [Text(), Text(view.heading, style="bold"), *map(Text, view.text)] if view.heading else []
    foot = [Text(view.question or KEYS, style="reverse" if view.question else "dim")]
    events = list(_events(snapshot))
    jobs = list(_jobs(snapshot, view, width))
    room = max(0, height - len(top) - len(foot))
    detail = text[: room // 2]
    room -= len(detail)
    latest = max(FEWEST_EVENTS, min(MOST_EVENTS, room - len(jobs) - 2))
    told = [Text(), Text("WHAT HAPPENED", style="bold dim"), *events[-latest:]] if events and room > latest + 3 else []
    listed = jobs[: max(0, room - len(told))]
    lines = [*top, *listed, *told, *detail]
    lines = [*lines[: max(0, height - len(foot))], *foot][:height]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _title(snapshot: Snapshot, view: View) -> Text:
    states = [report.state for report in snapshot.jobs if report.outcome is None]
    running = sum(state in {JobState.RUNNING, JobState.LAUNCHING} for state in states)
    title = Text.assemble(
        ("koala top", "bold"), f"  {_clock(snapshot.at)}  {running} running, {len(states) - running} waiting"
    )
    if view.trouble:
        title.append(f"  {view.trouble}", style="red")
    return title


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """Numbers of a cluster's processors by use."""

    ours: int
    of_jobs: dict[str, int]
    changing: int
    """Ours that no job uses: they are on their way to one, or back to the batch system."""
    others: int
    idle: int


# ---- clusters -------------------------------------------------------------------------------------------------------


def _clusters(snapshot: Snapshot, width: int) -> Iterator[Text]:
    for report in snapshot.clusters:
        name = f"{report.name[:NAMES]:<{NAMES}} "
        if report.closed is not None or report.processors is None:
            yield Text.assemble((name, "bold"), (report.closed or "not seen yet", "red"))
            continue
        shares = _shares(report, snapshot.jobs)
        numbers = _numbers(report, shares)
        one_line = width >= len(name) + len(numbers) + WIDEST_BAR // 2 + 1
        room = width - len(name) - (len(numbers) + 1 if one_line else 0)
        bar = _bar(report, shares, max(NARROWEST_BAR, min(WIDEST_BAR, room)))
        if one_line:
            yield Text.assemble((name, "bold"), bar, f" {numbers}")
        else:
            yield Text.assemble((name, "bold"), bar)
            yield Text(f"{'':{NAMES}} {numbers}")


def _shares(report: ClusterReport, jobs: Sequence[JobReport]) -> _Shares:
    """Return a cluster's processors by use: others' and idle by the last poll, ours as of now."""
    whole, others = report.processors or 0, report.others or 0
    ours = report.placeholders - report.placeholders_queued
    of_jobs = {job.id: _held_on(job, report.name) for job in jobs}
    return _Shares(
        ours=ours,
        of_jobs=of_jobs,
        changing=max(0, ours - sum(of_jobs.values())),
        others=others,
        idle=max(0, min(report.idle or 0, whole - ours - others)),
    )


def _numbers(report: ClusterReport, shares: _Shares) -> str:
    queued = f" +{report.placeholders_queued} queued" if report.placeholders_queued else ""
    changing = f" ({shares.changing} changing)" if shares.changing else ""
    again = f", asked again in {report.asked_again_in:.0f} s" if report.asked_again_in >= 1 else ""
    asked = f"{report.requests_last_minute}/{report.requests_per_minute} req/min{again}"
    return f"{shares.idle} idle, {shares.ours} ours{changing}{queued}, {shares.others} others, {asked}"


def _bar(report: ClusterReport, shares: _Shares, width: int) -> Text:
    """Return a cluster's processors as a bar: ours (last digit of the job's number), changing, others', idle."""
    whole = max(1, report.processors or 0)
    parts = [(id_[-1], f"reverse {COLOURS[_number(id_) % len(COLOURS)]}", held) for id_, held in shares.of_jobs.items()]
    parts += [(CHANGING, "", shares.changing), (OTHERS, "yellow", shares.others), (IDLE, "dim", shares.idle)]
    bar, before, drawn = Text(), 0, 0
    for mark, style, processors in parts:
        before = min(whole, before + processors)
        upto = round(width * before / whole)
        bar.append(mark * (upto - drawn), style=style)
        drawn = max(drawn, upto)
    bar.append(" " * (width - drawn))
    return bar


def _number(job_id: str) -> int:
    return int(job_id) if job_id.isdecimal() else 0


def _held_on(job: JobReport, cluster: str) -> int:
    if job.outcome is not None:
        return 0
    return sum(held(job, component) for component in job.components if component.cluster == cluster)


# ---- jobs -----------------------------------------------------------------------------------------------------------


def _jobs(snapshot: Snapshot, view: View, width: int) -> Iterator[Text]:
    if not snapshot.jobs:
        yield Text("no jobs", style="dim")
        return
    yield Text(f"  {'JOB':>5} {'NAME':<{NAMES}} {'STATE':<10} {'PROC':>5}  PROGRESS", style="bold dim")
    for report in shown_jobs(snapshot):
        chosen = report.id == view.chosen
        colour = COLOURS[_number(report.id) % len(COLOURS)]
        line = Text.assemble(
            ("▸ " if chosen else "  ", "bold"),
            (f"{report.id:>5}", colour if report.outcome is None else "dim"),
            f" {printable(report.name)[:NAMES]:<{NAMES}} ",
            (f"{report.state.value:<10}", state_style(report.state)),
            f" {size_now(report):>5}  ",
        )
        line.append_text(_progress(report, width - line.cell_len))
        if chosen:
            line.stylize("bold")
        yield line


def _progress(report: JobReport, room: int) -> Text:
    """Return the progress of a job, and the course of its size where that can change."""
    if report.outcome is not None:
        ran = run_time(report)
        return Text(f"exit {report.outcome.exit_code}" + (f" after {seconds(ran)}" if ran is not None else ""), "dim")
    if report.launched_at is None:
        holding, wanted = sum(one.held for one in report.components), size_now(report)
        reasons = {hold.reason for one in report.components for hold in one.holds if hold.reason}
        why = f" ({printable(min(reasons))})" if reasons else ""
        if report.transfers:
            missing, size = sum(one.missing for one in report.transfers), sum(one.size for one in report.transfers)
            why = f", files are on the way: {show_size(size - missing)} of {show_size(size)}"
        return Text(f"waits {seconds(waiting_time(report))}{why}" + (f", holds {holding}/{wanted}" if holding else ""))
    if report.sweep is not None:
        done, words = report.sweep.done / max(1, report.sweep.total), f"{report.sweep.done}/{report.sweep.total}"
        if report.sweep.seconds_left:
            words += f", {seconds(report.sweep.seconds_left)} left"
    else:
        ran = run_time(report) or 0.0
        done, words = ran / max(1, report.walltime), f"{seconds(ran)} of {seconds(report.walltime)}"
    if report.kind in {JobKind.MALLEABLE, JobKind.EVOLVING} or report.size_changes:
        space = max(0, min(24, room - len(words) - 1))
        return Text.assemble((sparkline(sizes_over_time(report, space)), "cyan"), f" {words}")
    space = max(0, min(16, room - len(words) - 1))
    full = round(space * min(1.0, done))
    return Text.assemble(("━" * full, "green"), ("╌" * (space - full), "dim"), f" {words}")


# ---- events ---------------------------------------------------------------------------------------------------------


def _events(snapshot: Snapshot) -> Iterator[Text]:
    """Return past events, oldest first: starts, ends, changes of size, last messages of negotiations."""
    found: list[tuple[float, str, str]] = []
    for job in snapshot.jobs:
        name = f"job {job.id}"
        if job.launched_at is not None:
            found.append((job.launched_at, f"{name} starts after {seconds(waiting_time(job))}", "cyan"))
        if job.finished_at is not None:
            found.append((job.finished_at, f"{name} {job.state.value}", state_style(job.state)))
        for change in job.size_changes:
            direction = "grows" if change.after > change.before else "shrinks"
            said = f"{name} {direction} on {change.cluster} from {change.before} to {change.after}: {change.reason}"
            found.append((change.at, said, ""))
    found += [
        (one.latest_at, f"job {one.job_id} negotiation {one.number}, {one.state}: {one.summary}", "magenta")
        for one in snapshot.negotiations
    ]
    for at, said, style in sorted(found, key=lambda event: event[0]):
        yield Text.assemble((f"{_clock(at)} ", "dim"), (printable(said), style))


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")


# -- The command ---------------------------------------------------------------------------------------------

JOBS = 50
NEGOTIATIONS = 10
TAIL = 16_384
"""Bytes at the end of each output file that are looked at."""
LINES = 40
"""Lines of output that are kept for the screen."""
UP, DOWN = ("k", "\x1b[A", "\x1bOA"), ("j", "\x1b[B", "\x1bOB")
QUIT = ("q", "\x03", "\x04", "")


@click.command()
@click.option(
    "--interval", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, help="Seconds between two looks."
)
@click.option("--once", is_flag=True, help="Print the screen once and end: no terminal is needed.")
@pass_session
@command_body
def top(session: Session, interval: float, once: bool) -> None:
    r"""Watch clusters, jobs, changes of size and negotiations on one screen.

    Bars show the processors of each cluster: ours with the last digit of the job's number, then those of ours that
    come or go, then others', then idle ones. Keys: j and k or the arrows choose a job, e says why it waits, l shows
    what it wrote, c cancels it, q ends.

    \b
    Examples:
      koala top
      koala top --once | head -20
    """
    session.check_site_option()
    console = session.console
    if once:
        found = look(session.client)
        for line in screen(found, View(), width=console.width, height=10_000)[:-1]:
            console.print(line, soft_wrap=True)
        return
    if not (sys.stdin.isatty() and console.is_terminal):
        raise ConfigurationError("koala top needs a terminal", hint="--once prints the screen, koala status --json all")
    shown = look(session.client)
    with raw_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        TopLoop(session.client, console, live, interval).run(shown)


def look(client: Client) -> Snapshot:
    """Read a snapshot from the service. Raises ServiceUnavailableError."""
    return Snapshot(
        at=time.time(),
        clusters=tuple(client.clusters()),
        jobs=tuple(client.jobs(JOBS)),
        negotiations=tuple(client.negotiations(limit=NEGOTIATIONS)),
    )


class TopLoop:
    """Main loop of ``koala top``: reads, draws, handles keys."""

    def __init__(self, client: Client, console: Console, live: Live, interval: float) -> None:
        """``interval``: seconds between two snapshots."""
        self._client = client
        self._console = console
        self._live = live
        self._interval = interval
        self._view = View()
        self._detail = ""
        """Key whose answer is shown below, as long as it is."""

    def run(self, snapshot: Snapshot) -> None:
        """Run until the user quits."""
        self._view = choose(self._view, snapshot, 0)
        due = time.monotonic() + self._interval
        while True:
            self._draw(snapshot)
            key = read_key(max(0.0, due - time.monotonic()))
            if key in QUIT:
                return
            if key is not None:
                self._do(key, snapshot)
            if key is None or time.monotonic() >= due:
                snapshot = self._look_again(snapshot)
                due = time.monotonic() + self._interval

    def _look_again(self, before: Snapshot) -> Snapshot:
        try:
            found = look(self._client)
        except KoalaError as error:
            self._view = replace(self._view, trouble=error.message)
            return replace(before, at=time.time())
        self._view = choose(replace(self._view, trouble=""), found, 0)
        if self._detail:
            self._show(self._detail)
        return found

    def _draw(self, snapshot: Snapshot) -> None:
        width, height = self._console.size
        self._live.update(Group(*screen(snapshot, self._view, width=width, height=height)), refresh=True)

    def _do(self, key: str, snapshot: Snapshot) -> None:
        if self._view.question:
            self._answer(key)
        elif key in UP or key in DOWN:
            self._view = choose(self._view, snapshot, -1 if key in UP else 1)
            if self._detail:
                self._show(self._detail)
        elif key in {"e", "l"} and self._view.chosen:
            self._detail = "" if self._detail == key else key
            self._show(self._detail)
        elif key == "c" and self._view.chosen:
            self._view = replace(self._view, question=f"cancel job {self._view.chosen}? y: yes, any other key: no")

    def _answer(self, key: str) -> None:
        self._view = replace(self._view, question="")
        if key == "y":
            try:
                self._client.cancel(self._view.chosen)
            except KoalaError as error:
                self._view = replace(self._view, heading="not cancelled", text=(str(error),))

    def _show(self, key: str) -> None:
        chosen = self._view.chosen
        if not key or not chosen:
            self._view = replace(self._view, heading="", text=())
            return
        try:
            report = self._client.job(chosen)
            if key == "e":
                heading, text = f"WHY, JOB {chosen}", report.explanation
            else:
                heading, text = f"OUTPUT OF JOB {chosen}", "\n".join(output_of(report))
        except KoalaError as error:
            heading, text = f"JOB {chosen}", error.message
        lines = wrapped(text or "nothing yet", self._console.width)
        self._view = replace(self._view, heading=heading, text=tuple(lines))


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text wrapped to the screen's width."""
    return [part for line in text.splitlines() for part in textwrap.wrap(line, max(1, width)) or [""]]


def output_of(report: JobReport) -> list[str]:
    """Return the last lines of a job's or sweep's output."""
    if report.sweep is not None and report.sweep.directory:
        return latest_output(Path(report.sweep.directory), sweep=True)
    return latest_output(Path(report.output_directory))


def latest_output(directory: Path, *, sweep: bool = False) -> list[str]:
    """Return the last lines of output files in a directory, latest file last, with names where several are shown.

    Standard error is always marked. ``sweep``: the directory is that of a sweep.
    """
    written = _written(paths_matching(directory, "tasks/*/*" if sweep else "*/*"))[-LINES:]
    found: list[tuple[Path, list[str]]] = []
    for _, path in written:
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            continue  # it has just been put away
        found.append((path, lines[-LINES:]))
    every = max(1, LINES // max(1, len(found)))
    return [_mark(path, several=len(found) > 1) + printable(line) for path, lines in found for line in lines[-every:]][
        -LINES:
    ]


def _written(paths: Iterable[Path]) -> list[tuple[float, Path]]:
    """Return the non-empty output files with their times of writing, latest last."""
    written: list[tuple[float, Path]] = []
    for path in paths:
        with suppress(OSError):  # it has just been put away
            if path.suffix in {".out", ".err"} and (status := path.stat()).st_size:
                written.append((status.st_mtime, path))
    return sorted(written)


def _mark(path: Path, *, several: bool) -> str:
    name = f"{path.parent.name}/{path.stem}"
    if path.suffix == ".err":
        return f"{name} (stderr): "
    return f"{name}: " if several else ""


@contextmanager
def raw_keys() -> Iterator[None]:
    """Read keys unbuffered and without echo during the block."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read_key(patience: float) -> str | None:
    """Return the next key, an arrow as its sequence, "" at the end of input; None after the time-out."""
    descriptor = sys.stdin.fileno()
    if not select.select([descriptor], [], [], patience)[0]:
        return None
    key = os.read(descriptor, 1).decode("latin-1")
    if key == "\x1b" and select.select([descriptor], [], [], 0.02)[0]:
        key += os.read(descriptor, 2).decode("latin-1")
    return key
