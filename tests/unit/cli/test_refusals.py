# SPDX-License-Identifier: Apache-2.0
"""What the command line refuses: one message, the way out, the documented exit code, and never a traceback."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from koala_adapter import errors
from koala_adapter.cli.koala import koala
from koala_adapter.cli.manual import HELP_TEXT
from koala_adapter.cli.session import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED
from koala_adapter.errors import EXIT_CONFIGURATION, EXIT_SERVICE

if TYPE_CHECKING:
    from click.testing import Result

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
    """Give a valid site file."""
    path = tmp_path / "site.toml"
    path.write_text(SITE, encoding="utf-8")
    return path


@pytest.fixture
def job(tmp_path: Path) -> str:
    """Give a valid job file."""
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return str(path)


def invoke(*arguments: object) -> Result:
    """Run one command inside this process; nothing may come out of it but an exit code."""
    result = CliRunner().invoke(koala, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


@pytest.mark.parametrize("name", koala.commands)
def test_every_command_explains_itself_with_an_example(name: str) -> None:
    """The help of each command says what it does, and shows how it is typed."""
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert f"  koala {name}" in result.output or f"koala --site /etc/koala/site.toml {name}" in result.output


@pytest.mark.parametrize("name", ["run", "submit", "status", "cancel", "explain", "plan", "script", "clusters"])
def test_what_reports_can_do_so_as_json(name: str) -> None:
    """Everything that reports has --json."""
    assert "--json" in invoke(name, "--help").output


def test_the_manual_has_every_command_and_every_exit_code() -> None:
    """docs/cli.md has a place for each help text, and docs/failures.md a line for each exit code."""
    docs = Path(__file__).parents[3] / "docs"
    manual, failures = ((docs / name).read_text(encoding="utf-8") for name in ("cli.md", "failures.md"))
    assert {"koala", *(f"koala {name}" for name in koala.commands)} <= set(HELP_TEXT.findall(manual))
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", failures, re.MULTILINE)}
    ours = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert documented == ours | {0, 1, 2, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE}


@pytest.mark.parametrize("arguments", [["--nonsense"], ["dance"], ["run"], ["logs"], ["script", "job.toml"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    """Unknown options and commands, and missing arguments, are wrong usage."""
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.output


def test_site_file_that_is_not_there(tmp_path: Path, job: str) -> None:
    """A site file that was named must be there."""
    result = invoke("--site", tmp_path / "none.toml", "run", job)
    assert result.exit_code == EXIT_CONFIGURATION
    assert "none.toml: there is no such site file (given on the command line)" in result.output


def test_no_site_file_at_all(job: str) -> None:
    """Where it was looked for is said, and that the demo needs none."""
    result = invoke("run", job)
    assert result.exit_code == EXIT_CONFIGURATION
    assert "koala demo" in result.output


def test_faulty_job_file(site: Path, tmp_path: Path) -> None:
    """File, line and key of a fault are named."""
    faulty = tmp_path / "faulty.toml"
    faulty.write_text(JOB.replace("walltime", "waltime"), encoding="utf-8")
    result = invoke("--site", site, "--state", tmp_path / "s", "run", faulty)
    assert result.exit_code == EXIT_CONFIGURATION
    assert "faulty.toml" in result.output
    assert "walltime" in result.output


def test_unknown_cluster_of_a_script(site: Path, tmp_path: Path, job: str) -> None:
    """The clusters that there are, are named."""
    result = invoke("--site", site, "--state", tmp_path / "s", "script", job, "--cluster", "there")
    assert result.exit_code == EXIT_CONFIGURATION
    assert "no cluster 'there'; there are: here" in result.output


@pytest.mark.parametrize("command", [["status"], ["explain", "1"], ["logs", "1"]])
def test_asking_where_no_service_ever_ran(tmp_path: Path, command: list[str]) -> None:
    """There is no journal to read either; nothing is created by asking."""
    result = invoke("--state", tmp_path / "s", *command)
    assert result.exit_code == EXIT_SERVICE
    assert "and none ever has" in result.output
    assert not (tmp_path / "s").exists()


def test_cancelling_without_a_service(tmp_path: Path) -> None:
    """Cancelling needs a service, and the message says how to start one."""
    result = invoke("--state", tmp_path / "s", "cancel", "1")
    assert result.exit_code == EXIT_SERVICE
    assert "koala serve" in result.output


def test_state_directory_that_is_a_file(site: Path, tmp_path: Path, job: str) -> None:
    """Refused, with the option that names another one."""
    (tmp_path / "s").touch()
    result = invoke("--site", site, "--state", tmp_path / "s", "run", job)
    assert result.exit_code == EXIT_CONFIGURATION
    assert "it is no directory" in result.output
    assert "--state" in result.output


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


def test_state_directory_with_too_long_a_path(site: Path, tmp_path: Path, job: str) -> None:
    """A Unix socket would not fit: the way out is a shorter one."""
    result = invoke("--site", site, "--state", tmp_path / ("x" * 100), "run", job)
    assert result.exit_code == EXIT_CONFIGURATION
    assert "too long for a Unix socket" in result.output
    assert "--state" in result.output


def test_damaged_journal(tmp_path: Path) -> None:
    """A journal that is none is named."""
    state = tmp_path / "s"
    state.mkdir(mode=0o700)
    (state / "journal.sqlite").write_bytes(b"this is no database, and longer than a header of one would be" * 20)
    result = invoke("--state", state, "status")
    assert result.exit_code == EXIT_SERVICE
    assert "journal.sqlite" in result.output


@pytest.mark.parametrize("command", [["status", "-n", "0"], ["status", "-n", "-3"], ["negotiations", "-n", "0"]])
def test_no_number_of_jobs_means_all(tmp_path: Path, command: list[str]) -> None:
    """A limit is a number from 1."""
    done = CliRunner().invoke(koala, ["--state", str(tmp_path), *command])
    assert done.exit_code == 2
    assert "x>=1" in done.stderr


def test_a_program_that_is_taken_for_a_job_file_is_told_so(site: Path, tmp_path: Path) -> None:
    """With the command that runs it."""
    done = CliRunner().invoke(koala, ["--site", str(site), "--state", str(tmp_path / "s"), "run", "hostname"])
    assert done.exit_code == EXIT_CONFIGURATION
    assert "koala run -n 1 -- hostname" in done.stderr


def test_a_walltime_of_digits_alone_is_not_advised_again(site: Path, tmp_path: Path) -> None:
    """The advice can be typed."""
    words = ["run", "-t", "10", "--", "true"]
    done = CliRunner().invoke(koala, ["--site", str(site), "--state", str(tmp_path / "s"), *words])
    assert done.exit_code == EXIT_CONFIGURATION
    assert 'write "10s" for seconds or "10m" for minutes' in done.stderr
