# SPDX-License-Identifier: Apache-2.0
"""Other people's engines run their jobs by koala: PSI/J, Snakemake, Parsl."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import parsl
import pytest
from parsl.jobs.states import JobState as BlockState
from parsl.providers.errors import SubmitException

import koala_adapter as koala
from koala_adapter.errors import ConfigurationError
from koala_adapter.parsl import KoalaProvider
from tests.local_koala import LIVENESS, Koala, eventually
from tests.parsl_pool import TASKS_ARE_FOUND, parsl_over, squares

# -- PSI/J over local clusters: its jobs are koala's, by the executor that it finds beside its own.


SOURCE = Path(__file__).parents[1] / "plugins" / "psij-koala" / "src"
PATIENCE = timedelta(seconds=LIVENESS)


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
        (({}, {}, {"reservation_id": "course"}), "reservation_id: allowed is koala.directives"),
        (({}, {}, {"custom_attributes": {"koala.gpus": "many"}}), 'gpus: found "many", allowed is a whole number'),
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


@pytest.mark.parametrize(
    ("resources", "attributes", "slot"),
    [
        ({}, {}, {}),
        ({"process_count": 2, "cpu_cores_per_process": 4}, {}, {"threads": 4}),
        ({"process_count": 3, "memory": 3 * 2**30 + 1}, {}, {"memory": 1025}),
        ({"gpu_cores_per_process": 1, "exclusive_node_use": True}, {}, {"gpus": 1, "exclusive": True}),
        ({}, {"account": "physics"}, {"account": "physics"}),
        ({"gpu_cores_per_process": 2}, {"custom_attributes": {"koala.gpus": "a100:2"}}, {"gpus": "a100:2"}),
        ({}, {"custom_attributes": {"koala.features": ["ib"]}}, {"features": ["ib"]}),
    ],
)
def test_resources_of_a_process_are_those_of_a_slot(
    psij: Any,  # noqa: ANN401
    resources: dict[str, object],
    attributes: dict[str, object],
    slot: dict[str, object],
) -> None:
    from koala_psij.executor import koala_job  # noqa: PLC0415 - it needs PSI/J

    spec = psij.JobSpec(
        "/bin/true",
        resources=psij.ResourceSpecV1(**resources),
        attributes=psij.JobAttributes(**attributes),
    )
    processes = {"processors": resources.get("process_count", 1)}
    assert koala_job(spec).values()["components"] == [{"command": ["/bin/true"], **processes, **slot}]


def test_what_is_not_for_koala_is_left_alone(psij: Any, executor: Any) -> None:  # noqa: ANN401
    attributes = psij.JobAttributes(
        custom_attributes={"slurm.constraint": "fast", "koala.priority": 3, "koala.setup": "OWN=7"}
    )
    job = psij.Job(psij.JobSpec("/bin/true", attributes=attributes))
    executor.submit(job)
    assert job.wait(PATIENCE).state is psij.JobState.COMPLETED


# -- Snakemake over local clusters: its registry finds the executor, which makes koala's jobs of those of a workflow.


SNAKEMAKE_SOURCE = Path(__file__).parents[1] / "plugins" / "snakemake-executor-plugin-koala" / "src"
WORKFLOW = """
CLUSTERS = ["alpha", "beta", "gamma"]

envvars: "WORD"

rule all:
    input: "sum.txt"

rule square:
    output: "square-{n}.txt"
    resources: koala_cluster=lambda wildcards: CLUSTERS[int(wildcards.n) % 3], runtime=5
    shell: "echo $KOALA_CLUSTER $(( {wildcards.n} * {wildcards.n} )) $WORD > {output}"

rule sum:
    input: expand("square-{n}.txt", n=range(1, 4))
    output: "sum.txt"
    shell: "cat {input} > {output}"

rule wide:
    output: "wide.txt"
    threads: 2
    shell: "echo {threads} $KOALA_THREADS > {output}"

rule fails:
    output: "fails.txt"
    shell: "echo no such state >&2; exit 3"
"""


@dataclass
class Wanted:
    """What the executor reads of a job of Snakemake."""

    name: str = "square"
    jobid: int = 7
    threads: int = 1
    resources: Mapping[str, object] = field(default_factory=dict)
    input: Sequence[str] = ()

    def is_group(self) -> bool:
        return False


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - Snakemake may not be installed
    """Return the plugin as Snakemake's registry finds it, with the executor installed."""
    registry: Any = pytest.importorskip(
        "snakemake_interface_executor_plugins.registry",
        reason="Snakemake's interface is not installed: pip install snakemake-interface-executor-plugins",
    )
    monkeypatch.syspath_prepend(SNAKEMAKE_SOURCE)
    return registry.ExecutorPluginRegistry().get_plugin("koala")


