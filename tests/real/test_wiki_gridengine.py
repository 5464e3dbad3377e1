# SPDX-License-Identifier: Apache-2.0
"""A real Grid Engine under an outside scheduler that speaks WIKI, with two queue instances as its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.wiki.codec.words import Dialect
from tests.real.mauistandin import MauiStandIn
from tests.real.systems import GridEngineCell
from tests.real.systems.requirements import missing_for_grid_engine, require
from tests.real.wiki_serving import WikiServing

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PIECE = Path(__file__).parents[2] / "conf" / "sge_jsv.sh"
ENVIRONMENT = """\
pe_name            any
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $fill_up
control_slaves     FALSE
job_is_first_task  TRUE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""


def two_queues(cell: GridEngineCell) -> None:
    """Have two queues of eight slots instead of one, a parallel environment, and the site's piece."""
    file = cell.directory / "edit"
    file.write_text(ENVIRONMENT)
    cell.run("qconf", "-Ap", str(file))
    queue = cell.run("qconf", "-sq", "all.q")
    for name in ("n2.q", "n4.q"):
        lines = [line for line in queue.splitlines() if line.split()[:1] not in (["qname"], ["pe_list"])]
        file.write_text("\n".join([f"qname {name}", "pe_list any", *lines]) + "\n")
        cell.run("qconf", "-Aq", str(file))
    cell.run("qmod", "-d", "all.q")
    script = cell.directory / "jsv.sh"
    script.write_text(PIECE.read_text())
    script.chmod(0o755)
    settings = [line for line in cell.run("qconf", "-sconf").splitlines() if not line.startswith(("#", "jsv_"))]
    settings += [f"jsv_url script:{script}", "jsv_allowed_mod ac,h,i,e,o,j,M,N,p,w,q_hard,q_soft"]
    (cell.directory / "global").write_text("\n".join(settings) + "\n")
    cell.run("qconf", "-Mconf", str(cell.directory / "global"))


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WikiServing]:
    """Serve a cell of two queues through the module."""
    require(missing_for_grid_engine())
    with GridEngineCell("w", slots=8) as cell:
        two_queues(cell)
        server = WikiServing(
            tmp_path_factory.mktemp("wiki"), cell, "--user-holds", "--dialect", "wiki2", "--cache", "0.2"
        )
        with server.user.site.open("a") as site:
            site.write('nodes = "queue-instances"\ntrigger_scheduler = true\n')
        with server:
            yield server


def submit(cell: GridEngineCell, processors: int) -> str:
    """Submit an ordinary job of an ordinary user; return its id."""
    options = ("-pe", "any", str(processors)) if processors > 1 else ()
    where = ("-wd", "/tmp", "-o", "/dev/null", "-j", "y", "-l", "h_rt=600")
    return cell.submit("#!/bin/sh\nexec sleep 600\n", *options, *where, user="nobody")


def test_jobs_start_where_they_are_told(serving: WikiServing) -> None:
    """Jobs of qsub come in held, and each starts in the queue instance that the scheduler names, with all its slots."""
    cell = serving.system
    assert isinstance(cell, GridEngineCell)
    first, second, third = submit(cell, 6), submit(cell, 3), submit(cell, 1)
    serving.wait(lambda: cell.qstat().count(" hqw ") == 3, what="held jobs")
    assert {name for name in serving.nodes() if serving.nodes()[name].state != "Drained"} == {
        "n2.q_localhost",
        "n4.q_localhost",
    }
    assert {job: serving.job(job).state for job in (first, second, third)} == dict.fromkeys(
        (first, second, third), "Idle"
    )
    serving.done(f"STARTJOB ARG={first} TASKLIST={':'.join(['n4.q_localhost'] * 6)}")
    serving.done(f"STARTJOB ARG={second} TASKLIST={':'.join(['n2.q_localhost'] * 3)}")
    shown = cell.run("qstat", "-u", "*", "-g", "t")
    assert (shown.count("n4.q@localhost"), shown.count("n2.q@localhost")) == (6, 3), shown
    assert serving.job(first).state in {"Running", "Starting"}
    assert serving.job(first).task_list == ("n4.q_localhost",) * 6
    refused = serving.ask(f"STARTJOB ARG={third} TASKLIST=n1")
    assert refused.status == -700
    divided = submit(cell, 4)
    refused = serving.ask(
        f"STARTJOB ARG={divided} TASKLIST=n2.q_localhost:n2.q_localhost:n2.q_localhost:n4.q_localhost"
    )
    assert (refused.status, "divides job" in refused.text) == (-930, True)
    held_back = serving.job(divided)
    assert (held_back.state, "divides job" in held_back.comment) == ("Hold", True)

    serving.done(f"SUSPENDJOB ARG={first}")
    serving.wait(lambda: " hs " in cell.qstat(), what="a suspended job")
    serving.done(f"RESUMEJOB ARG={first}")
    serving.wait(lambda: " hs " not in cell.qstat(), what="a resumed job")
    unsupported = serving.ask(f"MODIFYJOB ARG={first} TIMELIMIT=7")
    assert unsupported.status == -810
    for job in (first, second, third, divided):
        serving.done(f"CANCELJOB ARG={job} TYPE=ADMIN")
    serving.wait(lambda: cell.qstat() == "", what="no jobs")
    seen = serving.jobs()
    assert {seen[job].state for job in (third, divided)} == {"Removed"}
    assert {seen[job].state for job in (first, second)} <= {"Removed", "Completed"}


def test_every_shape_runs_under_a_stand_in_for_maui(serving: WikiServing, tmp_path: Path) -> None:
    """Parallel jobs are never split, elements of an array come one by one, and what no queue can take is in hold."""
    cell = serving.system
    assert isinstance(cell, GridEngineCell)
    where = ("-wd", "/tmp", "-o", "/dev/null", "-j", "y", "-l", "h_rt=1800")
    script = "#!/bin/sh\nexec sleep 0.5\n"

    def short(*options: str) -> str:
        return cell.submit(script, *options, *where, user="nobody").split(".")[0]

    too_large = short("-pe", "any", "12")
    jobs = {short(), short(), short("-pe", "any", "5"), short("-pe", "any", "8"), short("-pe", "any", "3")}
    array = short("-t", "1-2")
    own = WikiServing(tmp_path, cell, "--user-holds", "--cache", "0.2")
    with own.user.site.open("a") as site:
        site.write('nodes = "queue-instances"\ntrigger_scheduler = true\n')
    with own:
        maui = MauiStandIn(own.peer(Dialect.WIKI), interval=1.0, defer=5.0)
        left = maui.run([*jobs, f"{array}.1", f"{array}.2"], seconds=240)
        assert (left, maui.refusals) == (set(), []), own.details()
        record = maui.jobs[too_large]
        assert (record.state, "can take" in record.comment) == ("Hold", True), record
        assert {len(set(tasks)) for tasks in maui.started.values()} == {1}
        gone = short()
        own.job(gone)
        cell.run("qdel", gone)
        deleted = own.ask(f"STARTJOB ARG={gone} TASKLIST=n2.q_localhost", dialect=Dialect.WIKI)
        assert deleted.status == -700, deleted
        own.done(f"CANCELJOB ARG={too_large} TYPE=ADMIN")
