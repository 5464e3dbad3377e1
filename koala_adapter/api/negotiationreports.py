# SPDX-License-Identifier: Apache-2.0
"""What people and programs are shown of negotiations: plain values with a stable JSON form. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NegotiationMessageReport:
    """One message of a negotiation."""

    at: float
    sender: str
    """``koala`` or ``application``."""
    status: str
    """``NT_NEGOTIATION`` (an offer), ``NT_ACCEPTED`` and so on, as in the template."""
    processors: int
    """That it is about; 0: none."""
    reason: str
    template: str
    """The template as it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NegotiationReport:
    """A negotiation as ``koala negotiations`` shows it."""

    number: int
    job_id: str
    component: str
    rank: int
    """Of the process that negotiated."""
    agreement_id: str
    initiator: str
    """``koala`` or ``application``."""
    direction: str
    """``grow`` or ``shrink``."""
    mandatory: bool
    asked: int
    """Processors in the first offer."""
    standing: int
    """Processors in the last offer, and then in the agreement."""
    state: str
    """``offered``, ``accepted``, ``agreed``, ``done``, ``rejected``, ``withdrawn``, ``expired``, ``broken`` or
    ``over`` (its job ended first)."""
    by: str
    """Who said what made it so: ``koala`` or ``application``."""
    reason: str
    """Why it is less, or why it ended; may be empty."""
    summary: str
    """All of it in one sentence."""
    began_at: float
    latest_at: float
    messages: tuple[NegotiationMessageReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NegotiationAccess:
    """How a program gets to negotiate for a job, once."""

    host: str
    port: int
    token: str
    """Shown in the first frame of the connection."""
