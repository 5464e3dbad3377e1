# SPDX-License-Identifier: Apache-2.0
"""Listings of jobs: times as people give them, the options that choose jobs and columns, the columns, and CSV.

``koala status`` and ``koala history`` have these in common.
"""

from __future__ import annotations

import csv
import functools
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import date, datetime, time, timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeVar

import click

from koala_adapter.cli.session import json_option
from koala_adapter.config.written import parse_duration
from koala_adapter.outcome import JobState
from koala_adapter.report.selection import JobSelection
from koala_adapter.report.values import JobReport, run_time, waiting_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import IO


R = TypeVar("R")

# -- Times as people give them -------------------------------------------------------------------------------

MOMENTS = (
    "a date (2026-11-26), a time (14:30, the latest one), both (2026-11-26T14:30), a span before now (90m, 2h, 3d), "
    "today or yesterday"
)
_DAYS_AGO = {"today": 0, "yesterday": 1}


def span_of(text: str, now: datetime) -> tuple[float, float]:
    """Return first and last second (since the epoch) of a day, or the same second twice for a moment.

    ``now``: local, without a time zone. Raises ValueError for a text that means none.
    """
    if text in _DAYS_AGO:
        return _day(now.date() - timedelta(days=_DAYS_AGO[text]))
    with suppress(ValueError, OverflowError):
        return _day(date.fromisoformat(text))
    with suppress(ValueError, OverflowError):
        return _instant(datetime.fromisoformat(text))
    if ":" in text:
        with suppress(ValueError):
            latest = datetime.combine(now, time.fromisoformat(text))
            return _instant(latest if latest <= now else latest - timedelta(days=1))
    try:
        return _instant(now - timedelta(seconds=float(str(parse_duration(text)))))
    except (ValueError, OverflowError):
        raise ValueError(MOMENTS) from None


def _instant(at: datetime) -> tuple[float, float]:
    return at.timestamp(), at.timestamp()


def _day(day: date) -> tuple[float, float]:
    begin, end = (datetime.combine(one, time()).timestamp() for one in (day, day + timedelta(days=1)))
    return begin, end - 1


def _time_option(at: int) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """Return a parser of times for an option; ``at``: 0 for the first second, 1 for the last."""

    def read(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
        try:
            return None if value is None else span_of(value, datetime.now())[at]  # noqa: DTZ005 - local time, as people say it
        except ValueError as error:
            raise click.BadParameter(f"found {value!r}, allowed is {error}", context, option) from None

    return read


# -- Columns -------------------------------------------------------------------------------------------------


class Kind(Enum):
    """Format of a column's values."""

    TEXT = auto()
    STATE = auto()
    TIME = auto()
    """Seconds since the epoch."""
    SECONDS = auto()
    BYTES = auto()
    SHARE = auto()
    """From 0 to 1."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a listing of jobs."""

    value: Callable[[JobReport], Any]
    """What it has of a job; None: nothing."""
    kind: Kind = Kind.TEXT


COLUMNS = {
    "id": Column(lambda job: job.id),
    "name": Column(lambda job: job.name),
    "user": Column(lambda job: job.user),
    "state": Column(lambda job: job.state, Kind.STATE),
    "processors": Column(lambda job: sum(one.processors * one.slot.threads for one in job.components)),
    "clusters": Column(lambda job: _joined(one.cluster for one in job.components)),
    "hosts": Column(lambda job: _joined(host for one in job.components for host in one.hosts)),
    "submitted": Column(lambda job: job.submitted_at, Kind.TIME),
    "started": Column(lambda job: job.launched_at, Kind.TIME),
    "ended": Column(lambda job: job.finished_at, Kind.TIME),
    "waited": Column(waiting_time, Kind.SECONDS),
    "ran": Column(run_time, Kind.SECONDS),
    "walltime": Column(lambda job: float(job.walltime), Kind.SECONDS),
    "tries": Column(lambda job: job.tries),
    "exit": Column(lambda job: None if job.outcome is None else job.outcome.exit_code),
    "why": Column(lambda job: job.explanation if job.outcome is None else job.outcome.detail),
    "used": Column(lambda job: _of_usage(job, "used_seconds"), Kind.SECONDS),
    "held": Column(lambda job: _of_usage(job, "held_seconds"), Kind.SECONDS),
    "share": Column(lambda job: _of_usage(job, "share"), Kind.SHARE),
    "memory": Column(lambda job: _of_usage(job, "memory_bytes"), Kind.BYTES),
    "command": Column(lambda job: "; ".join(dict.fromkeys(" ".join(one.command) for one in job.components))),
    "output": Column(lambda job: job.output_directory),
}
NOW_COLUMNS = ("id", "name", "state", "processors", "clusters", "waited", "ran", "exit")
"""Of jobs as they are now."""
PAST_COLUMNS = ("id", "name", "state", "processors", "clusters", "submitted", "started", "ended", "ran", "exit")
"""Of jobs with their dates."""


def _joined(names: Iterable[str | None]) -> str:
    return ", ".join(sorted({name for name in names if name}))


def _of_usage(job: JobReport, name: str) -> Any:  # noqa: ANN401 - numbers of two types
    """Return a value of a job's usage by name; None when nothing was measured."""
    return None if job.usage is None or not job.usage.measured else getattr(job.usage, name)


def short_time(at: float, now: float) -> str:
    """Return a local time of day, with the date when it is not today."""
    then, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now)  # noqa: DTZ006 - local time, as people say it
    if then.date() == today.date():
        return f"{then:%H:%M:%S}"
    return f"{then.day} {then:%b %H:%M}" if then.year == today.year else f"{then.day} {then:%b %Y}"


