# SPDX-License-Identifier: Apache-2.0
"""What a WIKI server answers, verb by verb, and what it does before and after."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import Capabilities, PinnedStart
from koala_adapter.lrm.startlog import OriginalRequest, Pin, StartLog
from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState, NodeState
from koala_adapter.wiki.codec.words import Dialect
from tests.sqlite_watch import closed_later
from tests.unit.wiki.wiki_source import NOW, MemorySource, Server, job, node, running


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """Run a server with a job of six tasks that waits, and one that runs on n1 and n2."""
    made = Server(tmp_path)
    made.source.add(job("5", 6), running("7", {"n1": 4, "n2": 2}))
    async with made.running():
        yield made


def on_record(id_: str) -> Pin:
    """Return what is on record of the start of a job by an earlier process."""
    wishes = OriginalRequest(processors=1)
    return Pin(job_id=LrmJobId(id_), submitted_at=NOW - 60, nodes=(("n1", 1),), wishes=wishes, at=NOW - 1)


def note(directory: Path, pin: Pin) -> None:
    """Have an earlier server of this directory put a start on record."""
    starts = closed_later(StartLog(directory / "starts.sqlite"))
    starts.store({pin.job_id: pin})
    starts.close()


async def test_records_that_maui_understands(server: Server) -> None:
    """STATE comes first, every attribute ends with ;, a waiting job has no task list, a running one has."""
    nodes, jobs = await server.records("GETNODES ARG=0:ALL"), await server.records("GETJOBS ARG=0:ALL")
    assert nodes["n1"].startswith("STATE=Running;")
    assert nodes["n3"] == "STATE=Idle;UPDATETIME=1795000000;CCLASS=[main:8];ACLASS=[main:8];OS=Linux;CPROC=8;"
    assert "STATE=Idle;" in jobs["5"]
    assert "TASKS=6;" in jobs["5"]
    assert "WCLIMIT=600;" in jobs["5"]
    assert "TASKLIST" not in jobs["5"]
    assert "TASKLIST=n1:n1:n1:n1:n2:n2;" in jobs["7"]
    assert "NAME=" not in jobs["7"].replace("UNAME=", "")
    assert all(text.endswith(";") for text in (*nodes.values(), *jobs.values()))


async def test_started_as_told(server: Server) -> None:
    """A start happens on exactly the processors named, and shows in the very next list, in the order named."""
    reply = await server.ask("STARTJOB ARG=5 TASKLIST=n4:n4:n4:n2:n2:n2")
    assert (reply.status, reply.text) == (0, "job 5 started successfully")
    assert server.source.calls == [("start", "5 n4:n4:n4:n2:n2:n2")]
    assert "STATE=Running;TASKLIST=n4:n4:n4:n2:n2:n2;" in await server.record("5")
    assert [pin.started for pin in server.starts.pins] == [True]
    assert server.source.confirmed == ["5"]


async def test_a_start_that_shows_late_is_promised(server: Server) -> None:
    """What an accepted start is said to be, it stays until the batch system shows it."""
    await server.ask("STARTJOB ARG=5 TASKLIST=n3:n3:n3:n3:n3:n3")
    server.source.job_list["5"] = job("5", 6, state=LrmJobState.QUEUED)
    text = await server.record("5")
    assert text.startswith("STATE=Starting;TASKLIST=n3:n3:n3:n3:n3:n3;")
    assert (await server.ask("GETNODES ARG=0:n3")).require().startswith("1#n3:STATE=Running;")
    server.now += 60
    assert (await server.states())["5"] == "Hold"


@pytest.mark.parametrize(
    ("change", "request_", "status", "words"),
    [
        ({}, "STARTJOB ARG=99 TASKLIST=n3", -700, "No such job"),
        ({}, "STARTJOB ARG=7 TASKLIST=n3:n3:n3:n3:n3:n3", -700, "not pending"),
        ({}, "STARTJOB ARG=5 TASKLIST=n9:n9:n9:n9:n9:n9", -700, "Invalid TASKLIST: no node n9"),
        ({}, "STARTJOB ARG=5 TASKLIST=n3:n3", -913, "2 tasks are listed, and it has 6"),
        ({}, "STARTJOB ARG=5 TASKLIST=n1:n1:n1:n1:n1:n1", -913, "n1 has 4 free processors, and 6 are wanted"),
        ({"dependent": True}, "STARTJOB ARG=5 TASKLIST=n3:n3:n3:n3:n3:n3", -912, "waits for other jobs"),
        ({"eligible_at": NOW + 60}, "STARTJOB ARG=5 TASKLIST=n3:n3:n3:n3:n3:n3", -919, "BeginTime"),
        ({"hold": HoldOwner.USER}, "STARTJOB ARG=5 TASKLIST=n3:n3:n3:n3:n3:n3", -918, "held by its user"),
        ({"state": LrmJobState.QUEUED}, "STARTJOB ARG=5 TASKLIST=n3:n3:n3:n3:n3:n3", -911, "not held"),
        ({"nodes_wanted": 2}, "STARTJOB ARG=5 TASKLIST=n3:n3:n3:n3:n3:n3", -930, "insists on 2"),
        ({"nodes_least": 2, "nodes_most": 3}, "STARTJOB ARG=5 TASKLIST=n3:n3:n3:n3:n3:n3", -930, "on 2 to 3 nodes"),
        ({"tasks_per_node": 3}, "STARTJOB ARG=5 TASKLIST=n3:n3:n3:n3:n3:n3", -930, "at most 3 tasks"),
        ({"excluded_nodes": ("n3",)}, "STARTJOB ARG=5 TASKLIST=n3:n3:n3:n3:n3:n3", -930, "n3 is excluded"),
        ({"requested_nodes": ("n2",)}, "STARTJOB ARG=5 TASKLIST=n3:n3:n3:n3:n3:n3", -930, "must run on n2"),
        ({"features": ("fast",)}, "STARTJOB ARG=5 TASKLIST=n3:n3:n3:n3:n3:n3", -930, "features fast"),
        ({"processors_per_task": 2}, "STARTJOB ARG=5 TASKLIST=n1:n1:n1", -913, "6 are wanted"),
    ],
)
async def test_refused_before_anything_is_done(
    server: Server, change: dict[str, object], request_: str, status: int, words: str
) -> None:
    """Each reason not to start has Slurm's code and says why; the batch system is not even asked."""
    server.source.add(replace(server.source.job_list["5"], **change))  # type: ignore[arg-type]
    reply = await server.ask(request_)
    assert (reply.status, words in reply.text) == (status, True), reply
    assert server.source.calls == []


