# SPDX-License-Identifier: Apache-2.0
"""What checks stored and received values against a type, made once for each type and only when it is needed."""

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
