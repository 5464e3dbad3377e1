# SPDX-License-Identifier: Apache-2.0
"""What a site file means for the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.events import Configured
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters

if TYPE_CHECKING:
    from koala_adapter.config.sitefile import SiteConfig


def configuration(site: SiteConfig, instance: str, now: float) -> Configured:
    """Return the event that tells the scheduler of a site."""
    scheduler, center = site.scheduler, site.control_center
    parameters = Parameters(
        instance=instance,
        scan_interval=scheduler.scan_interval,
        placeholder_life=scheduler.placeholder_life,
        backoff=scheduler.backoff,
        longest_backoff=scheduler.longest_backoff,
        maximum_tries=scheduler.maximum_tries,
        registration_timeout=center.registration_timeout,
        missing_limit=scheduler.missing_limit,
        pause=scheduler.pause,
        lease=center.lease,
        launch_margin=scheduler.launch_margin,
        reuse=scheduler.reuse,
        reorganize=scheduler.reorganize,
        cluster_cost=scheduler.cluster_cost,
    )
    clusters = tuple(
        ClusterParameters(
            name=config.cluster_name,
            threshold=config.threshold,
            walltime_limit=config.walltime_limit,
            placeholders_in_flight=config.placeholders_in_flight,
            files=config.files,
            bandwidth=config.bandwidth,
        )
        for config in site.enabled_clusters
    )
    return Configured(time=now, parameters=parameters, clusters=clusters)
