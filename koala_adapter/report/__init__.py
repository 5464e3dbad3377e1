# SPDX-License-Identifier: Apache-2.0
"""What koala shows: plain values of reports, figures, result pages, and the history of a journal.

The door for values is :mod:`koala_adapter.report.values`, which needs neither the service nor matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.report.sitevalues import (
        CleanReport,
        ClusterReport,
        NegotiationAccess,
        NegotiationReport,
        PlanReport,
        SampleSubmission,
    )

__all__ = ["CleanReport", "ClusterReport", "NegotiationAccess", "NegotiationReport", "PlanReport", "SampleSubmission"]

__getattr__, __dir__ = on_demand(__name__, {"sitevalues": tuple(__all__)})
