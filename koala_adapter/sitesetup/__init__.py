# SPDX-License-Identifier: Apache-2.0
"""Setting up a site: finding clusters on this host, checking them, and trying placeholders in them.

The doors are :func:`koala_adapter.sitesetup.find.search` for ``koala init`` and
:func:`koala_adapter.sitesetup.checks.check_clusters` for ``koala check``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.sitesetup.search import no_site_file_here

__all__ = ["no_site_file_here"]

__getattr__, __dir__ = on_demand(__name__, {"search": ("no_site_file_here",)})
