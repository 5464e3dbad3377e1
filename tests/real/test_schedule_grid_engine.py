# SPDX-License-Identifier: Apache-2.0
"""``koala schedule`` on a real Grid Engine, whose submission default holds every job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.real.scheduling import Scheduling

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real.systems import GridEngineCell

pytestmark = pytest.mark.real("sge_qmaster", "sge_execd")

QUIET = ("-wd", "/tmp", "-o", "/dev/null", "-j", "y")


@pytest.fixture
def holding_cell(sge_cell: GridEngineCell) -> Iterator[GridEngineCell]:
    """Return a cell in which every job comes in held: ``-h`` in its sge_request (sge_request(5))."""
    defaults = sge_cell.root / sge_cell.cell / "common" / "sge_request"
    before = defaults.read_text() if defaults.exists() else ""
    defaults.write_text(f"{before}\n-h\n")
    yield sge_cell
    defaults.write_text(before)


def test_a_queue_runs_to_the_end(holding_cell: GridEngineCell, tmp_path: Path) -> None:
    """Ordinary jobs and an array, more than the cell holds at once: each runs once, in the order of submission."""
    scheduling = Scheduling(tmp_path, holding_cell, "--policy", "fcfs", "--weights", "queue-time=1")
    names = [f"j{number}" for number in range(6)]
    ids = [holding_cell.submit(scheduling.script(name, 1.0), *QUIET, "-l", "h_rt=3600") for name in names]
    array = holding_cell.submit(scheduling.script("array", 0.2), *QUIET, "-t", "1-3", "-l", "h_rt=3600")
    with scheduling:
        scheduling.wait_runs(set(names))
        scheduling.wait(lambda: scheduling.traces().get("array", []).count("end") == 3, what="the array has run")
        scheduling.wait(lambda: not holding_cell.qstat(), what="nothing left")
    traces = scheduling.traces()
    assert traces.pop("array").count("run") == 3
    assert traces == {name: ["run", "end"] for name in names}
    starts = [line for line in scheduling.lines() if line["kind"] == "start"]
    assert [line["job_id"] for line in starts][: len(ids)] == ids
    assert {line["job_id"].partition(".")[0] for line in starts[len(ids) :]} == {array.partition(".")[0]}


def test_jobs_of_one_second_start_by_their_numbers(holding_cell: GridEngineCell, tmp_path: Path) -> None:
    """Also when they come in while it runs."""
    scheduling = Scheduling(tmp_path, holding_cell, "--policy", "fcfs")
    options = (*QUIET, "-l", "h_rt=3600")
    blockers = [f"b{number}" for number in range(4)]
    for name in blockers:
        holding_cell.submit(scheduling.script_until_told(name), *options)
    with scheduling:
        scheduling.wait(lambda: len(scheduling.told("started")) == len(blockers), what="the cell is full")
        known = set(scheduling.told("start"))
        ids = [holding_cell.submit(scheduling.script(f"j{number}", 0.2), *options) for number in range(8)]
        scheduling.wait(lambda: set(ids) <= set(scheduling.told("submitted")), what="all are seen")
        for name in blockers:
            scheduling.let_end(name)
        scheduling.wait_runs({f"j{number}" for number in range(8)})
    starts = [line["job_id"] for line in scheduling.lines() if line["kind"] == "start"]
    assert [id_ for id_ in starts if id_ not in known] == ids


def test_jobs_that_are_queued_again_wait_in_hold(holding_cell: GridEngineCell, tmp_path: Path) -> None:
    """By ``qmod -rj`` and by exit status 99: each is started anew by us, and by nobody else."""
    scheduling = Scheduling(tmp_path, holding_cell)
    options = (*QUIET, "-l", "h_rt=3600")
    pushed = holding_cell.submit(scheduling.script_until_told("pushed"), *options, "-r", "y")
    own = scheduling.script_until_told("own").replace(
        "while",
        f"[ -e {tmp_path}/second ] || {{ while [ ! -e {tmp_path}/second ]; do sleep 0.1; done; exit 99; }}\nwhile",
    )
    asking = holding_cell.submit(own, *options)
    jobs = {pushed, asking}
    with scheduling:
        scheduling.wait(lambda: jobs <= set(scheduling.told("started")), what="both run")
        scheduling.wait(lambda: holding_cell.qstat().count(" hr ") == len(jobs), what="both are held while they run")
        holding_cell.run("qmod", "-rj", pushed)
        (tmp_path / "second").touch()
        scheduling.wait(lambda: jobs <= set(scheduling.told("requeued")), what="both wait again")
        scheduling.let_end("pushed")
        scheduling.let_end("own")
        scheduling.wait_runs({"pushed", "own"})
        scheduling.wait(lambda: jobs <= set(scheduling.told("ended")), what="both are over")
    assert scheduling.traces() == {"pushed": ["run", "run", "end"], "own": ["run", "run", "end"]}
    for job in jobs:
        kinds = [line["kind"] for line in scheduling.lines() if line["job_id"] == job]
        assert kinds.count("start") == 2
        assert "adopted" not in kinds


def test_the_queue_is_given_back(holding_cell: GridEngineCell, tmp_path: Path) -> None:
    """Single jobs and arrays run; one whose user holds it, and an operator's, stay; again there is nothing to do."""
    scheduling = Scheduling(tmp_path, holding_cell)
    options = (*QUIET, "-l", "h_rt=3600")
    plain = holding_cell.submit(scheduling.script("plain", 0.1), *options)
    array = holding_cell.submit(scheduling.script("array", 0.1), *options, "-t", "1-2")
    own = holding_cell.submit(scheduling.script("own", 0.1), *options, "-ac", "a=1,koala_user_hold=1")
    operators = holding_cell.submit(scheduling.script("operators", 0.1), *options)
    holding_cell.run("qhold", "-h", "o", operators)
    back = scheduling.user.run("schedule", "--give-back", holding_cell.name, "--json")
    assert back.code == 0, back.stderr
    number = array.partition(".")[0]
    assert {plain, f"{number}.1", f"{number}.2"} <= set(back.json["released"])
    assert own not in back.json["released"]
    scheduling.wait_runs({"plain"})
    scheduling.wait(lambda: scheduling.traces().get("array", []).count("end") == 2, what="the array has run")
    assert not {"own", "operators"} & scheduling.traces().keys()
    again = scheduling.user.run("schedule", "--give-back", holding_cell.name, "--json")
    assert (again.code, again.json["released"]) == (0, [])
