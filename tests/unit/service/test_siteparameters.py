# SPDX-License-Identifier: Apache-2.0
"""What a site file says reaches the scheduler, so that the journal holds it."""

from __future__ import annotations

from koala_adapter.config.sitemodel import ClusterConfig, SchedulerConfig, SiteConfig
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.service.siteparameters import configuration


def test_defaults_of_site_and_scheduler_agree() -> None:
    """A site file that says nothing gives the scheduler its own defaults."""
    site = SiteConfig(clusters=(ClusterConfig(name="alpha", plugin="local"),))
    made = configuration(site, "k", 5.0)
    assert made.time == 5.0
    assert made.parameters == Parameters()
    assert made.clusters == (ClusterParameters(name=site.clusters[0].cluster_name),)


def test_what_a_placement_policy_may_know_is_passed_on() -> None:
    """Files, bandwidth, the cost of a cluster and the switch of the reorganization."""
    cluster = ClusterConfig(name="alpha", plugin="local", files=("/data",), bandwidth=50.0)
    site = SiteConfig(scheduler=SchedulerConfig(cluster_cost=7.0, reorganize=False), clusters=(cluster,))
    made = configuration(site, "k", 0.0)
    assert (made.parameters.cluster_cost, made.parameters.reorganize) == (7.0, False)
    assert (made.clusters[0].files, made.clusters[0].bandwidth) == (("/data",), 50.0)
