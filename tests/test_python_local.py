# SPDX-License-Identifier: Apache-2.0
"""The Python interface, the cookbook, a notebook, and the examples of docs/coming-from.md, on local clusters."""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

import koala_adapter as koala
from koala_adapter.cli.koala import koala as command_line
from koala_adapter.python import localsite
from tests.local_koala import LIVENESS, eventually, processes_naming

# -- Jobs from Python on local clusters: submitted, followed, cancelled and lost sight of, with nothing left behind.


PAGE = Path(__file__).parents[1] / "docs" / "python.md"
WITH_TRIO = pytest.mark.skipif(find_spec("trio") is None, reason="needs trio, which the extra `test` brings along")
SLEEP = koala.Job(["sleep", "600"], walltime="20m")


@pytest.fixture(scope="module")
def site() -> Iterator[koala.Site]:
    """Give two local clusters of four processors, and a service that the first job begins."""
    with koala.local_site() as one:
        yield one
    assert processes_naming(str(one.directory.parent)) == []
    assert not one.directory.exists()


def shell(script: str, **more: object) -> koala.Job:
    """Return a job whose processes run a shell script."""
    return koala.Job(["sh", "-c", script], walltime="20m", **more)  # type: ignore[arg-type]


def test_a_job_and_its_result(site: koala.Site) -> None:
    script = "echo $KOALA_RANK of $KOALA_SIZE on $KOALA_CLUSTER; echo warned >&2; echo 42 > answer"
    parts = [
        koala.Component(["sh", "-c", script], processors=2, cluster=name, name=part, output_files=["answer"])
        for name, part in (("alpha", "left"), ("beta", "right"))
    ]
    handle = site.submit(koala.Job(components=parts, name="pair", walltime=600))
    result = handle.result(LIVENESS)
    assert (result.ok, result.exit_code, result.state, result.detail) == (True, 0, koala.JobState.COMPLETED, "")
    assert sorted(result.stdout.splitlines()) == [
        "left/0: 0 of 4 on alpha",
        "left/1: 1 of 4 on alpha",
        "right/0: 2 of 4 on beta",
        "right/1: 3 of 4 on beta",
    ]
    assert result.output("right", 1) == "3 of 4 on beta\n"
    assert result.output("left", 0, stderr=True) == "warned\n"
    assert [(path.parent.parent.name, path.read_text()) for path in result.files] == [
        ("left", "42\n"),
        ("left", "42\n"),
        ("right", "42\n"),
        ("right", "42\n"),
    ]
    assert (handle.done(), handle.status, handle.report().name) == (True, koala.JobState.COMPLETED, "pair")
    assert "pair" in handle._repr_mimebundle_()["text/html"]


def test_a_job_that_fails_raises_what_happened(site: koala.Site) -> None:
    handle = site.submit(shell("echo broken >&2; exit 3"))
    with pytest.raises(koala.JobFailedError, match=r"exited with status 3\n  broken") as raised:
        handle.result(LIVENESS)
    assert (raised.value.job_id, raised.value.job_exit_code) == (handle.id, 3)
    assert handle.wait().exit_code == 3
    assert site.run(shell("exit 4"), check=False).exit_code == 4


def test_waiting_has_a_limit_and_the_job_goes_on(site: koala.Site) -> None:
    with site.submit(shell("echo begun; exec sleep 600")) as handle:
        assert next(handle.lines(timeout=LIVENESS)) == "begun"
        assert handle.logs() == "begun\n"
        with pytest.raises(TimeoutError, match=f"job {handle.id} is not over yet"):
            handle.wait(0.1)
        eventually(lambda: handle.status is koala.JobState.RUNNING)  # output comes before the word that it has started
        assert "has been running" in handle.explain()
        assert not site.client.stop_if_idle()
        handle.cancel()
        assert handle.wait(LIVENESS).state is koala.JobState.CANCELLED
    assert handle.report().over
    handle.cancel()


def test_what_cannot_be_is_refused(site: koala.Site, tmp_path: Path) -> None:
    with pytest.raises(koala.ConfigurationError, match='found "gamma", allowed is a cluster of the site'):
        site.submit(koala.Job(["true"], cluster="gamma"))
    with pytest.raises(koala.ConfigurationError, match="no such"):
        site.submit(tmp_path / "nowhere.toml")
    with pytest.raises(koala.JobNotFoundError, match="no component 'middle'"):
        site.submit(koala.Job(["true"])).logs("middle")
    with pytest.raises(koala.JobNotFoundError):
        _ = site.job("4711").status
    assert site.run(koala.Job(["true"], processors=9), check=False).state is koala.JobState.REFUSED


