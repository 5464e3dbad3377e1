# SPDX-License-Identifier: Apache-2.0
"""``koala conf``, ``docs``, ``schema`` and ``completion``: what comes with koala, wherever it is installed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koala_adapter.cli.manualpage import page_text
from koala_adapter.cli.session import command_body, pass_session
from koala_adapter.cli.shippedfiles import chosen, copy_examples, shipped, shown_name, summary

if TYPE_CHECKING:
    from koala_adapter.cli.session import Session

SCHEMA_LINE = re.compile(r"^#:schema .*\n#?\n?")
"""By which an editor finds the schema in a source tree."""
JSON_SHAPES = (
    "job-report",
    "job-list",
    "submitted",
    "submitted-files",
    "explanation",
    "local-explanation",
    "cluster-list",
    "plan",
    "scripts",
    "checks",
    "reaped",
    "cleaned",
    "queue-event",
    "shadow-report",
    "given-back",
    "negotiation-list",
    "negotiation-access",
    "negotiation-template",
    "simulation-list",
    "experiment-list",
    "experiment-result",
    "wiki-reply",
)
"""Names of what ``--json`` prints; what they stand for is imported when one of them is asked for."""
COMPLETIONS = {"bash": "koala.bash", "zsh": "_koala", "fish": "koala.fish"}


@click.command()
@click.argument("name", required=False)
@command_body
def conf(name: str | None) -> None:
    r"""Print an example of a site file, or what an administrator installs. Without NAME, list them.

    \b
    Examples:
      koala conf
      koala conf slurm > ~/.config/koala/site.toml
      koala conf job_submit.lua > /etc/slurm/job_submit.lua
    """
    _show("conf", "*", name, listed_by="koala conf")


@click.command()
@click.argument("name", required=False)
@click.option(
    "--examples",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the examples of which the pages speak into a new directory.",
)
@command_body
def docs(name: str | None, examples: Path | None) -> None:
    r"""Show a page of the manual. Without NAME, list the pages.

    \b
    Examples:
      koala docs
      koala docs site-file
      koala docs --examples examples
    """
    if examples is not None:
        copy_examples(examples)
        click.echo(f"wrote the examples to {examples}; begin with {examples / 'README.md'}")
        return
    _show("docs", "*.md", name, listed_by="koala docs")


@click.command()
@click.argument("kind", metavar="NAME", type=click.Choice(["site", "job", *JSON_SHAPES]))
@pass_session
@command_body
def schema(session: Session, kind: str) -> None:
    r"""Print the JSON Schema of site files, of job files, or of what a command prints with --json.

    NAME is site, job, or a name in `koala docs json`. The first two are for editors that check and complete TOML. That
    of site files has the settings of all plugins that are
    installed. An editor finds it by a first line such as
    "#:schema site.schema.json".

    \b
    Example:
      koala schema job > job.schema.json
    """
    from koala_adapter.config.schema import job_schema, schema_text, site_schema

    if kind in JSON_SHAPES:
        from koala_adapter.cli.jsonshapes import shape_schema

        click.echo(schema_text(shape_schema(kind)), nl=False)
        return
    click.echo(schema_text(site_schema(session.plugins) if kind == "site" else job_schema()), nl=False)


@click.command()
@click.argument("shell", type=click.Choice(list(COMPLETIONS)))
@command_body
def completion(shell: str) -> None:
    r"""Print what completes commands and options in bash, zsh or fish.

    \b
    Examples:
      koala completion bash > ~/.local/share/bash-completion/completions/koala
      koala completion zsh > "${fpath[1]}/_koala"
      koala completion fish > ~/.config/fish/completions/koala.fish
    """
    file = Path(__file__).parent / "completions" / COMPLETIONS[shell]
    click.echo(file.read_text(encoding="utf-8"), nl=False)


def _show(kind: str, pattern: str, name: str | None, *, listed_by: str) -> None:
    files = shipped(kind, pattern)
    if name is not None:
        text = SCHEMA_LINE.sub("", page_text(chosen(files, name, listed_by=listed_by)))
        if kind == "docs" and sys.stdout.isatty():
            click.echo_via_pager(text)
        else:
            click.echo(text, nl=False)
        return
    width = max(len(shown_name(file)) for file in files)
    for file in files:
        click.echo(f"{shown_name(file):<{width}}  {summary(file)}")
