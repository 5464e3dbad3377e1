# SPDX-License-Identifier: Apache-2.0
"""What became of the ranks' files: kept through restarts, told in a few lines."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.api.reporting import job_report
from koala_adapter.cli.display import closing, files_lines
from koala_adapter.cli.session import make_console
from koala_adapter.model import PlaceholderId
from koala_adapter.report.values import FilesReport
from koala_adapter.service.results import LEDGER_NAME, Results, ResultStore, read_ledger
from koala_adapter.vjm.channel import FilePiece, Omission, TaskFiles
from tests.unit.scheduler.scheduler_site import Site, component, job

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.report.values import JobReport

PLACEHOLDER = PlaceholderId(batch="b", index=1)  # type: ignore[arg-type]


def said(task: str = "1:0", **changes: object) -> TaskFiles:
    nothing = TaskFiles(task=task, arrived=0, size=0, left=0, left_names=(), omitted=0, omissions=())
    return replace(nothing, **changes)  # type: ignore[arg-type]


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def results_in(directory: Path, clock: Clock) -> Results:
    """Return the results of a service: task N of job 1 is rank N of c1."""
    store = ResultStore(per_rank=100, per_job=100)
    jobs = directory / "jobs"
    return Results(lambda _, task: jobs / "1" / "c1" / task[2:] if task[:2] == "1:" else None, store, clock=clock)


def test_what_was_said_is_kept(tmp_path: Path) -> None:
    """Once for each rank, whatever is repeated, for the next service as well; a line that is damaged is left out."""
    results = results_in(tmp_path, Clock())
    for _ in range(2):
        results.conclude(PLACEHOLDER, said(arrived=2, size=9))
    results.conclude(PLACEHOLDER, said("1:1", left=1, left_names=("x",)))
    results.conclude(PLACEHOLDER, said("2:0"))
    path = tmp_path / "jobs" / "1" / LEDGER_NAME
    assert path.read_text().count('"task"') == 2
    with path.open("a") as file:
        file.write('{"rank": "c1/2", "fi')
    again = results_in(tmp_path, Clock())
    again.conclude(PLACEHOLDER, said("1:3"))
    again.conclude(PLACEHOLDER, said("1:0", arrived=7))
    arrived = {rank: files.arrived for rank, files in read_ledger(path.parent).items()}
    assert arrived == {"c1/0": 2, "c1/1": 0, "c1/3": 0}


def test_an_agent_is_waited_for_while_its_files_come(tmp_path: Path) -> None:
    """And for a while after a restart, in which it may come back; not when it has said all, or has stalled."""
    clock = Clock()
    results = results_in(tmp_path, clock)
    assert results.under_way(PLACEHOLDER, "1:0")
    clock.now = 40
    assert not results.under_way(PLACEHOLDER, "1:0")
    results.take(PLACEHOLDER, FilePiece(task="1:0", number=1, path=b"a", mode=0, size=9, offset=0, data=b"x"))
    clock.now = 60
    assert results.under_way(PLACEHOLDER, "1:0")
    results.conclude(PLACEHOLDER, said())
    assert not results.under_way(PLACEHOLDER, "1:0")
    assert not results.under_way(PLACEHOLDER, "2:0")


def report_of(files: dict[str, TaskFiles]) -> JobReport:
    site = Site({"a": 2})
    site.submit(job("1", replace(component("c1", 2), output_files=("*",))))
    site.take_all()
    site.hold_all("1")
    site.complete("1")
    return job_report(
        site.scheduler, site.record("1"), now=site.now, wall_offset=0.0, output_directory="/out", files=files
    )


def test_reports_sum_up_what_was_said() -> None:
    omission = Omission(path="big", reason="it has 2 GiB")
    first = said(arrived=2, size=2048, omitted=30, omissions=(omission,) * 20)
    report = report_of({"c1/0": first})
    assert report.files == FilesReport(
        arrived=2, size=2048, refused=30, refusals=("c1/0: big: it has 2 GiB",) * 20, awaited=1, awaited_ranks=("c1/1",)
    )
    lines = files_lines(replace(report, placeholders_left=0))
    assert lines[0] == "2 files of the ranks (2 KiB) in /out/COMPONENT/RANK"
    assert lines[1].startswith("30 files of the ranks did not come: c1/0: big: it has 2 GiB, ")
    assert lines[1].endswith(" and 22 more")
    assert lines[2] == "output files of 1 rank are not all there: c1/1"
    assert "are still coming" in files_lines(replace(report, placeholders_left=1))[2]


def test_names_from_nodes_do_nothing_to_a_terminal() -> None:
    """They are escaped, and are no markup."""
    file = io.StringIO()
    report = report_of({"c1/0": said(left=1, left_names=("[red]\x1b[2J\n",)), "c1/1": said()})
    closing(report, make_console(file))
    told = "1 file was left in the ranks' directories and is gone: c1/0: [red]\\x1b[2J\\n; see output_files"
    assert told in file.getvalue()
