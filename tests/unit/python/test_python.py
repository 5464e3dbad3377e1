# SPDX-License-Identifier: Apache-2.0
"""Jobs from Python: what ``koala_adapter`` and its provider for Parsl take, tell and show."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import cast

import pytest
from parsl.executors import HighThroughputExecutor
from parsl.executors.high_throughput.executor import DEFAULT_LAUNCH_CMD
from parsl.jobs.states import TERMINAL_STATES
from parsl.jobs.states import JobState as BlockState

import koala_adapter as koala
from koala_adapter.config.jobfile import job_of_values
from koala_adapter.config.jobtables import ComponentTable, JobTable
from koala_adapter.config.sitefile import load_site_text
from koala_adapter.config.slottable import SlotTable
from koala_adapter.errors import ConfigurationError, KoalaError
from koala_adapter.lrm import load_plugins
from koala_adapter.model import ClusterName, EndReason, InputFile, JobKind, RunnerName
from koala_adapter.model import Job as CheckedJob
from koala_adapter.outcome import JobOutcome, JobState
from koala_adapter.parsl import KoalaProvider, block_state, through_koala
from koala_adapter.python import description, taskworker
from koala_adapter.python.description import SlotKeys
from koala_adapter.python.executor import require_known_to_workers
from koala_adapter.python.jobs import in_hold, mimebundle, show_reports
from koala_adapter.python.localsite import local_site_text
from koala_adapter.report.values import HoldReport, JobReport
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.platform import ClusterModel
from koala_adapter.slots import Slot
from koala_experiments.liveruns import site_text
from tests.imported import imported_packages
from tests.unit.api.jobreports import component_report, job_report
from tests.vanishing import vanish_when_read

# -- Jobs as programs describe them: the same keys as in a job file, and the same refusals.


def checked(job: koala.Job, directory: Path) -> CheckedJob:
    return job_of_values(job.values(), source="koala.Job", user="me", directory=directory)


def test_descriptions_have_the_keys_of_a_job_file() -> None:
    """Those of a slot in job files, of components and jobs of programs, and as arguments that are handed on."""
    assert {one.name for one in fields(koala.Component)} == set(ComponentTable.model_fields) >= description.ALONE
    assert {one.name for one in fields(koala.Job)} == {*JobTable.model_fields, *description.ALONE}
    assert set(description.SLOT_NAMES) == set(SlotTable.model_fields) == set(SlotKeys.__annotations__)
    with pytest.raises(TypeError, match="KoalaCluster got an unexpected keyword argument 'thread'"):
        description.require_slot_keys("KoalaCluster", cast("SlotKeys", {"thread": 2}))


def test_a_program_alone_is_a_job(tmp_path: Path) -> None:
    """On one processor, for an hour, called by its program."""
    job = checked(koala.Job([Path("/bin/echo"), "hello"]), tmp_path)
    assert (job.name, job.walltime, job.components[0].minimum) == ("echo", 3600, 1)
    assert job.components[0].command == ("/bin/echo", "hello")


def test_a_job_says_what_its_ranks_need(tmp_path: Path) -> None:
    job = koala.Job(["p"], threads=2, memory="4GiB", gpus="a100:2", features=("ib",), queue={"alpha": "long"})
    (component,) = checked(job, tmp_path).components
    assert component.slot == Slot(threads=2, memory_mib=4096, gpus=2, gpu_kind="a100", features=("ib",))
    assert component.slot_on(ClusterName("alpha")).queue == "long"


def test_all_that_is_said_arrives(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    job = checked(
        koala.Job(
            components=(
                koala.Component(["head"], environment={"A": "1"}),
                koala.Component(
                    ("worker", Path("x")),
                    name="crew",
                    minimum=1,
                    maximum=8,
                    input_files=[tmp_path / "a", {"source": tmp_path / "a", "target": "b"}],
                    output_files=["*.txt"],
                    retire_grace="1m",
                    flexible=True,
                ),
            ),
            kind="malleable",
            runner="workers",
            walltime=90,
            priority=3,
            working_directory=tmp_path,
        ),
        tmp_path,
    )
    head, crew = job.components
    assert (job.kind, job.runner, job.walltime, job.priority) == (JobKind.MALLEABLE, RunnerName.WORKERS, 90, 3)
    assert (job.name, job.working_directory) == ("head", str(tmp_path))
    assert (head.minimum, head.environment) == (1, (("A", "1"),))
    assert (crew.name, crew.command, crew.maximum, crew.retirement.grace) == ("crew", ("worker", "x"), 8, 60)
    assert [one.target for one in crew.input_files] == ["a", "b"]
    assert (crew.output_files, crew.flexible) == (("*.txt",), True)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (koala.Job(["a"], setup="one line", software="gromacs"), (("one line",), ("gromacs",), "")),
        (koala.Job(["a"], setup=["x", "y"], container=Path("/a.sif")), (("x", "y"), (), "/a.sif")),
        (
            koala.Job(components=[koala.Component(["a"], setup="y", container="b", software=["u"])], setup="x"),
            (("x", "y"), ("u",), "b"),
        ),
    ],
)
def test_a_text_stands_for_a_list_of_one(job: koala.Job, expected: tuple[object, ...], tmp_path: Path) -> None:
    """Of lines of a shell, of software and of variables that are exported, of which "all" are all."""
    (one,) = checked(job, tmp_path).components
    assert (one.setup, one.software, one.container) == expected


def test_variables_are_exported_from_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are when the job is made ready for submission."""
    monkeypatch.setenv("HERE_AND_THERE", "1")
    for export, found in (("HERE_*", True), (["HERE_AND_THERE"], True), ("all", True), ("ELSE", False), ((), False)):
        environment = dict(checked(koala.Job(["a"], export=export), tmp_path).environment)
        assert ("HERE_AND_THERE" in environment) is found


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (koala.Job(), "^koala.Job: it has nothing to run"),
        (koala.Job("sleep 100"), r'command: found "sleep 100", allowed is a list of texts, .*\["sleep", "100"\]'),
        (koala.Job(["sleep"], memory="much"), r'components\[0\].memory: found "much", allowed is MiB'),
        (koala.Job(threads=2, components=[koala.Component(["b"])]), "given together with components: threads"),
        (koala.Job(["a"], components=[koala.Component(["b"])]), "given together with components: command"),
        (koala.Job(["sleep", 3]), r"command\[1\]: found 3"),  # type: ignore[list-item]
        (koala.Job(["sleep"], input_files=["nowhere"]), "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(job: koala.Job, said: str, tmp_path: Path) -> None:
    with pytest.raises(koala.ConfigurationError, match=said) as raised:
        checked(job, tmp_path)
    assert isinstance(raised.value, koala.KoalaError)


def test_the_examples_are_true() -> None:
    assert doctest.testmod(description).failed == 0
    assert doctest.testmod(description).attempted > 1


# -- A job as a notebook shows it, and as it is shown elsewhere.


COMPONENT = component_report(name="left", processors=8, held=3, queued=5, hosts=("n1", "n2", "n3", "n4", "n5"))
WAITING = job_report(id="7", name="<pi>", components=(COMPONENT,), explanation="It waits for 5 & holds 3.")
LOST = JobOutcome(state=JobState.LOST, reason=EndReason.LOST, exit_code=242, detail="n1 went down")
ENDED = replace(WAITING, state=JobState.LOST, outcome=LOST, launched_at=1.0)


def test_a_job_is_a_table_in_a_notebook() -> None:
    """With what it holds, or held when it ended, why it waits, and nothing of it taken for markup."""
    shown = mimebundle(WAITING)
    assert shown["text/plain"] == "job 7 claiming: left 3 of 8 on alpha"
    html = shown["text/html"]
    assert "&lt;pi&gt;" in html
    assert '<progress max="8" value="3"></progress> 3 of 8' in html
    assert "n1, n2, n3, n4 …" in html
    assert "It waits for 5 &amp; holds 3." in html
    assert "n1 went down" in mimebundle(ENDED)["text/html"]
    running = replace(WAITING, state=JobState.RUNNING, launched_at=1.0)
    assert 'value="3"></progress> 3 of 8' in mimebundle(running)["text/html"]
    assert 'value="8"></progress> 8 of 8' in mimebundle(replace(running, finished_at=2.0))["text/html"]


def test_what_waits_for_something_else_than_processors_is_said() -> None:
    holds = (
        HoldReport(holder="user", reason="JobHeldUser", placeholders=2, since=0.0),
        HoldReport(holder="unknown", reason="for their reservation", placeholders=3, since=0.0, in_hold=False),
    )
    said = in_hold(replace(COMPONENT, holds=holds))
    assert said == " (2 in hold there: user JobHeldUser, 3 kept waiting there: for their reservation)"


def test_each_change_is_a_line_without_a_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, once, so that what the program prints stays its own."""
    assert show_reports([WAITING, WAITING, ENDED]) is ENDED
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "job 7 claiming: left 3 of 8 on alpha",
        "  It waits for 5 & holds 3.",
        "job 7 lost",
    ]


@pytest.mark.parametrize("removed", [".", "0", "0/d"])
def test_output_files_may_be_removed_while_they_are_listed(
    removed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `koala clean`: what is left is told of."""
    (tmp_path / "left" / "0" / "d").mkdir(parents=True)
    result = koala.JobResult(replace(WAITING, output_directory=str(tmp_path)))
    vanish_when_read(tmp_path / "left" / removed, monkeypatch)
    assert result.files == ()
    assert not (tmp_path / "left" / removed).exists()


# -- Site files of temporary sites are valid in whatever directory temporary files are.


SITES: dict[str, Callable[[Path], str]] = {
    "local_site": lambda directory: local_site_text(directory, {"alpha": 2}, {"approach": "pwa"}),
    "experiment": lambda directory: site_text([ClusterModel(name="a", nodes=2)], Approach.PRA, "fpsma", directory),
}


@pytest.mark.parametrize("kind", SITES)
@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\U0001f40ab", "a{c}"])
def test_any_directory_is_written_as_toml(kind: str, name: str) -> None:
    directory = Path("/tmp") / name
    site = load_site_text(SITES[kind](directory), load_plugins())
    assert {cluster.output_directory for cluster in site.clusters} == {str(directory)}


# -- What the package hands on: every name that it promises, imported when it is asked for and not before.


PROMISED = {
    "ClusterReport",
    "Component",
    "ComponentReport",
    "ConfigurationError",
    "Executor",
    "Job",
    "JobFailedError",
    "JobHandle",
    "JobNotFoundError",
    "JobRefusedError",
    "JobReport",
    "JobResult",
    "JobState",
    "JobTimeoutError",
    "KoalaError",
    "ServiceUnavailableError",
    "Site",
    "UsageReport",
    "aio",
    "clusters",
    "job",
    "jobs",
    "local_site",
    "run",
    "submit",
}
"""Names that programs rely on: one that goes away breaks them."""


def test_the_names_are_the_promised_ones() -> None:
    assert set(koala.__all__) == PROMISED
    assert set(dir(koala)) >= PROMISED
    assert [name for name in koala.__all__ if getattr(koala, name).__name__.rpartition(".")[2] != name] == []


def test_a_name_that_is_not_there_is_said_to_be_none() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Jobs'"):
        _ = koala.Jobs


NO_MODULE = "import sys, koala_adapter; assert [m for m in sys.modules if m.startswith('koala_adapter.')] == []"
"""Imports not even a module of the package itself."""
NEVER_ANY = """
import contextlib, koala_adapter as koala
with contextlib.suppress(koala.ServiceUnavailableError):
    koala.Site("no.toml", state="/nowhere").jobs()
    raise SystemExit("there are jobs")
"""
"""Asks for jobs where neither a service nor a journal is."""


@pytest.mark.parametrize(
    ("program", "packages"),
    [
        (NO_MODULE, {"koala_adapter"}),
        ("from koala_adapter import Job, Component, Site, JobHandle, submit, KoalaError", {"koala_adapter"}),
        ("from koala_adapter import aio", {"koala_adapter", "anyio"}),
        (NEVER_ANY, {"koala_adapter"}),
    ],
)
def test_importing_waits_for_little(program: str, packages: set[str]) -> None:
    """Site files, and whatever a service is made of, are imported with the first job."""
    assert imported_packages(["-c", program], os.environ) - {"sniffio", "idna", "typing_extensions"} == packages


# Blocks of Parsl as jobs: what a block's job file says, and what its report means to Parsl.


def report(state: JobState, reason: EndReason = EndReason.EXITED) -> JobReport:
    outcome = JobOutcome(state=state, reason=reason, exit_code=1) if state.final else None
    return job_report(name="block", state=state, user="alice", outcome=outcome, output_directory="/")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    file = tmp_path / "site.toml"
    file.write_text(local_site_text(tmp_path, {"alpha": 4, "beta": 4}))
    return file


def test_the_job_of_a_block_is_any_text_for_bash(site: Path) -> None:
    """Quotes, line breaks, non-ASCII and control characters arrive as they are. On one cluster it stays there."""
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
    job = KoalaProvider(site=site, nodes_per_block=3, cluster="alpha")._job("true", "")
    assert (job.components[0].cluster, job.components[0].flexible, job.walltime) == ("alpha", False, 3600)


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
    keys = {"setup": "one line", "software": ["conda"], "container": "worker.sif", "input_files": ["lfn:hg38.fa"]}
    (block,) = KoalaProvider(site=site, **keys)._job("true", "").components  # type: ignore[arg-type] # as users say it
    assert (block.setup, block.software, block.container) == (("one line",), ("conda",), "worker.sif")
    assert block.input_files == (InputFile(source="lfn:hg38.fa", target="hg38.fa"),)
    with pytest.raises(ConfigurationError, match="KoalaProvider: software: found vasp, allowed is what one cluster"):
        KoalaProvider(site=site, software="vasp")


def test_every_state_of_a_job_is_one_of_a_block() -> None:
    """The end of the walltime is no failure: Parsl would take its batch system for broken after a few of those."""
    assert [state for state in JobState if (block_state(report(state)) in TERMINAL_STATES) != state.final] == []
    assert block_state(report(JobState.FAILED, EndReason.WALLTIME)) is BlockState.TIMEOUT
    assert block_state(report(JobState.FAILED)) is BlockState.FAILED
    assert block_state(report(JobState.LOST, EndReason.NODE_LOST)) is BlockState.FAILED


def test_workers_of_parsl_find_its_interchange_through_koala() -> None:
    """In the command of Parsl's own executor, as it is filled in; another command stays as it is."""
    filled = {"{addresses}": "10.0.0.1,192.168.1.2", "{worker_port}": "54321"}
    command = re.sub(r"\{(?:addresses|worker_port)\}", lambda name: filled[name[0]], DEFAULT_LAUNCH_CMD)
    found, ports = through_koala(command)
    assert ports == (54321,)
    assert ' -a "$KOALA_HOST_ADDRESS" -p ' in found
    assert "10.0.0.1" not in found
    assert through_koala("sleep 1") == ("sleep 1", ())


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


def test_a_function_of_the_program_itself_needs_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """By pickle, a worker would look for it in its own program."""

    def square(number: int) -> int:
        return number * number

    square.__module__ = "__main__"
    monkeypatch.setattr(taskworker, "BY_VALUE", False)
    require_known_to_workers(abs)
    with pytest.raises(KoalaError, match="the function square is of the program itself"):
        require_known_to_workers(square)
