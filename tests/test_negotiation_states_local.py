# SPDX-License-Identifier: Apache-2.0
"""The service is killed in each state of a negotiation that either side began: on return the truth is told.

A program with nothing but a socket and XML brings a negotiation into a state and stops there, the service gets SIGKILL,
another one is started, and the program connects and goes on.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.local_koala import Koala, eventually
from tests.negotiator import Heard, Negotiator
from tests.wishes import write_wishes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.local_koala import Running

pytestmark = pytest.mark.nightly

WORKERS = """\
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
        text = WORKERS.format(name=name, may_leave=self.may_leave, initial=initial, maximum=maximum)
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


def new(scene: Scene) -> Iterator[None]:
    """Nothing was said."""
    scene.configure()
    scene.workers()
    scene.connect()
    yield
    scene.program.ask("a", 2)
    scene.program.answer(scene.expect("a", "NT_ACCEPTED"), "NT_COMMITTED")
    scene.expect("a", "NT_CONSUMED")
    scene.settle(3)


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


def accepting(scene: Scene) -> Iterator[None]:
    """Koala has accepted what was asked for; the program has the last word."""
    scene.configure()
    scene.job = scene.workers()
    scene.connect().ask("a", 2)
    acceptance = scene.expect("a", "NT_ACCEPTED")
    yield
    scene.program.answer(acceptance, "NT_COMMITTED")
    while (heard := scene.program.hear()).status == "NT_ACCEPTED":  # said again, as the commitment was not known
        pass
    assert (heard.status, heard.count) == ("NT_CONSUMED", 2)
    scene.settle(3)


def accepting_in_the_third_round(scene: Scene) -> Iterator[None]:
    """Koala has accepted the program's answer to its counter-offer."""
    scene.configure()
    counter = counter_offered(scene)
    counter.count = 2
    scene.program.answer(counter, "NT_NEGOTIATION")
    acceptance = scene.expect("a", "NT_ACCEPTED")
    yield
    scene.program.answer(acceptance, "NT_COMMITTED")
    while (heard := scene.program.hear()).status == "NT_ACCEPTED":
        pass
    assert (heard.status, heard.count) == ("NT_CONSUMED", 2)
    scene.settle(3)


def accepted(scene: Scene) -> Iterator[None]:
    """The program has accepted a counter-offer; whether koala has heard it is not known."""
    scene.configure()
    counter = counter_offered(scene)
    scene.program.answer(counter, "NT_ACCEPTED")
    yield
    scene.program.answer(counter, "NT_ACCEPTED")
    while (heard := scene.program.hear()).status in {"NT_NEGOTIATION", "NT_COMMITTED"}:
        pass
    assert (heard.status, heard.count) == ("NT_CONSUMED", 3)
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


def consumed(scene: Scene) -> Iterator[None]:
    """What was agreed on is there, and the program has not heard it: it says again that it commits itself."""
    scene.configure()
    scene.job = scene.workers()
    scene.connect().ask("a", 2)
    acceptance = scene.expect("a", "NT_ACCEPTED")
    scene.program.answer(acceptance, "NT_COMMITTED")
    eventually(lambda: scene.said() == "done")
    yield
    scene.program.answer(acceptance, "NT_COMMITTED")
    assert scene.expect("a", "NT_CONSUMED").count == 2
    scene.settle(3)


def rejected_by_koala(scene: Scene) -> Iterator[None]:
    """The last worker cannot be given back."""
    scene.configure()
    scene.job = scene.workers()
    scene.connect().ask("a", 1, direction="shrink")
    rejection = scene.expect("a", "NT_REJECTED")
    assert rejection.reason
    yield
    scene.program.answer(rejection, "NT_COMMITTED")
    assert scene.expect("a", "NT_REJECTED").reason == rejection.reason
    scene.settle(1)


def ended_by_the_program(scene: Scene, status: str) -> Iterator[None]:
    """The program does not want a counter-offer: what it promised is free, and stays so if it thinks better of it."""
    scene.configure()
    counter = counter_offered(scene)
    scene.program.answer(counter, status)
    eventually(lambda: scene.free() == 3)
    yield
    eventually(lambda: scene.free() == 3)
    scene.program.answer(counter, "NT_ACCEPTED")
    scene.expect("a", status)
    scene.settle(1)


def rejected(scene: Scene) -> Iterator[None]:
    """By the program."""
    return ended_by_the_program(scene, "NT_REJECTED")


def withdrawn(scene: Scene) -> Iterator[None]:
    """By the program."""
    return ended_by_the_program(scene, "NT_WITHDRAWN")


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


def expired(scene: Scene) -> Iterator[None]:
    """A counter-offer was not answered in time."""
    scene.configure(answer_timeout=2)
    counter = counter_offered(scene)
    reason = scene.expect("a", "NT_EXPIRED").reason
    eventually(lambda: scene.free() == 3)
    yield
    scene.program.answer(counter, "NT_ACCEPTED")
    assert scene.expect("a", "NT_EXPIRED").reason == reason
    eventually(lambda: scene.free() == 3)
    scene.settle(1)


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


def koala_accepts_fewer(scene: Scene) -> Iterator[None]:
    """The program has answered koala's offer by a smaller one, which koala has accepted."""
    offer = offered_by_koala(scene)
    assert offer.count > 1
    offer.count = 1
    scene.program.answer(offer, "NT_NEGOTIATION")
    acceptance = scene.expect(offer.agreement, "NT_ACCEPTED")
    yield
    scene.program.answer(acceptance, "NT_COMMITTED")
    while (heard := scene.program.hear()).agreement != offer.agreement or heard.status == "NT_ACCEPTED":
        pass
    assert (heard.status, heard.count) == ("NT_CONSUMED", 1)
    eventually(lambda: scene.size() >= 2)


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


def koala_was_rejected(scene: Scene) -> Iterator[None]:
    """The program does not want what koala offers, and it stays so if it thinks better of it."""
    offer = offered_by_koala(scene)
    scene.program.answer(offer, "NT_REJECTED")
    eventually(lambda: scene.said() == "rejected")
    yield
    scene.program.answer(offer, "NT_ACCEPTED")
    scene.expect(offer.agreement, "NT_REJECTED")
    assert scene.said() == "rejected"


def koala_was_not_answered(scene: Scene) -> Iterator[None]:
    """The program was silent for too long."""
    offer = offered_by_koala(scene, answer_timeout=2)
    reason = scene.expect(offer.agreement, "NT_EXPIRED").reason
    yield
    scene.program.answer(offer, "NT_ACCEPTED")
    assert scene.expect(offer.agreement, "NT_EXPIRED").reason == reason


COURSES: tuple[Course, ...] = (
    new,
    asked,
    offered,
    accepting,
    accepting_in_the_third_round,
    accepted,
    agreed_and_gathered,
    agreed_and_made,
    agreed_to_give_back,
    consumed,
    rejected_by_koala,
    rejected,
    withdrawn,
    withdrawn_by_koala,
    expired,
    lost,
    broken,
    koala_has_offered,
    koala_accepts_fewer,
    koala_takes_back,
    koala_was_rejected,
    koala_was_not_answered,
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


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.__name__)
def test_the_truth_is_told_after_a_kill_in_each_state(scene: Scene, course: Course) -> None:
    steps = course(scene)
    next(steps)
    scene.restart()
    assert next(steps, "over") == "over"
