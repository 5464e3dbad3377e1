# SPDX-License-Identifier: Apache-2.0
"""TOML files written by people: values shown as text, and reading with the line of each key.

The standard library's parser gives no line numbers for values. So the line of each key is found by a second, tolerant
scan of the text, which is done only when there is something to refuse.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import TypeGuard


# -- Durations, sizes and foreign text for people, and TOML strings (pure) -----------------------------------


def show_duration(seconds: float) -> str:
    """Return seconds as ``HH:MM:SS`` when they are whole, for messages."""
    if seconds != int(seconds):
        return f"{seconds:g} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest:02}"


def show_size(size: int) -> str:
    """Return a number of bytes in the unit that a person would choose, for messages."""
    power = max(0, (size.bit_length() - 1) // 10)
    if power == 0:
        return "1 byte" if size == 1 else f"{size} bytes"
    return f"{size / 1024**power:.4g} {('KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power - 1]}"


def printable(text: str) -> str:
    """Return ``text`` with whatever a terminal would act on escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def toml_text(value: str) -> str:
    """Return a TOML string: JSON's, but for the one control character that JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def toml_of(values: Mapping[str, object]) -> str:
    """Return a document whose values are texts, numbers, truth values, and lists and tables of these."""
    return "\n".join(_table_lines(values, ())).lstrip("\n") + "\n"


def _table_lines(values: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a table; its own values come before those of the tables inside it."""
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    arrays = {key: value for key, value in values.items() if _is_array_of_tables(value)}
    for key, value in values.items():
        if key not in tables and key not in arrays:
            yield f"{_toml_key(key)} = {_toml_value(value)}"
    for key, array in arrays.items():
        for table in array:
            yield from ("", f"[[{'.'.join(map(_toml_key, (*path, key)))}]]")
            yield from _table_lines(table, (*path, key))
    for key, table in tables.items():
        yield from ("", f"[{'.'.join(map(_toml_key, (*path, key)))}]")
        yield from _table_lines(table, (*path, key))


def _is_array_of_tables(value: object) -> TypeGuard[list[Mapping[str, object]]]:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _toml_key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else toml_text(key)


def _toml_value(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_toml_key(key)} = {_toml_value(one)}' for key, one in value.items())} }}"
    return toml_text(value) if isinstance(value, str) else str(value).lower()


# -- Reading, and the line of each key -----------------------------------------------------------------------
# Whatever is wrong with a file is one ConfigurationError with its place.

KeyPath = tuple[str | int, ...]
"""Where a value stands: ``("clusters", 1, "name")`` is shown as ``clusters[1].name``."""

MAXIMUM_SIZE = 1024 * 1024
"""Bytes; a larger file is surely not the one that was meant."""

LONGEST_SHOWN = 60
"""Characters of a key or a text that a refusal repeats."""

LONGEST_WORD = 300
LONGEST_PROBLEM = 1500
"""Characters of a word, and of all that a refusal says of one place; what is longer was quoted and is shortened."""

