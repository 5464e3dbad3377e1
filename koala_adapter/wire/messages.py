# SPDX-License-Identifier: Apache-2.0
"""Pydantic type adapters for stored and received values, one for each type, built when first needed."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


def adapter_of(kind: type[T]) -> TypeAdapter[T]:
    """Return the adapter of a type: building one takes milliseconds, and most commands need few of them."""
    return _adapter_of(kind)  # type: ignore[arg-type] # a class is hashable


@cache
def _adapter_of(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)
