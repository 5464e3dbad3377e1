# SPDX-License-Identifier: Apache-2.0
"""What ``koala top`` shows: reports in, lines as wide and as many as the terminal has out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text

from koala_adapter.cli.sparkline import size_now, sizes_over_time, sparkline
from koala_adapter.cli.tables import held, run_time, seconds, state_style, waiting_time
from koala_adapter.config.formatting import printable
from koala_adapter.model import JobKind
from koala_adapter.scheduler.outcome import JobState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from koala_adapter.api.clusterreports import ClusterReport
    from koala_adapter.api.negotiationreports import NegotiationReport
    from koala_adapter.api.reports import JobReport

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
    """What the service said, all at once."""

    at: float
    """Time of day."""
    clusters: tuple[ClusterReport, ...] = ()
    jobs: tuple[JobReport, ...] = ()
    negotiations: tuple[NegotiationReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the person looks at."""

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
    """Return the view with the job chosen that is so many lines below."""
    ids = [report.id for report in shown_jobs(snapshot)]
    if not ids:
        return replace(view, chosen="")
    now = ids.index(view.chosen) if view.chosen in ids else 0
    return replace(view, chosen=ids[max(0, min(len(ids) - 1, now + by))])


def shown_jobs(snapshot: Snapshot) -> list[JobReport]:
    """Return the jobs in the order in which they are shown: those that run first, then who waits, then the latest."""

    def rank(report: JobReport) -> tuple[int, float]:
        if report.outcome is not None:
            return 2, -(report.finished_at or 0.0)
        return (0 if report.launched_at is not None else 1), report.submitted_at

    return sorted(snapshot.jobs, key=rank)


def screen(snapshot: Snapshot, view: View, *, width: int, height: int) -> list[Text]:
    """Return the lines of the screen, at most ``height`` of them, each at most ``width`` wide."""
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
    """Who has the processors of a cluster."""

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
    """Return who has a cluster's processors: the last poll as to others and idle ones, ours as they are by now."""
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
    asked = f"{report.requests_last_minute}/{report.requests_per_minute} req/min"
    return f"{shares.idle} idle, {shares.ours} ours{changing}{queued}, {shares.others} others, {asked}"


def _bar(report: ClusterReport, shares: _Shares, width: int) -> Text:
    """Return a bar of a cluster's processors: ours marked with the end of the job's number, changing, others, idle."""
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
    """Return how far a job is, and how its size went if it can change."""
    if report.outcome is not None:
        ran = run_time(report)
        return Text(f"exit {report.outcome.exit_code}" + (f" after {seconds(ran)}" if ran is not None else ""), "dim")
    if report.launched_at is None:
        holding, wanted = sum(one.held for one in report.components), size_now(report)
        return Text(f"waits {seconds(waiting_time(report))}" + (f", holds {holding}/{wanted}" if holding else ""))
    if report.sweep is not None:
        done, words = report.sweep.done / max(1, report.sweep.total), f"{report.sweep.done}/{report.sweep.total}"
        if report.sweep.seconds_left:
            words += f", {seconds(report.sweep.seconds_left)} left"
    else:
        ran = run_time(report) or 0.0
        done, words = ran / max(1, report.walltime), f"{seconds(ran)} of {seconds(report.walltime)}"
    if report.kind == JobKind.MALLEABLE or report.size_changes:
        space = max(0, min(24, room - len(words) - 1))
        return Text.assemble((sparkline(sizes_over_time(report, space)), "cyan"), f" {words}")
    space = max(0, min(16, room - len(words) - 1))
    full = round(space * min(1.0, done))
    return Text.assemble(("━" * full, "green"), ("╌" * (space - full), "dim"), f" {words}")


# ---- events ---------------------------------------------------------------------------------------------------------


def _events(snapshot: Snapshot) -> Iterator[Text]:
    """Return what happened, oldest first: starts, ends, changes of size, and the latest word of each negotiation."""
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
