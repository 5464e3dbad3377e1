# SPDX-License-Identifier: Apache-2.0
"""HTML and SVG as text: elements whose contents and attributes are escaped, unless they are elements already. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias


class Markup(str):
    """Text that is HTML or SVG already, and is not escaped again."""

    __slots__ = ()


Content: TypeAlias = str | int | float | Iterable["Content"] | None
"""What an element may contain: None is left out, what is no Markup is escaped."""

EMPTY = frozenset({"br", "input", "link", "meta"})
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