async def test_a_job_that_was_queued_again_is_idle_once_it_is_held_and_untied(server: Server) -> None:
    """The first listing shows it as it is afterwards; where that fails it is shown in hold and not started."""
    server.source.add(job("6", 2, requested_nodes=("n4",)))
    for requeues in (1, 2):
        await server.expect("STARTJOB ARG=6 TASKLIST=n4:n4", 0)
        await server.seen("6", "Running")
        server.source.calls.clear()
        state = LrmJobState.QUEUED if requeues == 1 else LrmJobState.HELD
        # As Slurm shows it, tied to our nodes.
        server.source.add(job("6", 2, state=state, requested_nodes=("n3",), requeues=requeues))
        server.source.undo_failure = LrmUnavailableError("no answer") if requeues == 2 else None
        server.now += 60
        assert (await server.states())["6"] == ("Idle" if requeues == 1 else "Hold")
        assert ("take back", "6") in server.source.calls
        assert "HOSTLIST=n4" in await server.record("6")
    await server.start("6", status=-918, words="of an earlier start")


async def test_a_job_that_has_run_and_ended_between_two_listings_is_not_taken_back(server: Server) -> None:
    """Its start has come about: nothing is undone, and nothing is logged as taken back."""
    server.source.never_starts = True
    with capture_logs() as logs:
        await server.start("5")
        ended = job("5", 6, state=LrmJobState.ENDED, end=EndReason.EXITED, exit_code=0)
        server.source.add(replace(ended, started_at=NOW, ends_at=NOW + 1))
        assert await server.seen("5", "Completed") == "Completed"
        await server.until(lambda: not server.starts.pins)
    assert ("take back", "5") not in server.source.calls
    assert "a job is taken back" not in {one["event"] for one in logs}


