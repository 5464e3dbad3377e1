# SPDX-License-Identifier: Apache-2.0
"""``koala negotiation``: what a negotiation template looks like, and whether a document is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from koala_adapter.cli.session import command_body, json_option, pass_session

if TYPE_CHECKING:
    from typing import BinaryIO

    from koala_adapter.cli.session import Session


@click.group()
def negotiation() -> None:
    r"""Show and check the templates by which processors and memory are negotiated.

    \b
    Examples:
      koala negotiation schema > NT.xsd
      koala negotiation check --json offer.xml
    """


@negotiation.command()
@click.option("--extension", is_flag=True, help="The attributes that koala adds, in a namespace of their own.")
@command_body
def schema(extension: bool) -> None:
    r"""Print the XML Schema of the template, as every template that arrives is checked with it.

    It refers to the one of the extension as NT-koala.xsd. See docs/negotiation.md.
    """
    from koala_adapter.negotiation.templateschema import EXTENSION, PUBLISHED, schema_path

    click.echo(schema_path(EXTENSION if extension else PUBLISHED).read_text(encoding="utf-8"), nl=False)


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
