# SPDX-License-Identifier: Apache-2.0
"""`koala status --watch`: told by the service, shown in place or in lines, ended by Ctrl-C in good order."""

from __future__ import annotations

import io
import os
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
from anyio.from_thread import start_blocking_portal
from click.testing import CliRunner
from rich.console import Console

from koala_adapter.api.client import Client
from koala_adapter.api.server import host
from koala_adapter.api.statedirectory import ownership
from koala_adapter.cli.display import Watched, until_interrupted
from koala_adapter.cli.koala import koala
from koala_adapter.errors import EXIT_CANCELLED, EXIT_REFUSED, EXIT_SERVICE
from koala_adapter.model import EndReason
from koala_adapter.outcome import JobOutcome, JobState
from tests.unit.api.jobreports import job_report
from tests.unit.scheduler.scheduler_site import component, job
from tests.unit.service.test_service import Served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from koala_adapter.api.server import Server
    from koala_adapter.cli.display import T

PATIENCE = 120.0
WAITS = job_report(id="7", state=JobState.WAITING)
RUNS = job_report(id="7", state=JobState.RUNNING)
OTHER = job_report(id="8", state=JobState.WAITING)
OVER = job_report(
    id="7",
    state=JobState.CANCELLED,
    outcome=JobOutcome(state=JobState.CANCELLED, reason=EndReason.CANCELLED, exit_code=EXIT_CANCELLED),
)


def told(*changes: T) -> Iterator[T]:
    """Yield what a service tells; then comes Ctrl-C."""
    yield from changes
    raise KeyboardInterrupt


def on_terminal(height: int = 25) -> Console:
    """Return a terminal."""
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=height, highlight=False)


def shown(console: Console) -> str:
    """Return what was written to a console."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_a_line_for_each_change() -> None:
    """What stays the same is not said again, whatever else changes."""
    console = Console(file=io.StringIO(), width=100)
    with Watched(console) as watched:
        until_interrupted(watched.show, told([], [WAITS], [WAITS, OTHER], [RUNS, OTHER], [RUNS, OTHER]))
    assert shown(console).splitlines() == ["no jobs", "job 7 waiting: ", "job 8 waiting: ", "job 7 running: "]


def test_on_a_terminal_the_table_is_refreshed_in_place() -> None:
    """The cursor goes up over what was shown before; the last table stays."""
    console = on_terminal()
    with Watched(console) as watched:
        until_interrupted(watched.show, told([WAITS], [RUNS]))
    written = shown(console)
    assert written.index("waiting") < written.index("\x1b[1A") < written.index("running")


def test_a_terminal_shows_the_latest_jobs_that_it_has_lines_for() -> None:
    """Not the first ones."""
    console = on_terminal(height=6)
    with Watched(console) as watched:
        watched.show([job_report(id=f"4{number}", name=f"name{number}") for number in range(9)])
    assert "name8" in shown(console)
    assert "name5" in shown(console)
    assert "name4" not in shown(console)


def test_a_narrow_terminal_shows_the_latest_jobs_too() -> None:
    """Where each job has several lines, fewer are shown, and the latest one is."""
    console = on_terminal(height=12)
    console.width = 40
    with Watched(console) as watched:
        watched.show([job_report(id=f"4{number}", name=f"name{number}") for number in range(9)])
    assert "name8" in shown(console)
    assert "name6" in shown(console)
    assert "name5" not in shown(console)


def test_one_job_in_detail() -> None:
    """On a terminal as `koala status ID` has it, elsewhere in lines."""
    console, plain = on_terminal(), Console(file=io.StringIO(), width=100)
    for one in (console, plain):
        with Watched(one) as watched:
            until_interrupted(watched.show_one, [RUNS, OVER])
    assert "handed back" in shown(console)
    assert shown(plain).splitlines() == ["job 7 running: ", "job 7 cancelled"]


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[tuple[Client, Server]]:
    """Give a client of a service that runs in a thread of this process, and its server."""
    served = Served(tmp_path)
    with ownership(served.directory), start_blocking_portal() as portal:
        future, server = portal.start_task(partial(host, served.site, served.plugins, served.directory))
        yield Client(served.directory), server
        portal.call(server.quiet)
        future.cancel()


def test_the_service_tells_of_each_change(hosted: tuple[Client, Server]) -> None:
    """What another command does is told by itself."""
    client, _ = hosted
    watch = client.watch_jobs()
    assert next(watch) == []
    first, second = (client.submit(job("0", component("x", 1))) for _ in range(2))
    assert any([one.id for one in latest] == [first, second] for latest in watch)
    client.cancel(first)
    assert any(latest[0].outcome is not None for latest in watch)


def test_who_watches_does_not_keep_a_service_from_ending(tmp_path: Path) -> None:
    """He is told that this was the last."""
    served = Served(tmp_path)
    with ownership(served.directory), start_blocking_portal() as portal:
        future, server = portal.start_task(partial(host, served.site, served.plugins, served.directory))
        watch = Client(served.directory).watch_jobs()
        assert next(watch) == []
        portal.call(partial(server.quiet, 0.0))
        assert list(watch) == [[]]
        portal.call(partial(server.quiet, PATIENCE))
        future.cancel()


def test_ctrl_c_ends_it_with_exit_code_0(hosted: tuple[Client, Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """It was what one wanted; what was shown stays."""
    client, _ = hosted
    id_ = client.submit(job("0", component("x", 1)))
    main, read = threading.get_ident(), []
    reader, writer = os.pipe()

    def interrupt() -> None:
        with os.fdopen(reader, encoding="utf-8") as lines:
            read.append(next(lines))
            signal.pthread_kill(main, signal.SIGINT)
            read.extend(lines)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with os.fdopen(writer, "w", encoding="utf-8") as output:
        monkeypatch.setattr("sys.stdout", output)
        with pytest.raises(SystemExit) as ended:
            koala(["--state", str(client.directory), "status", "--watch"])
    thread.join()
    assert ended.value.code == 0
    assert read[0].startswith(f"job {id_} ")


def test_where_no_service_ever_ran(tmp_path: Path) -> None:
    """There is no journal to show, and nothing to be waited for: that is said."""
    result = CliRunner().invoke(koala, ["--state", str(tmp_path / "none"), "status", "--watch"])
    assert result.exit_code == EXIT_SERVICE
    assert "and none ever has" in result.output


def test_a_job_that_there_is_not_and_one_document(hosted: tuple[Client, Server]) -> None:
    """Both are refused with the reason."""
    client, _ = hosted
    command = ["--state", str(client.directory), "status", "--watch"]
    result = CliRunner().invoke(koala, [*command, "99"])
    assert (result.exit_code, "no job '99'" in result.output) == (EXIT_REFUSED, True)
    result = CliRunner().invoke(koala, [*command, "--json"])
    assert "use one of them" in result.output
