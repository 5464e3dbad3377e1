# SPDX-License-Identifier: Apache-2.0
"""What of a service those need that bring running applications to other sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.dynaco.sizerules import SizeRules
    from koala_adapter.model import PlaceholderId
    from koala_adapter.scheduler import events as ev
    from koala_adapter.scheduler.records import State
    from koala_adapter.service.applications import Applications
    from koala_adapter.service.negotiationstore import NegotiationStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Parts of a service, and what it is asked and told."""

    listen: str
    """Address for programs that negotiate."""
    applications: Applications
    store: NegotiationStore
    """Keeps what was negotiated."""
    state: Callable[[], State]
    clock: Callable[[], float]
    report: Callable[[ev.Event], None]
    """Takes events in."""
    tell: Callable[[PlaceholderId, str, bytes], bool]
    """Sends a frame to the process of a task, which it may not reach."""
    rules: SizeRules
    """Say which sizes a component takes."""