def write_csv(reports: Iterable[JobReport], columns: Sequence[str], file: IO[str]) -> None:
    """Write a line for each job below a line of headings: times as ISO 8601 with the offset, durations in seconds."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for report in reports:
        writer.writerow([_plain(COLUMNS[name], report) for name in columns])


def _plain(column: Column, report: JobReport) -> object:
    value = column.value(report)
    if value is None:
        return ""
    if column.kind is Kind.TIME:
        return datetime.fromtimestamp(value).astimezone().isoformat(timespec="seconds")
    return round(value, 3) if column.kind in {Kind.SECONDS, Kind.SHARE} else value


# -- Options -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Options of ``koala status`` and ``history``: selection, number, columns and format of jobs."""

    selection: JobSelection
    columns: tuple[str, ...]
    """Empty: those of the command."""
    limit: int
    as_csv: bool
    as_json: bool

    @property
    def takes_all(self) -> bool:
        """Whether no condition selects jobs."""
        return self.selection == JobSelection()

    @property
    def is_plain(self) -> bool:
        """Whether neither conditions nor columns are given."""
        return self.takes_all and not self.columns and not self.as_csv


def _columns(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",")) if value else ()
    if unknown := [name for name in names if name not in COLUMNS]:
        raise click.BadParameter(f"found {', '.join(unknown)!r}, allowed is {', '.join(COLUMNS)}", context, option)
    return names


def _states(context: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[JobState, ...]:
    try:
        return tuple(JobState(name.strip()) for value in values for name in value.split(","))
    except ValueError:
        allowed = ", ".join(JobState)
        raise click.BadParameter(f"found {','.join(values)!r}, allowed is {allowed}", context, option) from None


LIMIT = 50


def listing_options(function: Callable[..., R]) -> Callable[..., R]:
    """Decorator: add the options of a listing; the command gets ``listing``."""

    @click.option("--since", metavar="TIME", callback=_time_option(0), help="Jobs that had not ended before.")
    @click.option("--until", metavar="TIME", callback=_time_option(1), help="Jobs that were submitted by then.")
    @click.option("--user", metavar="NAME", default="", help="Jobs of this user.")
    @click.option("--name", metavar="PATTERN", default="", help="Jobs of this name, with *, ? and [...] as in a shell.")
    @click.option(
        "--state", "states", multiple=True, metavar="STATE[,STATE]", callback=_states,
        help="Jobs in one of these states, such as running.",
    )  # fmt: skip
    @click.option("--cluster", "-c", metavar="NAME", default="", help="Jobs with a component on this cluster.")
    @click.option("--failed", is_flag=True, help="Jobs that failed, were lost, refused or not placed.")
    @click.option(
        "--search", "word", metavar="TEXT", default="",
        help="Jobs with this text in their name, command, hosts, ids of batch systems, or explanation.",
    )  # fmt: skip
    @click.option("--columns", metavar="NAMES", callback=_columns, help=f"Of {', '.join(COLUMNS)}.")
    @click.option(
        "--limit", "-n", type=click.IntRange(min=1), default=LIMIT, show_default=True,
        help="Most jobs shown, the latest ones.",
    )  # fmt: skip
    @click.option("--csv", "as_csv", is_flag=True, help="Print CSV for spreadsheets.")
    @json_option
    @functools.wraps(function)
    def with_listing(*args: object, **options: Any) -> R:  # noqa: ANN401 - as click has checked
        own = {name: options.pop(name) for name in ("columns", "limit", "as_csv", "as_json")}
        if own["as_csv"] and own["as_json"]:
            raise click.UsageError("--csv and --json are two forms of the same: use one of them")
        selection = JobSelection(**{one.name: options.pop(one.name) for one in fields(JobSelection)})
        return function(*args, listing=Listing(selection=selection, **own), **options)

    return with_listing
