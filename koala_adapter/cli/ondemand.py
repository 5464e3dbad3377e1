# SPDX-License-Identifier: Apache-2.0
"""A group of commands whose modules are imported when one of them is called, and not to list or complete them."""

from __future__ import annotations

from importlib import import_module

import click


class OnDemandCommand(click.Command):
    """Stands for a command in listings and completions: has its name and its first sentence, and nothing else."""

    def __init__(self, name: str, module: str, sentence: str) -> None:
        """``module`` has the command ``name``, whose help text begins with ``sentence``."""
        super().__init__(name, help=sentence)
        self._module = module

    def load(self) -> click.Command:
        """Import the module and return the command itself."""
        command: click.Command = getattr(import_module(self._module), str(self.name))
        as_written(command)
        return command


class OnDemandGroup(click.Group):
    """Lists its commands in the order in which they were added, and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature of click
        """Return the names of the commands."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name and command that the arguments begin with, and what follows. Raises click's UsageError."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, OnDemandCommand) else command, rest


def as_written(command: click.Command) -> None:
    """Have click leave alone the paragraphs of a help text that are marked so, as a raw docstring marks them."""
    command.help = (command.help or "").replace("\\b\n", "\b\n")
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        as_written(inner)
