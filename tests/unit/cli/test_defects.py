# SPDX-License-Identifier: Apache-2.0
"""A defect of koala is one sentence for a person, and its cause is always in the log."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest
from structlog.testing import capture_logs

from koala_adapter.cli.innerservice import _logged_host
from koala_adapter.cli.session import Session, fail
from koala_adapter.lrm import Capabilities, Lrm, PluginDefinition
from tests.unit.service.test_service import NoSettings, Served

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("logs", [True, False])
def test_the_cause_is_told_out_of_its_groups(capsys: pytest.CaptureFixture[str], logs: bool) -> None:  # noqa: FBT001
    """Where the command logs on standard error, as a service does, the traceback is there, too."""
    error = ExceptionGroup("unhandled errors in a TaskGroup", [ExceptionGroup("and again", [ValueError("the cause")])])
    session = Session(site_option=None, state_option=None, log_shown=logs)
    with click.Context(click.Command("serve"), obj=session), pytest.raises(SystemExit):
        fail(error)
    said = capsys.readouterr().err
    assert "a defect of koala itself: ValueError: the cause" in " ".join(said.split())
    assert ("unhandled errors in a TaskGroup" in said) is logs


@pytest.mark.anyio
async def test_a_service_inside_a_command_logs_its_end(tmp_path: Path) -> None:
    """The person has one sentence; the log has the traceback."""

    def failing(_context: object, _settings: object) -> Lrm:
        raise RuntimeError("a defect of the plugin")

    served = Served(tmp_path)
    site = served.site
    plugin = PluginDefinition(
        name="scripted", summary="", settings=NoSettings, capabilities=Capabilities(), factory=failing
    )
    with capture_logs() as logs, pytest.raises(RuntimeError):
        await _logged_host(site, {"scripted": plugin}, served.directory)
    assert [type(one["exc_info"]) for one in logs if "exc_info" in one] == [RuntimeError]


PRINTING = """
import anyio, click, signal
from koala_adapter.cli.session import Session, command_body
session = Session(site_option=None, state_option=None)

async def in_group(act):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(act)

async def echo():
    click.echo("one line")
    import sys; sys.stdout.flush()

async def draw():
    session.console.print("one line")

def interrupted():
    raise BaseExceptionGroup("tasks", [KeyboardInterrupt()])

async def misused():
    raise click.UsageError("not so")

@click.command()
@command_body
def command():
    DO

command()
"""


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("session.console.print('one line')", 141),
        ("anyio.run(in_group, draw)", 141),
        ("anyio.run(in_group, echo)", 141),
        ("interrupted()", 130),
        ("anyio.run(in_group, misused)", 2),
    ],
)
def test_a_command_whose_reader_has_gone_ends_quietly(statement: str, code: int) -> None:
    """The end of a command has its exit code also inside task groups, and never a traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", PRINTING.replace("DO", statement)],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    assert "defect" not in ended.stderr