DEEPEST = 16
"""Parts of a key. Each is a table inside the one before, and no file of ours has a quarter of these."""

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_TOKEN = re.compile(
    r"""
    (?P<text> \"{3} (?: [^\\] | \\. )*? \"{3,5} | '{3} .*? '{3,5} | " (?: [^"\\\n] | \\. )* " | ' [^'\n]* ' )
    | (?P<sign> [\[\]{},=\n] )
    | (?P<word> [A-Za-z0-9_-]+ )
    | \#[^\n]* | [ \t.]+ | .
    """,
    re.DOTALL | re.VERBOSE,
)
_DEEP_KEY = re.compile(
    rf"""
    (?P<deep> (?: (?: [A-Za-z0-9_-]++ | "[^"\n]*+" | '[^'\n]*+' ) [ \t]*+ \. [ \t]*+ ){{{DEEPEST}}} )
    | \"{{3}} (?: [^\\"] | \\. | "{{1,2}}(?!") )*+ "*+
    | '{{3}} (?: [^'] | '{{1,2}}(?!') )*+ '*+
    | " (?: [^"\\\n] | \\. )*+ "?+
    | ' [^'\n]*+ '?+
    | \#[^\n]*+
    | [A-Za-z0-9_-]++
    """,
    re.DOTALL | re.VERBOSE,
)
"""The first key with too many parts: what stands in texts and comments is passed over."""
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD},}}+")
_BARE_DURATION = re.compile(r"=\s*(?:[0-9]+-)?[0-9]+(?::[0-9]{2}){1,2}\s*(?:#|$)|=\s*[0-9]+[dhms]")
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A TOML text that was parsed."""

    source: str
    """What a refusal calls it: the path of the file."""
    text: str
    """Empty where the data come from a program, and refusals can name no line."""
    data: Mapping[str, object]


def read_document(path: Path) -> Document:
    """Read and parse the file at ``path``. Raises ConfigurationError for whatever is wrong with it."""
    return parse_document(read_text(path), source=str(path))


def read_text(path: Path) -> str:
    """Return the text of the file at ``path``. Raises ConfigurationError when it cannot be read, or is not UTF-8."""
    return _decoded(path, _content(path))


def parse_document(text: str, *, source: str) -> Document:
    """Parse TOML; ``source`` is what refusals call it. Raises ConfigurationError with line and column."""
    _require_shallow_keys(text, source)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(_syntax_message(source, text, str(error)), hint="this is not valid TOML") from None
    except ValueError as error:
        raise ConfigurationError(f"{source}: a value cannot be read: {shortened(str(error))}") from None
    except RecursionError:
        raise ConfigurationError(f"{source}: lists or tables are nested too deeply to be read") from None
    return Document(source=source, text=text, data=data)


def _require_shallow_keys(text: str, source: str) -> None:
    """Refuse a key that is nested beyond all measure: reading it would take time with the square of its parts."""
    for found in _DEEP_KEY.finditer(text):
        if found["deep"] is not None:
            line = text.count("\n", 0, found.start()) + 1
            message = f"{source}:{line}: found a key of more than {DEEPEST} parts with dots between them"
            raise ConfigurationError(message, hint="a text with dots in it needs quotes")


def shortened(text: str) -> str:
    """Return a text that quotes what was found, without what makes it too long to be read."""
    text = _LONG_WORD.sub(lambda word: f"{word[0][:LONGEST_SHOWN]}…", text)
    if len(text) <= LONGEST_PROBLEM:
        return text
    return f"{text[: LONGEST_PROBLEM - 300]} … {text[-297:]}"


def show_path(path: KeyPath) -> str:
    """Return a key path as a person writes it: ``clusters[1].settings.conf``."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            key = part if BARE_KEY.fullmatch(part) and len(part) <= LONGEST_SHOWN else show_text(part)
            shown += f".{key}" if shown else key
    return shown


def show_text(text: str) -> str:
    """Return ``text`` quoted and shortened, with whatever a terminal would act on escaped."""
    short = text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"
    escaped = short.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'