async def test_no_poll_waits_for_what_a_gone_job_has_left(tmp_path: Path) -> None:
    """What was reserved for the start of a job that is not listed any more is given back when nobody waits for it."""
    given_back = anyio.Event()

    class Source(MemorySource):
        async def undo_start(self, start: PinnedStart) -> None:
            self.calls.append(("take back", start.job))
            await given_back.wait()

    async with Server(tmp_path, Source(), reply_within=60.0).running() as server:
        server.source.add(job("5"), job("6"))
        server.source.never_starts = True
        await server.start("5")
        del server.source.job_list["5"]
        with anyio.fail_after(60):
            while ("take back", "5") not in server.source.calls:
                assert (await server.states())["6"] == "Idle"
                await anyio.sleep(0.01)
            assert (await server.states())["6"] == "Idle"
        given_back.set()


async def test_a_job_that_was_queued_again_is_not_offered_before_it_may_start(server: Server) -> None:
    """Slurm starts it two minutes later at the earliest; a job that its user wants later is offered with STARTDATE."""
    server.source.add(job("6", 2, requeues=1, eligible_at=NOW + 121), job("8", 2, eligible_at=NOW + 121))
    records = await server.records("GETJOBS ARG=0:ALL")
    assert records["6"].startswith("STATE=Hold;")
    assert f"COMMENT=it was queued again, and cannot start before {int(NOW) + 121};" in records["6"]
    assert records["8"].startswith(f"STATE=Idle;STARTDATE={int(NOW) + 121};")
    await server.start("6", status=-919)
    server.now += 122
    assert (await server.states())["6"] == "Idle"
    await server.start("6")


@pytest.mark.parametrize(
    ("state", "status"), [(NodeState.DOWN, -700), (NodeState.UNKNOWN, -700), (NodeState.DRAINING, -913)]
)
async def test_no_start_on_a_node_that_is_not_up(server: Server, state: NodeState, status: int) -> None:
    """A node that is down, draining or of unknown state gets nothing, and is not Unknown, which Maui would use."""
    server.source.node_list[2] = node("n3", state=state)
    reply = await server.ask("STARTJOB ARG=5 TASKLIST=n3:n3:n3:n3:n3:n3")
    assert (reply.status, server.source.calls) == (status, [])
    word = "Draining" if state is NodeState.DRAINING else "Down"
    assert (await server.records("GETNODES ARG=0:n3"))["n3"].startswith(f"STATE={word};")


async def test_answered_before_it_runs(server: Server) -> None:
    """What was released is Starting, and what it is to have is taken, without another look at the batch system."""
    server.source.never_starts = True
    await server.states()
    reads = server.source.reads
    await server.start("5")
    assert server.source.reads <= reads + 1
    entry = server.resource.inventory.jobs["5"]
    assert (entry.job.state, entry.tasks) == (LrmJobState.STARTING, ("n3",) * 6)
    assert server.resource.inventory.used("n3") == 6
    server.source.add(job("6", 4))
    await server.start("6", status=-913, words="n3 has 2 free processors")
    await server.start("5", status=-700, words="being started")


class Deciding(MemorySource):
    """A batch system that accepts or refuses starts when a test says so."""

    decided = anyio.Event()

    async def start_on(self, start: PinnedStart) -> None:
        """Wait for the decision; a refusal is in ``start_failure`` by then."""
        self.calls.append(("asked", start.job))
        await self.decided.wait()
        await super().start_on(start)