def test_many_threads_at_once(site: koala.Site) -> None:
    file = site.directory.parent / "job.toml"
    file.write_text('walltime = "1m"\n[[components]]\ncommand = ["echo", "file"]\nprocessors = 1\n', encoding="utf-8")

    def run(number: int) -> str:
        return koala.run(file if number == 0 else koala.Job(["echo", str(number)]), site=site).stdout

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(run, range(6))) == ["file\n", "1\n", "2\n", "3\n", "4\n", "5\n"]
    assert len(koala.jobs(3, site=site)) == 3


def test_a_wait_outlives_the_service(site: koala.Site) -> None:
    with site.submit(shell("until test -e $GO; do sleep 0.2; done; echo went", environment=go(site))) as handle:
        eventually(lambda: handle.status is koala.JobState.RUNNING)
        site.client.stop()
        eventually(lambda: site.client.pid() is None)
        assert handle.status is koala.JobState.RUNNING
        waiter = ThreadPoolExecutor(1)
        waited = waiter.submit(handle.result, LIVENESS)
        eventually(lambda: site.client.pid() is not None)
        Path(go(site)["GO"]).touch()
        assert waited.result(LIVENESS).stdout == "went\n"
        waiter.shutdown()


def go(site: koala.Site) -> dict[str, str]:
    """Return the environment in which a job finds the file that it waits for."""
    return {"GO": str(site.directory.parent / "go")}


@pytest.mark.parametrize("anyio_backend", ["asyncio", pytest.param("trio", marks=WITH_TRIO)])
async def test_with_an_event_loop(site: koala.Site) -> None:
    async with await koala.aio.submit(shell("echo a; exec sleep 600"), site=site) as handle:
        with pytest.raises(koala.JobTimeoutError):
            await handle.wait(0.1)
        assert (await koala.aio.run(koala.Job(["echo", "b"]), site=site)).stdout == "b\n"
        async with aclosing(handle.lines()) as lines:
            assert await anext(lines) == "a"
        assert await handle.logs() == "a\n"
        assert [cluster.name for cluster in await koala.aio.clusters(site=site)] == ["alpha", "beta"]
        await handle.cancel()
        with pytest.raises(koala.JobFailedError):
            await handle.result()
    with anyio.move_on_after(0.5):
        await koala.aio.run(SLEEP, site=site)
    last = (await koala.aio.jobs(1, site=site))[0]
    with anyio.fail_after(LIVENESS):
        assert (await last.wait()).state in {koala.JobState.CANCELLED, koala.JobState.COMPLETED}


PROGRAM = """\
import koala_adapter as koala

site = koala.Site.load({file!r}, state={state!r})
try:
    print("running", flush=True)
    site.run(koala.Job(["sh", "-c", "echo > {mark}; exec sleep 600"], walltime="20m"))
except KeyboardInterrupt:
    print("interrupted", site.jobs()[0].status, site.client.pid(), flush=True)
"""


def test_ctrl_c_leaves_nothing_behind() -> None:
    with koala.local_site(["alpha"], processors=1) as site:
        mark = site.directory.parent / "mark"
        program = PROGRAM.format(file=str(site.file), state=str(site.directory), mark=mark)
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        try:
            eventually(mark.exists)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=LIVENESS)
        finally:
            process.kill()
            process.wait()
        assert output == "running\ninterrupted cancelled None\n"
        assert site.client.pid() is None


def fail_in_block(site: koala.Site) -> None:
    """Submit a job and fail, in one block."""
    with site:
        site.submit(SLEEP)
        raise ZeroDivisionError


def test_a_block_ends_what_it_began() -> None:
    with koala.local_site(["alpha"], processors=2) as outer:
        site = koala.Site.load(outer.file, state=outer.directory)
        with pytest.raises(ZeroDivisionError):
            fail_in_block(site)
        assert site.client.pid() is None
        assert site.jobs()[0].status is koala.JobState.CANCELLED
        with site:
            awaited = site.submit(koala.Job(["echo", "done"]))
        assert site.client.pid() is None
        assert awaited.result().stdout == "done\n"
        assert [one.id for one in site.jobs()] == ["1", awaited.id]
    with pytest.raises(koala.KoalaError, match="the output of job 2 is gone"):
        _ = awaited.result().stdout


def test_a_run_does_not_wait_for_jobs_of_others() -> None:
    """Those that were submitted at the same site meanwhile, outside of a block, go on, and so does the service."""
    with koala.local_site(["alpha"], processors=2) as outer:
        site = koala.Site.load(outer.file, state=outer.directory)
        with ThreadPoolExecutor(1) as thread:
            run = thread.submit(site.run, shell("until test -e $GO; do sleep 0.1; done", environment=go(outer)))
            eventually(lambda: outer.client.pid() is not None)
            handle = site.submit(SLEEP)
            Path(go(outer)["GO"]).touch()
            assert run.result(LIVENESS).ok
        assert outer.client.pid() is not None
        assert not handle.done()
        handle.cancel()
        handle.wait_until_over(LIVENESS)


