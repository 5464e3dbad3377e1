# SPDX-License-Identifier: Apache-2.0
"""Submitting through a DRMAA 1.0 library, which is loaded by a helper process for each cluster.

``choice`` is the door for plugins that read jobs by commands: it decides between commands and DRMAA and imports the
rest only if a site wants it. ``transport`` submits, ``client`` starts and asks the helper process, ``protocol`` has the
messages between the two, ``helper`` is that process, ``libraries`` knows the capabilities and complaints of each
library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.lrm.drmaa.client import DrmaaClient, HelperLaunch
    from koala_adapter.lrm.drmaa.transport import DrmaaTransport

__all__ = ["DrmaaClient", "DrmaaTransport", "HelperLaunch"]

__getattr__, __dir__ = on_demand(
    __name__, {"client": ("DrmaaClient", "HelperLaunch"), "transport": ("DrmaaTransport",)}
)
