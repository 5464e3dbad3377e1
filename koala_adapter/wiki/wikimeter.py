# SPDX-License-Identifier: Apache-2.0
"""What a WIKI server counts for whoever watches it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.metrics import catalogue as metric
from koala_adapter.metrics.process import process_meter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.wiki.codec.words import Verb

UNREADABLE = "unreadable"
"""Verb of a request whose own cannot be read."""


@dataclass(slots=True)
class AskedRequest:
    """A request that is being answered."""

    verb: Verb | None = None
    """None until it is known."""


class WikiMeter:
    """Counts requests and refusals."""

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self.meter = process_meter("wiki")

    @contextmanager
    def request(self) -> Iterator[AskedRequest]:
        """Count the request that is answered meanwhile."""
        asked, begun, answered = AskedRequest(), time.monotonic(), False
        try:
            yield asked
            answered = True
        finally:
            verb = UNREADABLE if asked.verb is None else str(asked.verb)
            self.meter.observe(metric.WIKI_SECONDS, verb, seconds=time.monotonic() - begun)
            if not answered:
                self.meter.add(metric.WIKI_REFUSALS, verb)
