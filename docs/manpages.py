# SPDX-License-Identifier: Apache-2.0
"""The manual page koala(1), with all commands by sections, in the macros of man(7).

It is committed, and not made by the build: reading the commands takes pydantic, rich and more, which the build of a
checkout (`pip install git+...`) would have to fetch first. click-man makes a page for each command, without sections,
environment and files.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import click

from koala_adapter.cli.koala import SECTIONS, koala

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT = {
    "KOALA_SITE": "The site file, unless --site says one.",
    "KOALA_STATE": "The state directory, unless --state says one.",
}
FILES = {
    "~/.config/koala/site.toml, /etc/koala/site.toml": "Site file: which clusters there are. "
    "`koala init' writes one, `koala docs site-file' describes it.",
    "~/.local/state/koala": "State directory: the journal, the output of jobs, the socket of the service.",
}
AS_IT_IS = "\b"
"""Stands before paragraphs of a help text that are not to be filled."""


def man_page() -> str:
    """Return the text of ``koala.1``."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    context = _context(koala, "koala", None)
    text = _help_text(koala)
    yield '.\\" SPDX-License-Identifier: Apache-2.0'
    yield '.\\" Made by docs/reference.py from the help of the commands; do not edit.'
    yield '.TH "KOALA" "1" "" "koala-adapter" "koala-adapter manual"'
    yield ".SH NAME"
    yield f"koala \\- {_plain(text.partition('.')[0])}"
    yield ".SH SYNOPSIS"
    yield from (".B koala", _plain(" ".join(koala.collect_usage_pieces(context))))
    yield ".SH DESCRIPTION"
    yield from _paragraphs(text)
    yield ".SH OPTIONS"
    yield from _options(koala, context)
    for title, members in SECTIONS.items():
        yield f'.SH "{title.upper()}"'
        for name, _, _ in members:
            yield from _command(name, koala, context)
    yield ".SH ENVIRONMENT"
    for variable, meaning in ENVIRONMENT.items():
        yield from _item(f"\\fB{_plain(variable)}\\fR", meaning)
    yield ".SH FILES"
    for path, meaning in FILES.items():
        yield from _item(f"\\fI{_plain(path)}\\fR", meaning)
    yield ".SH SEE ALSO"
    yield "The manual: \\fBkoala docs\\fR lists its pages."


def _command(name: str, group: click.Group, parent: click.Context) -> Iterator[str]:
    """Return the part on a command, and those on the commands of a group."""
    command = group.resolve_command(parent, [name])[1]
    if command is None or command.hidden:
        return
    context = _context(command, name, parent)
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    yield f'.SS "{_plain(usage)}"'
    yield from _paragraphs(_help_text(command))
    yield from _options(command, context)
    if isinstance(command, click.Group):
        for member in command.list_commands(context):
            yield from _command(member, command, context)


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    return click.Context(command, info_name=name, parent=parent, **command.context_settings)


def _help_text(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "")


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    """Return the options; --help stands with those of koala itself."""
    for one in command.get_params(context):
        if not isinstance(one, click.Option) or one.hidden or ("--help" in one.opts and command is not koala):
            continue
        names = ", ".join(f"\\fB{_plain(name)}\\fR" for name in (*one.opts, *one.secondary_opts))
        flag = one.is_flag or one.count
        record = one.get_help_record(context)
        yield from _item(
            names if flag else f"{names} \\fI{_plain(one.make_metavar(context))}\\fR", record[1] if record else ""
        )


def _paragraphs(text: str) -> Iterator[str]:
    """Return paragraphs filled, and those that are marked so as they stand."""
    for number, paragraph in enumerate(part for part in text.split("\n\n") if part.strip()):
        if number:
            yield ".PP"
        lines = paragraph.strip("\n").split("\n")
        if lines[0].strip() == AS_IT_IS:
            yield from (".nf", *(_line(line) for line in lines[1:]), ".fi")
        else:
            yield _line(" ".join(" ".join(lines).split()))


def _item(head: str, text: str) -> Iterator[str]:
    yield from (".TP", head, _line(" ".join(text.split())))


def _line(text: str) -> str:
    """Return a line that roff does not take for a request."""
    plain = _plain(text)
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def _plain(text: str) -> str:
    """Return text as roff prints it: hyphens that can be copied, quotes that stay, what it would act on escaped."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq").replace("…", "...")
