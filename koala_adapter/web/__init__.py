# SPDX-License-Identifier: Apache-2.0
"""``koala web``: pages on clusters and jobs for a browser, made by a client of the service.

``access.py`` decides who may see them, ``pages.py`` has what is on them, and ``server.py`` serves them. The last two
need an extra, and are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.web.server import Shown, serve

__all__ = ["Shown", "serve"]

__getattr__, __dir__ = on_demand(__name__, {"server": __all__})
