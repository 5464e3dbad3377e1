# SPDX-License-Identifier: Apache-2.0
"""What every command shares: which site, which state directory, how to print, and how errors reach a person."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click
from rich.console import Console

from koala_adapter.client import Client
from koala_adapter.commands import login_name
from koala_adapter.config import find_site_file, load_site, state_directory
from koala_adapter.errors import KoalaError
from koala_adapter.jobfile import load_job
from koala_adapter.model import JobId
from koala_adapter.plugin import load_plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from koala_adapter.config import SiteConfig
    from koala_adapter.model import Job
    from koala_adapter.plugin import PluginDefinition

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Session:
    """One invocation of ``koala``."""

    site_option: Path | None
    state_option: Path | None

    @cached_property
    def console(self) -> Console:
        """Where results go."""
        return Console(highlight=False)

    @cached_property
    def progress(self) -> Console:
        """Where progress and remarks go, so that results can be piped."""
        return Console(stderr=True, highlight=False)

    @cached_property
    def plugins(self) -> Mapping[str, PluginDefinition]:
        """The installed plugins. Raises PluginError."""
        return load_plugins()

    @cached_property
    def site_file(self) -> Path:
        """The site file. Raises ConfigurationError when there is none."""
        return find_site_file(self.site_option)

    @cached_property
    def site(self) -> SiteConfig:
        """The validated site. Raises ConfigurationError."""
        return load_site(self.site_file, self.plugins)

    @cached_property
    def directory(self) -> Path:
        """The state directory."""
        return state_directory(self.state_option)

    @cached_property
    def client(self) -> Client:
        """The service of the state directory, whether it runs or not."""
        return Client(self.directory)

    def job(self, path: Path) -> Job:
        """Read a job file against the site. The id is given by the service at submission."""
        return load_job(path, job_id=JobId("0"), user=login_name(), submitted_at=0.0, site=self.site)

    def print_json(self, value: Any) -> None:  # noqa: ANN401 - JSON
        """Print one JSON document on standard output."""
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show_error(error: KoalaError) -> None:
    """Print an error and the way out on standard error."""
    console = Console(stderr=True, highlight=False)
    console.print("[bold red]koala:[/] ", end="")
    console.print(error.message, markup=False)
    if error.hint:
        console.print(f"       {error.hint}", style="dim", markup=False)


def command_body(function: Callable[P, R]) -> Callable[P, R]:
    """Turn errors of ours into one clear message and their exit code; never a traceback."""

    def body(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except KoalaError as error:
            show_error(error)
            sys.exit(error.exit_code)
        except ExceptionGroup as group:
            found, rest = group.split(KoalaError)
            if found is None or rest is not None:
                raise
            show_error(first_error(found))
            sys.exit(first_error(found).exit_code)

    return update_wrapper(body, function)


def first_error(group: BaseExceptionGroup[KoalaError]) -> KoalaError:
    """Return the first error in a group of them."""
    first = group.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first


pass_session = click.make_pass_decorator(Session)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
job_argument = click.argument("job_file", metavar="JOB", type=click.Path(path_type=Path))
