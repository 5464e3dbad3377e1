# SPDX-License-Identifier: Apache-2.0
"""Submissions as they would be sent: plain values, which a client reads without the service. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSubmission:
    """What would be sent for one component, as ``koala script`` shows it."""

    component: str
    command: tuple[str, ...]
    environment: dict[str, str]
    """Added to the small environment that commands get."""
    script: str
    note: str
