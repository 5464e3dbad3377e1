# SPDX-License-Identifier: Apache-2.0
"""``koala init``: finds the batch systems of this host and writes a site file that uses them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koala_adapter.cli.session import command_body, pass_session
from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from koala_adapter.cli.session import Session
    from koala_adapter.discovery.search import Found

STANDARD_OUTPUT = Path("-")


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Ask nothing.")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write here; - prints it. Default: $KOALA_SITE, ~/.config/koala/site.toml.",
)
@click.option("--replace", is_flag=True, help="Replace a site file that is there; it is kept as FILE.old.")
@pass_session
@command_body
def init(session: Session, yes: bool, output: Path | None, replace: bool) -> None:
    r"""Find the batch systems of this host and write a site file that uses them.

    Looks for Slurm (SLURM_CONF, /etc/slurm, the controller, slurmdbd), Grid Engine (SGE_ROOT and its cells, the usual
    places) and PBS (PBS_CONF_FILE, /etc/pbs.conf), and for what other plugins know of. Each is asked whether it
    answers and takes jobs; nothing is submitted. What is left out is named, with the reason.

    \b
    Examples:
      koala init
      koala init --yes && koala check
      koala init --output -
    """
    from koala_adapter.api.statedirectory import prepare_directory
    from koala_adapter.discovery.search import search
    from koala_adapter.discovery.standin import nothing_found

    path = _where(session, output)
    if path != STANDARD_OUTPUT and path.exists() and not replace:
        hint = f"`koala check` tries it; --replace writes a new one and keeps this as {path.name}.old"
        raise ConfigurationError(f"there is a site file already: {path}", hint=hint)
    prepare_directory(session.directory)
    with session.progress.status("looking for batch systems") as status:
        found = search(session.plugins, session.directory, tell=status.update)
    if not found.clusters:
        raise nothing_found(found.left_out)
    text = found.text(made=f"written by `koala init`, {time.strftime('%Y-%m-%d %H:%M')}")
    _tell(session, found)
    if path == STANDARD_OUTPUT:
        click.echo(text, nl=False)
        return
    # Where nobody can be asked, to have said `koala init` is the answer.
    if not yes and sys.stdin.isatty():
        click.confirm(f"Write {path}?", default=True, abort=True)
    _write(path, text)
    session.remark(f"wrote {path}; now `koala check` tries it with two short jobs in each cluster")


def _where(session: Session, output: Path | None) -> Path:
    from koala_adapter.config.locations import SITE_VARIABLE, new_site_file

    named = output or session.site_option
    if named is None and os.environ.get(SITE_VARIABLE):
        named = Path(os.environ[SITE_VARIABLE])
    return named if named is not None else new_site_file()


def _tell(session: Session, found: Found) -> None:
    """Say what was found and what was left out."""
    from koala_adapter.config.formatting import show_duration

    for cluster in found.clusters:
        limit = f", at most {show_duration(cluster.walltime_limit)}" if cluster.walltime_limit is not None else ""
        queue = f", queue {cluster.queue}" if cluster.queue is not None else ""
        size = f"{cluster.processors} processors on {cluster.nodes} node{'' if cluster.nodes == 1 else 's'}"
        session.remark(f"found {cluster.candidate.described}: {cluster.version}, {size}{queue}{limit}")
    for one in found.left_out:
        session.remark(f"left out {one.what}: {one.why}{f'; {one.remedy}' if one.remedy else ''}")


def _write(path: Path, text: str) -> None:
    """Write the whole file or none; what was there is kept beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    if path.exists():
        path.replace(path.with_name(path.name + ".old"))
    new.replace(path)
