# SPDX-License-Identifier: Apache-2.0
"""Notices of jobs by a command, a webhook and a mail."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
import structlog

from koala_adapter.config.sitefile import NotifyConfig
from koala_adapter.model import EndReason, Job, Notified
from koala_adapter.outcome import JobOutcome, JobState
from koala_adapter.service import notices as module
from koala_adapter.service.notices import Notices
from tests.unit.scheduler.scheduler_site import job

WELL = JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0)
ILL = JobOutcome(state=JobState.FAILED, reason=EndReason.EXITED, exit_code=3, detail="rank 0: exit status 3")


def wanting(*events: Notified) -> Job:
    return replace(job("7", 1), notify=events)


def keeping(path: Path) -> tuple[str, ...]:
    """Return a command that appends its standard input to a file, as one line."""
    program = f"import sys; open({str(path)!r}, 'a').write(sys.stdin.read() + chr(10))"
    return (sys.executable, "-c", program)


async def told(config: NotifyConfig, *happened: tuple[Job, JobOutcome | None]) -> None:
    """Tell what has happened to jobs, and end the service."""
    notices = Notices(cast("Any", SimpleNamespace(site=SimpleNamespace(notify=config))))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notices.run)
        for one, outcome in happened:
            if outcome is None:
                notices.started(one)
            else:
                notices.ended(one, outcome)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("wanted", "outcome", "events"),
    [
        ((Notified.START, Notified.END), WELL, ["start", "end"]),
        ((Notified.END, Notified.FAIL), ILL, ["end"]),
        ((Notified.FAIL,), ILL, ["fail"]),
        ((Notified.FAIL,), WELL, []),
        ((), ILL, []),
    ],
)
async def test_a_command_gets_what_a_job_wants(
    wanted: tuple[Notified, ...], outcome: JobOutcome, events: list[str], tmp_path: Path
) -> None:
    """All of it, although the service ends at once."""
    (path := tmp_path / "told").touch()
    one = wanting(*wanted)
    await told(NotifyConfig(command=keeping(path)), (one, None), (one, outcome))
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(document["event"] for document in documents) == sorted(events)
    for document in documents:
        assert (document["id"], document["name"], document["user"]) == ("7", "job 7", "alice")
        if document["event"] != "start":
            assert (document["state"], document["exit_code"]) == (outcome.state.value, outcome.exit_code)


@contextmanager
def web_server(received: list[Any]) -> Iterator[str]:
    """Give the address of a server that keeps what is posted to it, as JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook"
        server.shutdown()
        thread.join()


async def test_a_webhook_gets_the_same_with_a_line_for_people() -> None:
    received: list[Any] = []
    with web_server(received) as address:
        one = wanting(Notified.START, Notified.END)
        await told(NotifyConfig(webhook=address), (one, None), (one, ILL))
    assert "koala job 7 (job 7) starts" in {document["text"] for document in received}
    (document,) = (document for document in received if document["event"] == "end")
    assert document["text"] == "koala job 7 (job 7) failed: rank 0: exit status 3"
    assert document["state"] == "failed"


async def test_a_mail_goes_by_sendmail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sendmail, sent = tmp_path / "sendmail", tmp_path / "sent"
    sendmail.write_text(f'#!/bin/sh\necho "$@" > {sent}\ncat >> {sent}\n')
    sendmail.chmod(0o755)
    monkeypatch.setattr(module, "SENDMAIL", str(sendmail))
    one = replace(wanting(Notified.END), name="a\nBcc: thief@example.org")
    await told(NotifyConfig(mail="me@example.org"), (one, ILL))
    lines = sent.read_text().splitlines()
    assert lines[:2] == ["-oi -t", "To: me@example.org"]
    assert not any(line.startswith("Bcc") for line in lines)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (NotifyConfig(command=("/nonexistent",)), "No such file"),
        (NotifyConfig(command=("/bin/sh", "-c", "echo no disk >&2; exit 4")), "status 4: no disk"),
        (NotifyConfig(command=("/bin/sleep", "1000")), "longer than"),
        (NotifyConfig(webhook="http://127.0.0.1:1/hook"), "refused"),
    ],
)
async def test_what_cannot_be_told_is_logged(config: NotifyConfig, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs nothing else, and does not keep the service."""
    monkeypatch.setattr(module, "PATIENCE", 0.5 if "longer" in said else 60.0)
    with structlog.testing.capture_logs() as logs:
        await told(config, (wanting(Notified.END), WELL))
    (entry,) = logs
    assert (entry["job"], entry["way"]) == ("7", "command" if config.command else "webhook")
    assert said in entry["trouble"]


async def test_too_many_notices_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    notices = Notices(cast("Any", SimpleNamespace()))
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            notices.ended(wanting(Notified.END), WELL)
    assert [entry["job"] for entry in logs] == ["7"]
