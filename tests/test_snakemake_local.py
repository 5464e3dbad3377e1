# SPDX-License-Identifier: Apache-2.0
"""Snakemake over local clusters: its registry finds the executor, which makes koala's jobs of those of a workflow."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import koala_adapter as koala
from tests.local_koala import LIVENESS

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = Path(__file__).parents[1] / "plugins" / "snakemake-executor-plugin-koala" / "src"
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
    threads: 4
    shell: "touch {output}"

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


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - Snakemake may not be installed
    """Return the plugin as Snakemake's registry finds it, with the executor installed."""
    registry: Any = pytest.importorskip(
        "snakemake_interface_executor_plugins.registry",
        reason="Snakemake's interface is not installed: pip install snakemake-interface-executor-plugins",
    )
    monkeypatch.syspath_prepend(SOURCE)
    return registry.ExecutorPluginRegistry().get_plugin("koala")


def test_the_registry_finds_the_executor(plugin: Any) -> None:  # noqa: ANN401
    """By its name, with its options."""
    settings = plugin.settings_cls()
    assert (plugin.name, settings.site, settings.state, settings.walltime) == ("koala", None, None, "1h")
    assert plugin.common_settings.non_local_exec
    assert not plugin.common_settings.pass_envvar_declarations_to_cmd


def test_what_a_job_of_koala_is_made_of(plugin: Any) -> None:  # noqa: ANN401
    """The script is run by a shell; minutes are seconds; resources that are koala's are keys of a job file."""
    from snakemake_executor_plugin_koala.executor import koala_job  # noqa: PLC0415 - it needs Snakemake's interface

    given: dict[str, Any] = {"directory": "/work", "environment": {"WORD": "hello"}, "walltime": "1h"}
    resources = {"runtime": 5, "mem_mb": 1000, "koala_cluster": "beta", "koala_priority": 3}
    assert koala_job(Wanted(resources=resources), "echo", **given).values() == {
        "name": "square-7",
        "walltime": 300,
        "working_directory": "/work",
        "priority": 3,
        "environment": {"WORD": "hello"},
        "components": [{"command": ["/bin/sh", "-c", "echo"], "cluster": "beta", "processors": 1}],
    }
    assert koala_job(Wanted(), "echo", **given).walltime == "1h"


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (Wanted(threads=4), "threads: found 4, allowed is 1"),
        (Wanted(resources={"gpu": 1}), "resource gpu: found 1"),
        (Wanted(resources={"tasks": 8}), "resource tasks: found 8"),
        (Wanted(resources={"koala_cloud": "beta"}), "resource koala_cloud: allowed is koala_ and one of cluster,"),
    ],
)
def test_what_cannot_be_is_refused(plugin: Any, job: Wanted, said: str) -> None:  # noqa: ANN401
    """With what was found and what is allowed."""
    from snakemake_executor_plugin_koala.executor import koala_job  # noqa: PLC0415

    with pytest.raises(koala.ConfigurationError) as raised:
        koala_job(job, "echo", directory="/work", environment={}, walltime="1h")
    assert said in raised.value.message


class Forgetful:
    """A site whose service has forgotten job 2."""

    def begin_service(self) -> None:
        """Do nothing: it runs."""

    def information(self) -> Forgetful:
        """Return what tells of jobs."""
        return self

    def jobs(self, _count: int) -> list[Any]:
        """Return no latest ones."""
        return []

    def job(self, id_: str) -> Any:  # noqa: ANN401
        """Return a job. Raises JobNotFoundError for job 2."""
        if id_ == "2":
            raise koala.JobNotFoundError("there is no job 2")
        return types.SimpleNamespace(report=lambda: f"report of {id_}")


def test_a_job_that_is_forgotten_hides_no_other(plugin: Any) -> None:  # noqa: ANN401
    """It has failed; what is known of the others is told."""
    from snakemake_executor_plugin_koala.executor import Executor  # noqa: PLC0415

    executor: Any = Executor.__new__(Executor)
    executor._site = Forgetful()
    reports = executor._reports(["1", "2", "3"])
    assert (reports["1"], reports["3"]) == ("report of 1", "report of 3")
    assert isinstance(reports["2"], koala.JobNotFoundError)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_workflow_runs_on_three_clusters(tmp_path: Path) -> None:
    """Snakemake itself; what cannot be and what fails is said, and nothing is left behind."""
    pytest.importorskip("snakemake", reason="Snakemake is not installed: pip install snakemake")
    (tmp_path / "Snakefile").write_text(WORKFLOW)
    with koala.local_site(["alpha", "beta", "gamma"], processors=2) as site:
        options = f"--executor koala --jobs 6 --seconds-between-status-checks 1 --koala-site {site.file} --koala-state"
        command = [sys.executable, "-m", "snakemake", *options.split(), str(site.directory)]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "WORD": "hello"}

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
        assert (status, "threads: found 4, allowed is 1" in said) == (1, True)
        status, said = workflow("fails.txt")
        assert (status, "exited with status 1; see" in said) == (1, True)
