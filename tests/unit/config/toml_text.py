# SPDX-License-Identifier: Apache-2.0
"""Writes values as TOML, and draws values that TOML can hold, for the tests of site files and job files."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import TypeAlias

from hypothesis import strategies as st
from pydantic import BaseModel

from koala_adapter.lrm import Capabilities, ClusterContext, Lrm, PluginDefinition

Value: TypeAlias = object

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.one_of(
    TEXT,
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**80), max_value=10**80),
    st.floats(),
    st.dates(),
    st.times(),
    st.datetimes(),
)


def values(keys: st.SearchStrategy[str] = TEXT) -> st.SearchStrategy[Value]:
    return st.recursive(
        SCALARS,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=5)),
        max_leaves=12,
    )


def toml(value: Value) -> str:
    match value:
        case bool():
            text = str(value).lower()
        case str():
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            text = f"[{', '.join(toml(item) for item in value)}]"
        case dict():
            text = f"{{{', '.join(f'{toml(key)} = {toml(item)}' for key, item in value.items())}}}"
        case dt.date() | dt.time():
            text = value.isoformat()
        case _:
            text = repr(value)
    return text


def toml_file(tables: Mapping[str, Value]) -> str:
    """Return a TOML file, one top-level key on each line."""
    return "".join(f"{toml(key)} = {toml(value)}\n" for key, value in tables.items())


def replaced(tables: Value, place: list[int], new: Value) -> Value:
    if not place or not isinstance(tables, dict | list) or not tables:
        return new
    chosen = place[0] % len(tables)
    if isinstance(tables, list):
        return [replaced(item, place[1:], new) if at == chosen else item for at, item in enumerate(tables)]
    return {
        key: replaced(item, place[1:], new) if at == chosen else item for at, (key, item) in enumerate(tables.items())
    }


def plugin(name: str, settings: type[BaseModel]) -> PluginDefinition:
    """Return a plugin of which only the settings are ever used."""
    return PluginDefinition(
        name=name, summary="stand-in", settings=settings, capabilities=Capabilities(), factory=_no_lrm
    )


def _no_lrm(context: ClusterContext, settings: object) -> Lrm:
    raise AssertionError(context, settings)
