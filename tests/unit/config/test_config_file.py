# SPDX-License-Identifier: Apache-2.0
"""TOML files as people leave them: missing, unreadable, not text, not TOML; and the lines on which keys stand."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.config.sitefile import load_site_text
from koala_adapter.config.tomlfile import (
    MAXIMUM_SIZE,
    key_lines,
    nearest_line,
    parse_document,
    read_document,
    show_path,
)
from koala_adapter.errors import ConfigurationError
from tests.unit.config.toml_text import TEXT, toml, values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOBODY = 65_534


def refusal(path: Path) -> str:
    """Return the message with which a file is refused."""
    with pytest.raises(ConfigurationError) as caught:
        read_document(path)
    return caught.value.message


def syntax_refusal(text: str) -> str:
    """Return the message with which a text that is no TOML is refused."""
    with pytest.raises(ConfigurationError) as caught:
        parse_document(text, source="f")
    return caught.value.message


@pytest.fixture
def as_nobody() -> Iterator[None]:
    """Be a user without rights, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    assert refusal(tmp_path / "x.toml") == f"{tmp_path / 'x.toml'}: there is no such file"


def test_directory(tmp_path: Path) -> None:
    """A directory in the place of a file is called one."""
    assert refusal(tmp_path) == f"{tmp_path}: this is a directory"


def test_pipe_without_writer_is_refused_at_once(tmp_path: Path) -> None:
    """Nothing waits for somebody to write into a pipe."""
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe").endswith("this is not a regular file")


def test_unreadable_file(tmp_path: Path, as_nobody: None) -> None:
    """A file without the right to read it is refused with a way to look at its rights."""
    path = tmp_path / "secret.toml"
    if os.geteuid() != NOBODY:
        path.touch(mode=0)
    assert refusal(path) == f"{path}: you may not read this file"


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    """Links in a circle, files used as directories and impossible names are refused, not raised."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for path in (tmp_path / "loop", tmp_path / "file" / "x", tmp_path / "a\0b", tmp_path / ("n" * 300)):
        assert "cannot be opened" in refusal(path)


def test_too_large_file(tmp_path: Path) -> None:
    """A file beyond the limit is not even parsed; one at the limit is."""
    path = tmp_path / "big.toml"
    path.write_bytes(b"#" * MAXIMUM_SIZE)
    assert read_document(path).data == {}
    path.write_bytes(b"#" * (MAXIMUM_SIZE + 1))
    assert "larger than 1 MiB" in refusal(path)


def test_not_utf8(tmp_path: Path) -> None:
    """The first byte that is not UTF-8 is shown with its line."""
    path = tmp_path / "latin.toml"
    path.write_bytes(b'a = 1\nb = "\xe9"\n')
    assert refusal(path) == f"{path}:2: the file is not UTF-8: found the byte 0xe9"
    path.write_bytes("a = 1".encode("utf-16"))
    assert "not UTF-8" in refusal(path)


def test_byte_order_mark_and_foreign_line_ends_are_fine(tmp_path: Path) -> None:
    """A file from another editor reads the same, and lines are counted alike."""
    path = tmp_path / "dos.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\r\nb = 2\r\n")
    document = read_document(path)
    assert document.data == {"a": 1, "b": 2}
    assert key_lines(document.text) == {("a",): 1, ("b",): 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1\nb = = 2", "f:2: column 5: Invalid value"),
        ("a = 1\na = 2", "f:2: this key or table is given a second time (Cannot overwrite a value)"),
        ("[a]\n[b]\n[a]\n", "f:3: column 3: this key or table is given a second time (Cannot declare ('a',) twice)"),
        ("a = [1,\n2", "f:2: Unclosed array: the file ends too early"),
        ("a = '''x", "f:1: Expected \"'''\": the file ends too early"),
        ("a = 2021-02-30", "f:1: column 5: Invalid date or datetime"),
        (f"a = {'9' * 5000}", "f: a value cannot be read"),
    ],
)
def test_what_is_no_toml_is_refused_with_line_and_column(text: str, expected: str) -> None:
    """The parser's complaint comes with the place in front; a key given twice is called that."""
    assert syntax_refusal(text).startswith(expected)


def test_nesting_without_end_is_refused() -> None:
    """A file made to exhaust the parser ends in a refusal."""
    assert "nested too deeply" in syntax_refusal("a = " + "[" * 100_000)