def test_the_registry_finds_the_executor(plugin: Any) -> None:  # noqa: ANN401
    settings = plugin.settings_cls()
    assert (plugin.name, settings.site, settings.state, settings.walltime) == ("koala", None, None, "1h")
    assert plugin.common_settings.non_local_exec
    assert not plugin.common_settings.pass_envvar_declarations_to_cmd


def test_what_a_job_of_koala_is_made_of(plugin: Any) -> None:  # noqa: ANN401
    """The script is run by a shell; minutes are seconds; resources that are koala's are keys of a job file."""
    from snakemake_executor_plugin_koala.executor import koala_job  # noqa: PLC0415 - it needs Snakemake's interface

    given: dict[str, Any] = {"directory": "/work", "environment": {"WORD": "hello"}, "walltime": "1h"}
    resources = {
        "runtime": 5,
        "mem_mb": 1000,
        "koala_cluster": "beta",
        "koala_priority": 3,
        "koala_setup": "module load x",
    }
    assert koala_job(Wanted(resources=resources), "echo", **given).values() == {
        "name": "square-7",
        "walltime": 300,
        "working_directory": "/work",
        "priority": 3,
        "environment": {"WORD": "hello"},
        "setup": ["module load x"],
        "components": [
            {"command": ["/bin/sh", "-c", "echo"], "cluster": "beta", "processors": 1, "memory": 1000},
        ],
    }
    assert koala_job(Wanted(), "echo", **given).walltime == "1h"


@pytest.mark.parametrize(
    ("job", "slot"),
    [
        (Wanted(), {}),
        (Wanted(threads=4), {"threads": 4}),
        (Wanted(resources={"mem_mb": 2000, "disk_mb": 50_000}), {"memory": 2000}),
        (Wanted(resources={"disk_mb": 1000}, input=["a"]), {}),
        (Wanted(resources={"disk_mb": 2000}, input=["a"]), {"scratch": 2000}),
        (Wanted(resources={"gpu": 2}), {"gpus": 2}),
        (Wanted(resources={"nvidia_gpu": 1, "gpu_model": "a100"}), {"gpus": "a100:1"}),
        (Wanted(resources={"gres": "gpu:2"}), {"gpus": 2}),
        (Wanted(resources={"gres": "gpu:a100:2"}), {"gpus": "a100:2"}),
        (
            Wanted(resources={"mem_mb": 1, "koala_memory": "2GiB", "koala_queue": "long"}),
            {"memory": "2GiB", "queue": "long"},
        ),
    ],
)
def test_resources_of_a_job_are_those_of_its_slot(plugin: Any, job: Wanted, slot: dict[str, object]) -> None:  # noqa: ANN401
    from snakemake_executor_plugin_koala.executor import koala_job  # noqa: PLC0415

    assert plugin.name == "koala"
    made = koala_job(job, "echo", directory="/work", environment={}, walltime="1h").values()
    assert made["components"] == [{"command": ["/bin/sh", "-c", "echo"], "processors": 1, **slot}]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (Wanted(resources={"tasks": 8}), "resource tasks: found 8"),
        (Wanted(resources={"gres": "fpga:1"}), 'resource gres: found "fpga:1", allowed is "gpu:N" or "gpu:KIND:N"'),
        (
            Wanted(resources={"koala_cloud": "beta"}),
            "resource koala_cloud: allowed is koala_ and one of ",
        ),
    ],
)
def test_what_cannot_be_is_refused_snakemake(plugin: Any, job: Wanted, said: str) -> None:  # noqa: ANN401
    from snakemake_executor_plugin_koala.executor import koala_job  # noqa: PLC0415

    with pytest.raises(koala.ConfigurationError) as raised:
        koala_job(job, "echo", directory="/work", environment={}, walltime="1h")
    assert said in raised.value.message


def test_one_forgotten_job_keeps_no_report_of_others_back(plugin: Any) -> None:  # noqa: ANN401
    from snakemake_executor_plugin_koala.executor import reports_of  # noqa: PLC0415

    assert plugin.name == "koala"
    with koala.local_site(["alpha"], processors=1) as site:
        job_id = site.run(koala.Job(["true"])).id
        reports = reports_of(site, ["999", job_id])
    assert isinstance(reports["999"], koala.JobNotFoundError)
    known = reports[job_id]
    assert isinstance(known, koala.JobReport)
    assert known.state is koala.JobState.COMPLETED


