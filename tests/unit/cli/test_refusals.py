# SPDX-License-Identifier: Apache-2.0
"""Commands refuse what cannot be, in one message with a remedy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from koala_adapter import errors
from koala_adapter.api.statedirectory import JOURNAL_NAME
from koala_adapter.cli.innerservice import _logged_host
from koala_adapter.cli.koala import COMMAND_GROUP, OnDemandCommand, koala
from koala_adapter.cli.manual import HELP_TEXT
from koala_adapter.cli.session import EXIT_INTERRUPTED, Session, fail
from koala_adapter.cli.terminal import EXIT_BROKEN_PIPE
from koala_adapter.errors import EXIT_CONFIGURATION, EXIT_SERVICE
from koala_adapter.lrm import Capabilities, Lrm, PluginDefinition
from tests.imported import imported_packages
from tests.unit.service.test_service import NoSettings, Served

# -- What the command line refuses: one message, the way out, the documented exit code, and never a traceback.


SITE = """\
[[clusters]]
name = "here"
plugin = "local"
"""
JOB = """\
walltime = 60
[[components]]
command = ["true"]
processors = 1
"""
FOREIGN = 12345
"""A user id that is not ours."""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(SITE, encoding="utf-8")
    return path


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return str(path)


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(koala, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def called(name: str) -> click.Command:
    with koala.make_context("koala", [name], resilient_parsing=True) as context:
        command = koala.resolve_command(context, [name])[1]
    assert command is not None
    return command


@pytest.mark.parametrize("name", koala.commands)
def test_every_command_explains_itself_with_an_example(name: str) -> None:
    """The help of a command begins, in every width, with what the list of the commands says, and shows an example."""
    listed, real = koala.commands[name], called(name)
    assert (real.name, real.hidden) == (name, False)
    assert [w for w in range(20, 120, 9) if listed.get_short_help_str(w) != real.get_short_help_str(w)] == []
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert f"  koala {name}" in result.output or f"koala --site /etc/koala/site.toml {name}" in result.output


def test_the_manual_has_every_command_and_every_exit_code() -> None:
    """docs/cli.md has a place for each help text, and docs/failures.md a line for each exit code."""
    docs = Path(__file__).parents[3] / "docs"
    manual, failures = ((docs / name).read_text(encoding="utf-8") for name in ("cli.md", "failures.md"))
    assert {"koala", *(f"koala {name}" for name in koala.commands)} <= set(HELP_TEXT.findall(manual))
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", failures, re.MULTILINE)}
    ours = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert documented == ours | {0, 1, 2, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("--site none.toml run job.toml", 245, ["none.toml: there is no such site file (given on the command line)"]),
        ("run job.toml", 245, ["koala demo"]),
        ("--site site.toml --state s run faulty.toml", 245, ["faulty.toml", "walltime"]),
        ("--site site.toml --state s script job.toml --cluster b", 245, ["no cluster 'b'; there are: here"]),
        ("--state s cancel 1", 246, ["koala serve"]),
        ("--site site.toml --state job.toml run job.toml", 245, ["it is no directory", "--state"]),
        (f"--site site.toml --state {'x' * 100} run job.toml", 245, ["too long for a Unix socket", "--state"]),
        ("--state damaged status", 246, ["journal.sqlite"]),
        ("--site site.toml --state s run hostname", 245, ["koala run -n 1 -- hostname"]),
        ("--site site.toml --state s run -t 10 -- true", 245, ['write "10s" for seconds or "10m" for minutes']),
        ("run --split -C beta -- true", 2, ["--split is for several clusters, and --cluster names one"]),
        ("--state s status -n 0", 2, ["x>=1"]),
        ("--state s negotiations -n 0", 2, ["x>=1"]),
        ("--nonsense", 2, ["Usage:", "No such option"]),
        ("dance", 2, ["Usage:", "No such command 'dance'"]),
        ("logs", 2, ["Usage:", "Missing argument"]),
        ("script job.toml", 2, ["Usage:", "Missing option"]),
    ],
)
@pytest.mark.usefixtures("site", "job")
def test_what_cannot_be_is_refused_with_the_way_out(tmp_path: Path, arguments: str, code: int, said: list[str]) -> None:
    (tmp_path / "faulty.toml").write_text(JOB.replace("walltime", "waltime"), encoding="utf-8")
    (tmp_path / "damaged").mkdir(mode=0o700)
    (tmp_path / "damaged" / "journal.sqlite").write_bytes(b"this is no database, and longer than its header is" * 20)
    here = {"site.toml", "job.toml", "none.toml", "faulty.toml", "s", "damaged", "x" * 100}
    result = invoke(*(tmp_path / one if one in here else one for one in arguments.split()))
    assert result.exit_code == code
    assert [one for one in said if one not in result.stderr] == []


@pytest.mark.parametrize("command", [["status"], ["status", "--watch"], ["explain", "1"], ["logs", "1"]])
def test_asking_where_no_service_ever_ran(tmp_path: Path, command: list[str]) -> None:
    """There is no journal to read either; nothing is created by asking."""
    result = invoke("--state", tmp_path / "s", *command)
    assert result.exit_code == EXIT_SERVICE
    assert "and none ever has" in result.output
    assert not (tmp_path / "s").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("command", [["status"], ["cancel", "1"], ["serve"], ["reap"]])
def test_state_directory_of_somebody_else(site: Path, tmp_path: Path, command: list[str]) -> None:
    """Not even root works in a state directory of another user: its files would become root's."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, FOREIGN, FOREIGN)
    result = invoke("--site", site, "--state", theirs, *command)
    assert result.exit_code == EXIT_CONFIGURATION
    assert f"it belongs to user {FOREIGN}, not to you" in result.output


