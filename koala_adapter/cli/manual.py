# SPDX-License-Identifier: Apache-2.0
"""``koala conf``, ``docs``, ``completion`` and ``app``: what comes with koala.

First pages of the manual as text and the shipped files, then the commands that print or copy them. They work wherever
koala is installed.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from koala_adapter.application.shipping import install
from koala_adapter.cli.koala import koala
from koala_adapter.cli.session import command_body
from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# -- Pages of the manual as text -----------------------------------------------------------------------------
# Files that a page includes and help texts of commands stand in it, as they do in the rendered manual.

INCLUSION = re.compile(
    r"^(?P<indent> *)```\{literalinclude\} (?P<path>\S+)\n(?P<options>(?: *:\w+:.*\n)*) *```$", re.MULTILINE
)
HELP_TEXT = re.compile(r"^<!-- help: ([\w -]+?) -->$", re.MULTILINE)
_OPTION = re.compile(r":(\w+): *(.*)")


def page_text(file: Path) -> str:
    """Return the text of a manual page with included files. Raises OSError when one is missing."""
    text = INCLUSION.sub(lambda found: _included(found, file.parent), file.read_text(encoding="utf-8"))
    return with_help_texts(text)


def with_help_texts(text: str) -> str:
    """Replace the marks in a page by help texts of commands, 80 columns wide."""
    return HELP_TEXT.sub(lambda found: _help_text(found[1].split()), text)


def _help_text(words: Sequence[str]) -> str:
    """Return the help text of a command as a code block; empty when its distribution is not installed."""
    command: click.Command = koala
    context = _help_context(command, "koala", None)
    for word in words[1:]:
        if not isinstance(command, click.Group):
            return ""
        command = command.resolve_command(context, [word])[1] or command
        context = _help_context(command, word, context)
    return f"```text\n{command.get_help(context)}\n```"


def _help_context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    """Return click's context of a command within its group, which has settings such as the names of --help."""
    settings = {**command.context_settings, "terminal_width": 80, "max_content_width": 80}
    return click.Context(command, info_name=name, parent=parent, **settings)


def _included(found: re.Match[str], directory: Path) -> str:
    options = dict(_OPTION.findall(found["options"]))
    text = (directory / found["path"]).read_text(encoding="utf-8")
    lines = text.splitlines()
    if "pyobject" in options:
        lines = _definition(text, options["pyobject"])
    if "lines" in options:
        first, _, last = options["lines"].partition("-")
        lines = lines[int(first) - 1 : int(last) if last else None]
    fenced = [f"```{options.get('language', 'text')}", *lines, "```"]
    return "\n".join(f"{found['indent']}{line}".rstrip() for line in fenced)


def _definition(text: str, name: str) -> list[str]:
    """Return the source lines of a top-level function of a program."""
    (node,) = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    return text.splitlines()[node.lineno - 1 : node.end_lineno]


# -- Shipped files -------------------------------------------------------------------------------------------
# Examples of what an administrator copies, and the pages of the manual. In a wheel they are below
# ``koala_adapter/shipped``; in a source tree they are where they are written.

PACKAGE = Path(__file__).parents[1]
COMMENT_MARKS = ("#", "--")


def shipped(kind: str, pattern: str) -> tuple[Path, ...]:
    """Return the installed files of a kind (``conf``, ``docs``) by name."""
    return tuple(sorted(file for file in _directory(kind).glob(pattern) if file.is_file()))


def _directory(kind: str) -> Path:
    directory = PACKAGE / "shipped" / kind
    return directory if directory.is_dir() else PACKAGE.parent / kind


def copy_examples(directory: Path) -> None:
    """Write the examples of the manual into a directory that is made for them.

    Raises ConfigurationError when there is something of that name, or it cannot be made.
    """
    try:
        shutil.copytree(
            _directory("examples"), directory, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache")
        )
    except FileExistsError as error:
        raise ConfigurationError(f"{directory} exists", hint="name a directory that is to be made") from error
    except (OSError, shutil.Error) as error:
        raise ConfigurationError(f"the examples cannot be written to {directory}: {error}") from error


def chosen(files: tuple[Path, ...], name: str, *, listed_by: str) -> Path:
    """Return an installed file by name, with or without ending. Raises ConfigurationError with all names."""
    for file in files:
        if name in {file.name, file.stem}:
            return file
    names = ", ".join(shown_name(file) for file in files)
    raise ConfigurationError(f"there is no {name!r}; there are: {names}", hint=f"`{listed_by}` lists them")


def shown_name(file: Path) -> str:
    """Return the name of a file as it is asked for, without the usual ending."""
    return file.stem if file.suffix in {".toml", ".md"} else file.name


def summary(file: Path) -> str:
    """Return the title of a file: its heading, or the first sentence of its comments."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return str(json.loads(text)["description"]).partition("; ")[0].rstrip(".")
    text = " ".join(_opening(text))
    return text.partition(". ")[0].rstrip(".:")


def _opening(text: str) -> Iterator[str]:
    """Return the first paragraph of comments that has words."""
    for line in text.splitlines():
        said = line.strip().lstrip("#-").strip().strip('"')
        if line.startswith(("#!", "#:schema", "# ruff")) or "SPDX-License" in line or not said:
            continue
        yield said
        if text.startswith("# ") and not text.startswith("# SPDX"):
            return  # a page, whose heading is all
        if said.endswith((".", ":")) or not line.startswith(COMMENT_MARKS):
            return


# -- Commands ``conf``, ``docs`` and ``completion`` ----------------------------------------------------------

SCHEMA_LINE = re.compile(r"^#:schema .*\n#?\n?")
"""By which an editor finds the schema in a source tree."""
SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


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
@click.argument("shell", type=click.Choice(list(SHELLS)))
@command_body
def completion(shell: str) -> None:
    r"""Print what completes commands and options in bash, zsh or fish.

    \b
    Examples:
      koala completion bash > ~/.local/share/bash-completion/completions/koala
      koala completion zsh > "${fpath[1]}/_koala"
      koala completion fish > ~/.config/fish/completions/koala.fish
    """
    command = click.get_current_context().find_root().command
    click.echo(SHELLS[shell](command, {}, "koala", "_KOALA_COMPLETE").source())


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


# -- Command ``app`` -----------------------------------------------------------------------------------------
# The library for programs that change their size while they run.


@click.command()
@click.option(
    "--install",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Write the library to this directory, which is made if need be.",
)
@command_body
def app(directory: Path) -> None:
    r"""Write the library for programs that change their size while they run, in Python and in C.

    Processes of a job with runner = "adaptive" find koala_app.py by themselves; programs in C are compiled with the
    other files. Files that koala has not written are not overwritten. See `koala docs adaptive`.

    \b
    Example:
      koala app --install ~/koala_app
      export PKG_CONFIG_PATH=~/koala_app
      cc -o heat heat.c $(pkg-config --variable=sources koala_app) $(pkg-config --cflags --libs koala_app)
    """
    for path in install(directory):
        click.echo(f"wrote {path}")
