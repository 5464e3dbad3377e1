# SPDX-License-Identifier: Apache-2.0
"""Programs that negotiate for jobs by TCP with nothing but sockets and XML; also over kill -9 of the service."""

from __future__ import annotations

import os
import pwd
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest

from koala_adapter.errors import JobRefusedError, KoalaError
from tests.local_koala import Koala, Running, eventually
from tests.negotiator import Heard, Negotiator
from tests.wishes import write_wishes

# -- Programs that negotiate for jobs by TCP, on local clusters, with nothing but sockets and XML; also over kill -9.

WORKERS = """\
name = "bag"
kind = "malleable"
runner = "workers"
walltime = 600

[[components]]
name = "worker"
command = ["sleep", "500"]
minimum = 1
maximum = 16
cluster = "alpha"
"""


@pytest.fixture
def koala(tmp_path: Path) -> Iterator[Koala]:
    """Give a site of two local clusters of four processors on which sizes change when somebody asks, and end it."""
    with closing(Koala(tmp_path)) as one:
        one.change_site("[scheduler]\n", '[scheduler]\napproach = "none"\n')
        yield one


def size(koala: Koala) -> int:
    """Return how many processors the job has."""
    return sum(one.processors for one in koala.report("1").components)


def begin(koala: Koala) -> Running:
    """Start a service and a job with one worker."""
    service = koala.serve()
    path = koala.directory / "bag.toml"
    path.write_text(WORKERS)
    koala.inside("submit", str(path))
    eventually(lambda: koala.state_of("1") == "running")
    return service


def connected(koala: Koala) -> Negotiator:
    """Return a program that negotiates for the job."""
    host, port, token = koala.inside("negotiation", "access", "1").stdout.split()
    return Negotiator(host, int(port), token)


def told(koala: Koala) -> list[tuple[str, int, str]]:
    """Return what the service says of all negotiations."""
    return [(one.state, one.standing, one.reason) for one in koala.client.negotiations()]


def test_a_program_asks_gives_back_and_is_counter_offered(koala: Koala) -> None:
    begin(koala)
    with closing(connected(koala)) as program:
        program.ask("a", 1)
        program.answer(program.expect("NT_ACCEPTED"), "NT_COMMITTED")
        assert program.expect("NT_CONSUMED").count == 1
        assert size(koala) == 2
        program.ask("b", 14)
        counter = program.expect("NT_NEGOTIATION")
        assert (counter.count, counter.reason) == (2, "no more is free")
        program.answer(counter, "NT_ACCEPTED")
        program.expect("NT_COMMITTED")
        program.expect("NT_CONSUMED")
        assert size(koala) == 4
        program.ask("c", 3, direction="shrink")
        program.answer(program.expect("NT_ACCEPTED"), "NT_COMMITTED")
        program.expect("NT_CONSUMED")
        eventually(lambda: koala.client.clusters()[0].available == 3)
        assert len(koala.placeholders()) == 1
        program.ask("d", 1)
        program.answer(program.expect("NT_ACCEPTED"), "NT_REJECTED")
        eventually(lambda: told(koala)[-1][0] == "rejected")
        koala.inside("cancel", "1")
        assert program.hears_the_end()
    assert [one[0] for one in told(koala)[:3]] == ["done", "done", "done"]
    assert koala.client.negotiations(number=1)[0].rank == -1
    with pytest.raises(JobRefusedError, match="has ended"):
        koala.client.negotiation_access("1")


def test_who_shows_no_good_token_is_not_heard(koala: Koala) -> None:
    begin(koala)
    first, second = koala.client.negotiation_access("1"), koala.client.negotiation_access("1")
    for token in (first.token, "", "x" * 43):
        with closing(Negotiator(second.host, second.port, token)) as stranger, pytest.raises((EOFError, OSError)):
            stranger.hear()
    with closing(Negotiator(second.host, second.port, second.token)):
        eventually(lambda: koala.client.negotiations() == [])
        with closing(Negotiator(second.host, second.port, second.token)) as again, pytest.raises((EOFError, OSError)):
            again.hear()
        with closing(connected(koala)) as another:
            another.expect("NT_ERROR")
            assert another.hears_the_end()
    assert size(koala) == 1
    assert told(koala) == []


