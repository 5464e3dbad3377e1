# SPDX-License-Identifier: Apache-2.0
"""``koala simulate`` as a person and a program use it: results, files, refusals, and Ctrl-C."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from koala_adapter.cli.koala import koala
from koala_adapter.errors import EXIT_CONFIGURATION
from koala_adapter.report import page
from koala_adapter.report.figures import Drawing
from koala_adapter.simulation.workload import Field, read_trace

ROOT = Path(__file__).parents[3]
TRACE = """\
; Version: 2.2
; MaxProcs: 4
1 0 7 10 3 -1 -1 3 20 -1 1 5 1 -1 -1 -1 -1 -1
2 1 7 5 4 -1 -1 4 -1 -1 1 5 1 -1 -1 -1 -1 -1
3 2 7 8 1 -1 -1 1 8 -1 1 5 1 -1 -1 -1 -1 -1
4 3 7 0 1 -1 -1 1 8 -1 1 5 1 -1 -1 -1 -1 -1
5 4 7 9 9 -1 -1 9 9 -1 1 5 1 -1 -1 -1 -1 -1
"""
"""Under FCFS job 2 starts at 10 and job 3 at 15; under EASY job 3 overtakes: it ends by 20, when job 1 should."""


def invoke(*arguments: object) -> Result:
    words = ["simulate", *(str(argument) for argument in arguments), "--processes", "1"]
    result = CliRunner().invoke(koala, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "five.swf"
    path.write_text(TRACE, encoding="utf-8")
    return path


def test_json_has_all_that_was_promised(trace: Path) -> None:
    """One object for each trace and policy, with every documented key, and the values of the hand-computed schedule."""
    result = invoke(trace, "-p", "fcfs", "-p", "easy", "--json")
    assert result.exit_code == 0
    fcfs, easy = json.loads(result.stdout)
    assert {
        "trace", "policy", "processors", "jobs", "skipped", "mean_wait", "mean_slowdown", "mean_bounded_slowdown",
        "makespan", "utilization", "percentiles", "jobs_per_second", "extras",
    } <= set(fcfs)  # fmt: skip
    assert [(one["trace"], one["policy"]) for one in (fcfs, easy)] == [("five", "fcfs"), ("five", "easy")]
    assert (fcfs["processors"], fcfs["jobs"], fcfs["skipped"]) == (4, 3, 2)
    assert (fcfs["mean_wait"], fcfs["makespan"]) == (pytest.approx(22 / 3), 23)
    assert (easy["mean_wait"], easy["makespan"]) == (3, 15)
    assert easy["utilization"] == pytest.approx((30 + 20 + 8) / 60)
    assert easy["percentiles"]["wait"]["p100"] == 9
    assert easy["extras"]["backfilled"] == 1
    assert {(one["kind"], one["count"], one["line"]) for one in easy["irregularities"]} == {
        ("jobs without run time", 1, 6),
        ("jobs larger than the 4 processors there are", 1, None),
    }


def test_a_person_sees_a_table_and_what_was_left_out(trace: Path) -> None:
    result = invoke(trace, "-p", "fcfs", "-p", "easy")
    assert re.search(r"five +fcfs +4 +3 +2 +7\.3", result.stdout)
    assert re.search(r"five +easy +4 +3 +2 +3\.0", result.stdout)
    assert "five: 1 jobs without run time (left out), first in line 6" in result.stderr


def test_options_change_what_is_simulated(trace: Path) -> None:
    (wide,) = json.loads(invoke(trace, "--processors", 9, "--json").stdout)
    assert (wide["jobs"], wide["skipped"], wide["processors"]) == (4, 1, 9)
    (few,) = json.loads(invoke(trace, "--jobs", 2, "--json").stdout)
    assert few["jobs"] == 2
    trace.write_text(TRACE.replace("8 -1 1 5 1", "6 -1 1 5 1"), encoding="utf-8")
    plain, killed = (json.loads(invoke(trace, *more, "--json").stdout)[0] for more in ((), ("--kill-at-limit",)))
    assert plain["mean_run"] - killed["mean_run"] == pytest.approx(2 / 3)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no figures: each takes a part of a second."""
    monkeypatch.setattr(page, "draw", lambda _: Drawing(png=b"", svg=b"<svg/>"))


