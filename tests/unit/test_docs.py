# SPDX-License-Identifier: Apache-2.0
"""Documents say what is so: links, commands, settings and variables."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from _pytest.mark import ParameterSet

from docs import variables
from koala_adapter.cli.koala import koala
from koala_adapter.config.jobfile import load_job
from koala_adapter.config.sitefile import load_site_text
from koala_adapter.lrm import load_plugins
from koala_adapter.lrm.contract import Directives
from koala_adapter.model import JobId
from koala_adapter.scheduler.actions import Action
from koala_adapter.scheduler.events import EVENT_TYPES
from koala_slurm.submission import SBATCH

# -- What people paste from the README and the manual works: commands parse, files load, links lead somewhere.


ROOT = Path(__file__).parent.parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
FENCE = re.compile(r"^```(?P<language>\{?\w*\}?)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`(?P<text>koala(?: [^`]*)?)`(?!`)")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
PROMPT = "$ "
CHECKOUT = "/path/to/koala-adapter"
"""Stands in the manual for where the reader has put our repository."""
SHELL = frozenset({"&", ">", "|", ";", "&&"})
"""Words at which our part of a shell command ends."""
NOT_TYPED = re.compile(r"[\[…]|\.\.\.|\bCOMMAND\b")
"""Marks a text that shows the form of a command and is no command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Something to be tried, and the page it stands on."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, language: str) -> list[Piece]:
    text = page.read_text(encoding="utf-8")
    return [
        Piece(page=page, line=text.count("\n", 0, match.start("text")) + 1, text=match["text"])
        for match in FENCE.finditer(text)
        if match["language"] == language
    ]


def lines(page: Path, language: str) -> list[Piece]:
    return [
        Piece(page=page, line=block.line + number, text=line)
        for block in blocks(page, language)
        for number, line in enumerate(block.text.splitlines())
    ]


def inline(page: Path) -> list[Piece]:
    prose = FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text(encoding="utf-8"))
    return [
        Piece(page=page, line=prose.count("\n", 0, match.start()) + 1, text=" ".join(match["text"].split()))
        for match in INLINE.finditer(prose)
    ]


def commands() -> list[Piece]:
    found = []
    for page in PAGES:
        shown = [piece for piece in lines(page, "text") if piece.text.startswith(PROMPT)]
        typed = [replace(piece, text=piece.text.removeprefix(PROMPT)) for piece in shown]
        found += [*lines(page, "sh"), *typed, *(piece for piece in inline(page) if not is_name(piece))]
    return [
        piece for piece in found if piece.text.split(maxsplit=1)[:1] == ["koala"] and not NOT_TYPED.search(piece.text)
    ]


def is_name(piece: Piece) -> bool:
    """Tell whether a sentence only names a command, as in "`koala run` ends with ..."."""
    return len(piece.text.split()) == len(["koala", "run"])


def toml_blocks(table: str) -> list[Piece]:
    found = [piece for page in PAGES for piece in blocks(page, "toml")]
    return [piece for piece in found if isinstance(tomllib.loads(piece.text).get(table), list)]


def places(pieces: list[Piece]) -> list[ParameterSet]:
    number: Counter[str] = Counter()
    found = []
    for piece in pieces:
        number[str(piece)] += 1
        again = "" if number[str(piece)] == 1 else f"#{number[str(piece)]}"
        found.append(pytest.param(piece, id=f"{piece}{again}"))
    return found


def arguments_of(line: str) -> list[str]:
    """Return what follows ``koala`` in a line, up to where the shell takes over."""
    words = shlex.split(line, comments=True)[1:]
    end = next((number for number, word in enumerate(words) if word in SHELL), len(words))
    return words[:end]


def parse(arguments: list[str]) -> None:
    """Have click read a command line without running it. Raises click.UsageError."""
    if not arguments:
        return
    try:
        with koala.make_context("koala", list(arguments)) as context:
            name, command, rest = koala.resolve_command(context, left_by(context))
            assert command is not None
            with command.make_context(name, rest, parent=context):
                pass
    except click.exceptions.Exit:
        pass  # --help and --version: all is shown and nothing done


def left_by(context: click.Context) -> list[str]:
    """Return what the options of koala itself have left over; click has no one name for it in all its versions."""
    held = vars(context)
    return [*(held.get("_protected_args") or held.get("protected_args") or []), *context.args]


