# SPDX-License-Identifier: Apache-2.0
"""``koala app``: the library for programs that change their size while they run."""

from __future__ import annotations

from pathlib import Path

import click

from koala_adapter.cli.session import command_body


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
    other files. Files that koala has not written are not overwritten. See `koala docs malleable`.

    \b
    Example:
      koala app --install ~/koala_app
      export PKG_CONFIG_PATH=~/koala_app
      cc -o heat heat.c $(pkg-config --variable=sources koala_app) $(pkg-config --cflags --libs koala_app)
    """
    from koala_adapter.application.installation import install

    for path in install(directory):
        click.echo(f"wrote {path}")