WORDY = """\
; MaxProcs: 8
1 0 -1 100 4 -1 -1 4 100 -1 1 1 1 1 batch -1 -1 -1
2 5 -1 100 4 -1 -1 4 100 -1 1 1 1 1 batch -1 -1 -1 {7,7} q_1d
"""


@pytest.mark.usefixtures("undrawn")
def test_neither_options_nor_empty_lines_change_what_is_read(tmp_path: Path) -> None:
    """The results are the same with and without files of results, and with an empty line at the end."""
    path = tmp_path / "wordy.swf"
    found = []
    for text, options in ((WORDY, ()), (WORDY + "\n", ()), (WORDY, ("--out", tmp_path / "out"))):
        path.write_text(text, encoding="utf-8")
        (one,) = json.loads(invoke(path, "--json", *options).stdout)
        found.append({key: value for key, value in one.items() if key != "jobs_per_second"})
    assert found[0]["jobs"] == 2
    assert {one["kind"] for one in found[0]["irregularities"]} == {
        "jobs whose queue is no number", "jobs with more than 18 fields",
    }  # fmt: skip
    assert found[0] == found[1] == found[2]


@pytest.mark.usefixtures("undrawn")
def test_dependencies_are_obeyed_when_asked_for(tmp_path: Path) -> None:
    """Each job of a chain is submitted after the one before it has ended and its think time; else as the trace says."""
    path = tmp_path / "chain.swf"
    lines = [f"{job} 0 -1 1000 2 -1 -1 2 1000 -1 1 1 1 -1 -1 -1 {job - 1 or -1} 600" for job in (1, 2, 3)]
    path.write_text("\n".join(["; MaxProcs: 8", *lines]), encoding="utf-8")
    told = invoke(path)
    assert "2 jobs that do not wait for their preceding job (see --dependencies), first in line 3" in told.stderr
    (plain,) = json.loads(invoke(path, "--json").stdout)
    out = tmp_path / "out"
    (chain,) = json.loads(invoke(path, "--json", "--dependencies", "--out", out).stdout)
    assert (plain["makespan"], chain["makespan"]) == (1000, 4200)
    assert (chain["mean_wait"], chain["irregularities"]) == (0, [])
    rows = csv.DictReader((out / "jobs" / "chain-easy.csv").read_text(encoding="utf-8").splitlines())
    assert [float(row["submit_s"]) for row in rows] == [0, 1600, 3200]
    assert "--dependencies" in (out / "index.html").read_text(encoding="utf-8")


def test_a_platform_has_several_clusters(trace: Path, tmp_path: Path) -> None:
    platform = tmp_path / "platform.toml"
    platform.write_text(
        '[[clusters]]\nname = "a"\nnodes = 4\n[[clusters]]\nname = "b"\nnodes = 6\nthreshold = 2\n',
        encoding="utf-8",
    )
    result = invoke(trace, "--platform", platform, "-p", "metacluster", "--json")
    (one,) = json.loads(result.stdout)
    assert (one["processors"], one["jobs"]) == (8, 3)
    assert one["mean_wait"] == 0
    assert json.loads(invoke(trace, "--platform", "das3", "--json").stdout)[0]["processors"] == 272
    with platform.open("a", encoding="utf-8") as file:
        file.write("[background]\nutilization = 1.0\nmean_run = 600\n")
    (busy,) = json.loads(invoke(trace, "--platform", platform, "--json").stdout)
    assert busy["jobs"] == 3
    assert "local_jobs" in busy["extras"]