@pytest.mark.parametrize("refusal", [None, LrmRejectedError("it does not divide jobs so")])
async def test_a_start_that_is_not_accepted_in_time_goes_on(tmp_path: Path, refusal: LrmError | None) -> None:
    """The answer does not wait for it, so that several are asked for side by side; a later refusal is reported."""
    source = Deciding()
    source.decided = anyio.Event()
    async with Server(tmp_path, source, start_reply_within=0.1, start_within=600.0).running() as server:
        ids = [str(number) for number in range(5, 10)]
        source.add(*(job(id_, 2) for id_ in ids))
        for id_ in ids:
            await server.start(id_, "n1", "n2")
        assert set((await server.states()).values()) == {"Starting"}
        assert source.calls == [("asked", id_) for id_ in ids]
        source.start_failure = refusal
        source.decided.set()
        for id_ in ids:
            await server.seen(id_, "Running" if refusal is None else "Hold")
        assert ("does not divide jobs so" in await server.record("5")) == (refusal is not None)
        assert len(server.starts.pins) == (0 if refusal else 5)


async def test_not_started_is_held_again(server: Server) -> None:
    """A start that does not come about is taken back, told, and can be asked for again, elsewhere."""
    server.source.never_starts = True
    await server.start("5")
    assert await server.seen("5", "Idle", "Hold") == "Idle"
    assert server.source.job_list["5"].state is LrmJobState.HELD
    assert server.resource.inventory.used("n3") == 0
    server.source.never_starts = False
    server.source.add(replace(server.source.job_list["5"], requested_nodes=("n3",)))
    await server.expect("STARTJOB ARG=5 TASKLIST=n4:n4:n4:n4:n4:n4", 0)


async def test_what_the_batch_system_gives_as_a_reason_is_told_at_once(tmp_path: Path) -> None:
    """A released job that waits for something else than processors is not waited for."""
    async with Server(tmp_path, start_within=600.0).running() as server:
        server.source.add(job("5", 2))
        server.source.never_starts = True
        await server.start("5")
        server.source.add(replace(server.source.job_list["5"], blocked=True, reason="BadConstraints"))
        await server.seen("5", "Hold")
        assert "does not start it_ BadConstraints" in await server.record("5")
        assert server.source.job_list["5"].state is LrmJobState.HELD


async def test_a_job_that_is_refused_again_and_again_is_kept_back_for_longer_and_longer(server: Server) -> None:
    """Meanwhile it is in hold, with the reason, and nobody tries it."""
    server.source.start_failure = LrmRejectedError("it does not divide jobs so")
    for pause in (10, 10, 20):
        await server.start("5", status=-930, words="does not divide jobs so")
        record = await server.record("5")
        assert record.startswith("STATE=Hold;")
        assert "COMMENT=its last start failed_ it does not divide jobs so;" in record
        server.now += pause - 1
        assert (await server.states())["5"] == "Hold"
        server.now += 2
        assert (await server.states())["5"] == "Idle"
    server.source.start_failure = None
    await server.start("5")


async def test_a_job_that_has_just_been_deleted_is_not_started(tmp_path: Path) -> None:
    """The listing still has it; that it is gone shows only when the batch system is asked."""
    async with Server(tmp_path, cache=30.0).running() as server:
        server.source.add(job("5", 2))
        await server.states()
        server.source.start_failure = LrmNotFoundError("job 5 is gone")
        del server.source.job_list["5"]
        await server.start("5", "n3", "n3", status=-700, words="No such job")
        assert (await server.states())["5"] == "Removed"


@pytest.mark.parametrize("form", ["5.{}", "5[{}].vm"])
async def test_elements_of_an_array_are_offered_one_by_one_where_they_start_so(tmp_path: Path, form: str) -> None:
    """The next one when the one before runs; the others say why they wait."""
    source = MemorySource(capabilities=Capabilities(hold=True, pin=True, pin_several=False, pin_elements=False))
    source.never_starts = True
    first, second, third = (form.format(number) for number in (1, 2, 3))
    async with Server(tmp_path, source, start_within=60.0).running() as server:
        source.add(*(job(form.format(number), array_index=number) for number in (1, 2, 3)))
        assert await server.states() == {first: "Idle", second: "Hold", third: "Hold"}
        assert "one after the other" in await server.record(second)
        await server.start(first)
        assert await server.states() == {first: "Starting", second: "Hold", third: "Hold"}
        source.add(replace(running(first, {"n3": 1}), array_index=1))
        assert await server.states() == {first: "Running", second: "Idle", third: "Hold"}


