# SPDX-License-Identifier: Apache-2.0
"""What is promised can be had: the sum of all promises is never more than what is free."""

from __future__ import annotations

import random

import pytest

from tests.examples import repeated
from tests.granting import ReservationBook
from tests.unit.negotiation.templates import CPU, MEM


def test_all_of_it_or_nothing() -> None:
    """Where one resource is missing, nothing of the others is reserved either."""
    book: ReservationBook[str] = ReservationBook({CPU: 8, MEM: 1000})
    assert not book.reserve("a", {CPU: 4, MEM: 2000}, until=10)
    assert book.available(CPU) == 8
    assert book.reserve("a", {CPU: 4, MEM: 1000}, until=10)
    assert (book.available(CPU), book.available(MEM)) == (4, 0)
    assert not book.reserve("b", {CPU: 5}, until=10)


def test_a_new_offer_takes_the_place_of_the_old() -> None:
    """The processors of one's own promise are free for one's next; when that is too much, the first one stands."""
    book: ReservationBook[str] = ReservationBook({CPU: 8})
    assert book.reserve("a", {CPU: 6}, until=10)
    assert book.reserve("a", {CPU: 8}, until=10)
    assert not book.reserve("a", {CPU: 9}, until=10)
    assert book.promised("a") == {CPU: 8}
    assert book.reserve("a", {CPU: 2}, until=10)
    assert book.reserve("b", {CPU: 6}, until=10)
    assert book.reserve("a", {CPU: 1}, until=20)
    assert book.set_free(CPU, 1) == ["b"]


def test_promises_expire_unless_they_are_settled() -> None:
    """Who does not answer keeps nothing; who has an agreement keeps it until it is used."""
    book: ReservationBook[str] = ReservationBook({CPU: 8})
    assert book.reserve("a", {CPU: 3}, until=10)
    assert book.reserve("b", {CPU: 3}, until=10)
    assert book.settle("b")
    assert book.expire(9.9) == []
    assert book.expire(10) == ["a"]
    assert (book.available(CPU), book.holders()) == (5, ("b",))
    assert not book.settle("a")


def test_what_is_used_is_not_free_any_more() -> None:
    """A promise becomes an allocation once, however often that is reported."""
    book: ReservationBook[str] = ReservationBook({CPU: 8})
    assert book.reserve("a", {CPU: 3}, until=10)
    assert book.use("a") == {CPU: 3}
    assert book.use("a") == {}
    assert (book.available(CPU), book.holders()) == (5, ())


def test_a_settled_promise_is_not_changed() -> None:
    """A second commitment finds the same agreement; another one is refused."""
    book: ReservationBook[str] = ReservationBook({CPU: 8})
    assert book.reserve("a", {CPU: 3}, until=10)
    assert book.settle("a")
    assert book.reserve("a", {CPU: 3}, until=99)
    assert not book.reserve("a", {CPU: 2}, until=99)
    assert book.expire(1000) == []


def test_less_that_is_free_breaks_the_youngest_promises() -> None:
    """Offers go before agreements, the youngest first, and no more of them than needed."""
    book: ReservationBook[str] = ReservationBook({CPU: 12, MEM: 5})
    for holder in "abcd":
        assert book.reserve(holder, {CPU: 3}, until=10)
    assert book.reserve("m", {MEM: 5}, until=10)
    assert book.settle("d")
    assert book.set_free(CPU, 7) == ["c", "b"]
    assert book.holders() == ("a", "d", "m")
    assert book.set_free(CPU, 0) == ["a", "d"]
    assert book.set_free(CPU, -3) == []
    assert book.available(CPU) == 0


@pytest.mark.hypothesis  # random: in the night there is more of it
def test_never_more_is_promised_than_is_free() -> None:
    """Over random schedules of negotiators, expiries and local users."""
    chance = random.Random(13)
    for _ in range(repeated(20)):
        free = {CPU: chance.randint(0, 30), MEM: chance.randint(0, 30)}
        book: ReservationBook[int] = ReservationBook(free)
        for now in range(200):
            holder = chance.randrange(6)
            wanted = {key: chance.randint(1, 20) for key in chance.sample([CPU, MEM], chance.randint(1, 2))}
            match chance.randrange(7):
                case 0 | 1 | 2:
                    before = book.promised(holder)
                    taken = book.reserve(holder, wanted, until=now + chance.randint(1, 30))
                    assert book.promised(holder) == (wanted if taken else before)
                case 3:
                    book.settle(holder)
                case 4:
                    for key, many in book.use(holder).items():
                        free[key] -= many
                case 5:
                    book.give_up(holder)
                case _:
                    key = chance.choice([CPU, MEM])
                    free[key] = chance.randint(0, 30)
                    book.set_free(key, free[key])
            book.expire(now)
            for key in (CPU, MEM):
                total = sum(book.promised(one).get(key, 0) for one in book.holders())
                assert book.available(key) == free[key] - total
                assert total <= free[key]
