# SPDX-License-Identifier: Apache-2.0
"""PSI/J over local clusters: its jobs are koala's, by the executor that it finds beside its own."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import koala_adapter as koala
from tests.local_koala import LIVENESS

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parents[1] / "plugins" / "psij-koala" / "src"
PATIENCE = timedelta(seconds=LIVENESS)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def psij() -> Any:  # noqa: ANN401 - PSI/J may not be installed
    """Return PSI/J as it is with the executor installed: it looks for descriptors once, in the folders of sys.path."""
    sys.path.append(str(SOURCE))
    return pytest.importorskip("psij", reason="PSI/J is not installed: pip install psij-python")


@pytest.fixture(scope="module")
def site() -> Iterator[koala.Site]:
    """Give two local clusters of four processors."""
    with koala.local_site() as one:
        yield one


@pytest.fixture(scope="module")
def executor(psij: Any, site: koala.Site) -> Any:  # noqa: ANN401
    """Return the executor, as a user of PSI/J asks for it."""
    from koala_psij import KoalaExecutorConfig  # noqa: PLC0415 - it needs PSI/J

    return psij.JobExecutor.get_instance("koala", config=KoalaExecutorConfig(site=site.file, state=site.directory))


def test_the_executor_is_found(psij: Any, executor: Any) -> None:  # noqa: ANN401
    """Among those of PSI/J, by its name."""
    assert "koala" in psij.JobExecutor.get_executor_names()
    assert (executor.name, str(executor.version)) == ("koala", "0.1.0")


def test_a_job_runs_to_its_end(psij: Any, executor: Any, tmp_path: Path) -> None:  # noqa: ANN401
    """Its processes, their environment, input and output are those that were asked for; each state is told once."""
    (tmp_path / "in").write_text("given\n")
    (tmp_path / "before.sh").write_text("export BEFORE=sourced\n")
    states: list[Any] = []
    spec = psij.JobSpec(
        "/bin/sh",
        ["-c", "cat; echo $KOALA_RANK of $KOALA_SIZE on $KOALA_CLUSTER: $WORD $BEFORE; echo warned >&2"],
        environment={"WORD": "hello"},
        directory=tmp_path,
        stdin_path=tmp_path / "in",
        stdout_path="out",
        stderr_path=tmp_path / "err",
        pre_launch=tmp_path / "before.sh",
        resources=psij.ResourceSpecV1(process_count=2),
        attributes=psij.JobAttributes(duration=timedelta(minutes=5), queue_name="beta"),
    )
    job = psij.Job(spec)
    job.set_job_status_callback(lambda _job, status: states.append(status.state))
    executor.submit(job)
    status = job.wait(PATIENCE)
    assert (status.state, status.exit_code) == (psij.JobState.COMPLETED, 0)
    assert (tmp_path / "out").read_text().splitlines() == [
        "given",
        "0 of 2 on beta: hello sourced",
        "given",
        "1 of 2 on beta: hello sourced",
    ]
    assert (tmp_path / "err").read_text() == "warned\nwarned\n"
    assert states == [psij.JobState.QUEUED, psij.JobState.ACTIVE, psij.JobState.COMPLETED]
    assert job.native_id in executor.list()


def test_failing_and_cancelled_jobs(psij: Any, executor: Any) -> None:  # noqa: ANN401
    """They are told apart, with the exit code and why."""
    failing, cancelled = psij.Job(psij.JobSpec("/bin/sh", ["-c", "exit 3"])), psij.Job(psij.JobSpec("sleep", ["600"]))
    for job in (failing, cancelled):
        executor.submit(job)
    status = failing.wait(PATIENCE)
    assert (status.state, status.exit_code) == (psij.JobState.FAILED, 3)
    assert "exited with status 3" in status.message
    assert cancelled.wait(PATIENCE, target_states=[psij.JobState.ACTIVE]).state is psij.JobState.ACTIVE
    again = psij.Job()
    executor.attach(again, cancelled.native_id)
    cancelled.cancel()
    assert cancelled.wait(PATIENCE).state is psij.JobState.CANCELED
    assert again.wait(PATIENCE).state is psij.JobState.CANCELED


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (({"executable": None}, {}, {}), "there is no executable"),
        (({"inherit_environment": False}, {}, {}), "inherit_environment: found False"),
        (({"launcher": "magic"}, {}, {}), "launcher: found 'magic', allowed is aprun"),
        (({"launcher": "single"}, {"process_count": 2}, {}), "allowed is 'multiple'"),
        (({}, {"cpu_cores_per_process": 2}, {}), "a process of koala has one processor"),
        (({}, {"gpu_cores_per_process": 1}, {}), "gpu_cores_per_process: koala counts processors alone"),
        (({}, {}, {"account": "physics"}), "account: a site file adds it"),
        (({}, {}, {"queue_name": "gamma"}), 'found "gamma", allowed is a cluster of the site'),
        (({}, {}, {"custom_attributes": {"koala.prio": 3}}), "custom attribute koala.prio: allowed is"),
        (({}, {}, {"custom_attributes": {"koala.priority": 5000}}), "priority: found 5000"),
    ],
)
def test_what_cannot_be_is_refused(
    psij: Any,  # noqa: ANN401
    executor: Any,  # noqa: ANN401
    given: tuple[dict[str, object], dict[str, object], dict[str, object]],
    said: str,
) -> None:
    """At once, with what was found and what is allowed; the job may be mended and submitted again."""
    spec, resources, attributes = given
    job = psij.Job(
        psij.JobSpec(
            **{"executable": "/bin/true", **spec},
            resources=psij.ResourceSpecV1(**resources),
            attributes=psij.JobAttributes(**attributes),
        )
    )
    with pytest.raises(psij.InvalidJobException) as raised:
        executor.submit(job)
    assert said in raised.value.message
    assert (job.status.state, job.executor) == (psij.JobState.NEW, None)


def test_what_is_not_for_koala_is_left_alone(psij: Any, executor: Any) -> None:  # noqa: ANN401
    """Custom attributes of other executors change nothing."""
    attributes = psij.JobAttributes(custom_attributes={"slurm.constraint": "fast", "koala.priority": 3})
    job = psij.Job(psij.JobSpec("/bin/true", attributes=attributes))
    executor.submit(job)
    assert job.wait(PATIENCE).state is psij.JobState.COMPLETED