@pytest.mark.parametrize(("array_index", "seems"), [(None, 1), (3, 1), (3, 3)])
async def test_a_job_that_seems_not_held_is_looked_at_again(
    tmp_path: Path, array_index: int | None, seems: int
) -> None:
    """An element of an array is for a moment shown as released while another one is."""

    class Flickering(MemorySource):
        async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
            listed = await super().jobs(name_prefix=name_prefix)
            if not 2 <= self.reads < 2 + seems:
                return listed
            return tuple(replace(one, state=LrmJobState.QUEUED, hold=None) for one in listed)

    async with Server(tmp_path, Flickering()).running() as server:
        server.source.add(job("5", 2, array_index=array_index))
        assert (await server.states())["5"] == "Idle"
        await server.start("5")


async def test_a_job_whose_nodes_were_taken_meanwhile_is_not_kept_back_at_once(server: Server) -> None:
    """A peer that polls cannot know; but what never fits must not keep the others waiting."""
    for number in range(4):
        assert (await server.states())["5"] == ("Idle" if number < 3 else "Hold")
        await server.expect("STARTJOB ARG=5 TASKLIST=n1:n1:n1:n1:n1:n1", -913)


async def test_no_answer_of_the_batch_system(server: Server) -> None:
    """A start is looked at, and held; a listing is refused."""
    server.source.start_failure = LrmUnavailableError("no answer")
    await server.start("5")
    assert await server.seen("5", "Idle", "Hold") in {"Idle", "Hold"}
    server.source.failure = LrmUnavailableError("slurmctld does not answer")
    await server.expect("GETJOBS ARG=0:ALL", -700, "slurmctld does not answer")


async def test_two_starts_do_not_share_room(server: Server) -> None:
    """While one start is under way its processors are given away, though the batch system does not show it yet."""
    server.source.add(job("6", 6))
    server.source.starts_after = 0.2
    statuses: list[int] = []

    async def start(id_: str) -> None:
        statuses.append((await server.ask(f"STARTJOB ARG={id_} TASKLIST=n3:n3:n3:n3:n3:n3")).status)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start, "5")
        tasks.start_soon(start, "6")
    assert sorted(statuses) == [-913, 0]


async def test_chosen_nodes(tmp_path: Path) -> None:
    """With an empty task list (Moab) the server chooses where there is room."""
    async with Server(tmp_path, dialect=Dialect.WIKI2).running() as server:
        server.source.add(job("5", 12), running("7", {"n1": 8}))
        await server.expect("STARTJOB ARG=5 TASKLIST=", 0)
        assert server.source.calls == [("start", "5 " + ":".join(["n2"] * 8 + ["n3"] * 4))]


@pytest.mark.parametrize("step", [0, 7200, -7200])
async def test_ends_are_remembered(server: Server, step: float) -> None:
    """Reported over until two polls have seen it and the retention has passed, also when the clock is set meanwhile."""
    await server.states()
    del server.source.job_list["7"]
    assert (await server.states())["7"] == "Completed"
    server.set_clock(step)
    await server.states()
    server.now += 299
    assert (await server.states())["7"] == "Completed"
    server.now += 10
    await server.states()
    assert "7" not in await server.states()


@pytest.mark.parametrize("step", [7200, -7200])
async def test_a_promise_lasts_as_long_when_the_clock_is_set(server: Server, step: float) -> None:
    """What a peer was told of a start holds until the batch system has had its time to show it, and no longer."""
    server.source.add(job("5"))
    await server.expect("STARTJOB ARG=5 TASKLIST=n1", 0)
    server.source.job_list["5"] = job("5")
    server.set_clock(step)
    assert (await server.states())["5"] in {"Running", "Starting"}
    server.now += 31
    assert (await server.states())["5"] == "Idle"


