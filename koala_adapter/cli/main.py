# SPDX-License-Identifier: Apache-2.0
"""The top of the command line: options common to all commands, and the commands by name."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click
import structlog

from koala_adapter import __version__
from koala_adapter.cli.asking import cancel, clusters, explain, logs, status
from koala_adapter.cli.context import Session
from koala_adapter.cli.running import run, submit
from koala_adapter.cli.serving import serve

PATH = click.Path(path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--site", type=PATH, help="Site file. Default: $KOALA_SITE, ~/.config/koala/site.toml, /etc/koala/site.toml."
)
@click.option("--state", type=PATH, help="State directory. Default: $KOALA_STATE, ~/.local/state/koala.")
@click.option("--verbose", "-v", is_flag=True, help="Log what happens on standard error.")
@click.version_option(__version__, prog_name="koala")
@click.pass_context
def main(context: click.Context, site: Path | None, state: Path | None, verbose: bool) -> None:
    r"""Run one parallel job on several unmodified batch systems at once.

    \b
    Example:
      koala run job.toml
    """
    level = logging.INFO if verbose or context.invoked_subcommand == "serve" else logging.ERROR
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.ExceptionRenderer(),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    context.obj = Session(site_option=site, state_option=state)


for command in (run, submit, status, cancel, logs, explain, clusters, serve):
    main.add_command(command)
