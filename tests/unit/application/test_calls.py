# SPDX-License-Identifier: Apache-2.0
"""The calls of the library, in Python and in C, over real sockets: the same program in both, and the same answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from koala_adapter import negotiation as nt
from koala_adapter.application.shipping import FILE_NAME, library_file
from tests.compiled import MEMORY_CHECKED, compiled
from tests.unit.application.koala_end import Driver, KoalaEnd, together

DRIVER_IN_C = Path(__file__).with_name("driver.c")


@dataclass(kw_only=True)
class Stage:
    """What starts programs."""

    command: list[str]
    directory: Path
    drivers: list[Driver] = field(default_factory=list)

    def start(self, **environment: str) -> Driver:
        driver = Driver(self.command, {"PATH": os.environ["PATH"], **environment})
        self.drivers.append(driver)
        return driver

    def process(self, koala: KoalaEnd, rank: int, *, sizes: str = "any") -> Driver:
        driver = self.start(KOALA_APP_SOCKET=str(koala.path(rank)), KOALA_RANK=str(rank), KOALA_SIZE="77")
        driver.tell(f"join {sizes} node{rank}:{4000 + rank}")
        return driver

    def joined(self, koala: KoalaEnd, *, sizes: str = "any") -> list[Driver]:
        drivers = [self.process(koala, rank, sizes=sizes) for rank in koala.coordinator.first]
        assert [one.hear() for one in drivers] == ["joined"] * len(drivers)
        return drivers


@pytest.fixture(scope="module")
def python_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Give the command of the driver in Python, with the file as it travels."""
    directory = tmp_path_factory.mktemp("library")
    (directory / FILE_NAME).write_text(library_file(), encoding="utf-8")
    return [sys.executable, "-W", "error", str(Path(__file__).with_name("driver.py")), str(directory)]


@pytest.fixture(scope="module")
def c_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [str(compiled(tmp_path_factory, DRIVER_IN_C, *MEMORY_CHECKED))]


