# SPDX-License-Identifier: Apache-2.0
"""What the next service of a state directory would submit: for whoever wants to see it while none runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.net.freeport import free_port
from koala_adapter.service.clusterdriver import make_lrm
from koala_adapter.service.scriptmaker import ScriptMaker, sample_submissions
from koala_adapter.vjm import certificate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.api.offline import JournalView
    from koala_adapter.config.sitefile import ClusterConfig, SiteConfig
    from koala_adapter.model import Job
    from koala_adapter.plugin import PluginDefinition
    from koala_adapter.service.samplesubmission import SampleSubmission


def next_submissions(
    site: SiteConfig,
    plugins: Mapping[str, PluginDefinition],
    record: JournalView,
    job: Job,
    config: ClusterConfig,
) -> list[SampleSubmission]:
    """Return what the next service would submit for a job to a cluster; nothing is sent.

    Raises LrmRejectedError when the cluster's directives cannot be applied.
    """
    own = certificate.load_or_create(record.directory / "certificate")
    port = site.control_center.port or record.port or free_port()
    scripts = ScriptMaker(site=site, port=port, fingerprint=own.fingerprint, directory=record.directory)
    lrm, _ = make_lrm(config, plugins, record.directory)
    return sample_submissions(scripts, job, config, lrm, record.instance)
