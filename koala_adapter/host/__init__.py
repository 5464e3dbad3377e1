# SPDX-License-Identifier: Apache-2.0
"""Services of the local machine: clock, private directories, sockets, supervision by systemd, metrics.

``clock``, ``privatedirectory`` and ``sockets`` need the standard library only, so that clients start quickly;
``unixstream`` needs anyio as well; ``accepting``, ``process`` and ``metricsport`` also the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.host.exposition import CONTENT_TYPE, openmetrics

__all__ = ["CONTENT_TYPE", "openmetrics"]

__getattr__, __dir__ = on_demand(__name__, {"exposition": ("CONTENT_TYPE", "openmetrics")})