@pytest.mark.nightly
def test_a_service_that_is_killed_when_it_was_asked(koala: Koala) -> None:
    """It may have heard the request or not: a program that asks again gets one answer, not two."""
    service = begin(koala)
    program = connected(koala)
    with closing(program):
        program.ask("a", 2)
        os.kill(service.pid, signal.SIGKILL)
        service.wait()
    koala.serve()
    with closing(connected(koala)) as program:
        program.ask("a", 2)
        program.answer(program.hear(), "NT_COMMITTED")
        while (heard := program.hear()).status in {"NT_ACCEPTED", "NT_COMMITTED"}:
            pass
    # A submission that the death of the service has interrupted may be lost.
    lost = heard.status == "NT_WITHDRAWN" and heard.reason != ""
    grown = 0 if lost else 2
    assert lost or (heard.status, heard.count) == ("NT_CONSUMED", grown)
    eventually(lambda: size(koala) == 1 + grown and len(koala.placeholders()) == 1 + grown)
    assert [one[0] for one in told(koala)] == ["withdrawn" if lost else "done"]


def test_what_is_no_template_is_answered_once(koala: Koala) -> None:
    begin(koala)
    with closing(connected(koala)) as program:
        program.send(b"<no template")
        assert program.expect("NT_ERROR").agreement == "unreadable"
        with pytest.raises(EOFError):
            program.hear()


@pytest.mark.nightly
def test_a_program_that_vanishes(koala: Koala) -> None:
    begin(koala)
    with closing(connected(koala)) as program:
        program.ask("a", 14)
        program.expect("NT_NEGOTIATION")
        assert koala.client.clusters()[0].available == 0
    eventually(lambda: koala.client.clusters()[0].available == 3)
    assert size(koala) == 1
    assert "asked for 14 more" in koala.report("1").explanation


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a while")
def test_another_user_can_neither_take_part_nor_listen(koala: Koala) -> None:
    begin(koala)
    access = koala.client.negotiation_access("1")
    assert access.host == "127.0.0.1"
    with socket.socket() as other, pytest.raises(OSError, match="refused"):
        other.connect(("127.0.0.2", access.port))
    nobody = pwd.getpwnam("nobody").pw_uid
    with closing(connected(koala)) as program, as_user(nobody):
        with pytest.raises(KoalaError):
            koala.client.negotiation_access("1")
        with pytest.raises(PermissionError):
            (koala.state / "journal.sqlite").read_bytes()
        with closing(Negotiator(access.host, access.port, access.token)) as thief, pytest.raises((EOFError, OSError)):
            thief.hear()  # it was void already: nobody gets in by what has been used
        with closing(Negotiator(access.host, access.port, "")) as thief:
            program.ask("a", 1)
            assert program.expect("NT_ACCEPTED").count == 1
            with pytest.raises((EOFError, OSError)):
                thief.hear()
    eventually(lambda: told(koala)[-1][0] != "accepted")


@contextmanager
def as_user(user: int) -> Iterator[None]:
    """Be another user for a while."""
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.nightly
def test_offers_and_requests_go_to_the_program(koala: Koala) -> None:
    koala.change_site('approach = "none"', 'approach = "pwa"')
    koala.serve()
    blocker = koala.job("sleep 500", name="blocker", processors=3)
    koala.inside("submit", blocker)
    eventually(lambda: koala.state_of("1") == "running")
    path = koala.directory / "bag.toml"
    path.write_text(WORKERS.replace("maximum = 16", "maximum = 4"))
    koala.inside("submit", str(path))
    eventually(lambda: koala.state_of("2") == "running")
    host, port, token = koala.inside("negotiation", "access", "2").stdout.split()
    with closing(Negotiator(host, int(port), token)) as program:
        koala.inside("cancel", "1")
        offer = program.expect("NT_NEGOTIATION")
        assert offer.direction == "grow"
        program.answer(offer, "NT_ACCEPTED")
        program.expect("NT_COMMITTED")
        program.expect("NT_CONSUMED")
        eventually(lambda: sum(one.processors for one in koala.report("2").components) == 1 + offer.count)
        koala.inside("submit", koala.job("sleep 1", name="rigid", processors=2))
        request = program.expect("NT_NEGOTIATION")
        assert request.direction == "shrink"
        program.answer(request, "NT_ACCEPTED")
        program.expect("NT_COMMITTED")
        program.expect("NT_CONSUMED")
        eventually(lambda: koala.state_of("3") == "completed")
    assert [one.direction for one in koala.client.negotiations(job_id="2")][:2] == ["grow", "shrink"]


