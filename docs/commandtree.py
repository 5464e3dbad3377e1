# SPDX-License-Identifier: Apache-2.0
"""The commands of ``koala`` as plain values: what manual pages are made from."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from koala_adapter.cli.koala import koala

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a command."""

    names: tuple[str, ...]
    """All spellings, such as ``--processors``, ``-n``, ``--no-x``."""
    metavar: str
    """What stands for its value; empty for a flag."""
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command, or group of commands."""

    path: tuple[str, ...]
    """``("koala", "wiki", "serve")``."""
    usage: str
    """What follows the path on a command line."""
    text: str
    """Its help, with ``\\b`` before paragraphs that are to be left as they are."""
    options: tuple[Option, ...]
    commands: tuple[tuple[str, str], ...]
    """Name and first sentence of each command of a group."""

    @property
    def name(self) -> str:
        """How it is called."""
        return " ".join(self.path)

    @property
    def sentence(self) -> str:
        """The first sentence of its help, without the full stop."""
        return " ".join(self.text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".")


def command_tree() -> tuple[Command, ...]:
    """Return ``koala`` and all of its commands, each group before its members."""
    return tuple(_walk(koala, "koala", None))


def _walk(command: click.Command, name: str, parent: click.Context | None) -> Iterator[Command]:
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    path = tuple(context.command_path.split())
    members: list[tuple[str, click.Command]] = []
    if isinstance(command, click.Group):
        for member in command.list_commands(context):
            found = command.resolve_command(context, [member])[1]
            if found is not None and not found.hidden:
                members.append((member, found))
    parameters = command.get_params(context)
    yield Command(
        path=path,
        usage=" ".join(command.collect_usage_pieces(context)),
        text=inspect.cleandoc(command.help or ""),
        options=tuple(_option(one, context) for one in parameters if isinstance(one, click.Option) and not one.hidden),
        commands=tuple((member, found.get_short_help_str(limit=200)) for member, found in members),
    )
    for member, found in members:
        yield from _walk(found, member, context)


def _option(option: click.Option, context: click.Context) -> Option:
    record = option.get_help_record(context)
    flag = option.is_flag or option.count
    return Option(
        names=(*option.opts, *option.secondary_opts),
        metavar="" if flag else option.make_metavar(context),
        help=record[1] if record is not None else "",
    )
