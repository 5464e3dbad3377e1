# SPDX-License-Identifier: Apache-2.0
"""The group of commands ``koala``: options common to all commands, and the commands by name.

First the group class that imports a command when it is called, then the group itself.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from koala_adapter import __version__
from koala_adapter.cli.session import EXIT_INTERRUPTED, Session
from koala_adapter.cli.terminal import hangup_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType


# -- Commands imported on demand -----------------------------------------------------------------------------
# The module of a command is imported when the command is called, not to list or complete its name.

COMMAND_GROUP = "koala_adapter.commands"


class OnDemandCommand(click.Command):
    """Placeholder of a command in listings, with name and first sentence only; imports the command when called."""

    def __init__(self, name: str, module: str, sentence: str) -> None:
        """``module`` has the command ``name``, whose help text begins with ``sentence``."""
        super().__init__(name, help=sentence)
        self._module = module

    def load(self) -> click.Command:
        """Import the module and return the command itself."""
        command: click.Command = getattr(import_module(self._module), str(self.name))
        as_written(command)
        return command


class InstalledCommand(OnDemandCommand):
    """Placeholder of a command of another distribution, found by entry points of ``koala_adapter.commands``."""

    def load(self) -> click.Command:
        """Import the command; without its distribution, return a command that says how to install it."""
        from importlib import metadata

        for entry_point in metadata.entry_points(group=COMMAND_GROUP, name=str(self.name)):
            command: click.Command = entry_point.load()
            as_written(command)
            return command
        return super().load()


class OnDemandGroup(click.Group):
    """Group that lists its commands by section and imports only the one that is called."""

    sections: Mapping[str, Sequence[str]]
    """Names of the commands by the title of their section."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature of click
        """Return the names of the commands."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - the signature of click
        """Write a list of the commands for each section, with names in one column throughout."""
        width = max(map(len, self.commands))
        for title, names in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), self.commands[name].help or "") for name in names])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - that of click
        """Import and run the command; Ctrl-C during the import ends it as later, where click would exit with 1."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, imported command and remaining arguments. Raises click's UsageError."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, OnDemandCommand) else command, rest


def as_written(command: click.Command) -> None:
    """Mark paragraphs of help texts that click must not wrap."""
    command.help = (command.help or "").replace("\\b\n", "\b\n")
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        as_written(inner)


# -- The group and its commands ------------------------------------------------------------------------------