@pytest.mark.nightly
def test_a_program_negotiates_for_processes_that_change_together(koala: Koala) -> None:
    """They need not know of it: they change at their point, and it hears when they have."""
    koala.serve()
    more = 'minimum = 1\nmaximum = 8\ncluster = "alpha"\n'
    koala.inside("submit", write_wishes(koala.directory, name="one", more=more))
    eventually(lambda: koala.state_of("1") == "running")
    with closing(connected(koala)) as program:
        program.ask("a", 2)
        program.answer(program.expect("NT_ACCEPTED"), "NT_COMMITTED")
        assert program.expect("NT_CONSUMED").count == 2
        assert size(koala) == 3
        program.ask("b", 1, direction="shrink")
        program.answer(program.expect("NT_ACCEPTED"), "NT_COMMITTED")
        program.expect("NT_CONSUMED")
        eventually(lambda: size(koala) == 2)
    (koala.directory / "one" / "stop").touch()
    eventually(lambda: koala.state_of("1") == "completed")


# -- The service is killed while a negotiation that either side began keeps or moves processors: the truth is told
# after. What is only said is restarted in every state without processes
# (tests/unit/service/test_negotiations.py). A program with nothing but a socket and XML brings a negotiation into
# a state and stops there, the service gets SIGKILL, another one is started, and the program connects and goes on.

LEAVING_WORKERS = """\
name = "{name}"
kind = "malleable"
runner = "workers"
walltime = 600

[[components]]
name = "worker"
command = ["sh", "-c", 'trap "until [ -e {may_leave} ]; do sleep 0.1; done; exit" TERM; while :; do sleep 0.1; done']
minimum = 1
initial = {initial}
maximum = {maximum}
retire_grace = 500
cluster = "alpha"
"""
"""Workers that leave, when they are asked to, as soon as a file is there."""


@dataclass
class Scene:
    """A site of two local clusters of four processors, a service, a job, and the program that negotiates for it."""

    koala: Koala
    job: str = "1"
    programs: list[Negotiator] = field(default_factory=list)
    service: Running | None = None

    @property
    def program(self) -> Negotiator:
        """The latest connection."""
        return self.programs[-1]

    @property
    def may_leave(self) -> Path:
        """A file that workers wait for before they leave."""
        return self.koala.directory / "may-leave"

    def configure(self, approach: str = "none", **more: float) -> None:
        """Start the service with some settings of the scheduler."""
        path = self.koala.site_file
        settings = {"placeholder_life": 400} | more
        text = path.read_text().replace("placeholder_life = 30\n", "")
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items() if name != "poll_interval")
        text = text.replace("[scheduler]\n", f'[scheduler]\napproach = "{approach}"\n{lines}')
        path.write_text(text.replace("poll_interval = 0.5", f"poll_interval = {more.get('poll_interval', 0.5)}"))
        self.service = self.koala.serve()

    def workers(self, name: str = "bag", *, initial: int = 1, maximum: int = 16) -> str:
        """Submit a job of workers, and return its id when it runs."""
        text = LEAVING_WORKERS.format(name=name, may_leave=self.may_leave, initial=initial, maximum=maximum)
        path = self.koala.directory / f"{name}.toml"
        path.write_text(text)
        return self.submit(str(path))

    def submit(self, path: str) -> str:
        """Submit a job, and return its id when it runs."""
        self.koala.inside("submit", path)
        newest = self.koala.client.jobs(1)[-1].id
        eventually(lambda: self.koala.state_of(newest) == "running")
        return newest

    def connect(self) -> Negotiator:
        """Have the program connect."""
        host, port, token = self.koala.inside("negotiation", "access", self.job).stdout.split()
        self.programs.append(Negotiator(host, int(port), token))
        return self.program

    def restart(self) -> None:
        """Kill the service, start another one, and have the program connect again."""
        assert self.service is not None
        os.kill(self.service.pid, signal.SIGKILL)
        self.service.wait()
        self.program.close()
        self.service = self.koala.serve()
        eventually(lambda: self.koala.state_of(self.job) == "running")
        self.connect()

    def expect(self, agreement: str, status: str) -> Heard:
        """Return the next template about a negotiation, which must have a status; others are let pass."""
        while (heard := self.program.hear()).agreement != agreement:
            pass
        assert heard.status == status, (heard.status, heard.reason)
        return heard

    def said(self, number: int = 1) -> str:
        """Return what ``koala negotiations`` says of one."""
        return self.koala.client.negotiations(number=number)[0].state

    def size(self) -> int:
        """Return how many processors the job has."""
        return sum(one.processors for one in self.koala.report(self.job).components)

    def free(self) -> int | None:
        """Return how many processors of alpha koala would give somebody."""
        return next(one.available for one in self.koala.client.clusters() if one.name == "alpha")

    def settle(self, size: int) -> None:
        """Wait until the job has a size, and there is a placeholder for each of its processors and no other."""
        eventually(lambda: self.size() == size and len(self.koala.placeholders()) == size)


