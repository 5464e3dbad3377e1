# SPDX-License-Identifier: Apache-2.0
"""The interface between a service and its callers: a Unix socket, and the journal when no service runs.

The door for callers is :mod:`koala_adapter.api.client`, or :mod:`koala_adapter.api.asyncclient` in an event loop; the
service side is :mod:`koala_adapter.api.server`. Other modules own the state directory, make reports, and answer from
the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.api.archive import with_kept
    from koala_adapter.api.negotiations import job_negotiations, negotiation_reports

__all__ = ["job_negotiations", "negotiation_reports", "with_kept"]

__getattr__, __dir__ = on_demand(
    __name__, {"archive": ("with_kept",), "negotiations": ("job_negotiations", "negotiation_reports")}
)
