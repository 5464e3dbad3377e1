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
    """By how many."""
    size: int
    """Processors that the component has on all clusters, without those that it has agreed to give up."""
    minimum: int
    maximum: int
    coming: tuple[int, ...] = ()
    """Processors that it has accepted elsewhere and does not have: by each growth, which may come to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowOffer(Observation):
    """Processors could be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkRequest(Observation):
    """Processors are wanted back; the request is to be met as far as the minimum allows."""