PATH = click.Path(path_type=Path)
SECTIONS = {
    "Run and watch": (
        ("run", "run", "Run a job to its end and exit with its exit code."),
        ("submit", "run", "Hand a job to the service, and start one if none runs."),
        ("sweep", "run", "Run a program with many parameters, each combination once."),
        ("plan", "plan", "Show where a job would go now."),
        ("script", "plan", "Show exactly what would be submitted to a cluster."),
        ("status", "jobs", "Show the jobs, or one job in detail."),
        (
            "history",
            "jobs",
            "Show all jobs that are kept, with their dates.",
        ),
        ("top", "top", "Watch clusters, jobs, changes of size and negotiations on one screen."),
        ("explain", "jobs", "Say why a job waits, what it holds, and what would let it start."),
        ("results", "results", "Show what became of each task of a sweep or an array, as far as they are over."),
        ("logs", "results", "Print what the processes of a job wrote."),
        ("resize", "jobs", "Bring a running malleable job to another size."),
        ("cancel", "jobs", "End a job, or several, and everything of it in all batch systems."),
        ("clusters", "jobs", "Show the clusters: what is idle, what we hold, how often we ask."),
        ("report", "pages", "Draw what a job, or all jobs of some time, had where and when."),
        ("web", "pages", "Show clusters, jobs and their history in a browser, live."),
        ("negotiations", "negotiation", "Show who offered what when in the negotiations of jobs, and how each ended."),
    ),
    "Set up and check": (
        ("demo", "demo", "See it work: one job on three clusters at once, in ten seconds."),
        (
            "init",
            "site",
            "Find the batch systems of this host and of other sites, and write a site file that uses them.",
        ),
        ("login", "login", "Log in to a site in this terminal, for koala to use it."),
        ("check", "site", "Check this host, the site file, each site that is reached by ssh, and each cluster."),
        ("conf", "manual", "Print an example of a site file, or what an administrator installs."),
        ("docs", "manual", "Show a page of the manual."),
        ("completion", "manual", "Print what completes commands and options in bash, zsh or fish."),
    ),
    "Administer": (
        ("serve", "serve", "Run the service in the foreground until it is stopped."),
        ("schedule", "schedule", "Schedule one cluster's whole queue in the place of its own scheduler."),
        ("wiki", "wiki", "Let a scheduler that speaks WIKI (Maui, Moab) own the order of a batch system's jobs."),
        ("metrics", "jobs", "Print what a service counts, in the form of OpenMetrics."),
        ("reap", "site", "Find placeholders that no job owns any more, and cancel them."),
        ("clean", "site", "Remove what is left of jobs that ended long ago."),
    ),
    "Study": (
        ("simulate", "simulate", "Replay workloads under the policies of real clusters."),
        ("experiment", "simulate", "Repeat the published evaluations."),
    ),
    "Program": (
        ("app", "manual", "Write the library for programs that change their size while they run, in Python and in C."),
        ("negotiation", "negotiation", "Show and check negotiation templates, and let a program negotiate for a job."),
        (
            "schema",
            "jsonshapes",
            "Print the JSON Schema of site files, job files, or what a command prints with --json.",
        ),
    ),
}
"""Name, module and first sentence of each command, by sections, in the order of use."""
INSTALLED = frozenset({"experiment"})
"""Commands of distributions of their own; the module has what is said where it is missing."""


@click.group(cls=OnDemandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--site", type=PATH, help="Site file. Default: $KOALA_SITE, ~/.config/koala/site.toml, /etc/koala/site.toml."
)
@click.option("--state", type=PATH, help="State directory. Default: $KOALA_STATE, ~/.local/state/koala.")
@click.option("--verbose", "-v", is_flag=True, help="Log what happens on standard error.")
@click.version_option(__version__, prog_name="koala")
@click.pass_context
def koala(context: click.Context, site: Path | None, state: Path | None, verbose: bool) -> None:
    r"""Run one parallel job on several unmodified batch systems at once.

    \b
    Examples:
      koala demo            see it work, without any batch system
      koala init            write a site file of what is found here
      koala check           is everything here as it must be?
      koala run job.toml    run a job

    \b
    Exit codes:
      0 all is well, 1 something failed, 2 wrong usage, 130 interrupted,
      240 refused, 241 not placed, 242 lost, 243 cancelled, 244 walltime exceeded,
      245 bad configuration, 246 no service, 247 batch system; else the job's own
    """
    # In the orderly way in which Ctrl-C ends a command: what it has in the clusters goes with it.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, hangup_once(_interrupt))
    # What a server did is told to its administrator without being asked for; a scheduler's screen is not written over.
    servers = {"serve", "wiki"} if sys.stderr.isatty() else {"serve", "wiki", "schedule"}
    told = verbose or context.invoked_subcommand in servers
    context.obj = Session(site_option=site, state_option=state, verbose=verbose, log_shown=told)
    # The command has been imported by now, with what it uses that logs; what it imports later is its own affair.
    if told or "structlog" in sys.modules:
        context.obj.set_up_log()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


for section in SECTIONS.values():
    for name, module, sentence in section:
        kind = InstalledCommand if name in INSTALLED else OnDemandCommand
        koala.add_command(kind(name, f"koala_adapter.cli.{module}", sentence))
koala.sections = {title: [name for name, _, _ in section] for title, section in SECTIONS.items()}
as_written(koala)
