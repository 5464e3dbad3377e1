# SPDX-License-Identifier: Apache-2.0
"""HTML and SVG as text: elements whose contents and attributes are escaped, unless they are elements already. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TypeAlias


class Markup(str):
    """Text that is HTML or SVG already, and is not escaped again."""

    __slots__ = ()


Content: TypeAlias = str | int | float | Iterable["Content"] | None
"""What an element may contain: None is left out, what is no Markup is escaped."""

EMPTY = frozenset({"br", "img", "input", "link", "meta"})
"""Elements of HTML without an end tag."""


def tag(name: str, /, *contents: Content, **attributes: str | float | bool | None) -> Markup:
    """Return an element.

    In names of attributes, ``_`` at the end is left out and others become ``-``. An attribute that is None or False
    is left out, and True has no value.
    """
    shown = "".join(_attribute(key, value) for key, value in attributes.items())
    return Markup(f"<{name}{shown}>" if name in EMPTY else f"<{name}{shown}>{joined(*contents)}</{name}>")


def joined(*contents: Content) -> Markup:
    """Concatenate contents; those that are no Markup are escaped."""
    return Markup("".join(map(_content, contents)))


def visible(text: str) -> str:
    """Return a text with control characters escaped, those for the direction of writing included.

    Line feeds and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)


def isolated(text: str) -> Markup:
    """Return a text by others, isolated so that its direction of writing does not affect what surrounds it."""
    return tag("bdi", text)


def document(title: str, head: Content, body: Content) -> str:
    """Return a whole page."""
    shared = (
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
    )
    return "<!DOCTYPE html>\n" + tag("html", tag("head", *shared, head), "\n", tag("body", body), lang="en") + "\n"


def table(columns: Sequence[tuple[str, str]], rows: Iterable[Content], name: str) -> Markup:
    """Return an HTML table that scrolls sideways when it is too wide.

    ``columns``: heading and class of each. ``rows``: elements. ``name``: what the table has.
    """
    headings = [tag("th", heading, class_=kind or None, scope="col") for heading, kind in columns]
    inner = tag("table", tag("thead", tag("tr", *headings)), tag("tbody", rows))
    return scrollable(inner, name)


def scrollable(inner: Markup, name: str) -> Markup:
    """Wrap content so that it scrolls sideways when it is too wide, also by keys."""
    return tag("div", inner, class_="wide", tabindex=0, role="region", aria_label=name)


def _content(content: Content) -> str:
    match content:
        case None:
            return ""
        case Markup():
            return content
        case str():
            return escape(visible(content), quote=False)
        case int() | float():
            return number(content)
        case _:
            return joined(*content)


def _attribute(key: str, value: str | float | bool | None) -> str:  # noqa: FBT001 - an attribute that has no value
    name = key.rstrip("_").replace("_", "-")
    match value:
        case None | False:
            return ""
        case True:
            return f" {name}"
        case str():
            return f' {name}="{escape(visible(value))}"'
        case _:
            return f' {name}="{number(value)}"'


def number(value: float) -> str:
    """Return a number with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
