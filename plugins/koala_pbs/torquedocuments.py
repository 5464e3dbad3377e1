# SPDX-License-Identifier: Apache-2.0
"""Reading what Torque prints: ``qstat -x`` and ``pbsnodes -x`` as XML, queues and the server as text. Pure.

Torque 6.1 escapes values in its XML; older ones need not: an ampersand, or a ``<``, in a user's variable makes it no
XML then. What cannot be a tag is taken for text; a job that cannot be read even so is refused by its name, and nothing
of that listing is believed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lxml import etree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lxml.etree import _Element

    from koala_pbs.documents import Attributes

LARGEST_DOCUMENT = 256 * 1024 * 1024
"""Characters; 100,000 jobs are about 200 MiB."""

_FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that XML 1.0 does not allow, and that stand in variables."""
_LOOSE_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7});)")
_LOOSE_BRACKET = re.compile(r"<(?!/?[A-Za-z_][A-Za-z0-9_.-]*/?>)")
_DECLARATION = re.compile(r"\s*<\?xml[^>]*\?>")
_ENTRY = {"Jobs": ("Job", "Job_Id"), "nodes": ("Node", "name")}
_HEADING = re.compile(r"(?P<kind>Server|Queue): (?P<name>\S+)\s*")
_PAIR = re.compile(r" {4}(?P<name>[A-Za-z_][\w.-]*) = (?P<value>.*)")


def read_torque_entries(text: str, section: str) -> dict[str, Attributes]:
    """Return the entries of a section: "Jobs" and "nodes" of XML, "Queue" and "Server" of text; in Torque's words.

    Raises ValueError for what is no such document, and for an entry, which is named, that cannot be read. No text at
    all is a listing without entries: with no job there, qstat says nothing.
    """
    if section not in _ENTRY:
        return _read_text(text, section)
    if not text.strip():
        return {}
    tag, key = _ENTRY[section]
    found: dict[str, Attributes] = {}
    for element in _elements(text, tag, key):
        attributes = dict(_attributes(element))
        name = attributes.pop(key, "")
        if not isinstance(name, str) or not name:
            raise ValueError(f"there is a {tag} without {key}")
        if name in found:
            raise ValueError(f"{name} is there twice")
        found[name] = attributes
    return found


def _elements(text: str, tag: str, key: str) -> list[_Element]:
    if len(text) > LARGEST_DOCUMENT:
        raise ValueError(f"{len(text)} characters are more than the {LARGEST_DOCUMENT} that are read")
    # Sites' banners stand before it.
    begin = text.find("<Data>")
    if begin < 0:
        raise ValueError("there is no <Data>")
    text = _FORBIDDEN.sub("?", _DECLARATION.sub("", text[begin:]))
    text = _LOOSE_BRACKET.sub("&lt;", _LOOSE_AMPERSAND.sub("&amp;", text)).strip()
    try:
        root = _parsed(text)
    except etree.XMLSyntaxError as error:
        raise ValueError(_fault(text, tag, key) or f"it is no XML: {error}") from None
    return [element for element in root if element.tag == tag]


def _parsed(text: str) -> _Element:
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=True
    )
    return etree.fromstring(text.encode("utf-8", "replace"), parser)


def _fault(text: str, tag: str, key: str) -> str:
    """Return which entry of a document cannot be read; empty when each can."""
    for part in text.split(f"<{tag}>")[1:]:
        whole = f"<{tag}>{part.removesuffix('</Data>')}"
        try:
            _parsed(whole)
        except etree.XMLSyntaxError as error:
            name = re.search(rf"<{key}>([^<]{{1,100}})</{key}>", whole)
            return f"{name[1] if name else tag} cannot be read: {error}"
    return ""


def _attributes(element: _Element) -> Iterator[tuple[str, str | Mapping[str, str]]]:
    for child in element:
        if len(child):
            yield str(child.tag), {str(inner.tag): (inner.text or "").strip() for inner in child}
        else:
            yield str(child.tag), (child.text or "").strip()


# -- queues and the server -------------------------------------------------------------------------------------------


def _read_text(text: str, section: str) -> dict[str, Attributes]:
    """Return entries that begin with ``Queue: batch``; ``resources_max.walltime`` is an attribute of an attribute."""
    found: dict[str, dict[str, str | dict[str, str]]] = {}
    current: dict[str, str | dict[str, str]] | None = None
    # A long value goes on in a line that begins with a tab.
    for line in text.replace("\n\t", "").splitlines():
        heading, pair = _HEADING.fullmatch(line), _PAIR.fullmatch(line)
        if heading:
            current = found.setdefault(heading["name"], {}) if heading["kind"] == section else None
        elif pair and current is not None:
            outer, _, inner = pair["name"].partition(".")
            nested = current.setdefault(outer, {}) if inner else None
            if isinstance(nested, dict):
                nested[inner] = pair["value"].strip()
            else:
                current[outer] = pair["value"].strip()
    if not found:
        raise ValueError(f"there is no {section}")
    return dict(found)
