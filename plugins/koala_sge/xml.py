# SPDX-License-Identifier: Apache-2.0
"""Reading Grid Engine's XML: no entities, no network, a bound on the size, and no exception but our own. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lxml import etree

from koala_adapter.errors import LrmUnavailableError

if TYPE_CHECKING:
    from lxml.etree import _Element

LARGEST_DOCUMENT = 256 * 1024 * 1024
"""Bytes; 100,000 jobs in one listing are about 60 MiB."""

_FORBIDDEN = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Characters that XML 1.0 does not allow, but that Grid Engine prints when they stand in a job's name."""


def parse_xml(raw: bytes, *, root: str, source: str) -> _Element:
    """Return the root element of a document, which must be called ``root``.

    Raises LrmUnavailableError when the document is too large, is not well formed, or is another one; then nothing is
    known.
    """
    hint = "the listing is asked for again; if this stays, report it with what the command prints"
    if len(raw) > LARGEST_DOCUMENT:
        message = f"{source} printed {len(raw)} bytes, more than the {LARGEST_DOCUMENT} that are read"
        raise LrmUnavailableError(message, hint=hint)
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=True
    )
    try:
        element = etree.fromstring(_FORBIDDEN.sub(b"?", raw), parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        message = f"{source} printed no well-formed XML: {error}"
        raise LrmUnavailableError(message, hint=hint) from None
    if element.getroottree().docinfo.doctype:
        message = f"{source} printed a document type, which Grid Engine never does"
        raise LrmUnavailableError(message, hint=hint)
    if element.tag != root:
        message = f"{source} printed <{element.tag!s}>, not <{root}>"
        raise LrmUnavailableError(message, hint=hint)
    return element


def text_of(element: _Element, tag: str) -> str:
    """Return the stripped text of the first child of that name; empty when there is none."""
    return (element.findtext(tag) or "").strip()


def number_of(text: str, default: int = 0) -> int:
    """Return a whole number that may be written as ``3`` or ``3.000000``; ``default`` for anything else."""
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return default
