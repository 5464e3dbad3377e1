# SPDX-License-Identifier: Apache-2.0
"""What is said in negotiations is kept in the journal, once, under a number; and what it came to is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.api.negotiations import job_negotiations, negotiation_reports
from koala_adapter.errors import JournalBlockedError, NegotiationError
from koala_adapter.model import JobId
from koala_adapter.negotiation import (
    Resource,
    Template,
    accepted,
    build,
    committed,
    consumed,
    countered,
    rejected,
    withdrawn,
)
from koala_adapter.negotiation.templates import APPLICATION, CPU, GROW, NT_EXPIRED, RMS, SHRINK, VOLUNTARY, ended
from koala_adapter.scheduler.records import State
from koala_adapter.service import records as negotiationstore
from koala_adapter.service.journal import Journal
from koala_adapter.service.sizes.kept import NegotiationKeeper, course
from tests.unit.scheduler.malleable_site import AdaptiveSite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from koala_adapter.report.sitevalues import NegotiationReport
    from koala_adapter.service.records import KeptNegotiation, Message

JOB = JobId("1")
KOALA = RMS


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite") as made:
        yield made


def offer(quantity: int, agreement_id: str = "0-1", *, direction: str = GROW) -> Template:
    return Template(
        agreement_id=agreement_id,
        initiator=APPLICATION,
        source="node",
        dest="koala",
        direction=direction,
        obligation=VOLUNTARY,
        resources=(Resource(type=CPU, quantity=quantity),),
    )


def said(journal: Journal, *messages: tuple[str, Template], site: AdaptiveSite | None = None) -> None:
    """Keep messages, one a second."""
    state, now = State() if site is None else site.state, iter(range(100))
    core = SimpleNamespace(negotiations=journal.negotiations, state=state, now=lambda: float(next(now)))
    keeper = NegotiationKeeper(core)  # type: ignore[arg-type]
    for sender, template in messages:
        keeper.keep(JOB, 0, sender, template, build(template).decode())


def reports(journal: Journal, **which: object) -> list[NegotiationReport]:
    wanted = {"job_id": "", "number": 0, "limit": 10, "wall_offset": 1000.0} | which
    return negotiation_reports(journal.negotiations, State(), **wanted)  # type: ignore[arg-type]


def rounds() -> list[tuple[str, Template]]:
    """Return a negotiation in which 14 are asked for and 6 allocated."""
    wish = offer(14)
    counter = countered(wish, {next(iter(wish.quantities())): 6}, reason="no more is free")
    agreed = accepted(counter)
    return [
        (APPLICATION, wish),
        (KOALA, counter),
        (APPLICATION, agreed),
        (KOALA, committed(agreed)),
        (KOALA, consumed(agreed)),
    ]


def test_who_said_what_when_and_what_came_of_it(journal: Journal) -> None:
    """In the order in which it was said, with the time of day and the templates as they were written."""
    said(journal, *rounds())
    (one,) = reports(journal)
    assert (one.number, one.job_id, one.initiator, one.agreement_id) == (1, "1", "application", "0-1")
    assert [(message.at, message.sender, message.processors) for message in one.messages] == [
        (1000.0, "application", 14),
        (1001.0, "koala", 6),
        (1002.0, "application", 6),
        (1003.0, "koala", 6),
        (1004.0, "koala", 6),
    ]
    assert (one.asked, one.standing, one.state, one.reason) == (14, 6, "done", "no more is free")
    assert one.summary == "it asked for 14 more; 6 processors were allocated (no more is free)"
    assert one.messages[1].template == build(rounds()[1][1]).decode()


@pytest.mark.parametrize(
    ("ending", "by", "state", "words"),
    [
        (rejected(offer(3), "not now"), KOALA, "rejected", "koala rejected it (not now)"),
        (withdrawn(offer(3), "lost"), KOALA, "withdrawn", "koala withdrew it (lost)"),
        (ended(offer(3), NT_EXPIRED, "no answer in time"), APPLICATION, "expired", "it expired (no answer in time)"),
    ],
)
def test_why_it_ended(journal: Journal, ending: Template, by: str, state: str, words: str) -> None:
    said(journal, (APPLICATION, offer(3)), (by, ending), (APPLICATION, accepted(offer(3))))
    (one,) = reports(journal)
    assert (one.state, one.summary) == (state, f"it asked for 3 more; {words}")
    assert len(one.messages) == 3


def test_a_negotiation_whose_job_has_ended(journal: Journal) -> None:
    """It is over without having been settled."""
    said(journal, (APPLICATION, offer(2, direction=SHRINK)))
    (one,) = reports(journal)
    assert (one.state, one.summary) == ("over", "it wanted to give back 2; the job ended before it was settled")


def test_what_is_said_again_is_kept_once(journal: Journal) -> None:
    said(journal, *rounds(), *rounds(), (APPLICATION, offer(1, "0-2")))
    assert [(one.number, len(one.messages)) for one in reports(journal)] == [(1, 5), (2, 1)]


def test_which_are_shown(journal: Journal) -> None:
    said(journal, *((APPLICATION, offer(1, f"0-{number}")) for number in range(1, 5)))
    assert [one.number for one in reports(journal, limit=2)] == [3, 4]
    assert [one.agreement_id for one in reports(journal, number=2)] == ["0-2"]
    assert len(reports(journal, job_id="1")) == 4
    assert reports(journal, job_id="2") == []
    with pytest.raises(NegotiationError, match="no negotiation 9"):
        reports(journal, number=9)


def test_only_so_many_are_kept(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negotiationstore, "MOST_KEPT", 3)
    said(journal, *((APPLICATION, offer(1, f"0-{number}")) for number in range(1, 6)))
    assert [(one.number, len(one.messages)) for one in reports(journal)] == [(3, 1), (4, 1), (5, 1)]


def test_the_explanation_of_a_job(journal: Journal) -> None:
    site = AdaptiveSite({"a": 9})
    site.begin(most=9)
    said(journal, (APPLICATION, offer(1, "0-0")), *rounds(), site=site)
    record = site.record("1")
    told = job_negotiations(journal.negotiations, record, 12.0)
    assert told.endswith(
        "Negotiation 2: it asked for 14 more; 6 processors were allocated (no more is free) (7 s ago)."
    )
    assert "Negotiation 1: it asked for 1 more; there is no answer yet (12 s ago)." in told
    (one, _) = journal.negotiations.latest(limit=2)
    assert one.component == "m"
    read = course.cache_info().misses
    assert job_negotiations(journal.negotiations, record, 12.0) == told
    assert course.cache_info().misses == read  # of what nobody has said anything in meanwhile, nothing is parsed again


def test_a_journal_that_cannot_be_written_for_a_while(journal: Journal) -> None:
    """What was said meanwhile is written when it can be."""

    class Blocked:
        def __init__(self) -> None:
            self.blocked = True

        def keep(self, kept: KeptNegotiation, message: Message) -> None:
            if self.blocked:
                raise JournalBlockedError("no space")
            journal.negotiations.keep(kept, message)

    store = Blocked()
    core = SimpleNamespace(negotiations=store, state=State(), now=lambda: 5.0)
    keeper = NegotiationKeeper(core)  # type: ignore[arg-type]
    keeper.keep(JOB, 0, APPLICATION, offer(1), build(offer(1)).decode())
    assert reports(journal) == []
    store.blocked = False
    refusal = rejected(offer(1), "no")
    keeper.keep(JOB, 0, KOALA, refusal, build(refusal).decode())
    assert [message.sender for message in reports(journal)[0].messages] == ["application", "koala"]


def test_a_journal_that_is_only_read(journal: Journal, tmp_path: Path) -> None:
    said(journal, *rounds())
    with Journal(tmp_path / "journal.sqlite", read_only=True) as second:
        assert reports(second) == reports(journal)
        assert rounds()[0][1].key == (APPLICATION, "0-1")