@pytest.mark.parametrize("dots", ["[{}]", "[[{}]]", "{} = 1", "x = {{ {} = 1 }}"])
@pytest.mark.parametrize("part", ["a", '"b"', "'c' "])
def test_a_key_of_very_many_parts_is_refused_at_once(dots: str, part: str) -> None:
    """Twenty thousand dots took half a minute to be read."""
    began = time.process_time()
    text = "first = 1\n" + dots.format(".".join([part] * 20_000))
    assert syntax_refusal(text) == "f:2: found a key of more than 16 parts with dots between them"
    assert time.process_time() - began < 10


def test_dots_in_texts_are_no_parts_of_keys() -> None:
    """Nor are those in comments; and as many parts as anybody needs are read."""
    dots = ".".join(["a"] * 50)
    text = f'# {dots}\nx = "{dots}"\ny = \'{dots}\'\nz = """\n"" {dots} \\""" {dots}"""\'\'\n{dots}\n"""\n'
    text = text.replace('"""\'\'\n', "\n")
    lines = f"w = '''\n{dots}\n'''\n{'.'.join('abcdefghij')} = 1\n"
    assert set(parse_document(text + lines, source="f").data) == {"x", "y", "z", "w", "a"}


@pytest.mark.parametrize(
    "text",
    ["{0} = 1", '"{0}" = 1', "[{0}]\n[{0}]", "[{0}.a]\n[{0}]\n[{0}]", "x = {0}", 'x = "\\{0}"', "{0} = 1\n" * 2],
)
def test_what_a_refusal_quotes_is_bounded(text: str) -> None:
    """Whatever is wrong with a key of 100 kB, nobody has to scroll through it."""
    document = text.format("k" * 100_000)
    with pytest.raises(ConfigurationError) as caught:
        load_site_text(document, {})
    assert len(caught.value.message) < 2000
    assert "k" * 400 not in caught.value.message


def test_lines_of_keys_tables_and_elements() -> None:
    """Each key path has the line on which a person would look for it."""
    text = (
        "# a comment with [brackets] and k = 1\n"
        'top = """\n[not.a.table]\nk = 1"""\n'
        "[scheduler] # header\n"
        "  backoff . longest = 3\n"
        "[[clusters]]\n"
        "\"name\" = 'a#b'\n"
        "[clusters.settings]\n"
        "conf = 1\n"
        "[[clusters]]\n"
        'tags = [ "x", # one\n\n  { deep = [\n1] } ]\n'
        "[clusters.settings]\n"
        "conf = 2020-01-01 00:00:00\n"
    )
    lines = key_lines(text)
    assert lines["top",] == 2
    assert lines["scheduler", "backoff", "longest"] == 6
    assert lines["clusters", 0] == 7
    assert lines["clusters", 0, "name"] == 8
    assert lines["clusters", 0, "settings", "conf"] == 10
    assert lines["clusters", 1] == 11
    assert lines["clusters", 1, "tags", 0] == 12
    assert lines["clusters", 1, "tags", 1, "deep"] == 14
    assert lines["clusters", 1, "tags", 1, "deep", 0] == 15
    assert lines["clusters", 1, "settings", "conf"] == 17
    assert not any("not" in path for path in lines)
    assert nearest_line(lines, ("clusters", 1, "settings", "missing")) == 16
    assert nearest_line(lines, ("nowhere",)) is None


@given(st.dictionaries(TEXT, values(), max_size=4))
def test_every_value_has_its_line(tables: dict[str, object]) -> None:
    """The scan agrees with the parser on every key path of any file."""
    text = ""
    expected: dict[tuple[str | int, ...], int] = {}
    for number, (key, value) in enumerate(tables.items(), 1):
        text += f"{toml(key)} = {toml(value)}\n"
        expected |= dict.fromkeys(_paths((key,), value), number)
    assert key_lines(text) == expected


@given(st.text(max_size=60))
def test_scan_of_anything_ends(text: str) -> None:
    """The scan of text that is no TOML ends without an error."""
    assert all(line >= 1 for line in key_lines(text).values())


def test_key_paths_are_shown_as_people_write_them() -> None:
    """Numbers stand in brackets, and keys that TOML would quote are quoted."""
    assert show_path(("clusters", 1, "settings", "conf")) == "clusters[1].settings.conf"
    assert show_path(("a b", 'q"', "\x1b")) == '"a b"."q\\"".' + '"\\x1b"'


def _paths(path: tuple[str | int, ...], value: object) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for part, item in inner:
            yield from _paths((*path, part), item)
