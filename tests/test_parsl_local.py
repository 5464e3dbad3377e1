# SPDX-License-Identifier: Apache-2.0
"""Parsl over local clusters: its blocks are koala jobs, on whatever cluster has processors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import parsl
import pytest
from parsl.jobs.states import JobState as BlockState
from parsl.providers.errors import SubmitException

from koala_adapter.errors import ConfigurationError
from koala_adapter.outcome import JobState
from koala_adapter.parsl import KoalaProvider
from tests.local_koala import LIVENESS, Koala, eventually
from tests.parsl_pool import TASKS_ARE_FOUND, parsl_over, squares

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).parents[1] / "examples" / "malleable" / "parsl_primes.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def koala(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Koala]:
    """Give a site of two local clusters of four processors, and end all of it afterwards."""
    one = Koala(tmp_path)
    for name, value in one.environment.items():
        monkeypatch.setenv(name, value)
    try:
        yield one
    finally:
        one.close()


def provider(koala: Koala, **more: object) -> KoalaProvider:
    """Return a provider of the test's site."""
    given = {
        "site": koala.site_file,
        "state": koala.state,
        "walltime": "00:05:00",
        "status_polling_interval": 1,
        "worker_init": TASKS_ARE_FOUND,
    }
    return KoalaProvider(**{**given, **more})  # type: ignore[arg-type]


@pytest.mark.nightly  # tests/real/test_parsl.py shows it over two batch systems
def test_all_tasks_finish_on_the_other_cluster_when_one_is_busy(koala: Koala) -> None:
    """Blocks go where processors are idle, whatever waits elsewhere; when Parsl has ended, all of them are gone."""
    foreign = koala.submit_foreign("busy", 4, "alpha")
    blocks = provider(koala, init_blocks=2, min_blocks=2, max_blocks=4)
    with parsl_over(blocks, koala.directory) as kernel:
        results = [one.result(LIVENESS) for one in squares(kernel, 24, seconds=0.1)]
    assert [number for number, _ in results] == [number * number for number in range(24)]
    assert {where for _, where in results} == {"beta"}
    eventually(lambda: {one.id for one in koala.placeholders()} == set(foreign))
    assert {one.state for one in koala.client.jobs()} == {JobState.CANCELLED}


@pytest.mark.nightly
def test_blocks_run_on_both_clusters_at_once(koala: Koala) -> None:
    """One executor has workers everywhere; it scales out to what the tasks want, one worker on each processor."""
    blocks = provider(koala, init_blocks=1, max_blocks=3, nodes_per_block=2)
    with parsl_over(blocks, koala.directory) as kernel:
        results = [one.result(LIVENESS) for one in squares(kernel, 40, seconds=0.5)]
        assert len(koala.client.jobs()) == 3
    assert {where for _, where in results} == {"alpha", "beta"}
    eventually(lambda: koala.placeholders() == [])


def test_submit_status_and_cancel(koala: Koala) -> None:
    """The service is started by the first block, and survives its loss; the states are those of the jobs."""
    blocks = provider(koala)
    running = blocks.submit("sleep 300", 1, "a block")
    assert koala.report(running).name == "a block"
    eventually(lambda: blocks.status([running])[0].state is BlockState.RUNNING)
    koala.inside("serve", "--stop")
    short = blocks.submit("echo $PARSL_CORES; exit 0", 1)
    bad = blocks.submit("echo broken >&2; exit 3", 1)
    eventually(lambda: [one.state for one in blocks.status([short, bad])] == [BlockState.COMPLETED, BlockState.FAILED])
    done, failed = blocks.status([short, bad])
    assert (done.stdout, failed.stderr, failed.exit_code) == ("1\n", "broken\n", 3)
    assert failed.message is not None
    assert "exited with status 3" in failed.message
    assert blocks.status([running])[0].state is BlockState.RUNNING
    koala.inside("serve", "--stop")
    assert blocks.cancel([running, short]) == [True, True]
    eventually(lambda: blocks.status([running])[0].state is BlockState.CANCELLED)
    eventually(lambda: koala.placeholders() == [])
    assert blocks.status([short])[0].state is BlockState.COMPLETED


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"cluster": "gamma"},
            '^KoalaProvider: cluster: found "gamma", allowed is a cluster of the site: "alpha", "beta"',
        ),
        ({"walltime": "90"}, '^KoalaProvider: walltime: found "90", '),
        ({"nodes_per_block": 0}, "^KoalaProvider: nodes_per_block: found 0, allowed is a whole number from 1"),
        ({"placement": "nearest"}, '^KoalaProvider: placement: found "nearest", allowed is '),
        ({"site": "/nowhere/site.toml"}, "there is no such site file"),
    ],
)
def test_what_cannot_be_is_refused_at_once(koala: Koala, given: dict[str, object], said: str) -> None:
    """With what was found and what is allowed, before Parsl begins."""
    with pytest.raises(ConfigurationError, match=said):
        provider(koala, **given)


def test_a_block_that_cannot_be_submitted_says_why(koala: Koala) -> None:
    """Parsl shows the message to its user; blocks of several tasks for one processor are none of ours."""
    blocks = provider(koala)
    with pytest.raises(SubmitException, match="one task on each processor, not 2"):
        blocks.submit("true", 2)
    koala.site_file.write_text("nonsense")
    with pytest.raises(SubmitException, match="the service did not come up"):
        blocks.submit("true", 1)
    assert blocks.status(["7"])[0].state is BlockState.UNKNOWN
    assert blocks.cancel(["7"]) == [False]


def test_the_example_runs_as_it_stands(koala: Koala) -> None:
    """With nothing but the site file named, and Parsl's programs in the PATH; it leaves nothing behind."""
    programs = Path(parsl.__file__).parents[4] / "bin"
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "40000"],
        env={
            **koala.environment,
            "KOALA_SITE": str(koala.site_file),
            "KOALA_STATE": str(koala.state),
            "PATH": f"{programs}:{koala.environment['PATH']}",
        },
        cwd=koala.directory,
        capture_output=True,
        text=True,
        timeout=2 * LIVENESS,
        check=False,
    )
    assert done.stdout.startswith("4203 primes below 40000\n"), (done.stdout, done.stderr)
    assert done.stdout.count(" of 2 shares") in {1, 2}
    eventually(lambda: koala.placeholders() == [])