def test_a_service_of_others_goes_on(site: koala.Site) -> None:
    site.run(koala.Job(["true"]))
    with koala.Site.load(site.file, state=site.directory) as same:
        pid = same.client.pid()
        same.run(koala.Job(["true"]))
    assert pid is not None
    assert same.client.pid() == pid


def fenced(language: str) -> list[str]:
    """Return the blocks of the page in one language."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found
    return found


def test_the_program_of_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", fenced("python")[0]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIVENESS,
        check=False,
    )
    assert (done.stdout, done.stderr) == (fenced("text")[0], "")


def test_the_page_is_true(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What docs/python.md shows is what comes out, from its first line to its last, on a site that is found."""
    monkeypatch.chdir(tmp_path)
    with koala.local_site() as site:
        monkeypatch.setenv("KOALA_SITE", str(site.file))
        monkeypatch.setenv("KOALA_STATE", str(site.directory))
        site.begin_service()  # or each of its runs would begin one, and end it
        text = "\n".join(fenced("pycon"))
        page = doctest.DocTestParser().get_doctest(text, {}, "docs/python.md", str(PAGE), 0)
        told: list[str] = []
        outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(page, out=told.append)
    assert outcome.failed == 0, "".join(told)
    assert outcome.attempted > 10


def test_the_examples_of_docstrings_are_true() -> None:
    outcome = doctest.testmod(localsite)
    assert (outcome.failed, outcome.attempted > 0) == (0, True)


def test_no_thread_is_left(site: koala.Site) -> None:
    before = set(threading.enumerate())  # of other tests
    site.run(koala.Job(["true"]))
    left = [one for one in threading.enumerate() if one not in before and not one.daemon]
    assert left == []
    assert os.getpid() != site.client.pid()


# -- The recipes of docs/cookbook.md do what they promise, as they stand, on local clusters.


COOKBOOK_PAGE = (Path(__file__).parents[1] / "docs" / "cookbook.md").read_text(encoding="utf-8")
RECIPE = re.compile(r"^## (?P<title>.+)\n(?P<body>(?:(?!^## ).*\n)*)", re.MULTILINE)
RECIPES = {match["title"]: match["body"] for match in RECIPE.finditer(COOKBOOK_PAGE)}
MARKED = re.compile(r"<!-- (?P<mark>[^>]+) -->\n```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = {
    "A line of a file for each task": [],
    "Files there and back": ["staged"],
    "Dependent jobs": ["all parts are there"],
}
"""What the recipes of a title print on standard output, without empty lines, in order of the alphabet."""
SWEPT = {"A line of a file for each task": ["task 1: Delft", "task 2: Vienna", "task 3: Leiden"]}
"""What the tasks of its sweep print."""


@pytest.fixture(scope="module")
def cookbook_site() -> Iterator[koala.Site]:
    """Give two local clusters with a service, so that no command is one itself."""
    with koala.local_site() as one:
        one.begin_service()
        yield one