@pytest.mark.parametrize("piece", places(commands()))
def test_commands_parse(piece: Piece) -> None:
    """The command line takes every command that the manual shows."""
    parse(arguments_of(piece.text))


@pytest.mark.parametrize("line", ["koala run --sight x job.toml", "koala walk job.toml", "koala run", "koala -x"])
def test_wrong_commands_are_found(line: str) -> None:
    """The test above finds commands in blocks, after prompts and in sentences, and notices what is wrong with one."""
    found = {piece.text for piece in commands() if piece.page == ROOT / "docs" / "getting-started.md"}
    assert {"koala check", "koala explain 6", "koala serve --stop"} <= found
    with pytest.raises(click.UsageError):
        parse(arguments_of(line))


def test_named_commands_exist() -> None:
    """What sentences call a command of koala is one."""
    named = {piece.text.split()[1]: str(piece) for page in PAGES for piece in inline(page) if is_name(piece)}
    assert {name: place for name, place in named.items() if name not in koala.commands and name != "--help"} == {}


@pytest.mark.parametrize("piece", places(toml_blocks("clusters")))
def test_site_files_load(piece: Piece) -> None:
    site = load_site_text(piece.text, load_plugins(), source=str(piece))
    assert site.enabled_clusters


def directives() -> list[Piece]:
    """Return the examples of directives that stand without their cluster; they are in the words of Slurm."""
    found = [piece for page in PAGES for piece in blocks(page, "toml")]
    tables = ((piece, tomllib.loads(piece.text).get("clusters")) for piece in found)
    return [piece for piece, table in tables if isinstance(table, dict) and "directives" in table]


@pytest.mark.parametrize("piece", places(directives()))
def test_directives_can_be_used(piece: Piece) -> None:
    table = tomllib.loads(piece.text)["clusters"]["directives"]
    shown = Directives(add=tuple(table["add"]), drop=tuple(table["drop"]), rename=tuple(table["rename"].items()))
    assert SBATCH.problem_of(shown) == ""


@pytest.mark.parametrize("piece", places(toml_blocks("components")))
def test_job_files_load(piece: Piece, tmp_path: Path) -> None:
    for component in tomllib.loads(piece.text)["components"]:
        for name in component.get("input_files", ()):
            (tmp_path / name).touch()
    path = tmp_path / "job.toml"
    path.write_text(piece.text, encoding="utf-8")
    assert load_job(path, job_id=JobId("1"), user="me", submitted_at=0.0).components


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_examples_have_room_on_the_local_clusters(path: Path) -> None:
    """As examples/README.md says: each component, the largest first, fits a cluster of conf/local.toml."""
    clusters = tomllib.loads((ROOT / "conf" / "local.toml").read_text(encoding="utf-8"))["clusters"]
    room = sorted((local_processors(table) for table in clusters), reverse=True)
    components = tomllib.loads(path.read_text(encoding="utf-8"))["components"]
    wanted = sorted((table.get("processors") or table["minimum"] for table in components), reverse=True)
    assert all(size <= there for size, there in zip(wanted, room, strict=False))
    assert len(wanted) <= len(room)


def local_processors(table: dict[str, Any]) -> int:
    """Return how many processors koala may use on a cluster of plugin ``local``."""
    settings = table["settings"]
    nodes = settings.get("nodes") or len(settings.get("node_names", ()))
    return int(settings.get("processors") or nodes * settings["processors_per_node"]) - int(table.get("threshold", 0))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link and picture is there; those to headings of other pages are checked by Sphinx."""
    targets = [match["target"].partition("#")[0] for match in LINK.finditer(page.read_text(encoding="utf-8"))]
    local = [target for target in targets if target and "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_rectangular(page: Path) -> None:
    """Each row of a table has as many cells as its head: of a row in the wrong table no tool complains."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = table.splitlines()
        assert [row for row in rows if cells(row) != cells(rows[0])] == []


def cells(row: str) -> int:
    """Return the number of cells of a row of a table."""
    return len(re.findall(r"(?<!\\)\|", row)) - 1


