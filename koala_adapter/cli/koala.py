# SPDX-License-Identifier: Apache-2.0
"""The top of the command line: options common to all commands, and the commands by name."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import click
import structlog

from koala_adapter import __version__
from koala_adapter.cli.asking import cancel, clusters, explain, logs, status
from koala_adapter.cli.checking import check
from koala_adapter.cli.context import Session
from koala_adapter.cli.demonstration import demo
from koala_adapter.cli.experiment import experiment
from koala_adapter.cli.logstream import LogStream
from koala_adapter.cli.planning import plan, script
from koala_adapter.cli.reaping import reap
from koala_adapter.cli.running import run, submit
from koala_adapter.cli.schedule import schedule
from koala_adapter.cli.serving import serve
from koala_adapter.cli.simulate import simulate
from koala_adapter.cli.terminal import hangup_once
from koala_adapter.cli.wiki import wiki

if TYPE_CHECKING:
    from types import FrameType

PATH = click.Path(path_type=Path)
COMMANDS = (
    run,
    submit,
    status,
    cancel,
    logs,
    explain,
    plan,
    script,
    clusters,
    check,
    reap,
    serve,
    schedule,
    demo,
    simulate,
    experiment,
    wiki,
)


class OrderedGroup(click.Group):
    """Lists the commands in the order in which a person comes to need them, not in that of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature of click
        """Return the names of the commands."""
        return list(self.commands)


@click.group(cls=OrderedGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
      koala check           is everything here as it must be?
      koala run job.toml    run a job

    \b
    Exit codes:
      0 all is well, 1 something failed, 2 wrong usage, 130 interrupted,
      240 refused, 241 not placed, 242 lost, 243 cancelled, 244 walltime exceeded,
      245 bad configuration, 246 no service, 247 batch system; else the job's own
    """
    # What a server did is told to its administrator without being asked for.
    told = verbose or context.invoked_subcommand in {"serve", "wiki"}
    level = logging.INFO if told else logging.CRITICAL
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.ExceptionRenderer(),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", LogStream(sys.stderr))),
    )
    # In the orderly way in which Ctrl-C ends a command: what it has in the clusters goes with it.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, hangup_once(_interrupt))
    if level > logging.INFO:
        # What asyncio complains of on its own is for us, not for the person at the terminal.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    context.obj = Session(site_option=site, state_option=state, verbose=verbose)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def as_written(command: click.Command) -> None:
    """Have click leave alone the paragraphs of a help text that are marked so, as a raw docstring marks them."""
    command.help = (command.help or "").replace("\\b\n", "\b\n")
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        as_written(inner)


for one in COMMANDS:
    koala.add_command(one)
as_written(koala)