Course: TypeAlias = "Callable[[Scene], Iterator[None]]"
"""Brings a negotiation into a state, yields where the service is to be killed, and goes on with the one after it."""


# ---- the application has begun ---------------------------------------------------------------------------------------


def asked(scene: Scene) -> Iterator[None]:
    """Koala has still to answer: it has others shrink for a mandatory wish."""
    scene.configure()
    scene.job = scene.workers()
    other = scene.workers("other", initial=3, maximum=3)
    scene.connect().ask("a", 2, obligation="mandatory")
    eventually(lambda: "giv" in scene.koala.report(other).explanation)
    yield
    scene.may_leave.touch()
    scene.program.answer(scene.expect("a", "NT_ACCEPTED"), "NT_COMMITTED")
    assert scene.expect("a", "NT_CONSUMED").count == 2
    eventually(lambda: scene.size() == 3 and len(scene.koala.placeholders()) == 4)


def counter_offered(scene: Scene) -> Heard:
    """Have koala offer 3 in place of 14, and keep them for the application."""
    scene.job = scene.workers()
    scene.connect().ask("a", 14)
    counter = scene.expect("a", "NT_NEGOTIATION")
    assert (counter.count, scene.free()) == (3, 0)
    return counter


def offered(scene: Scene) -> Iterator[None]:
    """A counter-offer is out, and what it promises is kept: it is said again, and still kept from others."""
    scene.configure()
    counter_offered(scene)
    yield
    counter = scene.expect("a", "NT_NEGOTIATION")
    eventually(lambda: scene.free() == 0)
    scene.program.answer(counter, "NT_ACCEPTED")
    scene.expect("a", "NT_COMMITTED")
    assert scene.expect("a", "NT_CONSUMED").count == 3
    scene.settle(4)


def agreed_and_gathered(scene: Scene) -> Iterator[None]:
    """There is an agreement, and its placeholders wait in the queue behind those of a local user."""
    scene.configure(poll_interval=300)
    scene.job = scene.workers()
    scene.connect()
    theirs = scene.koala.submit_foreign("theirs", 3, "alpha")
    scene.program.ask("a", 2)
    scene.program.answer(scene.expect("a", "NT_ACCEPTED"), "NT_COMMITTED")
    eventually(lambda: scene.said() == "agreed" and len(scene.koala.placeholders()) == 6)
    yield
    scene.expect("a", "NT_COMMITTED")  # the agreement stands
    scene.koala.cancel_foreign(theirs, "alpha")
    assert scene.expect("a", "NT_CONSUMED").count == 2
    scene.settle(3)


def agreed_and_made(scene: Scene) -> Iterator[None]:
    """There is an agreement, and processes stand at the point at which they change together."""
    scene.configure()
    path = write_wishes(scene.koala.directory, name="one", more='minimum = 1\nmaximum = 8\ncluster = "alpha"\n')
    hold = scene.koala.directory / "one" / "hold-0"
    hold.touch()
    scene.job = scene.submit(path)
    scene.connect().ask("a", 2)
    scene.program.answer(scene.expect("a", "NT_ACCEPTED"), "NT_COMMITTED")
    eventually(lambda: scene.said() == "agreed" and "at its point" in scene.koala.report(scene.job).explanation)
    yield
    scene.expect("a", "NT_COMMITTED")  # the agreement stands
    hold.unlink()
    assert scene.expect("a", "NT_CONSUMED").count == 2
    scene.settle(3)


def agreed_to_give_back(scene: Scene) -> Iterator[None]:
    """There is an agreement by which the program gives back; its worker takes its time."""
    scene.configure()
    scene.job = scene.workers(initial=3)
    scene.connect().ask("a", 2, direction="shrink")
    scene.program.answer(scene.expect("a", "NT_ACCEPTED"), "NT_COMMITTED")
    eventually(lambda: scene.said() == "agreed")
    yield
    scene.expect("a", "NT_COMMITTED")  # the agreement stands
    assert scene.size() == 3
    scene.may_leave.touch()
    assert scene.expect("a", "NT_CONSUMED").count == 2
    scene.settle(1)


