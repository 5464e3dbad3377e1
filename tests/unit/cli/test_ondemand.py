# SPDX-License-Identifier: Apache-2.0
"""Commands are imported when they are called, and are listed and completed as if they had been before."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from importlib import metadata
from typing import TYPE_CHECKING

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from koala_adapter.cli.koala import COMMAND_GROUP, OnDemandCommand, koala
from koala_adapter.errors import EXIT_CONFIGURATION
from tests.imported import imported_packages

if TYPE_CHECKING:
    from pathlib import Path

LATE = """\
import sys, types

class WithoutService:
    def __init__(self, *_):
        import structlog
        structlog.get_logger().info("a thing that is logged")
        sys.exit(0)

name = "koala_adapter.python.withoutservice"
sys.modules[name] = types.ModuleType(name)
sys.modules[name].WithoutService = WithoutService
from koala_adapter.cli.koala import koala
"""
"""A program in whose ``koala status`` what reads the journal logs a line, and is not imported before."""


def called(name: str) -> click.Command:
    """Return a command as it is when it is called."""
    with koala.make_context("koala", [name], resilient_parsing=True) as context:
        command = koala.resolve_command(context, [name])[1]
    assert command is not None
    return command


@pytest.mark.parametrize("name", koala.commands)
def test_listed_sentence_is_the_first_of_the_help_text(name: str) -> None:
    """The list of the commands says of each, in every width, what its own help text says first."""
    listed, real = koala.commands[name], called(name)
    assert isinstance(listed, OnDemandCommand)
    assert (real.name, real.hidden) == (name, False)
    for width in range(20, 120):
        assert listed.get_short_help_str(width) == real.get_short_help_str(width)


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


@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [
        ([], "s", ["submit", "sweep", "script", "status", "serve", "schedule", "simulate", "schema"]),
        ([], "--si", ["--site"]),
        (["run"], "--q", ["--quiet"]),
        (["wiki"], "", ["ask", "serve"]),
        (["--state", "x", "wiki", "serve"], "--cl", ["--cluster"]),
    ],
)
def test_shell_completes(words: list[str], incomplete: str, expected: list[str]) -> None:
    """Commands, their options, and the commands of a group, after options of ``koala`` itself, too."""
    found = ShellComplete(koala, {}, "koala", "_KOALA_COMPLETE").get_completions(words, incomplete)
    assert [item.value for item in found] == expected


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


def test_unknown_command_is_refused() -> None:
    """As click refuses it, with what there is."""
    result = CliRunner().invoke(koala, ["stat"])
    assert result.exit_code == click.UsageError.exit_code
    assert "No such command 'stat'" in result.output


@pytest.mark.parametrize("verbose", [False, True])
def test_what_a_command_imports_late_logs_as_the_options_say(tmp_path: Path, *, verbose: bool) -> None:
    """Not among the results, and only if asked for."""
    program = f"{LATE}koala({['--verbose'] * verbose + ['--state', str(tmp_path), 'status']!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""
    assert ("a thing that is logged" in done.stderr) == verbose