def _content(path: Path) -> bytes:
    """Return the bytes of a regular file of bearable size, without ever waiting for a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: there is no such file", hint="check the path") from None
    except PermissionError:
        message = f"{path}: you may not read this file"
        raise ConfigurationError(message, hint=f"look at its rights with: ls -ld {path}") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be opened: {_reason(error)}") from None
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAXIMUM_SIZE + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {_reason(error)}") from None
    finally:
        os.close(descriptor)
    if len(content) > MAXIMUM_SIZE:
        raise ConfigurationError(f"{path}: the file is larger than 1 MiB", hint="is this the file you meant?")
    return content


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _require_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise ConfigurationError(f"{path}: this is a directory", hint="give the path of a TOML file")
    if not stat.S_ISREG(mode):
        raise ConfigurationError(f"{path}: this is not a regular file", hint="give the path of a TOML file")


def _decoded(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"{path}:{line}: the file is not UTF-8: found the byte 0x{content[error.start]:02x}"
        raise ConfigurationError(message, hint="save it as UTF-8 text") from None


def _syntax_message(source: str, text: str, complaint: str) -> str:
    """Return the parser's complaint with the place in front, as compilers do."""
    position = _POSITION.search(complaint)
    what = shortened(_POSITION.sub("", complaint))
    twice = what.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate", "Duplicate"))
    if twice:
        what = f"this key or table is given a second time ({what})"
    if position is None:
        return f"{source}: {what}"
    if position[1] is None:
        ending = "" if twice else ": the file ends too early"
        return f"{source}:{len(text.splitlines()) or 1}: {what}{ending}"
    line = text.split("\n")[int(position[1]) - 1]
    quotes = "; a duration such as 24:00:00 or 1h30m needs quotes" if _BARE_DURATION.search(line) else ""
    return f"{source}:{position[1]}: column {position[2]}: {what}{quotes}"


def nearest_line(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """Return the line of ``path``, or of the nearest table around it; None when there is neither."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


def key_lines(text: str) -> Mapping[KeyPath, int]:
    """Return the line (from 1) of each key, table and list element of a valid TOML text.

    Tolerant: where the text surprises it, it returns what it has found so far.
    """
    scan = _Scan()
    with suppress(IndexError, ValueError):
        for found in _TOKEN.finditer(text.replace("\r\n", "\n")):
            scan.take(found[0], found.lastgroup)
    return scan.lines


class _Scan:
    """Takes the tokens of TOML that the real parser has accepted, and notes where each key stands."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._line = 1
        self._table: KeyPath = ()
        self._lengths: dict[KeyPath, int] = {}
        """How many tables each array of tables has so far."""
        self._brackets = 0
        """Of the header that is being read."""
        self._key: list[str] = []
        self._begins = 1
        """Line of the key, or of the header around it."""
        self._value: KeyPath | None = None
        """Whose value is being read; None: a key is."""
        self._around: list[tuple[KeyPath, int | None]] = []
        """Lists around, each with the index of its latest element, and inline tables, with None."""

    def take(self, token: str, kind: str | None) -> None:
        if kind == "sign":
            self._sign(token)
        elif kind is not None and self._value is not None:
            self._note(self._value, self._line)
        elif kind is not None:
            self._begins = self._begins if self._key or self._brackets else self._line
            self._key.append(token if kind == "word" else str(tomllib.loads(f"key = {token}")["key"]))
        self._line += token.count("\n")

    def _sign(self, sign: str) -> None:
        value = self._value
        if sign == "\n" and not self._around:
            self._value, self._key, self._brackets = None, [], 0
        elif sign == "=":
            base = self._around[-1][0] if self._around else self._table
            self._value, self._key = (*base, *self._key), []
            self._note(self._value, self._begins)
        elif value is None and sign == "[":
            self._begins = self._begins if self._brackets else self._line
            self._brackets += 1
        elif value is None and sign == "]" and self._key:
            self._header()
        elif value is not None and sign in "[{":
            self._note(value, self._line)
            self._around.append((value, 0 if sign == "[" else None))
            self._value = (*value, 0) if sign == "[" else None
        elif sign in "]}" and self._around:
            self._value = self._around.pop()[0]
        elif sign == ",":
            path, index = self._around[-1]
            self._around[-1] = path, None if index is None else index + 1
            self._value = None if index is None else (*path, index + 1)

    def _header(self) -> None:
        path: KeyPath = ()
        for number, part in enumerate(self._key, 1):
            path = (*path, part)
            if self._brackets > 1 and number == len(self._key):
                self._lengths[path] = self._lengths.get(path, 0) + 1
            if path in self._lengths:
                path = (*path, self._lengths[path] - 1)
        self._table, self._key = path, []
        self._note(path, self._begins)

    def _note(self, path: KeyPath, line: int) -> None:
        """Note the line of ``path``, and of tables around it that have no header of their own."""
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)
