# SPDX-License-Identifier: Apache-2.0
"""Blocks of Parsl as jobs: what a block's job file says, and what its report means to Parsl."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from parsl.executors import HighThroughputExecutor
from parsl.jobs.states import TERMINAL_STATES
from parsl.jobs.states import JobState as BlockState

from koala_adapter.errors import ConfigurationError
from koala_adapter.model import EndReason
from koala_adapter.outcome import JobOutcome, JobState
from koala_adapter.parsl import KoalaProvider, block_state
from koala_adapter.python.localsite import local_site_text
from koala_adapter.slots import Slot
from tests.unit.api.jobreports import job_report

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.report.values import JobReport


def report(state: JobState, reason: EndReason = EndReason.EXITED) -> JobReport:
    outcome = JobOutcome(state=state, reason=reason, exit_code=1) if state.final else None
    return job_report(name="block", state=state, user="alice", outcome=outcome, output_directory="/")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    file = tmp_path / "site.toml"
    file.write_text(local_site_text(tmp_path, {"alpha": 4, "beta": 4}))
    return file


def test_the_job_of_a_block_is_any_text_for_bash(site: Path) -> None:
    """Quotes, line breaks, non-ASCII and control characters arrive as they are."""
    command = 'echo "a\'b\\n"\n# \u00e4 \x7f \U0001f40a\n'
    provider = KoalaProvider(
        site=site, nodes_per_block=3, walltime=60, worker_init="module load x", placement="worst-fit", priority=2
    )
    job = provider._job(command, "line\nbreak")
    (block,) = job.components
    assert block.command == ("/bin/bash", "-c", f"module load x\n{command}\n")
    assert dict(block.environment) == {"PARSL_CORES": "1"}
    assert (job.name, job.walltime, job.priority, job.placement) == ("line break", 60, 2, "worst-fit")
    assert (block.minimum, block.maximum, block.flexible, block.cluster) == (3, 3, True, None)


def test_a_block_has_the_slots_that_are_asked_for(site: Path) -> None:
    """An executor finds their processors and memory as those of a node, and so do the workers."""
    provider = KoalaProvider(site=site, nodes_per_block=2, threads=4, memory="6GiB", gpus="a100:1", queue={"beta": "q"})
    assert (provider.cores_per_node, provider.mem_per_node) == (4, 6.0)
    (block,) = provider._job("true", "").components
    assert block.slot == Slot(threads=4, memory_mib=6144, gpus=1, gpu_kind="a100")
    assert dict(block.environment) == {"PARSL_CORES": "4", "PARSL_MEMORY_GB": "6"}
    executor = HighThroughputExecutor(provider=provider, cores_per_worker=2, mem_per_worker=3, address="127.0.0.1")
    assert executor._workers_per_node == 2
    with pytest.raises(ConfigurationError, match='KoalaProvider: memory: found "much", allowed is MiB'):
        KoalaProvider(site=site, memory="much")
    with pytest.raises(TypeError, match="KoalaProvider got an unexpected keyword argument 'thread'"):
        KoalaProvider(site=site, thread=2)  # type: ignore[call-arg]


def test_the_environment_of_a_block_is_that_of_a_job(site: Path) -> None:
    text = site.read_text().replace('name = "beta"', 'name = "beta"\nsoftware = { conda = ["module load conda"] }')
    site.write_text(text.replace('name = "beta"', 'name = "beta"\ncontainer_runtime = "podman"'))
    keys = {"setup": "one line", "software": ["conda"], "container": "worker.sif"}
    (block,) = KoalaProvider(site=site, **keys)._job("true", "").components  # type: ignore[arg-type] # as users say it
    assert (block.setup, block.software, block.container) == (("one line",), ("conda",), "worker.sif")
    with pytest.raises(ConfigurationError, match="KoalaProvider: software: found vasp, allowed is what one cluster"):
        KoalaProvider(site=site, software="vasp")


def test_a_block_on_one_cluster_stays_there(site: Path) -> None:
    job = KoalaProvider(site=site, nodes_per_block=3, cluster="alpha")._job("true", "")
    assert (job.components[0].cluster, job.components[0].flexible, job.walltime) == ("alpha", False, 3600)


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_of_a_job_is_one_of_a_block(state: JobState) -> None:
    assert (block_state(report(state)) in TERMINAL_STATES) == state.final


def test_the_end_of_the_walltime_is_no_failure() -> None:
    """Parsl would take its batch system for broken after a few of those; other failures are to be told."""
    assert block_state(report(JobState.FAILED, EndReason.WALLTIME)) is BlockState.TIMEOUT
    assert block_state(report(JobState.FAILED)) is BlockState.FAILED
    assert block_state(report(JobState.LOST, EndReason.NODE_LOST)) is BlockState.FAILED


def test_without_parsl_it_says_what_to_install() -> None:
    script = "import sys; sys.modules['parsl'] = None\nimport koala_adapter.parsl"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "pip install 'koala-adapter[parsl]'" in done.stderr.splitlines()[-1]


def test_a_missing_site_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KOALA_SITE", raising=False)
    for name in ("HOME", "PATH", "KOALA_STATE"):
        monkeypatch.setenv(name, str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"no site file found.*; no batch system (was found|can be used)"):
        KoalaProvider()
