# SPDX-License-Identifier: Apache-2.0
"""``koala negotiation``: what a negotiation template looks like, and whether a document is one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from koala_adapter.cli.session import command_body, json_option, pass_session

if TYPE_CHECKING:
    from typing import BinaryIO

    from koala_adapter.cli.session import Session


@click.group()
def negotiation() -> None:
    r"""Show and check templates of negotiations, and let a program negotiate for a job.

    \b
    Examples:
      koala negotiation schema > NT.xsd
      koala negotiation check --json offer.xml
      koala negotiation access 12
    """


@negotiation.command()
@click.option("--extension", is_flag=True, help="The attributes that koala adds, in a namespace of their own.")
@command_body
def schema(extension: bool) -> None:
    r"""Print the XML Schema of the template, as every template that arrives is checked with it.

    It refers to the one of the extension as NT-koala.xsd. See `koala docs negotiation`.
    """
    from koala_adapter.negotiation.templateschema import EXTENSION, PUBLISHED, schema_path

    click.echo(schema_path(EXTENSION if extension else PUBLISHED).read_text(encoding="utf-8"), nl=False)


@negotiation.command()
@click.argument("job_id", metavar="JOB")
@json_option
@pass_session
@command_body
def access(session: Session, job_id: str, as_json: bool) -> None:
    r"""Let a program negotiate for a running malleable job, once.

    Prints the address, the port and a one-time token, for a program that then speaks for the job by TCP: it hears
    what is offered and wanted back, and may ask for more or give back. Its first frame is "KOALA-NT 1 " and the
    token. A token that was not used is void when another one is asked for. See `koala docs negotiation`.

    \b
    Example:
      koala negotiation access 12
    """
    found = session.client.negotiation_access(job_id)
    if as_json:
        session.print_json(asdict(found))
    else:
        click.echo(f"{found.host} {found.port} {found.token}")


@negotiation.command()
@click.argument("file", metavar="FILE", type=click.File("rb"))
@json_option
@pass_session
@command_body
def check(session: Session, file: BinaryIO, as_json: bool) -> None:
    r"""Say whether a document is a negotiation template, and what it says.

    FILE is - for standard input. With --json the template is printed in its JSON form.

    \b
    Exit codes:
      0 it is one, 1 it is none
    """
    from koala_adapter.negotiation.templatejson import to_object
    from koala_adapter.negotiation.templatexml import LARGEST_TEMPLATE, parse

    template = parse(file.read(LARGEST_TEMPLATE + 1))
    if as_json:
        session.print_json(to_object(template))
        return
    click.echo(f"{template.status} in negotiation {template.key}, {template.source} with {template.dest}")
    for one in template.resources:
        where = "".join(f", {word} {name}" for word, name in (("on", one.cluster), ("for", one.component)) if name)
        click.echo(f"  {one.quantity} {one.type}: {one.usage}, {one.negotiability}, {one.status}{where}")