def withdrawn_by_koala(scene: Scene) -> Iterator[None]:
    """What was agreed on could not be had: a local user was faster."""
    scene.configure(poll_interval=300, placeholder_life=10)
    scene.job = scene.workers()
    scene.connect()
    scene.koala.submit_foreign("theirs", 3, "alpha")
    scene.program.ask("a", 2)
    acceptance = scene.expect("a", "NT_ACCEPTED")
    scene.program.answer(acceptance, "NT_COMMITTED")
    reason = scene.expect("a", "NT_WITHDRAWN").reason
    assert reason == "they did not come in time"
    yield
    scene.program.answer(acceptance, "NT_COMMITTED")
    assert scene.expect("a", "NT_WITHDRAWN").reason == reason
    eventually(lambda: scene.size() == 1 and len(scene.koala.placeholders()) == 1 + 3)


def lost(scene: Scene) -> Iterator[None]:
    """The program's connection ended before it had answered."""
    scene.configure()
    counter = counter_offered(scene)
    scene.program.close()
    eventually(lambda: scene.free() == 3)
    yield
    scene.program.answer(counter, "NT_ACCEPTED")
    assert scene.expect("a", "NT_EXPIRED").reason
    scene.settle(1)


def broken(scene: Scene) -> Iterator[None]:
    """The program has committed itself to what nobody accepted."""
    scene.configure()
    counter = counter_offered(scene)
    scene.program.answer(counter, "NT_COMMITTED")
    reason = scene.expect("a", "NT_ERROR").reason
    eventually(lambda: scene.free() == 3)
    yield
    scene.program.answer(counter, "NT_ACCEPTED")
    assert scene.expect("a", "NT_ERROR").reason == reason
    scene.settle(1)


# ---- koala has begun -------------------------------------------------------------------------------------------------


def offered_by_koala(scene: Scene, **more: float) -> Heard:
    """Have koala offer 3 processors that have come free."""
    scene.configure("pwa", **more)
    blocker = scene.submit(scene.koala.job("sleep 500", name="blocker", processors=3))
    scene.job = scene.workers(maximum=4)
    scene.connect()
    scene.koala.inside("cancel", blocker)
    offer = scene.program.expect("NT_NEGOTIATION")
    assert (offer.initiator, offer.direction) == ("RMS", "grow")
    return offer


def koala_has_offered(scene: Scene) -> Iterator[None]:
    """Its offer is with the program. It is made anew, or the job file decides: koala does not wait for a program."""
    offer = offered_by_koala(scene)
    yield
    scene.program.answer(offer, "NT_ACCEPTED")
    while (heard := scene.program.hear()).status in {"NT_NEGOTIATION", "NT_COMMITTED"}:
        pass
    assert heard.status in {"NT_CONSUMED", "NT_EXPIRED"}
    scene.settle(4)


def koala_takes_back(scene: Scene) -> Iterator[None]:
    """The program has agreed to give up what koala wants for a waiting job; its workers take their time."""
    scene.configure("pwa")
    scene.job = scene.workers(initial=4, maximum=4)
    scene.connect()
    scene.koala.inside("submit", scene.koala.job("sleep 1", name="rigid", processors=2))
    request = scene.program.expect("NT_NEGOTIATION")
    assert (request.initiator, request.direction, request.count) == ("RMS", "shrink", 2)
    scene.program.answer(request, "NT_ACCEPTED")
    scene.expect(request.agreement, "NT_COMMITTED")
    yield
    scene.expect(request.agreement, "NT_COMMITTED")
    assert scene.size() == 4
    scene.may_leave.touch()
    assert scene.expect(request.agreement, "NT_CONSUMED").count == 2
    eventually(lambda: scene.koala.state_of("2") == "completed")


COURSES: tuple[Course, ...] = (
    asked,
    offered,
    agreed_and_gathered,
    agreed_and_made,
    agreed_to_give_back,
    withdrawn_by_koala,
    lost,
    broken,
    koala_has_offered,
    koala_takes_back,
)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Give a scene, and end it."""
    one = Scene(Koala(tmp_path))
    try:
        yield one
    finally:
        for program in one.programs:
            program.close()
        one.koala.close()


@pytest.mark.nightly
@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.__name__)
def test_the_truth_is_told_after_a_kill_in_each_state(scene: Scene, course: Course) -> None:
    steps = course(scene)
    next(steps)
    scene.restart()
    assert next(steps, "over") == "over"