async def test_a_peer_misses_nothing_when_the_clock_is_set_back(server: Server) -> None:
    """It asks for what changed since the time that it was told last."""
    await server.states()
    since = int(server.now)
    server.set_clock(-7200)
    server.now += 60
    server.source.job_list["7"] = replace(server.source.job_list["7"], state=LrmJobState.SUSPENDED)
    assert (await server.records(f"GETJOBS ARG={since}:ALL"))["7"].startswith("STATE=Suspended")


async def test_ends_wait_for_the_peer(server: Server) -> None:
    """Nobody asked, so nothing is forgotten, however late."""
    await server.states()
    del server.source.job_list["7"]
    await server.ask("GETNODES ARG=0:ALL")
    server.now += 1000
    assert (await server.states())["7"] == "Completed"


@pytest.mark.parametrize(
    ("end", "code", "one", "two"),
    [
        (EndReason.EXITED, 0, "Completed", "Completed;EXITCODE=0"),
        (EndReason.EXITED, 3, "Removed", "Completed;EXITCODE=3"),
        (EndReason.CANCELLED, None, "Removed", "Removed;EXITCODE=0"),
        (EndReason.WALLTIME, None, "Removed", "Removed;EXITCODE=0"),
        (None, None, "Completed", "Completed;EXITCODE=0"),
    ],
)
async def test_words_for_ends(tmp_path: Path, end: EndReason | None, code: int | None, one: str, two: str) -> None:
    """How a job ended has its word in each dialect; never Cancelled, which Maui does not know."""
    for dialect, word in ((Dialect.WIKI, one), (Dialect.WIKI2, two)):
        server = Server(tmp_path / dialect, dialect=dialect)
        server.source.add(job("5", state=LrmJobState.ENDED, end=end, exit_code=code, ends_at=NOW))
        assert (await server.records("GETJOBS ARG=0:ALL"))["5"].startswith(f"STATE={word};")


async def test_vanished_nodes_are_down(server: Server) -> None:
    """A node that is no longer listed is Down for ever, not idle, and gets no job."""
    await server.ask("GETNODES ARG=0:ALL")
    del server.source.node_list[3]
    assert (await server.records("GETNODES ARG=0:ALL"))["n4"].startswith("STATE=Down;")
    await server.start("5", *("n4",) * 6, status=-700, words="non-responsive node: n4")


async def test_deltas_hold_what_changed(server: Server) -> None:
    """With a time, only objects that changed at or after it are listed."""
    await server.states()
    server.now += 10
    server.source.add(job("8"))
    assert set(await server.records(f"GETJOBS ARG={int(server.now)}:ALL")) == {"8"}
    assert (await server.ask(f"GETJOBS ARG={int(server.now) + 5}:ALL")).require() == "0#"
    assert (await server.ask(f"GETNODES ARG={int(server.now)}:ALL")).require() == "0#"
    assert set(await server.records("GETJOBS ARG=0:5:99:7")) == {"5", "7"}


async def test_listings_are_shared(tmp_path: Path) -> None:
    """However many poll, the batch system is asked once in the time of the cache."""
    server = Server(tmp_path, cache=30.0)
    server.source.slow = 0.05
    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(server.ask, "GETNODES ARG=0:ALL")
            tasks.start_soon(server.ask, "GETJOBS ARG=0:ALL")
    assert server.source.reads == 1
    server.source.add(job("5"))
    assert await server.states() == {}
    assert server.source.reads == 1
    assert (await server.ask("MODIFYJOB ARG=5 TIMELIMIT=3")).status == 0  # unknown: it may have come in since
    assert server.source.reads == 2


