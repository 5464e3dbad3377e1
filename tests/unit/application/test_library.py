# SPDX-License-Identifier: Apache-2.0
"""The parts of the library that compute: notes, members, sizes, and the one file that they become."""

from __future__ import annotations

import ast
import socket
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter import application
from koala_adapter.application import shipping as libraryfile
from koala_adapter.application.bargains import Bargains
from koala_adapter.application.notes import (
    KoalaAppError,
    Member,
    Note,
    NoteError,
    members_text,
    note_payload,
    one_line,
    parse_change,
    parse_members,
    parse_note,
)
from koala_adapter.application.process import Process
from koala_adapter.application.session import Session
from koala_adapter.application.shipping import joined, library_file
from koala_adapter.application.sizes import size_rule
from koala_adapter.errors import KoalaError
from koala_adapter.negotiation import frame
from koala_adapter.sizes import rule_named
from tests.examples import examples

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
MEMBERS = st.lists(
    st.builds(Member, st.integers(0, 10**6), TEXT, TEXT, TEXT), unique_by=lambda one: one.rank, max_size=5
)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z-]{0,10}", fullmatch=True), TEXT, max_size=4))
def test_a_note_comes_back_as_it_was(words: dict[str, str]) -> None:
    """Whatever texts it has, it is one line of ASCII that says the same, also to another percent-decoder."""
    payload = note_payload("hello", **words)
    assert parse_note(payload) == Note("hello", words)
    assert b"\n" not in payload
    assert dict(word.split("=") for word in payload.decode().split(" ")[1:]).keys() == words.keys()
    assert [unquote(word.split("=")[1]) for word in payload.decode().split(" ")[1:]] == list(words.values())


@examples(100)
@given(st.binary(max_size=40) | st.text("ab= %0ñ\n", max_size=20).map(str.encode))
def test_no_bytes_do_more_than_be_refused(payload: bytes) -> None:
    """What is no note is refused in a sentence; what is one can be said again."""
    refusal = ""
    try:
        note = parse_note(payload)
        assert parse_note(note_payload(note.verb, **note.words)) == note
    except NoteError as error:
        refusal = one_line(str(error))
        note = None
    assert (note is None) == bool(refusal)


@given(MEMBERS)
def test_members_come_back_as_they_were(members: list[Member]) -> None:
    """Also with the characters that separate members, fields and words."""
    note = parse_note(note_payload("welcome", members=members_text(members)))
    assert parse_members(note.text("members")) == tuple(members)


@pytest.mark.parametrize("text", ["0", "0@a@b", "0@a@b@c@d", "x@a@b@c", "0@a@b@c,0@a@b@c", "0@a@b@%ff", "-1@a@b@c"])
def test_what_lists_no_members_is_refused(text: str) -> None:
    """Each way of being none is."""
    with pytest.raises(NoteError):
        parse_members(text)


def change_note(**words: str) -> Note:
    """Return a change of process 1 and 2 to 0 and 2, with other words."""
    given_words = {"change": "4", "at": "9", "size": "2", "members": "2@a@n@,0@a@n@", "leaving": "1@a@n@", "old": "1,2"}
    return Note("change", {**given_words, **words})


def test_a_change_says_who_joins_and_who_was_where() -> None:
    """Ranks before and afterwards are the places in the two lists."""
    change = parse_change(change_note(), 2, ())
    assert (change.rank, change.old_rank, change.size) == (0, 1, 2)
    assert [one.rank for one in change.old] == [1, 2]
    assert [one.rank for one in change.joining] == [0]
    gone = parse_change(change_note(), 1, ())
    assert (gone.rank, gone.old_rank) == (None, 0)


@pytest.mark.parametrize(
    "words",
    [{"size": "3"}, {"leaving": "2@a@n@"}, {"old": "1,7"}, {"members": "3@a@n@,0@a@n@"}, {"at": "99999999999"}],
)
def test_a_change_that_contradicts_itself_is_refused(words: dict[str, str]) -> None:
    """A wrong count, a process that stays and leaves, an old member that is nowhere, or not this process."""
    with pytest.raises(NoteError):
        parse_change(change_note(**words), 2, ())


@examples(100)
@given(
    st.sampled_from(["any", "power-of-two", "multiple-of-3", "multiple-of-1"]),
    st.integers(1, 70), st.integers(1, 70), st.integers(1, 20), st.integers(0, 60),
)  # fmt: skip
def test_rules_agree_with_those_of_koala(name: str, size: int, offered: int, minimum: int, more: int) -> None:
    """Library and koala accept and release the same."""
    ours, koalas, maximum = size_rule(name), rule_named(name), minimum + more
    assert ours.accept(size, offered, minimum, maximum) == koalas.accept(size, offered, minimum, maximum)
    assert ours.release(size, offered, minimum) == koalas.release(size, offered, minimum)


@examples(50)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.integers(0, 60))
def test_a_function_stays_within_the_bounds(size: int, offered: int, minimum: int, more: int) -> None:
    """It is asked for what the bounds allow only, and what it says is kept to."""
    rule, maximum = size_rule(lambda size, offered: size + offered), minimum + more
    assert rule.accept(size, offered, minimum, maximum) == max(0, min(size + offered, maximum) - size) * (
        min(size + offered, maximum) >= minimum
    )
    assert size - rule.release(size, offered, minimum) == max(size - offered, min(size, minimum))


@pytest.mark.parametrize(
    "sizes", ["", "some", "multiple-of-0", "multiple-of-x", "multiple-of-", "multiple-of-²", None, 3]
)
def test_other_rules_are_refused(sizes: object) -> None:
    """The message names what there is."""
    with pytest.raises(KoalaAppError, match="any, power-of-two, multiple-of-N or a function"):
        size_rule(sizes)  # type: ignore[arg-type]


def test_every_module_is_in_the_file() -> None:
    """A module that was forgotten would fail at the user's."""
    folder = Path(application.__file__).parent
    assert set(libraryfile.MODULES) == {path.stem for path in folder.glob("*.py")} - {"__init__", "shipping"}


def test_the_file_imports_nothing_of_ours() -> None:
    """And it is valid for the oldest Python that the compiler here can judge."""
    tree = ast.parse(library_file(), feature_version=(3, 7))
    modules = [
        name
        for node in ast.walk(tree)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else []
        )
    ]  # fmt: skip
    assert modules
    assert not [name for name in modules if name.startswith("koala")]


def test_two_modules_with_one_name_are_refused() -> None:
    """In one namespace the later would take the place of the earlier."""
    with pytest.raises(KoalaError, match="_limit is defined in both a and b"):
        joined({"a": '"""A."""\n_limit = 1\n', "b": '"""B."""\ndef _limit():\n    pass\n'})


def test_why_koala_has_gone_is_heard_by_who_still_wants_to_speak() -> None:
    """Nobody reads its first words any more; what was said before is there all the same."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        theirs.sendall(frame(note_payload("fail", text="this task has a connection already")))
        theirs.close()
        process = Process(0, "", "any", 7)
        session = Session("unused", process, Bargains(size_rule("any"), "node0"))
        with session._wake, session._woken:
            assert session._speak(ours)
    assert process.failure == "this task has a connection already"
