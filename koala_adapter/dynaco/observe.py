# SPDX-License-Identifier: Apache-2.0
"""DYNACO, observe: what happens to a running application that may make it adapt. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koala_adapter.model import ClusterName


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The scheduler would like the application to change its size."""

    component: str
    cluster: ClusterName
    processors: int
    """By how many, at least 1."""
    size: int
    """Processors that the component has, on all clusters."""
    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowOffer(Observation):
    """Processors could be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkRequest(Observation):
    """Processors are wanted back; the request is to be met as far as the minimum allows."""