async def test_changes_are_seen_in_spite_of_the_cache(tmp_path: Path) -> None:
    """After something was done the next poll asks anew."""
    server = Server(tmp_path, cache=30.0)
    server.source.add(job("5"))
    assert (await server.states())["5"] == "Idle"
    await server.expect("CANCELJOB ARG=5 TYPE=ADMIN", 0)
    assert (await server.states())["5"] == "Removed"
    assert server.source.reads == 2


@pytest.mark.parametrize(
    ("requests", "shows"),
    [
        ((("SUSPENDJOB ARG=5", -700),), "STATE=Idle;"),
        ((("SUSPENDJOB ARG=7", 0), ("SUSPENDJOB ARG=7", -700)), "STATE=Suspended;"),
        ((("MODIFYJOB ARG=5 TIMELIMIT=20", 0),), "WCLIMIT=1200;"),
        ((("MODIFYJOB ARG=5 TIMELIMIT=25;", 0), ("MODIFYJOB ARG=5 TIMELIMIT=0", -300)), "WCLIMIT=1500;"),
        ((("MODIFYJOB ARG=5 BANK=x", -810),), "WCLIMIT=600;"),
        ((("CANCELJOB ARG=5 TYPE=WALLCLOCK", -700),), "STATE=Idle;"),
        ((("CANCELJOB ARG=7 TYPE=WALLCLOCK", 0), ("CANCELJOB ARG=7 TYPE=ADMIN", -700)), "STATE=Removed;"),
    ],
)
async def test_other_verbs(server: Server, requests: Sequence[tuple[str, int]], shows: str) -> None:
    """Cancel, suspend and modify do what they say; states that do not allow them are refused."""
    for message, status in requests:
        await server.expect(message, status)
    assert shows in await server.record(requests[0][0].partition("ARG=")[2][0])


@pytest.mark.parametrize(
    "verb", ["REQUEUEJOB ARG=7", "SIGNALJOB ARG=7 VALUE=USR1", "NOTIFYJOB ARG=7 MSG=hello", "RESUMEJOB ARG=7"]
)
async def test_what_the_batch_system_cannot(tmp_path: Path, verb: str) -> None:
    """What a batch system has no way to do is refused as unsupported, with the reason."""
    server = Server(tmp_path, dialect=Dialect.WIKI2)
    state = LrmJobState.SUSPENDED if verb.startswith("RESUME") else LrmJobState.RUNNING
    server.source.add(running("7", {"n1": 1}, state=state))
    await server.expect(verb, -810, " cannot ")


async def test_a_job_that_is_started_again_at_once_has_been_requeued(tmp_path: Path) -> None:
    """A batch system that cannot hold running jobs may never show it as waiting."""

    class Source(MemorySource):
        async def requeue(self, ids: Sequence[LrmJobId]) -> None:
            (id_,) = ids
            self.job_list[id_] = replace(self.job_list[id_], started_at=NOW)

    server = Server(tmp_path, Source(), dialect=Dialect.WIKI2, reply_within=1200.0)
    server.source.add(running("7", {"n1": 1}))
    with anyio.fail_after(60):
        await server.expect("REQUEUEJOB ARG=7", 0)


async def test_a_requeue_that_is_counted_before_the_run_has_ended_is_awaited(tmp_path: Path) -> None:
    """As Slurm counts it: the job is answered for when it waits."""

    class Source(MemorySource):
        asked_at = 0

        async def requeue(self, ids: Sequence[LrmJobId]) -> None:
            self.asked_at = self.reads
            for id_ in ids:
                self.job_list[id_] = replace(self.job_list[id_], state=LrmJobState.ENDING, requeues=1)

        async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
            if self.asked_at and self.reads > self.asked_at + 1:
                self.job_list["7"] = replace(self.job_list["7"], state=LrmJobState.HELD)
            return await super().jobs(name_prefix=name_prefix)

    server = Server(tmp_path, Source(), dialect=Dialect.WIKI2, reply_within=1200.0)
    server.source.add(running("7", {"n1": 1}))
    await server.expect("REQUEUEJOB ARG=7", 0)
    assert server.source.job_list["7"].state is LrmJobState.HELD


