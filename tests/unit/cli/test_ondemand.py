# SPDX-License-Identifier: Apache-2.0
"""Commands are imported when they are called, and are listed and completed as if they had been before."""

from __future__ import annotations

import os

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from koala_adapter.cli.koala import koala
from koala_adapter.cli.ondemand import OnDemandCommand
from tests.imported import imported_packages


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


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_top_of_the_command_line_imports_click_alone(option: str) -> None:
    """Neither the list of the commands nor the version waits for what the commands need."""
    found = imported_packages(["-m", "koala_adapter.cli", option], os.environ)
    assert found == {"click", "koala_adapter"}


@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [
        ([], "s", ["submit", "status", "script", "serve", "schedule", "simulate"]),
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


def test_unknown_command_is_refused() -> None:
    """As click refuses it, with what there is."""
    result = CliRunner().invoke(koala, ["stat"])
    assert result.exit_code == click.UsageError.exit_code
    assert "No such command 'stat'" in result.output