@pytest.fixture(scope="module")
def c_threads_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Give the command of the driver in C, with checks of what its two threads share."""
    program = str(compiled(tmp_path_factory, DRIVER_IN_C, "-fsanitize=thread", name="driver_threads"))
    if subprocess.run([program], stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode:
        pytest.skip("the thread sanitizer does not run on this kernel")
    return [program]


@pytest.fixture(
    params=[
        "python",
        pytest.param("c", marks=pytest.mark.real("cc")),
        pytest.param("c_threads", marks=pytest.mark.real("cc")),
    ]
)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(command=request.getfixturevalue(f"{request.param}_command"), directory=tmp_path)
    yield stage
    for driver in stage.drivers:
        driver.kill()


def test_outside_koala_all_calls_work(stage: Stage) -> None:
    alone = stage.start()
    assert alone.call("join any x") == "joined"
    assert alone.call("state") == "rank 0 size 1 reached 0 contacts x nothing"
    assert alone.call("point") == "nothing"
    assert alone.call("points 1000") == "reached 1001"
    assert alone.call("done") == "done rank 0 size 1"
    assert alone.call("ending") == "ending 0 left -1"
    assert alone.call("request 3") == "granted 0 the program does not run as an adaptive job of koala"
    assert alone.call("give_back 3") == "granted 0 the program does not run as an adaptive job of koala"
    assert alone.call("leave") == "left"
    assert alone.end() == ""
    second = stage.start(PMI_RANK="1", PMI_SIZE="3")
    assert second.call("join any y") == "joined"
    assert second.call("state") == "rank 1 size 3 reached 0 contacts  y  nothing"
    assert second.end() == ""


def test_a_program_learns_that_its_time_is_nearly_over(stage: Stage) -> None:
    """It knows how much is left as soon as koala has told; an earlier koala does not tell."""
    with KoalaEnd(stage.directory, 1) as koala:
        (only,) = stage.joined(koala)
        assert " ends=1" in koala.notes[0][1], "who wants the note says so"
        assert only.call("ending") == "ending 0 left -1"
        koala.note(0, "ends", **{"in": 90_000, "near": 1})
        verb, ending, _, left = only.call("ending at last").split()
        assert (verb, ending) == ("ending", "1")
        assert 80_000 < int(left) <= 90_000
        koala.note(0, "ends", **{"in": 0, "near": 0, "later": "x"})
        koala.note(0, "dance")
        koala.wait(lambda: koala.said(0, "error"))
        assert only.call("ending") == "ending 0 left 0"
        koala.note(0, "ends", **{"in": 90, "near": 0, "warn": 100})
        assert only.call("ending at last").startswith("ending 1 left "), "by itself, before anybody says so"
        koala.note(0, "ends", near=1)
        koala.wait(
            lambda: koala.said(0, "error text=what%20koala%20has%20said%20cannot%20be%20followed:%20ends%20lacks")
        )
        assert only.call("point") == "nothing"


def test_a_program_grows_and_shrinks(stage: Stage) -> None:
    """Newcomers enter at the point of the others with their count; leavers go; everybody knows everybody."""
    with KoalaEnd(stage.directory, 2) as koala:
        first, second = stage.joined(koala)
        assert first.call("state") == "rank 0 size 2 reached 0 contacts node0:4000 node1:4001 nothing"
        assert second.call("state") == "rank 1 size 2 reached 0 contacts node0:4000 node1:4001 nothing"
        assert first.call("points 10") == second.call("points 10") == "reached 10"
        third = stage.process(koala, 2)
        koala.begin([0, 1, 2], "processors are free")
        koala.wait(lambda: koala.said(0, "armed") and koala.said(1, "armed"))
        assert koala.coordinator.at == 11
        told = "change 1 at 11 old 0,1 members 0,1,2 leaving - joining 2"
        assert together("point", first, second) == [
            f"{told} rank {rank} old_rank {rank} size 3 reason processors are free" for rank in range(2)
        ]
        assert third.hear() == "joined"
        entered = f"{told} rank 2 old_rank -1 size 3 reason processors are free"
        contacts = "node0:4000 node1:4001 node2:4002"
        assert third.call("state") == f"rank 2 size 3 reached 11 contacts {contacts} {entered}"
        assert together("done", first, second, third) == [f"done rank {rank} size 3" for rank in range(3)]
        assert third.call("state") == f"rank 2 size 3 reached 11 contacts {contacts} nothing"
        koala.begin([0, 2])
        changes = [one.partition(" old ")[2] for one in together("until", first, second, third)]
        told = "0,1,2 members 0,2 leaving 1 joining -"
        assert changes == [f"{told} rank {rank} old_rank {old} size 2 reason " for old, rank in enumerate((0, -1, 1))]
        ranks = together("done", first, second, third)
        assert ranks == ["done rank 0 size 2", "done rank -1 size 2", "done rank 1 size 2"]
        assert second.call("leave") == "left"
        koala.wait(lambda: koala.said(1, "leaving"))
        assert [one.end() for one in (first, second, third)] == ["", "", ""]
        assert koala.coordinator.errors == []


def grown(koala: KoalaEnd, stage: Stage, drivers: list[Driver], newcomer: int) -> Driver:
    """Bring a process more into the program, and let all go on."""
    new = stage.process(koala, newcomer)
    koala.begin([*koala.coordinator.members, newcomer])
    for one in drivers:
        one.tell("until")
    assert new.hear() == "joined"
    assert all(one.hear().startswith("change ") for one in drivers)
    assert all(said.startswith("done") for said in together("done", *drivers, new))
    return new


def test_wrong_calls_get_a_clear_error_and_harm_nobody(stage: Stage) -> None:
    with KoalaEnd(stage.directory, 2, minimum=2, maximum=4) as koala:
        first, second = stage.joined(koala)
        wrong = {
            "done": "done() without a change: this process is running",
            "leave": "leave() of a process that was not taken out: this process is running",
            "request 0": "the number of processors is 1 or more, not 0",
            "request 9": "11 processors, 2 and 9 more, are outside the bounds of the job, 2 to 4",
            "give_back 1": "1 processors, 2 and 1 fewer, are outside the bounds of the job, 2 to 4",
        }
        for call, text in wrong.items():
            assert first.call(call) == f"error {text}"
        koala.wait(lambda: len(koala.coordinator.errors) == len(wrong))
        assert koala.coordinator.errors == [(0, text) for text in wrong.values()]
        third = stage.process(koala, 2)
        koala.begin([0, 1, 2])
        assert all(said.startswith("change 1") for said in together("until", first, second))
        assert third.hear() == "joined"
        assert first.call("point") == "error point() before done(): change 1 is not finished"
        assert third.call("point") == "error point() before done(): change 1 is not finished"
        stays = "leave() of a process that was not taken out: this process is changing (change 1)"
        assert first.call("leave") == f"error {stays}"
        asked = "a process asks for processors when it is in no change, not while changing"
        assert first.call("request 1") == f"error {asked}"
        reached = koala.coordinator.at
        assert together("done", first, second, third) == [f"done rank {rank} size 3" for rank in range(3)]
        assert first.call("points 3") == second.call("points 3") == third.call("points 3") == f"reached {reached + 3}"
        complaints = first.end()
        assert complaints.splitlines()[:5] == [f"koala_app: process 0: {text}" for text in wrong.values()]
        assert second.end() == ""


def test_a_wrong_call_that_ends_the_process_is_told_to_koala(python_command: list[str], tmp_path: Path) -> None:
    library = python_command[-1]
    program = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import koala_app\n"
        "app = koala_app.join()\n"
        "sys.setswitchinterval(1000)\n"  # from here on other threads run only when this one waits for something,
        "sys.excepthook = lambda *_: None\n"  # as it would do to write a traceback
        "app.leave()\n"
    )
    with KoalaEnd(tmp_path, 1) as koala:
        environment = {"PATH": os.environ["PATH"], "KOALA_APP_SOCKET": str(koala.path(0)), "KOALA_RANK": "0"}
        command = [sys.executable, "-c", program, library]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        text = "leave() of a process that was not taken out: this process is running"
        assert done.returncode == 1
        assert done.stderr == f"koala_app: process 0: {text}\n"
        koala.wait(lambda: koala.coordinator.errors == [(0, text)])


def test_a_leaver_may_only_leave(stage: Stage) -> None:
    """One that was taken out is refused points, and leaves; the others never notice."""
    with KoalaEnd(stage.directory, 2) as koala:
        first, second = stage.joined(koala)
        koala.begin([0])
        assert all(said.startswith("change 1") for said in together("until", first, second))
        assert second.call("leave") == "error leave() before done(): change 1 is not finished"
        second.tell("done")
        assert first.call("done") == "done rank 0 size 1"
        assert second.hear() == "done rank -1 size 1"
        assert second.call("point").startswith("error point() in a process that was taken out")
        assert second.call("leave") == "left"
        assert first.call("point") == "nothing"


def test_a_change_is_given_up(stage: Stage) -> None:
    """Processes that wait at a point for one that never comes go on there when the change is abandoned."""
    with KoalaEnd(stage.directory, 2) as koala:
        first, second = stage.joined(koala)
        koala.begin([0])
        koala.wait(lambda: koala.said(0, "armed") and koala.said(1, "armed"))
        first.tell("point")
        koala.wait(lambda: koala.said(0, "waiting change=1 at=1"))
        with koala.lock:
            koala.say(koala.coordinator.abandon())
        assert first.hear() == "nothing"
        assert second.call("points 2") == "reached 2"
        grown(koala, stage, [first, second], 2)


def starts(koala: KoalaEnd, since: int) -> list[tuple[int, str]]:
    """Return the first four words of each note that has come since."""
    return [(rank, " ".join(text.split(" ")[:4])) for rank, text in koala.notes[since:]]


def test_processes_go_on_when_koala_is_away_before_all_stand(stage: Stage) -> None:
    """They pass the point that they were to stop at, and change at another one when koala is back."""
    with KoalaEnd(stage.directory, 2) as koala:
        first, second = stage.joined(koala)
        koala.begin([0])
        koala.wait(lambda: koala.said(0, "armed") and koala.said(1, "armed"))
        with koala.lock:
            for rank in (0, 1):
                koala.note(rank, "away")
                koala.note(rank, "dance")  # the answer tells that what was said before has been heard
        koala.wait(lambda: len(koala.coordinator.errors) == 2)
        assert together("points 20", first, second) == ["reached 20"] * 2
        with koala.lock:
            koala.say(koala.coordinator.forget())
        assert len({said.split(" old ")[0] for said in together("until", first, second)}) == 1
        assert koala.coordinator.at > 20
        assert together("done", first, second) == ["done rank 0 size 1", "done rank -1 size 1"]


def test_one_that_has_said_to_stand_stays_while_koala_is_away(stage: Stage) -> None:
    """All others may have said so, too: then the change is recorded, and is made when koala is back."""
    with KoalaEnd(stage.directory, 2) as koala:
        first, second = stage.joined(koala)
        koala.begin([0])
        koala.wait(lambda: koala.said(0, "armed") and koala.said(1, "armed"))
        first.tell("until")
        koala.wait(lambda: koala.said(0, "waiting change=1 at=1"))
        with koala.lock:
            koala.note(0, "away")
            koala.note(0, "dance")
        koala.wait(lambda: bool(koala.coordinator.errors))
        second.tell("until")
        assert first.hear().startswith("change 1 at 1 ")
        assert second.hear().startswith("change 1 at 1 ")


def test_a_broken_connection_is_made_again(stage: Stage) -> None:
    """Whatever a process does when its connection breaks, it comes back, says where it is, and the change is made."""
    with KoalaEnd(stage.directory, 2) as koala:
        first, second = stage.joined(koala)
        koala.cut(0)
        assert first.call("points 5") == "reached 5"
        koala.wait(lambda: koala.said(0, "hello version=1 state=running change=0 at=0 reached="))
        koala.begin([0])
        koala.wait(lambda: koala.said(0, "armed") and koala.said(1, "armed"))
        before = len(koala.notes)
        koala.cut(1)  # it will not stop for a change that may never come
        koala.wait(lambda: (1, "hello version=1 state=running change=0") in starts(koala, before))
        assert all(said.startswith("change 1") for said in together("until", first, second))
        koala.cut(0)
        koala.wait(lambda: koala.said(0, "hello version=1 state=changing change=1"))
        first.tell("done")
        koala.wait(lambda: koala.said(0, "done change=1"))
        koala.cut(0)
        koala.wait(lambda: koala.said(0, "hello version=1 state=done change=1"))
        second.tell("done")
        assert first.hear() == "done rank 0 size 1"
        assert second.hear() == "done rank -1 size 1"
        assert first.end() == ""


def test_garbage_is_told_and_survived(stage: Stage) -> None:
    """Notes that are none are answered with an error; what is no frame ends that connection, and another is made."""
    with KoalaEnd(stage.directory, 2) as koala:
        first, second = stage.joined(koala)
        garbage = [
            b"\xff\xfe", b"WHO", b"who a", b"who a=%zz", b"who a=1 a=2", b"dance", b"stop change=1",
            b"stop change=x at=1",
            b"change change=1 at=1", b"resume change=7", b"<NT/>", b"<NT" + b"x" * 60000, b"x" * 65536, b"welcome ",
        ]  # fmt: skip
        with koala.lock:
            for payload in garbage:
                koala.send(0, nt.frame(payload))
            koala.note(0, "error", text="is not answered")
        koala.wait(lambda: len(koala.coordinator.errors) >= len(garbage))
        assert koala.coordinator.errors[5] == (0, "what koala has said cannot be followed: dance is not known here")
        for count, broken in enumerate((b"GET / HTTP/1.1\r\n\r\n", b"99999999\nx", b"00000000\n"), len(garbage) + 1):
            with koala.lock:
                peer = koala.peers[0]
                koala.send(0, broken)
            koala.wait(lambda: koala.peers.get(0, peer) is not peer)  # noqa: B023
            koala.wait(lambda: len(koala.coordinator.errors) == count)  # noqa: B023
            koala.wait(lambda: koala.coordinator.idle)
        grown(koala, stage, [first, second], 2)
        assert "dance is not known here" in first.end()
        assert second.end() == ""


def test_a_change_of_members_in_another_order_is_refused(stage: Stage) -> None:
    """Each process would seek the data of others where it is not: the change is not followed, and both sides say so."""
    with KoalaEnd(stage.directory, 2) as koala:
        drivers = stage.joined(koala)
        koala.coordinator.members = [1, 0]
        stage.process(koala, 2)
        koala.begin([1, 0, 2])
        for one in drivers:
            one.tell("until")
        koala.wait(lambda: len(koala.coordinator.errors) == len(drivers))
        text = "change names other old members, or in another order, than this process knows"
        assert {said.rpartition(": ")[2] for _, said in koala.coordinator.errors} == {text}


def test_koala_refuses(stage: Stage) -> None:
    with KoalaEnd(stage.directory, 1) as koala:
        only = stage.joined(koala)[0]
        stranger = stage.start(KOALA_APP_SOCKET=str(stage.directory / "0"))
        assert stranger.call("join any x") == "error this process has a connection already"
        koala.begin([0, 1])
        with koala.lock:
            koala.note(0, "fail", text="no such thing")
            koala.note(0, "who")
        koala.wait(lambda: koala.said(0, "hello version=1 state=running"))
        assert only.call("point") == "nothing"
        assert only.end() == "koala_app: process 0: no such thing\n"
    wrong = stage.start(KOALA_APP_SOCKET=str(stage.directory / "0"))
    assert wrong.call("join some x") == "error sizes is any, power-of-two, multiple-of-N or a function, not 'some'"
    assert wrong.call(f"join any {'x' * 201}") == "error contact is a text of at most 200 bytes"


@pytest.mark.parametrize(
    ("sizes", "minimum", "offers"),
    [
        ("any", 1, ["grow 9 offer 6", "shrink 9 offer 1", "grow 3 accepted 3", "shrink 1 accepted 1"]),
        ("power-of-two", 1, ["grow 1 ended 0", "grow 3 offer 2"]),
        ("multiple-of-2", 2, ["shrink 1 ended 0", "grow 5 offer 4"]),
        ("function", 1, ["grow 4 offer 2", "shrink 1 accepted 1"]),
    ],
)
def test_offers_are_decided_by_the_rule(stage: Stage, sizes: str, minimum: int, offers: list[str]) -> None:
    """Of an offer as much is taken as brings the program of 2 to a usable size up to 8; it never goes below 1."""
    with KoalaEnd(stage.directory, 2, minimum=minimum, maximum=8) as koala:
        stage.joined(koala, sizes=sizes)
        koala.granting = nt.rejected  # of what is answered by another number, so that it does not count later
        for direction, offered, said, taken in map(str.split, offers):
            event = koala.first_event(koala.offer(int(offered), direction))
            assert event.kind == said
            assert quantity(event) == int(taken) or (said == "ended" and "cannot be taken" in event.reason)


def test_a_function_that_is_wrong_is_told(stage: Stage) -> None:
    """A size that cannot be is shown, what koala wants is rejected with it, and the next offer is decided as ever."""
    with KoalaEnd(stage.directory, 4) as koala:
        first = stage.joined(koala, sizes="function")[0]
        problems = [
            "sizes(4, 3) returned 103, which is no size from 4 to 7",
            "sizes(4, -3) returned 103, which is no size from 1 to 4",
        ]
        for direction, problem in zip(("grow", "shrink"), problems, strict=True):
            event = koala.first_event(koala.offer(3, direction))
            assert (event.kind, event.reason) == ("ended", problem)
        koala.wait(lambda: koala.coordinator.errors == [(0, problem) for problem in problems])
        assert koala.first_event(koala.offer(4, "grow")).kind == "offer"
        assert first.end() == "".join(f"koala_app: process 0: {problem}\n" for problem in problems)


def test_offers_count_what_was_agreed_before(stage: Stage) -> None:
    """Before the processors of one offer are there, the next is decided with the size that it will lead to."""
    with KoalaEnd(stage.directory, 2, maximum=4) as koala:
        first, second = stage.joined(koala)
        koala.granting = nt.rejected
        key = koala.offer(1, "grow")
        koala.wait(lambda: koala.endpoints[0].state(key) == "agreed")
        assert quantity(koala.first_event(koala.offer(5, "grow"))) == 1
        grown(koala, stage, [first, second], 2)
        assert quantity(koala.first_event(koala.offer(5, "shrink"))) == 2


def test_multiples_wait_only_until_the_size_is_one(stage: Stage) -> None:
    """A program of 3 takes 1 and declines 4, which would make it 7 without the 1; one of 4 takes all that comes."""
    with KoalaEnd(stage.directory, 3, maximum=16) as koala:
        members = stage.joined(koala, sizes="multiple-of-4")
        koala.granting = nt.rejected
        with koala.lock:
            keys = [koala.offer(1, "grow", key="a"), koala.offer(4, "grow", key="b")]
        assert koala.first_event(keys[0]).kind == "accepted"
        assert koala.first_event(keys[1]).state == "rejected"
        grown(koala, stage, members, 3)
        with koala.lock:
            keys = [koala.offer(4, "grow", key="c"), koala.offer(4, "grow", key="d")]
        assert [koala.first_event(key).kind for key in keys] == ["accepted", "accepted"]


def test_offers_at_once_are_decided_with_what_was_taken(stage: Stage) -> None:
    """A program that takes any size takes no more of both together than its maximum."""
    with KoalaEnd(stage.directory, 2, maximum=8) as koala:
        stage.joined(koala)
        koala.granting = nt.rejected
        with koala.lock:
            keys = [koala.offer(4, "grow", key="a"), koala.offer(4, "grow", key="b")]
        assert koala.first_event(keys[0]).kind == "accepted"
        assert quantity(koala.first_event(keys[1])) == 2


def test_an_offer_in_the_middle_of_a_change_counts_it_once(stage: Stage) -> None:
    """Processors of an agreement are either members or still to come, from the change on to the report on them."""
    with KoalaEnd(stage.directory, 1, maximum=8) as koala:
        only = stage.joined(koala, sizes="power-of-two")[0]
        koala.granting = nt.rejected
        key = koala.offer(1, "grow")
        koala.wait(lambda: koala.endpoints[0].state(key) == "agreed")
        new = stage.process(koala, 1, sizes="power-of-two")
        koala.begin([0, 1])
        only.tell("until")
        assert only.hear().startswith("change 1")
        assert new.hear() == "joined"
        assert koala.first_event(koala.offer(1, "grow")).kind == "ended"
        assert quantity(koala.first_event(koala.offer(3, "grow"))) == 2
        only.tell("done")
        assert new.call("done") == "done rank 1 size 2"
        assert only.hear() == "done rank 0 size 2"
        assert koala.first_event(koala.offer(1, "grow")).kind == "ended"


def quantity(event: nt.Event) -> int:
    assert event.template is not None
    return event.template.quantity("CPU")


def test_memory_is_asked_for_with_processors(stage: Stage) -> None:
    with KoalaEnd(stage.directory, 2, maximum=16) as koala:
        first, _ = stage.joined(koala)
        assert first.call("request 4 memory 8192") == "granted 4"
        koala.granting = lambda offer: nt.countered(offer, {("CPU", "", ""): 3}, reason="3 are idle")
        assert first.call("request 4 mandatory memory 512") == "granted 3 3 are idle"
        koala.granting = lambda offer: nt.rejected(offer, "no more memory")
        assert first.call("request 1 memory 65536") == "granted 0 no more memory"
        assert first.call("request 1 memory -1") == "error the memory is in MiB, 0 or more, not -1"
        asked = [event.template for _, event in koala.events if event.kind == "offer" and event.template]
        first_offers = [one for one in asked if one.round == 1]
        assert [one.quantities() for one in first_offers] == [
            {("CPU", "", ""): count, ("MEM", "", ""): memory} for count, memory in ((4, 8192), (4, 512), (1, 65536))
        ]
        assert {one.resources[1].negotiability for one in first_offers} == {"NT_FIXED"}


def test_requests_are_answered(stage: Stage) -> None:
    with KoalaEnd(stage.directory, 2, maximum=16) as koala:
        first, second = stage.joined(koala, sizes="power-of-two")
        assert first.call("request 2") == "granted 2"
        koala.granting = lambda offer: nt.countered(offer, {("CPU", "", ""): 4}, reason="4 are idle")
        assert first.call("request 8 mandatory") == "granted 4 4 are idle"
        koala.granting = lambda offer: (
            nt.accepted(offer)
            if offer.quantity("CPU") < 3
            else nt.countered(offer, {("CPU", "", ""): 3}, reason="3 are idle")
        )
        assert second.call("request 6") == "granted 2 3 are idle"
        koala.granting = lambda offer: nt.rejected(offer, "nothing is idle")
        assert second.call("request 6") == "granted 0 nothing is idle"
        koala.granting = nt.accepted
        assert second.call("give_back 1") == "granted 1"
        asked = [event.template for _, event in koala.events if event.kind == "offer" and event.template]
        assert [(one.direction, one.obligation) for one in asked if one.round == 1] == [
            ("grow", "voluntary"), ("grow", "mandatory"), ("grow", "voluntary"), ("grow", "voluntary"),
            ("shrink", "voluntary"),
        ]  # fmt: skip
        assert {one.agreement_id for one in asked} == {"0-1", "0-2", "1-1", "1-2", "1-3"}


def test_a_service_that_starts_again_goes_on(stage: Stage) -> None:
    """One that has forgotten all but its plan asks who is where, and finishes the change; a wish is said again."""
    with KoalaEnd(stage.directory, 2) as koala:
        first, second = stage.joined(koala)
        koala.begin([0])
        assert all(said.startswith("change 1") for said in together("until", first, second))
        first.tell("done")
        koala.wait(lambda: koala.said(0, "done change=1"))
        with koala.lock:
            koala.say(koala.coordinator.forget())
        second.tell("done")
        assert first.hear() == "done rank 0 size 1"
        assert second.hear() == "done rank -1 size 1"
        with koala.lock:
            granting, koala.granting = koala.granting, lambda offer: offer
            koala.endpoints[0].tell = lambda *_: None  # type: ignore[method-assign,assignment]
        first.tell("request 1")
        koala.wait(lambda: any(event.kind == "offer" for _, event in koala.events))
        with koala.lock:
            koala.granting = granting
            koala.endpoints[0] = nt.Endpoint("RMS", "head", "node0")
            koala.note(0, "who")
        assert first.hear() == "granted 1"
