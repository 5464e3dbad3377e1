# SPDX-License-Identifier: Apache-2.0
"""The files of the application library, its notes, rules and examples; its endpoint in C does as that in Python."""

from __future__ import annotations

import ast
import io
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter import application
from koala_adapter import negotiation as nt
from koala_adapter.application import shipping as libraryfile
from koala_adapter.application.bargains import Bargains
from koala_adapter.application.notes import (
    KoalaAppError,
    Member,
    Note,
    NoteError,
    note_payload,
    one_line,
    parse_change,
    parse_members,
    parse_note,
)
from koala_adapter.application.process import Process
from koala_adapter.application.session import Session
from koala_adapter.application.shipping import FILE_NAME, install, joined, library_file
from koala_adapter.application.sizes import size_rule
from koala_adapter.errors import KoalaError
from koala_adapter.negotiation import frame
from koala_adapter.runners.notes import Place, listed
from koala_adapter.sizes import rule_named
from tests.compiled import MEMORY_CHECKED, compiled
from tests.examplejobs import ALONE, BODIES, EXAMPLES, STEPS, sizes_and_digest
from tests.examples import examples, repeated
from tests.unit.application.koala_end import LIVENESS, KoalaEnd

pytestmark = pytest.mark.real("cc")


# -- The parts of the library that compute: notes, members, sizes, and the one file that they become.


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
    places = (Place(rank=one.rank, cluster=one.cluster, address=one.address, contact=one.contact) for one in members)
    note = parse_note(note_payload("welcome", members=listed(places)))
    assert parse_members(note.text("members")) == tuple(members)


@pytest.mark.parametrize("text", ["0", "0@a@b", "0@a@b@c@d", "x@a@b@c", "0@a@b@c,0@a@b@c", "0@a@b@%ff", "-1@a@b@c"])
def test_what_lists_no_members_is_refused(text: str) -> None:
    with pytest.raises(NoteError):
        parse_members(text)


def change_note(**words: str) -> Note:
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


def test_a_point_that_is_passed_at_that_moment_is_passed_or_waited_at() -> None:
    """A process that has counted but not looked is passed or armed, and never both."""
    for order in range(2):
        process = Process(0, "", "any", 1)
        process.heard(parse_note(note_payload("welcome", rank=0, size=1, members="0@a@n@")))
        process.reached += 1
        if order:
            assert not process.attention
        answer = process.heard(Note("stop", {"change": "1", "at": str(1 + order)}))
        assert parse_note(answer[0]).verb == ("armed" if order else "passed")
        assert process.attention == bool(order)


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
    rule, maximum = size_rule(lambda size, offered: size + offered), minimum + more
    assert rule.accept(size, offered, minimum, maximum) == max(0, min(size + offered, maximum) - size) * (
        min(size + offered, maximum) >= minimum
    )
    assert size - rule.release(size, offered, minimum) == max(size - offered, min(size, minimum))


@pytest.mark.parametrize(
    "sizes", ["", "some", "multiple-of-0", "multiple-of-x", "multiple-of-", "multiple-of-²", None, 3]
)
def test_other_rules_are_refused(sizes: object) -> None:
    with pytest.raises(KoalaAppError, match="any, power-of-two, multiple-of-N or a function"):
        size_rule(sizes)  # type: ignore[arg-type]


def test_every_module_is_in_the_file() -> None:
    """A module that was forgotten would fail at the user's."""
    folder = Path(application.__file__).parent
    assert set(libraryfile.MODULES) == {path.stem for path in folder.glob("*.py")} - {"__init__", "shipping"}


def test_the_file_imports_nothing_of_ours() -> None:
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


# -- docs/adaptive.md, on the library: its examples run and print what it says.