def tried(title: str, site: koala.Site, directory: Path) -> str:
    """Run what a recipe has to be run, with its files beside it, and return what it prints."""
    programs = directory / "bin"
    programs.mkdir()
    (programs / "koala").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m koala_adapter.cli "$@"\n')
    (programs / "koala").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "KOALA_SITE": str(site.file),
        "KOALA_STATE": str(site.directory),
    }
    printed = ""
    for piece in MARKED.finditer(RECIPES[title]):
        if piece["mark"].startswith("file: "):
            (directory / piece["mark"].removeprefix("file: ")).write_text(piece["text"])
        elif piece["mark"] == "run":
            command = ["/bin/sh", "-e"] if piece["language"] == "sh" else [sys.executable]
            done = subprocess.run(
                [*command, "-c", piece["text"]],
                cwd=directory,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIVENESS * 3,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            printed += done.stdout
    return printed


@pytest.mark.parametrize("title", PRINTED)
def test_a_recipe_does_what_it_promises(title: str, cookbook_site: koala.Site, tmp_path: Path) -> None:
    before = {handle.id for handle in cookbook_site.jobs()}
    printed = tried(title, cookbook_site, tmp_path)
    assert sorted(line for line in printed.splitlines() if line) == PRINTED[title]
    new = [handle.report() for handle in cookbook_site.jobs() if handle.id not in before]
    assert new
    assert {report.state for report in new} == {koala.JobState.COMPLETED}
    if title in SWEPT:
        outputs = (Path(new[0].output_directory) / "sweep" / "tasks").glob("*/*.out")
        assert sorted(output.read_text().strip() for output in outputs) == SWEPT[title]
    if title == "Files there and back":
        assert (Path(new[0].output_directory) / "c1" / "0" / "sorted.txt").read_text() == "1\n2\n3\n"


def test_gpus_are_asked_for(tmp_path: Path) -> None:
    """The GPU of the recipe is asked for in the words of Slurm."""
    (option,) = re.findall(r"--gpus (\S+)", RECIPES["GPUs"])
    (tmp_path / "site.toml").write_text('[[clusters]]\nname = "alpha"\nplugin = "slurm"\n')
    component = f'[[components]]\ncommand = ["true"]\nprocessors = 1\ngpus = "{option}"\n'
    (tmp_path / "job.toml").write_text(f'walltime = "1m"\n{component}')
    words = ["--site", str(tmp_path / "site.toml"), "script", str(tmp_path / "job.toml"), "--cluster", "alpha"]
    assert f"--gres=gpu:{option}" in CliRunner().invoke(command_line, words).output


def test_every_other_recipe_is_tried() -> None:
    """Those that nothing runs here are job and site files, which are read by the tests of the manual, and programs."""
    rest = {title for title, body in RECIPES.items() if "<!-- run" not in body}
    assert rest == {"MPI over several clusters", "GPUs", "A Jupyter server on a node", "My site forbids arrays"}


# -- The examples of docs/coming-from.md run as they stand, on two local clusters.

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"<!-- example: (\w+) -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXAMPLES = dict(EXAMPLE.findall((ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")))
EXAMPLE_PRINTS = {"submitit": "12", "psij": "COMPLETED"}
EXAMPLE_NEEDS = {"submitit": "cloudpickle", "psij": "psij"}


def test_each_example_is_tried() -> None:
    assert EXAMPLES.keys() == EXAMPLE_PRINTS.keys() == EXAMPLE_NEEDS.keys()


@pytest.mark.parametrize("name", EXAMPLE_PRINTS)
def test_an_example_runs_as_it_stands(name: str, tmp_path: Path) -> None:
    """What it prints is right, and its ranks have the threads, the memory and the queue that it says."""
    if find_spec(EXAMPLE_NEEDS[name]) is None:  # not imported here: PSI/J looks for its executors once in a process
        pytest.skip(f"missing: {EXAMPLE_NEEDS[name]}")
    program = tmp_path / "example.py"
    program.write_text(EXAMPLES[name], encoding="utf-8")
    with koala.local_site(["alpha", "beta"], processors=4) as site:
        environment = {
            **os.environ,
            "KOALA_SITE": str(site.file),
            "KOALA_STATE": str(site.directory),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins"), str(ROOT / "plugins/psij-koala/src")]),
        }
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIVENESS * 4,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == EXAMPLE_PRINTS[name], done.stderr
        (component,) = site.jobs()[-1].report().components
    assert (component.slot.threads, component.slot.memory_mib) == (2, 1024)
    assert component.slot.queue == ("dev" if component.cluster == "alpha" else "")


# -- Jobs from a real notebook: ipykernel runs its cells, and what it is shown is kept up to date.

CELLS = (
    "import koala_adapter as koala\nsite = koala.Site.load({file!r}, state={state!r})",
    "result = site.run(koala.Job(['echo', 'hello']), show=True)\nprint(result.stdout)",
    "site.job(result.id)",
    "result",
    "handle = await koala.aio.submit(koala.Job(['echo', 'awaited']), site=site)\nprint((await handle.result()).stdout)",
    "site.clusters()[0].name",
)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # those of Jupyter are not ours
def test_a_notebook_shows_jobs_as_tables() -> None:
    nbformat: Any = pytest.importorskip("nbformat")
    nbclient: Any = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    with koala.local_site() as site:
        given = {"file": str(site.file), "state": str(site.directory)}
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.format(**given)) for cell in CELLS])
        nbclient.NotebookClient(notebook, timeout=LIVENESS, kernel_name="python3").execute()
    outputs = [cell["outputs"] for cell in notebook["cells"]]
    (shown,) = [one for one in outputs[1] if one["output_type"] == "display_data"]
    assert "echo: <b>completed</b>" in shown["data"]["text/html"]
    assert any(one.get("text") == "hello\n\n" for one in outputs[1])
    for number in (2, 3):
        assert "<table>" in outputs[number][0]["data"]["text/html"]
    assert [one["text"] for one in outputs[4] if one["output_type"] == "stream"] == ["awaited\n\n"]
    assert outputs[5][0]["data"]["text/plain"] == "'alpha'"
