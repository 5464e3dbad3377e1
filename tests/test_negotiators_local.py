# SPDX-License-Identifier: Apache-2.0
"""Programs that negotiate for jobs by TCP, on local clusters, with nothing but sockets and XML; also over kill -9."""

from __future__ import annotations

import os
import pwd
import signal
import socket
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import JobRefusedError, KoalaError
from tests.local_koala import Koala, eventually
from tests.negotiator import Negotiator
from tests.wishes import write_wishes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.local_koala import Running


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
    one = Koala(tmp_path)
    text = one.site_file.read_text()
    one.site_file.write_text(text.replace("[scheduler]\n", '[scheduler]\napproach = "none"\n'))
    try:
        yield one
    finally:
        one.close()


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
    text = koala.site_file.read_text()
    koala.site_file.write_text(text.replace('approach = "none"', 'approach = "pwa"'))
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