PAGE = (Path(__file__).parents[3] / "docs" / "adaptive.md").read_text(encoding="utf-8")
IN_PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```\n\n```text\n(?P<output>.*?)^```\n", re.MULTILINE | re.DOTALL)
IN_C = re.compile(r"^```c\n(?P<code>.*?)^```\n", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", list(IN_PYTHON.finditer(PAGE)), ids=["the end of the walltime"])
def test_the_example_in_python_prints_what_the_page_says(tmp_path: Path, example: re.Match[str]) -> None:
    """It runs as it stands, beside the file that koala writes."""
    install(tmp_path)
    (tmp_path / "example.py").write_text(example["code"], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, env={}, capture_output=True, text=True, timeout=LIVENESS,
        check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (example["output"], "")


@pytest.mark.real("cc")
def test_the_example_in_c_is_compiled_and_runs(tmp_path: Path) -> None:
    """Without a warning, and outside koala as one process."""
    install(tmp_path)
    (example,) = IN_C.finditer(PAGE)
    (tmp_path / "example.c").write_text(example["code"], encoding="utf-8")
    warnings = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
    sources = ["example.c", "koala_app.c", "koala_nt.c"]
    subprocess.run(["cc", *warnings, "-pthread", "-I.", "-o", "example", *sources], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "example"], env={}, capture_output=True, text=True, timeout=LIVENESS, check=True)
    assert done.stdout == "1000 steps, at last as 0 of 1\n"


# -- Programs of the manual that compute in step: their results are the same for whatever sizes they have had,
# the n-body ones with koala's library and with their own.


HEAT = Path(__file__).parents[3] / "examples" / "malleable" / "heat.py"
HEAT_ALONE = "5f83ab43ad8d9cd9b089adb07aa56d3b91cbab1546aec59fbf907cd93e648f8f"
"""The result of a hundred steps."""
RESULTS = {"heat": HEAT_ALONE, "koala_app": ALONE, "byhand": ALONE}
"""Of heat.py, and of the n-body programs, by their libraries."""


class Programs:
    """Processes of an example, ended with the test."""

    def __init__(self, directory: Path, example: str) -> None:
        self.directory = directory
        (directory / FILE_NAME).write_text(library_file(), encoding="utf-8")
        (directory / "authkey").write_bytes(b"of this test")
        self.example = example
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, seconds: str, name: str = "malleable.py", **environment: str) -> subprocess.Popen[str]:
        known = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.directory), "NBODY_LIBRARY": self.example}
        program = [str(HEAT), "100"] if self.example == "heat" else [str(EXAMPLES / name), str(BODIES), str(STEPS)]
        process = subprocess.Popen(
            [sys.executable, *program, seconds],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=known | environment, cwd=self.directory, text=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def join(self, koala: KoalaEnd, rank: int, **environment: str) -> subprocess.Popen[str]:
        own = {"KOALA_APP_SOCKET": str(koala.path(rank)), "KOALA_RANK": str(rank)}
        return self.start("0.02", **own, **environment)

    def outcome(self, process: subprocess.Popen[str]) -> tuple[list[int], str]:
        """Return on how many processes a program was, and its result, when it has ended well."""
        said, complaints = process.communicate(timeout=LIVENESS)
        assert (complaints, process.returncode) == ("", 0)
        if self.example != "heat":
            return sizes_and_digest(said)
        sizes, result = said.splitlines()
        return [int(one) for one in sizes.split()[1:]], result.removeprefix("result ")


@pytest.fixture
def programs(tmp_path: Path, example: str) -> Iterator[Programs]:
    with ExitStack() as stack:
        programs = Programs(tmp_path, example)
        yield programs
        for process in programs.processes:
            stack.enter_context(process)
            process.kill()


@pytest.mark.parametrize("example", RESULTS)
def test_alone_it_computes_what_it_should(programs: Programs) -> None:
    assert programs.outcome(programs.start("0", "evolving.py")) == ([1], RESULTS[programs.example])


@pytest.mark.parametrize("example", RESULTS)
def test_growing_and_shrinking_changes_no_bit_of_the_result(programs: Programs) -> None:
    """From 2 to 4 processes, to 2 others, and to 3: the state moves with them."""
    with KoalaEnd(programs.directory, 2) as koala:
        koala.coordinator.address = "127.0.0.1"
        processes = {rank: programs.join(koala, rank) for rank in range(4)}
        koala.begin([0, 1, 2, 3])
        koala.begin([0, 3])
        processes[4] = programs.join(koala, 4)
        koala.begin([0, 3, 4])
        koala.wait(lambda: koala.coordinator.finished == 3)
        for rank in (1, 2, 3, 4):
            assert processes[rank].communicate(timeout=LIVENESS) == ("", "")
        assert programs.outcome(processes[0]) == ([2, 4, 2, 3], RESULTS[programs.example])
        assert [process.returncode for process in processes.values()] == [0] * 5
        assert koala.coordinator.errors == []


@pytest.mark.parametrize("example", ["koala_app", "byhand"])
def test_it_decides_about_offers_as_it_is_told(programs: Programs) -> None:
    """A program of 2 that wants powers of two: it takes 2 of 3, declines 1, and gives up 1 or nothing at all."""
    with KoalaEnd(programs.directory, 2, maximum=8) as koala:
        koala.coordinator.address = "127.0.0.1"
        for rank in range(2):
            programs.join(koala, rank, NBODY_SIZES="power-of-two")
        koala.wait(lambda: koala.coordinator.idle)
        declined = koala.first_event(koala.offer(1, "grow"))
        assert (declined.kind, declined.state) == ("ended", "rejected")
        countered = koala.first_event(koala.offer(3, "grow", minimum=1, maximum=3))
        assert countered.kind == "offer"
        assert countered.template is not None
        assert countered.template.quantity("CPU") == 2


# The state machine of negotiations in C says the same as that in Python, whatever a peer says.

STATES = ("new", "offered", "asked", "accepting", "accepted", "agreed", "consumed", "rejected", "withdrawn", "expired",
          "lost", "broken")  # fmt: skip
SEQUENCES = 300
USUAL = {
    "new": ["told NT_NEGOTIATION", "heard NT_NEGOTIATION"],
    "offered": ["heard NT_ACCEPTED", "heard NT_NEGOTIATION"],
    "asked": ["told NT_ACCEPTED", "told NT_NEGOTIATION"],
    "accepting": ["heard NT_COMMITTED", "heard NT_NEGOTIATION"],
    "accepted": ["told NT_COMMITTED", "heard NT_ACCEPTED"],
    "agreed": ["heard NT_ACCEPTED", "heard NT_COMMITTED", "heard NT_CONSUMED", "told NT_CONSUMED"],
}
"""What mostly follows in a state; in those where all has ended, anything does."""


def somebody_says(chance: random.Random, endpoint: nt.Endpoint) -> tuple[nt.Template, bool]:
    """Return a template, mostly one that stands, with some status, and sometimes changed; and whether it is heard."""
    resources = tuple(
        nt.Resource("CPU", chance.randint(1, 3), chance.choice(["NT_REQUIRED", "NT_OPTIONAL"]),
                    chance.choice(["NT_NEGOTIABLE"] * 3 + ["NT_FIXED"]), cluster=cluster)
        for cluster in chance.choice([[""], [""], ["", "alpha"]])
    )  # fmt: skip
    initiator = chance.choice(["RMS", "APPLICATION"])
    direction = chance.choice(["", "grow", "grow"])
    first = nt.Template(chance.choice("1112"), initiator, "a", "b", resources=resources, direction=direction)
    value = endpoint.standing(first.key) or first
    usual = chance.random() < 0.8
    if chance.random() < (0.1 if usual else 0.4):  # another quantity, or something declined
        one = chance.choice(value.resources)
        changed = one._replace(quantity=chance.randint(1, 3), status=chance.choice(["NT_NEGOTIATION", "NT_REJECTED"]))
        value = value._replace(resources=tuple(changed if other == one else other for other in value.resources))
    who, status = chance.choice(["told", "heard"]), chance.choice(nt.STATUSES[:7])
    if usual:
        who, status = chance.choice(USUAL.get(endpoint.state(first.key), [f"{who} {status}"])).split()
    said = value._replace(
        status=status, round=chance.choice([None, None, value.round, (value.round or 0) + 1]), reason="",
        answer_within=None,
        resources=tuple(one if one.declined else one._replace(status=status) for one in value.resources),
    )  # fmt: skip
    return said, who == "heard"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the endpoint in C as a program."""
    return compiled(tmp_path_factory, Path(__file__).with_name("endpoint.c"), *MEMORY_CHECKED)


def conversation(chance: random.Random) -> Iterator[tuple[bytes, list[nt.Template], int]]:
    """Yield moves as the program reads them, with what Python's endpoint answers, and where it is then."""
    endpoint = nt.Endpoint()
    for _ in range(chance.randint(4, 14)):
        value, hearing = somebody_says(chance, endpoint)
        try:
            payload = nt.build(value)
        except nt.NegotiationError:
            continue
        before = endpoint.state(value.key)
        if hearing:
            endpoint.hear(value, 0.001)
        else:
            with suppress(nt.NegotiationError):
                endpoint.tell(value, 0.001)
        after = endpoint.state(value.key)
        answers = endpoint.take_outbox()
        state = STATES.index(after) if hearing and after != before else -1
        yield (b"h" if hearing else b"t") + nt.frame(payload), answers, state


def test_both_go_to_the_same_states_and_say_the_same(program: Path) -> None:
    """Template after template, heard and told in any order; only the words of a reason may differ."""
    chance = random.Random(9)
    expected = []
    data = b""
    for _ in range(repeated(SEQUENCES)):
        moves = list(conversation(chance))
        data += b"z%08d\n" % 0 + b"".join(one[0] for one in moves)
        expected += moves
    done = subprocess.run([program], input=data, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    output = io.BytesIO(done.stdout)
    for move, answers, state in expected:
        line, size = output.readline(), int(output.read(9))
        theirs = [nt.parse(output.read(size))] if size else []
        assert int(line.split()[0]) == state, move
        assert [one._replace(reason="") for one in theirs] == [one._replace(reason="") for one in answers], move
    reached = {STATES[state] for _, _, state in expected if state >= 0}
    assert reached == {"asked", "accepted", "agreed", "consumed", "rejected", "withdrawn", "expired", "broken"}
