# SPDX-License-Identifier: Apache-2.0
"""Output files as they come in: whatever is sent, and however often, they are whole, bounded, and where they belong."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import ProtocolError
from koala_adapter.service.results import ResultStore
from koala_adapter.vjm.channel import FilePiece
from tests.examples import examples

if TYPE_CHECKING:
    from pathlib import Path


def piece(path: bytes = b"a", data: bytes = b"", offset: int = 0, *, size: int = 6, number: int = 1) -> FilePiece:
    return FilePiece(task="1:0", number=number, path=path, mode=0o755, size=size, offset=offset, data=data)


@pytest.fixture
def rank(tmp_path: Path) -> Path:
    """Return the directory for the files of a rank; nothing is there yet."""
    return tmp_path / "jobs" / "1" / "c1" / "0"


@pytest.fixture
def store() -> ResultStore:
    return ResultStore(per_rank=10, per_job=15)


def test_pieces_make_a_file(store: ResultStore, rank: Path) -> None:
    assert store.take(rank, piece(b"d/e/f", b"abc")).offset == 3
    assert not rank.exists()
    store = ResultStore(per_rank=10, per_job=15)
    assert store.take(rank, piece(b"d/e/f")).offset == 3
    assert store.take(rank, piece(b"d/e/f", b"bcdef", 1)).offset == 6
    assert (rank / "d" / "e" / "f").read_bytes() == b"abcdef"
    assert stat.S_IMODE((rank / "d" / "e" / "f").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (rank, rank / "d", rank.parent, rank.parents[1])} == {0o700}
    assert ResultStore(per_rank=10, per_job=15).take(rank, piece(b"d/e/f", b"abc")).offset == 6
    store.settle(rank)
    assert [path.name for path in rank.parent.iterdir()] == ["0"]


@pytest.mark.parametrize("path", [b"/etc/x", b"..", b"a/../../x", b"a//b", b"./a", b"a/", b"a\0b"])
def test_paths_that_lead_elsewhere_break_the_rules(store: ResultStore, rank: Path, path: bytes) -> None:
    """No agent says them."""
    with pytest.raises(ProtocolError, match="not one below"):
        store.take(rank, piece(path, b"abcdef"))
    assert not rank.parent.exists()


def test_what_is_beyond_the_end_or_missing_breaks_the_rules(store: ResultStore, rank: Path) -> None:
    with pytest.raises(ProtocolError, match="beyond its end"):
        store.take(rank, piece(b"a", b"abcd", 3))
    store.take(rank, piece(b"a", b"ab"))
    with pytest.raises(ProtocolError, match="bytes 2 to 4"):
        store.take(rank, piece(b"a", b"ef", 4))


@pytest.mark.parametrize("link", ["0", "0/d", "0/d/f", "0.partial"])
def test_links_are_not_written_through(store: ResultStore, rank: Path, tmp_path: Path, link: str) -> None:
    """Wherever somebody put one: the file is refused, or comes in its place, and nothing is written elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "f").write_text("old")
    (rank.parent / link).parent.mkdir(parents=True)
    (rank.parent / link).symlink_to(elsewhere / "f" if link.endswith("f") else elsewhere)
    answer = store.take(rank, piece(b"d/f", b"abcdef"))
    assert bool(answer.refusal) == (not link.endswith("f"))
    assert [path.name for path in elsewhere.iterdir()] == ["f"]
    assert (elsewhere / "f").read_text() == "old"


def test_bounds(store: ResultStore, rank: Path) -> None:
    """Of a rank and of a job; what is refused takes no room, and what was there before a restart counts."""
    other = rank.with_name("1")
    assert not store.take(rank, piece(b"a", b"abcdef")).refusal
    refusal = store.take(rank, piece(b"b", b"abcde", size=5, number=2)).refusal
    assert refusal == "it has 5 bytes, and 6 bytes of other files are there: a rank may leave 10 bytes"
    assert not store.take(rank, piece(b"c", b"abcd", size=4, number=3)).refusal
    for again in (store, ResultStore(per_rank=10, per_job=15)):
        assert "a job may leave 15 bytes" in again.take(other, piece(b"a", b"abcdef")).refusal
        assert not again.take(other, piece(b"b", b"ab", size=2, number=2)).refusal
        assert not again.take(rank, piece(b"a", b"abc")).refusal


def test_a_file_that_cannot_be_written_is_refused(store: ResultStore, rank: Path) -> None:
    assert not store.take(rank, piece(b"d", b"abc", size=3)).refusal
    assert "Not a directory" in store.take(rank, piece(b"d/f", b"abc", size=3, number=2)).refusal
    assert not store.take(rank, piece(b"e", b"abc", size=3, number=3)).refusal


@examples(30)
@given(content=st.binary(max_size=40), cuts=st.lists(st.integers(0, 40), max_size=8), data=st.data())
def test_any_order_of_lost_connections_gives_the_same_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: list[int], data: st.DataObject
) -> None:
    """After each loss the agent begins with the first piece and goes on where the answer says."""
    rank = tmp_path_factory.mktemp("x") / "jobs" / "1" / "c1" / "0"
    done = False
    for cut in [*cuts, 1000]:
        store = ResultStore(per_rank=1000, per_job=1000)
        at = store.take(rank, piece(b"f", content[:3], size=len(content))).offset
        while at < min(cut, len(content)):
            length = data.draw(st.integers(1, 5))
            at = store.take(rank, piece(b"f", content[at : at + length], at, size=len(content))).offset
        done = at == len(content)
    assert done
    assert (rank / "f").read_bytes() == content
