# SPDX-License-Identifier: Apache-2.0
"""The schemas of the negotiation template that are shipped with the package."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lxml import etree

PUBLISHED = "NT.xsd"
EXTENSION = "NT-koala.xsd"
"""Attributes in our own namespace."""


def schema_path(name: str) -> Path:
    """Return where a schema lies."""
    return Path(__file__).with_name(name)


@cache
def template_schema() -> etree.XMLSchema:
    """Return both schemas, ready to validate with. Nothing is fetched from a network."""
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    return etree.XMLSchema(etree.parse(schema_path(PUBLISHED), parser))