@pytest.mark.nightly
def test_a_workflow_runs_on_three_clusters(tmp_path: Path) -> None:
    pytest.importorskip("snakemake", reason="Snakemake is not installed: pip install snakemake")
    (tmp_path / "Snakefile").write_text(WORKFLOW)
    with koala.local_site(["alpha", "beta", "gamma"], processors=2) as site:
        options = f"--executor koala --jobs 6 --seconds-between-status-checks 1 --koala-site {site.file} --koala-state"
        command = [sys.executable, "-m", "snakemake", *options.split(), str(site.directory)]
        environment = {**os.environ, "PYTHONPATH": str(SNAKEMAKE_SOURCE), "WORD": "hello"}

        def workflow(*targets: str) -> tuple[int, str]:
            done = subprocess.run(
                [*command, *targets],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIVENESS * 4,
                check=False,
            )
            return done.returncode, done.stdout + done.stderr

        status, said = workflow()
        assert status == 0, said
        assert (tmp_path / "sum.txt").read_text() == "beta 1 hello\ngamma 4 hello\nalpha 9 hello\n"
        assert {job.status for job in site.jobs()} == {koala.JobState.COMPLETED}
        status, said = workflow("wide.txt")
        assert status == 0, said
        assert (tmp_path / "wide.txt").read_text() == "2 2\n"
        status, said = workflow("fails.txt")
        assert (status, "exited with status 1; see" in said) == (1, True)


# -- Parsl over local clusters: its blocks are koala jobs, on whatever cluster has processors.


EXAMPLE = Path(__file__).parents[1] / "examples" / "malleable" / "parsl_primes.py"


@pytest.fixture
def parsl_koala(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Koala]:
    """Give a site of two local clusters of four processors, and end all of it afterwards."""
    with closing(Koala(tmp_path)) as one:
        for name, value in one.environment.items():
            monkeypatch.setenv(name, value)
        yield one


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


@pytest.mark.nightly
def test_blocks_run_on_both_clusters_at_once(parsl_koala: Koala) -> None:
    blocks = provider(parsl_koala, init_blocks=1, max_blocks=3, nodes_per_block=2)
    with parsl_over(blocks, parsl_koala.directory) as kernel:
        results = [one.result(LIVENESS) for one in squares(kernel, 40, seconds=0.5)]
        assert len(parsl_koala.client.jobs()) == 3
    assert {where for _, where in results} == {"alpha", "beta"}
    eventually(lambda: parsl_koala.placeholders() == [])


def test_submit_status_and_cancel(parsl_koala: Koala) -> None:
    blocks = provider(parsl_koala)
    running = blocks.submit("sleep 300", 1, "a block")
    assert parsl_koala.report(running).name == "a block"
    eventually(lambda: blocks.status([running])[0].state is BlockState.RUNNING)
    parsl_koala.inside("serve", "--stop")
    short = blocks.submit("echo $PARSL_CORES; exit 0", 1)
    bad = blocks.submit("echo broken >&2; exit 3", 1)
    eventually(lambda: [one.state for one in blocks.status([short, bad])] == [BlockState.COMPLETED, BlockState.FAILED])
    done, failed = blocks.status([short, bad])
    assert (done.stdout, failed.stderr, failed.exit_code) == ("1\n", "broken\n", 3)
    assert failed.message is not None
    assert "exited with status 3" in failed.message
    assert blocks.status([running])[0].state is BlockState.RUNNING
    parsl_koala.inside("serve", "--stop")
    assert blocks.cancel([running, short]) == [True, True]
    eventually(lambda: blocks.status([running])[0].state is BlockState.CANCELLED)
    eventually(lambda: parsl_koala.placeholders() == [])
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
def test_what_cannot_be_is_refused_at_once(parsl_koala: Koala, given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        provider(parsl_koala, **given)


def test_a_block_that_cannot_be_submitted_says_why(parsl_koala: Koala) -> None:
    blocks = provider(parsl_koala)
    with pytest.raises(SubmitException, match="one task on each processor, not 2"):
        blocks.submit("true", 2)
    parsl_koala.site_file.write_text("nonsense")
    with pytest.raises(SubmitException, match="the service did not come up"):
        blocks.submit("true", 1)
    assert blocks.status(["7"])[0].state is BlockState.UNKNOWN
    assert blocks.cancel(["7"]) == [False]


def test_the_example_runs_as_it_stands(parsl_koala: Koala) -> None:
    """With nothing but the site file named, and Parsl's programs in the PATH; it leaves nothing behind."""
    programs = Path(parsl.__file__).parents[4] / "bin"
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "40000"],
        env={
            **parsl_koala.environment,
            "KOALA_SITE": str(parsl_koala.site_file),
            "KOALA_STATE": str(parsl_koala.state),
            "PATH": f"{programs}:{parsl_koala.environment['PATH']}",
        },
        cwd=parsl_koala.directory,
        capture_output=True,
        text=True,
        timeout=2 * LIVENESS,
        check=False,
    )
    assert done.stdout.startswith("4203 primes below 40000\n"), (done.stdout, done.stderr)
    assert done.stdout.count(" of 2 shares") in {1, 2}
    eventually(lambda: parsl_koala.placeholders() == [])
