# SPDX-License-Identifier: Apache-2.0
"""``koala negotiations`` and ``koala negotiation``: how jobs negotiated their sizes; templates.

First the list of negotiations, then the commands that print the XML Schema of templates, check a document, and let a
program negotiate for a running job.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from koala_adapter.cli.display import FittingTable
from koala_adapter.cli.jobs import job_information
from koala_adapter.cli.listing import LIMIT
from koala_adapter.cli.session import Session, command_body, json_option, pass_session
from koala_adapter.negotiation.schema import EXTENSION, PUBLISHED, read, schema_path, to_object
from koala_adapter.negotiation.templates import LARGEST_TEMPLATE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from koala_adapter.report.sitevalues import NegotiationMessageReport, NegotiationReport


# -- Command ``negotiations`` --------------------------------------------------------------------------------
# Who offered what when, and why each negotiation ended as it did.

_SAYS = {
    "NT_NEGOTIATION": "offers",
    "NT_ACCEPTED": "accepts",
    "NT_COMMITTED": "commits to",
    "NT_REJECTED": "rejects",
    "NT_WITHDRAWN": "withdraws",
    "NT_EXPIRED": "says that it is too late",
    "NT_ERROR": "finds a fault",
}
_ENDED = ("done", "rejected", "withdrawn", "expired", "broken", "over")


@click.command()
@click.argument("number", metavar="[ID]", type=click.IntRange(min=1), required=False)
@click.option("--job", "-j", "job_id", metavar="JOB", default="", help="Only those of this job.")
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), default=LIMIT, show_default=True,
    help="Most that are shown, the latest ones.",
)  # fmt: skip
@click.option("--templates", "-t", is_flag=True, help="Print the templates that were exchanged, too.")
@json_option
@pass_session
@command_body
def negotiations(session: Session, number: int | None, job_id: str, limit: int, templates: bool, as_json: bool) -> None:
    r"""Show who offered what when in the negotiations of jobs, and how each ended.

    With the ID of one, all that was said in it. With --json the templates are
    always there. Without a service it shows what the journal says, and says so.

    \b
    Examples:
      koala negotiations --job 12
      koala negotiations 3 --templates
    """
    found = job_information(session).negotiations(job_id=job_id, number=number or 0, limit=limit)
    if as_json:
        session.print_json([asdict(one) for one in found])
        return
    if not found:
        session.console.print("no negotiations")
        return
    if number is None:
        session.console.print(_table(found))
    for one in found if number is not None or templates else ():
        session.console.print(*_lines(one, templates=templates), sep="\n", soft_wrap=True, markup=False)


def _table(found: Sequence[NegotiationReport]) -> FittingTable:
    table = FittingTable()
    for heading in ("id", "job", "process", "began", "state"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what")
    for one in found:
        style = "green" if one.state == "done" else "red" if one.state in _ENDED else "yellow"
        table.add_row(
            str(one.number),
            escape(one.job_id),
            escape(f"{one.component}/{one.rank}"),
            _time(one.began_at),
            f"[{style}]{one.state}[/]",
            escape(one.summary),
        )
    return table


def _lines(one: NegotiationReport, *, templates: bool) -> Iterator[str]:
    who = f"job {one.job_id}, process {one.component}/{one.rank}"
    yield f"negotiation {one.number} ({one.agreement_id} of {one.initiator}): {who}: {one.state}"
    for message in one.messages:
        yield f"  {_time(message.at)}  {_said(one, message)}"
        if templates:
            yield from (f"    {line}" for line in message.template.splitlines())
    yield f"  {one.summary}"


def _said(one: NegotiationReport, message: NegotiationMessageReport) -> str:
    why = f" ({message.reason})" if message.reason else ""
    if message.status == "NT_CONSUMED":
        done = "released" if one.direction == "shrink" else "allocated"
        return f"{message.sender} says that {message.processors} are {done}{why}"
    what = _SAYS.get(message.status, message.status)
    count = f" {message.processors}" if message.status in {"NT_NEGOTIATION", "NT_ACCEPTED", "NT_COMMITTED"} else ""
    return f"{message.sender} {_wishes(one, message) or what}{count}{why}"


def _wishes(one: NegotiationReport, message: NegotiationMessageReport) -> str:
    """Return in words what a side that asks for processors does; empty for other messages."""
    offers = message.status == "NT_NEGOTIATION"
    wants_more = message.sender == "application" and one.direction == "grow"
    wants_back = message.sender == "koala" and one.direction == "shrink"
    return "asks for" if offers and (wants_more or wants_back) else ""


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


# -- Commands below ``negotiation`` --------------------------------------------------------------------------


@click.group()
def negotiation() -> None:
    r"""Show and check negotiation templates, and let a program negotiate for a job.

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
    r"""Print the XML Schema of the template, which every template that arrives must follow.

    It refers to the one of the extension as NT-koala.xsd. See `koala docs negotiation`.
    """
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
    session.check_site_option()
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
    template = read(file.read(LARGEST_TEMPLATE + 1))
    if as_json:
        session.print_json(to_object(template))
        return
    named = f"{template.agreement_id} of {template.initiator}"
    click.echo(f"{template.status} in negotiation {named}, {template.source} with {template.dest}")
    for one in template.resources:
        where = "".join(f", {word} {name}" for word, name in (("on", one.cluster), ("for", one.component)) if name)
        click.echo(f"  {one.quantity} {one.type}: {one.usage}, {one.negotiability}, {one.status}{where}")
