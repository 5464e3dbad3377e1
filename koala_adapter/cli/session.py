# SPDX-License-Identifier: Apache-2.0
"""What all commands share: durations, the site, the state directory, output, errors and exit codes.

A command must not wait for imports that it does not use, so functions here import what they need themselves.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import traceback
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, cast

import click

import koala_adapter
from koala_adapter import policies, queueing
from koala_adapter.cli.terminal import abandon_output, leave_broken_pipe
from koala_adapter.config.written import DURATION_WORDS, NotAllowedError, parse_duration
from koala_adapter.errors import KoalaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from koala_adapter.api.client import Client
    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.lrm import PluginDefinition
    from koala_adapter.model import Job
    from koala_adapter.python.description import Job as JobDescription
    from koala_adapter.python.site import Site
    from koala_adapter.scheduler.knownpolicies import Policies


# -- Durations on the command line ---------------------------------------------------------------------------
# Written as in job and site files.


def in_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of a duration such as 30d; None for none. Raises click's error for what is no duration."""
    if value is None:
        return None
    try:
        found = parse_duration(value)
    except NotAllowedError as error:
        raise click.BadParameter(f"found {value!r}, allowed is {error}", ctx, param) from error
    if not isinstance(found, int | float) or found < 0:
        raise click.BadParameter(f"found {value!r}, allowed is {DURATION_WORDS}", ctx, param)
    return float(found)


# -- One invocation of ``koala`` -----------------------------------------------------------------------------

P = ParamSpec("P")
R = TypeVar("R")

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130
"""Ended by Ctrl-C, as shells say it: 128 + SIGINT."""
WIDE = 500
"""Columns where there is no terminal: a program that reads our tables wants no line broken."""


@dataclass
class Session:
    """One invocation of ``koala``."""

    site_option: Path | None
    state_option: Path | None
    verbose: bool = False
    log_shown: bool = False
    """Parts that log do so on standard error."""

    @cached_property
    def console(self) -> Console:
        """Console for results, on standard output."""
        return make_console(sys.stdout)

    @cached_property
    def progress(self) -> Console:
        """Where progress and remarks go, so that results can be piped."""
        return make_console(sys.stderr)

    @property
    def moving(self) -> Console:
        """Where progress moves while results are printed: on a terminal both must come from one console."""
        return self.console if self.console.is_terminal else self.progress

    @cached_property
    def here(self) -> Site:
        """The site with its service, as the Python interface has it."""
        return koala_adapter.Site(
            self.site_option, state=self.state_option, notice=self.remark, before_reading=self.set_up_log
        )

    @property
    def plugins(self) -> Mapping[str, PluginDefinition]:
        """The installed plugins. Raises PluginError."""
        plugins = self.here.plugins
        if "structlog" in sys.modules:
            # Some of them log, and a command of a person is not to show what is for the log of a service.
            self.set_up_log()
        return plugins

    @property
    def policies(self) -> Policies:
        """What the scheduler may use: koala's own policies and the installed ones. Raises PluginError."""
        return self.here.policies

    @property
    def site_file(self) -> Path:
        """The site file. Raises ConfigurationError."""
        return self.here.file

    @property
    def site(self) -> SiteConfig:
        """The validated site. Raises ConfigurationError."""
        _ = self.site_file
        return self.here.config

    @property
    def directory(self) -> Path:
        """The state directory, there or not. Raises ConfigurationError when it belongs to another user."""
        return self.here.directory

    @property
    def client(self) -> Client:
        """The service of the state directory, whether it runs or not."""
        return self.here.client

    def job(self, job: Path | JobDescription) -> Job:
        """Return the job of a job file, or of a description made from arguments, checked against the site.

        The service gives it an id when it is submitted. Raises ConfigurationError.
        """
        return self.here.checked(job, source="command line")

    def check_site_option(self) -> None:
        """Raise ConfigurationError if ``--site`` names another file than the one on which the service runs."""
        if self.site_option is not None:
            self.here.check_in_force(tell_change=False)

    def set_up_log(self) -> None:
        """Configure logging by the options. Called after modules that log were imported while a command runs."""
        from koala_adapter.cli.log import set_up_log

        set_up_log(shown=self.log_shown)

    def remark(self, text: str) -> None:
        """Tell a person, on standard error, something that is no result."""
        self.progress.print(text, style="dim", markup=False)

    def print_json(self, value: Any) -> None:  # noqa: ANN401 - JSON
        """Print one JSON document on standard output."""
        click.echo(json.dumps(value, indent=2, ensure_ascii=not _is_unicode(sys.stdout)))


