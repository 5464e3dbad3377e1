# SPDX-License-Identifier: Apache-2.0
"""The conformance kit over a site: the plugins by a real gateway, batch systems that are reached by ssh alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import koala_drmaa
import koala_pbs
import koala_sge
import koala_slurm
from koala_adapter.config.sitefile import RemoteSiteConfig
from koala_adapter.lrm import PluginDefinition
from koala_adapter.model import LrmJobId
from koala_adapter.service.opening import SiteHosts
from koala_adapter.testing import LrmConformance, LrmUnderTest, Trial
from tests.real import test_slurm_plugin
from tests.real.systems.othersite import OtherSite
from tests.real.systems.pbs import PbsServer
from tests.real.test_drmaa_systems import LIBRARY
from tests.undertest import started_plugin

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster", "sshd"), pytest.mark.nightly]


@pytest.fixture(scope="module")
def slurm_site() -> Iterator[OtherSite]:
    with OtherSite("delft") as site:
        yield site


@pytest.fixture(scope="module")
def sge_site() -> Iterator[OtherSite]:
    with OtherSite("leiden", system="sge") as site:
        yield site


@pytest.fixture
def pbs_site() -> Iterator[OtherSite]:
    """Give the PBS server of this machine, without jobs, as a site."""
    with PbsServer().alone(), OtherSite("vu", system="pbs") as site:
        yield site


@asynccontextmanager
async def at_site(
    there: OtherSite,
    definition: PluginDefinition,
    directory: Path,
    unknown: str,
    *,
    settings: Mapping[str, Any] | None = None,
    processors: int | None = None,
    precision: float | None = None,
) -> AsyncIterator[LrmUnderTest]:
    """Start a plugin for the cluster of a site, whose nodes see the scratch directory as this host does."""
    options = ("-F", str(there.ssh_config))
    config = RemoteSiteConfig(name="far", ssh=there.name, ssh_options=options, directory=str(directory / "there"))
    async with SiteHosts([config], directory) as hosts:
        host = hosts.at("far")
        await host.facts()
        async with started_plugin(
            definition,
            definition.settings.model_validate(settings or there.settings),
            directory,
            host=host,
            processors=processors,
            unknown_id=LrmJobId(unknown),
            patience=90,
            unavailable_within=180,
            walltime_precision=precision,
        ) as under:
            yield under


class TestSlurmAtASite(LrmConformance):
    """The kit for Slurm."""

    test_requeue = test_slurm_plugin.TestSlurm.test_requeue

    @pytest.fixture
    async def under_test(self, slurm_site: OtherSite, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin."""
        async with at_site(slurm_site, koala_slurm.PLUGIN, tmp_path, "999999_1") as under:
            yield under


class TestSgeAtASite(LrmConformance):
    """The kit for Grid Engine."""

    @pytest.fixture
    async def under_test(self, sge_site: OtherSite, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin."""
        # Its usual interval between two looks for starts is long for a test.
        sge_site.settings["trigger_scheduler"] = True
        async with at_site(sge_site, koala_sge.PLUGIN, tmp_path, "999999.1", precision=15) as under:
            yield under

    async def test_what_is_rendered_is_sent(self, live_trial: Trial) -> None:
        """The directory of scripts there has its whole path from the first submission on."""
        await live_trial.submit(wait=False)
        await super().test_what_is_rendered_is_sent(live_trial)


class TestDrmaaAtASite(LrmConformance):
    """The kit for the plugin ``drmaa``, whose helper goes to the site and asks Grid Engine's library there."""

    @pytest.fixture
    async def under_test(self, sge_site: OtherSite, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin."""
        names = ("root", "cell", "qmaster_port", "execd_port")
        settings = {
            "library": LIBRARY,
            "processors": 4,
            "environment": {f"SGE_{name.upper()}": str(sge_site.settings[name]) for name in names},
            "native_specification": "-shell n -r n",
        }
        there = at_site(
            sge_site, koala_drmaa.PLUGIN, tmp_path, "999999.1", settings=settings, processors=4, precision=15
        )
        async with there as under:
            yield under

    async def test_what_is_rendered_is_sent(self, live_trial: Trial) -> None:
        """The directory of scripts there has its whole path from the first submission on."""
        await live_trial.submit(wait=False)
        await super().test_what_is_rendered_is_sent(live_trial)


@pytest.mark.never_required
class TestPbsAtASite(LrmConformance):
    """The kit for PBS."""

    @pytest.fixture
    async def under_test(self, pbs_site: OtherSite, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin."""
        unknown = f"999999[1].{PbsServer().name}"
        settings = {"conf": pbs_site.settings["conf"], "bin_directory": pbs_site.settings["bin_directory"]}
        there = at_site(pbs_site, koala_pbs.PLUGIN, tmp_path, unknown, settings=settings, precision=40)
        async with there as under:
            yield under