def test_paths_in_our_repository_exist() -> None:
    """What the reader is told to copy from our repository is there."""
    named = {
        (page.name, match["path"])
        for page in PAGES
        for match in re.finditer(rf"{CHECKOUT}/(?P<path>[\w./-]+)", page.read_text(encoding="utf-8"))
    }
    assert named
    assert {(page, path) for page, path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_whom_they_mean(page: Path) -> None:
    """A client, a user, a job or a peer is called so; no page cites a document that readers do not have."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    vague = re.compile(r"\b(?:[Ww]hoever|[Nn]obody|[Ss]omebody|[Aa]nybody)\b|\bDESIGN section\b|\bWIKI\.md\b")
    assert vague.findall(text) == []


def test_the_readme_is_a_front_page() -> None:
    """It is short, says in its first paragraph how koala submits, and sends the reader to every other page but one."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 160
    assert "DRMAA" in text.split("\n\n")[1]
    pages = {page.name for page in PAGES if page.parent.name == "docs"}
    assert pages - set(re.findall(r"\(docs/([\w-]+\.md)", text)) == {"index.md"}


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = "\n".join(block.text for block in blocks(ROOT / "README.md", "sh"))
    named = set(re.findall(r"\bmake ([a-z]+)$", shown, re.MULTILINE))
    assert named == {"demo", "test"}
    assert named <= targets


def test_the_manual_is_whole() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert {page for page in pages if not re.search(rf"^{page}$", index, re.MULTILINE)} == set()


@pytest.mark.parametrize("kinds", [EVENT_TYPES, get_args(Action)], ids=["events", "actions"])
def test_every_event_and_action_is_described(kinds: tuple[type, ...]) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [kind.__name__ for kind in kinds if f"`{kind.__name__}`" not in page] == []


def test_every_room_is_described() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = [path.parent.name for path in (ROOT / "koala_adapter").glob("*/__init__.py")]
    assert [room for room in rooms if f"| `{room}/`" not in page and f", `{room}/`" not in page] == []


def test_the_architecture_names_modules_that_exist() -> None:
    """A module that was renamed or removed is not described any more."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = [ROOT / name for name in ("koala_adapter", "plugins", "tests", "benchmarks", "examples")]
    known = [f"/{path.relative_to(ROOT)}" for folder in folders for path in folder.rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)`", page)
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in known)] == []
    assert len(named) > 20


def test_files_that_contributors_are_sent_to_are_there() -> None:
    """Every path of the repository in CONTRIBUTING.md, in its commands and its sentences."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"(?<![\w./])(?:tests|docs|koala_adapter|\.ci)/[\w./*-]*[\w*/]", text)
    assert len(named) > 10
    assert [path for path in named if not list(ROOT.glob(path))] == []


# -- docs/environment.md and CONTRIBUTING.md have each variable that the code names, and no other.


PREFIX = "KOALA_"
NEW = f"{PREFIX}NEW"
"""Written so that this file does not name it."""
VARIABLE_PAGES = (variables.ROOT / "docs" / "environment.md", variables.ROOT / "CONTRIBUTING.md")


def test_the_tables_are_those_of_the_code() -> None:
    """A variable that is new in the code has no meaning yet; one that is gone has one too many."""
    assert variables.problems() == []


def test_the_pages_have_each_variable_once() -> None:
    """All but those between parts of koala, which readers should neither set nor rely on."""
    text = "".join(page.read_text(encoding="utf-8") for page in VARIABLE_PAGES)
    rows = re.findall(r"^\| `(KOALA_\w+)` \|", text, re.MULTILINE)
    shown = [group.meanings for name, group in variables.GROUPS.items() if name != "inside"]
    assert sorted(rows) == sorted(name for meanings in shown for name in meanings)


def test_names_are_found_where_they_are_used() -> None:
    """The rooms that name a variable are told; guards of header files are none."""
    found = variables.names_in(*variables.PACKAGES)
    assert "koala_adapter/runners" in found["KOALA_RANK"]
    assert found["KOALA_SITE"] >= {"koala_adapter/config"}
    assert not [name for name in found if name.endswith("_H")]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"code.py": f'os.environ["{NEW}"]'}, f"{NEW} has no meaning in docs/variables.py"),
        ({}, "KOALA_SITE is in docs/variables.py, and nothing sets or reads it"),
    ],
)
def test_what_does_not_agree_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: dict[str, str], problem: str
) -> None:
    for place in ("koala_adapter", "plugins", "tests"):
        (tmp_path / place).mkdir()
    for name, text in written.items():
        (tmp_path / "koala_adapter" / name).write_text(text, encoding="utf-8")
    (tmp_path / "tox.ini").touch()
    monkeypatch.setattr(variables, "ROOT", tmp_path)
    assert problem in variables.problems()
    with pytest.raises(ValueError, match=r"docs/variables\.py"):
        variables.table("koala")