@pytest.mark.usefixtures("undrawn")
def test_memory_counts_when_asked_for(tmp_path: Path) -> None:
    """Three jobs ask for 2 GiB on two nodes of 2 GiB each: the third waits; one that no node has is left out."""
    path, platform, out = tmp_path / "memory.swf", tmp_path / "two.toml", tmp_path / "out"
    asked = (2097152, 2097152, 2097152, 2097153)
    path.write_text(
        "".join(f"{job} 0 -1 10 1 -1 -1 1 10 {kb} 1 1 1 -1 -1 -1 -1 -1\n" for job, kb in enumerate(asked, 1))
    )
    platform.write_text('[[clusters]]\nname = "a"\nnodes = 2\nprocessors_per_node = 2\nmemory_per_node = "2GiB"\n')
    told = invoke(path, "--platform", platform)
    assert "4 jobs with a requested memory, not counted (see --memory), first in line 1" in told.stderr
    (plain,) = json.loads(invoke(path, "--platform", platform, "--json").stdout)
    (counted,) = json.loads(invoke(path, "--platform", platform, "--memory", "--out", out, "--json").stdout)
    assert [(one["jobs"], one["makespan"]) for one in (plain, counted)] == [(4, 10), (3, 20)]
    assert [one["kind"] for one in counted["irregularities"]] == ["jobs too large for the memory of nodes"]
    assert "--memory" in (out / "index.html").read_text(encoding="utf-8")


def test_models_stand_in_for_traces() -> None:
    one, same, other = (
        json.loads(invoke("model:lublin", "--jobs", 300, "--processors", 64, "--seed", seed, "--json").stdout)[0]
        for seed in (1, 1, 2)
    )
    assert (one["trace"], one["jobs"], one["processors"]) == ("lublin", 300, 64)
    assert one["mean_wait"] == same["mean_wait"] != other["mean_wait"]


