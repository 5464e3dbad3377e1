# SPDX-License-Identifier: Apache-2.0
"""``koala top``: clusters, jobs and what happens to them, on one screen that moves."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.live import Live

from koala_adapter.cli.session import command_body, pass_session
from koala_adapter.cli.topscreen import Snapshot, View, choose, screen
from koala_adapter.config.formatting import printable
from koala_adapter.errors import ConfigurationError, KoalaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console

    from koala_adapter.api.client import Client
    from koala_adapter.api.reports import JobReport
    from koala_adapter.cli.session import Session

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
    """Return what there is now. Raises ServiceUnavailableError."""
    return Snapshot(
        at=time.time(),
        clusters=tuple(client.clusters()),
        jobs=tuple(client.jobs(JOBS)),
        negotiations=tuple(client.negotiations(limit=NEGOTIATIONS)),
    )


class TopLoop:
    """Looks, draws, and does what keys say."""

    def __init__(self, client: Client, console: Console, live: Live, interval: float) -> None:
        """``interval``: seconds between two looks."""
        self._client = client
        self._console = console
        self._live = live
        self._interval = interval
        self._view = View()
        self._detail = ""
        """Key whose answer is shown below, as long as it is."""

    def run(self, snapshot: Snapshot) -> None:
        """Go on until the person wants no more."""
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
    """Return the lines of a text as wide as the screen."""
    import textwrap

    return [part for line in text.splitlines() for part in textwrap.wrap(line, max(1, width)) or [""]]


def output_of(report: JobReport) -> list[str]:
    """Return the last lines that the processes of a job, or the tasks of a sweep, wrote."""
    if report.sweep is not None and report.sweep.directory:
        return latest_output(Path(report.sweep.directory), sweep=True)
    return latest_output(Path(report.output_directory))


def latest_output(directory: Path, *, sweep: bool = False) -> list[str]:
    """Return the last lines below a directory, marked if they are of several files, the latest file last.

    Standard error is always marked. ``sweep``: the directory is that of a sweep.
    """
    written = _written(directory.glob("tasks/*/*" if sweep else "*/*"))[-LINES:]
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
    """Return the files of output in which there is something, with the time when it was written, the latest last."""
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
    """Have keys come one by one, unseen; the terminal is as before afterwards."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read_key(patience: float) -> str | None:
    """Return the next key, an arrow as its whole sequence, empty at the end of input; None: none came in time."""
    descriptor = sys.stdin.fileno()
    if not select.select([descriptor], [], [], patience)[0]:
        return None
    key = os.read(descriptor, 1).decode("latin-1")
    if key == "\x1b" and select.select([descriptor], [], [], 0.02)[0]:
        key += os.read(descriptor, 2).decode("latin-1")
    return key
