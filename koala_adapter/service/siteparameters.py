# SPDX-License-Identifier: Apache-2.0
"""What a site file means for the scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.scheduler.events import Configured

if TYPE_CHECKING:
    from koala_adapter.config.sitefile import SiteConfig


def configuration(site: SiteConfig, instance: str, now: float) -> Configured:
    """Return the event that tells the scheduler of a site."""
    parameters = replace(site.parameters, instance=instance)
    clusters = tuple(cluster.parameters for cluster in site.enabled_clusters)
    return Configured(time=now, parameters=parameters, clusters=clusters)