def test_two_traces_of_one_name_stay_apart(trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "five.swf"
    other.parent.mkdir()
    other.write_text(TRACE.replace("MaxProcs: 4", "MaxProcs: 9"), encoding="utf-8")
    found = json.loads(invoke(trace, other, trace, "--json").stdout)
    assert [(one["trace"], one["processors"]) for one in found] == [("five", 4), ("five~2", 9)]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the files of a comparison, written by one process; beside them is the trace."""
    directory = tmp_path_factory.mktemp("comparison")
    trace = directory / "five.swf"
    trace.write_text(TRACE, encoding="utf-8")
    assert invoke(trace, "-p", "fcfs", "-p", "easy", "--out", directory / "out").exit_code == 0
    return directory / "out"


def test_files_of_a_comparison(out: Path) -> None:
    """A line for each job, the schedule as a trace, figures, data, and a page that refers to nothing outside itself."""
    rows = list(csv.DictReader((out / "jobs" / "five-easy.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["job"], row["start_s"], row["wait_s"], row["cluster"]) for row in rows] == [
        ("1", "0", "0", "five"),
        ("2", "10", "9", "five"),
        ("3", "2", "0", "five"),
    ]
    schedule = read_trace(out / "traces" / "five-easy.swf.gz")
    assert list(schedule.columns[Field.WAIT]) == [0, 9, 0]
    assert list(schedule.columns[Field.USER]) == [5, 5, 5]
    assert list(schedule.columns[Field.REQUESTED_TIME]) == [20, -1, 8]
    assert schedule.header[:2] == ["; Version: 2.2", "; MaxProcs: 4"]
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert {
        f"figures/five-{name}.{kind}" for name in ("wait", "utilization", "queue") for kind in ("png", "svg")
    } <= names
    assert {"data/summary.csv", "data/percentiles.csv", "data/five-wait.csv", "result.json", "index.html"} <= names
    text = (out / "index.html").read_text(encoding="utf-8")
    assert text.count('src="data:image/svg+xml;base64,') == 3
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert "five: 1 jobs without run time (left out), first in line 6." in text


@pytest.mark.usefixtures("undrawn")
def test_the_page_names_the_command_that_makes_it(tmp_path: Path) -> None:
    """Read by a shell, it is the command that was given, with directories, a platform file and blanks."""
    trace, platform = tmp_path / "my traces" / "five.swf", tmp_path / "my platform.toml"
    trace.parent.mkdir()
    trace.write_text(TRACE, encoding="utf-8")
    platform.write_text('[[clusters]]\nname = "a"\nnodes = 4\n', encoding="utf-8")
    words = [str(trace), "--policy", "fcfs", "--platform", str(platform), "--jobs", "2", "--seed", "3", "--depth", "2"]
    assert invoke(*words, "--out", tmp_path / "out").exit_code == 0
    command = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))["command"]
    given = shlex.split(command)
    assert given[:2] == ["koala", "simulate"]
    assert invoke(*given[2:-1], tmp_path / "again").exit_code == 0
    one, two = ((tmp_path / name / "index.html").read_bytes() for name in ("out", "again"))
    assert one == two


def test_files_do_not_depend_on_processes_or_time(out: Path, tmp_path: Path) -> None:
    """The same command writes the same bytes, on one process or on two."""
    words = ["simulate", str(out.parent / "five.swf"), "-p", "fcfs", "-p", "easy", "--out", str(tmp_path)]
    assert CliRunner().invoke(koala, [*words, "--processes", "2"]).exit_code == 0
    one, two = ({path.name: path.read_bytes() for path in sorted(each.rglob("*.*"))} for each in (out, tmp_path))
    assert one == two
    assert len(one) >= 17


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("; MaxProcs: 4\nhello\n", (), "bad.swf:2: not a job of the Standard Workload Format"),
        ("; MaxProcs: 4\n", (), "there is no job in this file"),
        (TRACE.replace("; MaxProcs: 4\n", ""), (), "no comment before the first job of this trace says how many"),
        (TRACE.replace("MaxProcs: 4", "MaxProcs: 1,664"), (), "no plain number of processors in '; MaxProcs: 1,664'"),
        (TRACE, ("--platform", "das3", "--processors", "4"), "give one"),
        (TRACE, ("--platform", "nowhere.toml"), "nowhere.toml: there is no such file"),
        (TRACE, ("--platform", "das3", "--memory"), "write memory_per_node into its file"),
        (TRACE, ("--policy", "random"), "'random' is not one of 'fcfs'"),
        (TRACE, ("model:nothing",), "there is no workload model nothing"),
        (TRACE.replace(" 1 -1 -1 1 8", " 7 -1 -1 7 8"), ("--processors", "1"), "no job of it fits"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    tmp_path: Path, text: str, arguments: tuple[str, ...], message: str
) -> None:
    """The message names the file, and the line or the option; the exit code is that of bad input or wrong usage."""
    path = tmp_path / "bad.swf"
    path.write_text(text, encoding="utf-8")
    result = invoke(path, *arguments)
    assert message in result.output
    assert result.exit_code in {2, EXIT_CONFIGURATION}


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    assert "none.swf: No such file" in invoke(tmp_path / "none.swf").output
    assert "Is a directory" in invoke(tmp_path).output


def test_an_interrupt_shows_what_there_is_so_far() -> None:
    """Ctrl-C in the middle: the table of the part, that it is one, and the exit code of an interrupt."""
    ours, theirs = pty.openpty()
    words = "simulate model:lublin --jobs 60000 --processors 32 -p conservative"
    command = [sys.executable, "-m", "koala_adapter.cli", *words.split()]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/plugins", "COLUMNS": "200", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while not re.search(rb"[1-9]\d?%", shown):
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        try:
            while more := os.read(ours, 4096):
                shown += more
        except OSError:  # the terminal's other end is closed
            pass
        code = process.wait(30)
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert code == 130, text
    assert "conservative (part)" in text
    assert "interrupted: this is what there is so far" in text
