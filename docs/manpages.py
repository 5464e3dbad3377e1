# SPDX-License-Identifier: Apache-2.0
"""Manual pages, section 1, of all commands, in the macros of man(7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from docs.commandtree import Command, Option

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


def man_pages(tree: Sequence[Command]) -> dict[str, str]:
    """Return the text of each page by the name of its file, such as ``koala-run.1``."""
    return {f"{'-'.join(command.path)}.1": "\n".join(_page(command)) + "\n" for command in tree}


def _page(command: Command) -> Iterator[str]:
    name = "-".join(command.path)
    yield '.\\" SPDX-License-Identifier: Apache-2.0'
    yield '.\\" Made by docs/reference.py from the help of the commands; do not edit.'
    yield f'.TH "{name.upper()}" "1" "" "koala-adapter" "koala-adapter manual"'
    yield ".SH NAME"
    yield f"{_plain(name)} \\- {_plain(command.sentence)}"
    yield ".SH SYNOPSIS"
    yield f".B {_plain(command.name)}"
    yield _plain(command.usage)
    yield ".SH DESCRIPTION"
    yield from _paragraphs(command.text)
    if command.commands:
        yield ".SH COMMANDS"
        for member, sentence in command.commands:
            yield from _item(f"\\fB{_plain(f'{name}-{member}')}\\fR(1)", sentence)
    if command.options:
        yield ".SH OPTIONS"
        for option in command.options:
            yield from _item(_spelt(option), option.help)
    if len(command.path) == 1:
        yield ".SH ENVIRONMENT"
        for variable, text in ENVIRONMENT.items():
            yield from _item(f"\\fB{_plain(variable)}\\fR", text)
        yield ".SH FILES"
        for path, text in FILES.items():
            yield from _item(f"\\fI{_plain(path)}\\fR", text)
    yield ".SH SEE ALSO"
    others = [f"{name}-{member}" for member, _ in command.commands] or ["koala"]
    yield ",\n".join(f".BR {_plain(other)} (1)" for other in others).replace("(1),", "(1) ,")
    yield ".PP"
    yield "The manual: \\fBkoala docs\\fR lists its pages."


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


def _spelt(option: Option) -> str:
    names = ", ".join(f"\\fB{_plain(name)}\\fR" for name in option.names)
    return f"{names} \\fI{_plain(option.metavar)}\\fR" if option.metavar else names


def _line(text: str) -> str:
    """Return a line that roff does not take for a request."""
    plain = _plain(text)
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def _plain(text: str) -> str:
    """Return text as roff prints it: hyphens that can be copied, quotes that stay, what it would act on escaped."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq").replace("…", "...")