# -- A defect of koala is one sentence for a person, and its cause is always in the log.


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


def test_an_interrupted_import_of_a_command_ends_as_an_interrupted_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import takes longer than many commands do."""

    def interrupted(_: OnDemandCommand) -> click.Command:
        raise KeyboardInterrupt

    monkeypatch.setattr(OnDemandCommand, "load", interrupted)
    done = CliRunner().invoke(koala, ["status"])
    assert (done.exit_code, done.output) == (EXIT_INTERRUPTED, "")


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("session.console.print('one line')", 141),
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


# -- Commands are imported when they are called, and are listed and completed as if they had been before.


LATE = """\
import sys, types

class WithoutService:
    def __init__(self, *_):
        import structlog
        structlog.get_logger().info("a thing that is logged")
        sys.exit(0)

name = "koala_adapter.api.offline"
sys.modules[name] = types.ModuleType(name)
sys.modules[name].WithoutService = WithoutService
from koala_adapter.cli.koala import koala
"""
"""A program in whose ``koala status`` what reads the journal logs a line, and is not imported before."""


def test_help_groups_the_commands_by_what_they_are_for() -> None:
    """Each command stands in one section with its whole first sentence; the sections are in the order of use."""
    text = CliRunner().invoke(koala, ["--help"], terminal_width=60).stdout
    _, *sections = re.split(r"^(Run and watch|Set up and check|Administer|Study|Program):$", text, flags=re.MULTILINE)
    assert sections[::2] == ["Run and watch", "Set up and check", "Administer", "Study", "Program"]
    listed = [re.findall(r"^  (\w+) ", section, re.MULTILINE) for section in sections[1::2]]
    assert [names[0] for names in listed] == ["run", "demo", "serve", "simulate", "app"]
    assert Counter(name for names in listed for name in names) == Counter(list(koala.commands))
    words = " ".join(text.split())
    assert [name for name, command in koala.commands.items() if f"{name} {command.help}" not in words] == []


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_top_of_the_command_line_imports_click_alone(option: str) -> None:
    """Neither the list of the commands nor the version waits for what the commands need."""
    found = imported_packages(["-m", "koala_adapter.cli", option], os.environ)
    assert found == {"click", "koala_adapter"}


def test_command_of_another_distribution_is_found_by_its_entry_point() -> None:
    """``koala experiment`` is the group that koala-experiments names."""
    (entry_point,) = metadata.entry_points(group=COMMAND_GROUP, name="experiment")
    assert called("experiment") is entry_point.load()


@pytest.mark.parametrize("words", [[], ["list"], ["run", "koala-pwa", "--seeds", "3"]])
def test_command_that_is_not_installed_says_where_it_is(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever follows its name, the answer is one sentence with the way out, and no traceback."""
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    result = CliRunner().invoke(koala, ["experiment", *words])
    assert result.exit_code == EXIT_CONFIGURATION
    assert "which is not installed" in result.stderr
    assert "plugins/koala-experiments" in result.stderr


@pytest.mark.parametrize("verbose", [False, True])
def test_what_a_command_imports_late_logs_as_the_options_say(tmp_path: Path, *, verbose: bool) -> None:
    """Not among the results, and only if asked for."""
    (tmp_path / JOURNAL_NAME).touch()
    program = f"{LATE}koala({['--verbose'] * verbose + ['--state', str(tmp_path), 'status']!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""
    assert ("a thing that is logged" in done.stderr) == verbose