async def test_when_it_could_run(tmp_path: Path) -> None:
    """JOBWILLRUN tells the first moment at which enough processors are free by the running jobs' walltimes."""
    server = Server(tmp_path, dialect=Dialect.WIKI2)
    server.source.add(job("5", 12), running("7", {"n1": 8}), running("8", {"n2": 8}, ends_at=NOW + 90))
    server.source.add(running("9", {"n3": 8, "n4": 8}, ends_at=NOW + 9000))
    text = (await server.ask("JOBWILLRUN ARG=5 NODES=n[1-2]")).require()
    assert text == f"STARTINFO=5 TASKS=12 STARTTIME={int(NOW) + 590} NODES=n[1-2]"
    text = (await server.ask("JOBWILLRUN ARG=5 NODES=n[1-2] PREEMPT=7,8")).require()
    assert f"STARTTIME={int(NOW)} " in text
    assert "not runable" in (await server.ask("JOBWILLRUN ARG=5 NODES=n1")).require()
    await server.expect("JOBWILLRUN ARG=5 NODES=n77", -730)


async def test_initialize(tmp_path: Path) -> None:
    """INITIALIZE sets the form of host lists and the port for events."""
    server = Server(tmp_path, dialect=Dialect.WIKI2)
    server.source.add(running("7", {"n1": 2, "n2": 2}))
    await server.states()
    assert (await server.ask("INITIALIZE ARG=EPORT=15017 USEHOSTEXP=T")).text == "EPORT=15017 USEHOSTEXP=T"
    assert "TASKLIST=n[1-2]*2;" in (await server.records("GETJOBS ARG=0:ALL"))["7"]


@pytest.mark.parametrize("shows", ["released", "running", "held", "gone"])
async def test_interrupted_starts_are_settled(tmp_path: Path, shows: str) -> None:
    """After a kill each job that was being started runs once or is held once."""
    source = MemorySource()
    states = {"released": job("5", state=LrmJobState.QUEUED), "running": running("5", {"n1": 1}), "held": job("5")}
    if shows in states:
        source.add(states[shows])
    note(tmp_path, on_record("5"))
    server = Server(tmp_path, source)
    await server.resource.starts.reconcile()
    assert source.calls == ([] if shows == "running" else [("take back", "5")])
    assert source.confirmed == (["5"] if shows == "running" else [])
    assert [pin.started for pin in server.starts.pins] == ([] if shows == "gone" else [shows == "running"])
    expected = {"released": {"5": "Idle"}, "held": {"5": "Idle"}, "running": {"5": "Running"}, "gone": {}}
    assert await server.states() == expected[shows]


async def test_a_job_that_was_queued_again_while_no_server_ran(tmp_path: Path) -> None:
    """It comes back in hold, tied to the nodes of its start: it is freed, and shown as its user asked."""
    note(tmp_path, replace(on_record("5"), started=True, original="as it was"))
    server = Server(tmp_path)
    server.source.add(job("5", requested_nodes=("n1",), requeues=1))
    async with server.running():
        assert (await server.states())["5"] == "Idle"
        assert server.source.calls == [("take back", "5")]
        assert "HOSTLIST" not in await server.record("5")
        assert [(pin.started, pin.original) for pin in server.starts.pins] == [(False, "as it was")]


async def test_a_later_job_of_the_same_number_is_left_alone(tmp_path: Path) -> None:
    """What is on record is the start of another job, which is gone."""
    note(tmp_path, replace(on_record("5"), submitted_at=NOW - 5000))
    server = Server(tmp_path)
    server.source.add(job("5", state=LrmJobState.QUEUED))
    await server.resource.starts.reconcile()
    assert (server.source.calls, server.starts.pins) == ([], ())


async def test_nothing_is_started_off_the_record(server: Server) -> None:
    """When a start cannot be put on record it is refused."""
    server.starts.close()
    await server.start("5", status=-913, words="cannot be written")
    assert server.source.calls == []
