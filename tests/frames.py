# SPDX-License-Identifier: Apache-2.0
"""Endpoints of negotiations, for tests that carry frames between them."""

from __future__ import annotations

from collections.abc import Iterator

from koala_adapter import negotiation as nt


def frames_of(*endpoints: nt.Endpoint) -> list[bytes]:
    """Take what is to be said out of endpoints, as frames."""
    return [nt.frame(nt.build(template)) for one in endpoints for template in one.take_outbox()]


def templates_in(data: bytes) -> Iterator[nt.Template]:
    """Yield the templates of frames."""
    return map(nt.parse, nt.FrameBuffer().feed(data))


def hear(endpoint: nt.Endpoint, data: bytes, now: float) -> list[nt.Event]:
    """Have an endpoint hear all templates of frames, and return what happens."""
    return [event for template in templates_in(data) for event in endpoint.hear(template, now)]