def _is_unicode(file: IO[str]) -> bool:
    """Tell whether a stream takes all characters. Where it does not, rich draws its lines in ASCII."""
    return (getattr(file, "encoding", None) or "utf-8").casefold().startswith("utf")


def make_console(file: IO[str]) -> Console:
    """Return a console on a standard stream, as wide as the terminal, or as wide as needed without one."""
    from koala_adapter.cli.console import LineEnds, SafeConsole

    if isinstance(file, io.TextIOWrapper) and not _is_unicode(file):
        file.reconfigure(errors="replace")
    if file.isatty():
        return SafeConsole(file=file, highlight=False, emoji=False)
    width = None if os.environ.get("COLUMNS") else WIDE
    return SafeConsole(file=cast("IO[str]", LineEnds(file)), width=width, highlight=False, emoji=False)


def show_error(error: KoalaError) -> None:
    """Print an error and the way out on standard error."""
    console = make_console(sys.stderr)
    console.print("[bold red]koala:[/] ", end="")
    console.print(error.message, markup=False, soft_wrap=True)
    if error.hint:
        console.print(f"       {error.hint}", style="dim", markup=False, soft_wrap=True)


def command_body(function: Callable[P, R]) -> Callable[P, R]:
    """Turn everything that may be raised into one clear message and its exit code; never a traceback."""

    def body(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = function(*args, **kwargs)
            sys.stdout.flush()
            return result
        except (click.ClickException, click.exceptions.Exit, click.Abort, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the last resort before a person
            fail(error)

    return update_wrapper(body, function)


def fail(error: BaseException) -> NoReturn:
    """Say what went wrong and end with the exit code that belongs to it, also for an error in exception groups."""
    known = koala_error(error)
    if known is not None:
        show_error(known)
        sys.exit(known.exit_code)
    if first_of(error, KeyboardInterrupt) is not None:
        sys.exit(EXIT_INTERRUPTED)
    if first_of(error, BrokenPipeError) is not None:
        leave_broken_pipe()
    usage = first_of(error, click.ClickException)
    if usage is not None:
        raise usage
    whole = error
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        hint = "free some space" if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""
        show_error(KoalaError(f"{where}{error.strerror or error}", hint=hint))
        abandon_output()
        sys.exit(EXIT_FAILURE)
    root = click.get_current_context().find_object(Session)
    if root is not None and root.log_shown:
        traceback.print_exception(whole)
    show_error(
        KoalaError(
            f"a defect of koala itself: {type(error).__name__}: {error}",
            hint="please report it, with what `koala --verbose ...` says in the same situation",
        )
    )
    sys.exit(EXIT_FAILURE)


def koala_error(error: BaseException) -> KoalaError | None:
    """Return the first error of ours in what was raised, however deep in groups; None when there is none."""
    return first_of(error, KoalaError)


E = TypeVar("E", bound=BaseException)


def first_of(error: BaseException, kind: type[E]) -> E | None:
    """Return the first exception of a type in what was raised, however deep in groups; None when there is none."""
    if isinstance(error, kind):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := first_of(one, kind)) is not None), None)
    return None


pass_session = click.make_pass_decorator(Session)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
job_argument = click.argument("job_file", metavar="JOB", type=click.Path(path_type=Path))


# -- Option for a queue policy -------------------------------------------------------------------------------


class QueuePolicy(click.Choice[str]):
    """A choice among koala's own policies, which help texts list, and the installed ones, which they do not."""

    def __init__(self) -> None:
        super().__init__(queueing.POLICIES)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of a policy; fail with the names of all policies for an unknown one."""
        if value in self.choices:
            return value
        installed = policies.policy_names(policies.PolicyKind.QUEUE)
        return str(click.Choice((*self.choices, *installed)).convert(value, param, ctx))
