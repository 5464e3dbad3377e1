# SPDX-License-Identifier: Apache-2.0
"""Problems in site files and job files, worded for people: file, line, key, what was found, what is allowed.

pydantic's errors are translated here. All problems of a file go into one ConfigurationError, one on each line in the
form ``FILE:LINE: KEY: ...``, so that a file is corrected in one go and an editor can jump to each place.
"""

from __future__ import annotations

import datetime as dt
import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from koala_adapter.config.fields import PATTERN_WORDS
from koala_adapter.config.tomlfile import key_lines, nearest_line, shortened, show_path, show_text
from koala_adapter.config.written import NotAllowedError
from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

    from koala_adapter.config.tomlfile import Document, KeyPath

MOST_SHOWN = 40
"""Problems listed in one refusal."""

ModelT = TypeVar("ModelT", bound=BaseModel)

_INCONSISTENT = "koala_inconsistent"
_BOUND_ERRORS = ("greater_than_equal", "greater_than", "less_than_equal", "less_than")
_TYPE_WORDS = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text in quotes",
    "path_type": "a path in quotes",
    "tuple_type": "a list: [ ... ]",
    "list_type": "a list: [ ... ]",
    "dict_type": "a table: { key = value }",
    "model_type": "a table: { key = value }",
    "dataclass_type": "a table: { key = value }",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a file."""

    path: KeyPath
    """Key path from the top of the file; empty for the file as a whole."""
    text: str


def inconsistent(*problems: tuple[KeyPath, str]) -> PydanticCustomError:
    """Return the error that a model validator raises for values that do not go together.

    Each problem is a key path within the model, and a text.
    """
    return PydanticCustomError(_INCONSISTENT, "values that do not go together", {"problems": problems})


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return ``; did you mean "X"?`` with the allowed word most like ``word``, or nothing when none is like it."""
    by_folded = {name.casefold(): name for name in allowed}
    close = difflib.get_close_matches(word.casefold()[:100], by_folded, n=1, cutoff=0.6)
    return f'; did you mean "{by_folded[close[0]]}"?' if close else ""


def show_value(value: object) -> str:
    """Return what was found, short and safe to print: containers by their kind only."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return show_text(value)
        case int():
            return str(value) if abs(value) < 10**30 else "a whole number of more than 30 digits"
        case Mapping() | BaseModel():
            return "a table"
        case list() | tuple():
            return f"a list of {len(value)}" if value else "an empty list"
        case _:
            return str(value)[:60]


def not_among(word: str, allowed: Iterable[str], *, what: str) -> str:
    """Return the text of a problem: ``word`` is none of the allowed names of ``what``."""
    names = sorted(allowed)
    listed = ", ".join(f'"{name}"' for name in names) or "none"
    return f"found {show_text(word)}, allowed is {what}: {listed}{nearest(word, names)}"


class Problems:
    """Collects what is wrong with one document; ``refuse`` ends in one error that says it all."""

    def __init__(self, document: Document, *, hint: str) -> None:
        """``hint``: where the reader finds more."""
        self._document = document
        self._hint = hint
        self._found: dict[Problem, None] = {}

    def add(self, path: KeyPath, text: str) -> None:
        """Note a problem at a key path; the same one twice counts once."""
        self._found[Problem(path=path, text=text)] = None

    def add_all(self, problems: Iterable[tuple[KeyPath, str]]) -> None:
        """Note several problems."""
        for path, text in problems:
            self.add(path, text)

    def validated(self, model: type[ModelT], data: object) -> ModelT | None:
        """Return the document's ``data`` as an instance of ``model``, or None with the problems noted."""
        try:
            return model.model_validate(data)
        except ValidationError as error:
            for problem in describe(error, model, data) + _deeper(error, model, data):
                self.add(problem.path, problem.text)
        except RecursionError:
            self.add((), "nested too deeply")
        return None

    def validated_strictly(self, model: type[ModelT], data: Mapping[str, object], *, at: KeyPath) -> ModelT | None:
        """As ``validated``, for models of others: by the types of TOML, so that "4" is no number and true is no 1.

        ``at`` is where ``data`` stands in the document.
        """
        try:
            return model.model_validate_json(json.dumps(data, default=str), strict=True)
        except ValidationError as error:
            for problem in describe(error, model, data):
                self.add((*at, *problem.path), problem.text)
        except (RecursionError, ValueError) as error:
            self.add(at, f"cannot be read: {error}")
        return None

    def refuse(self) -> None:
        """Raise ConfigurationError with all problems in the order of their lines; do nothing when there are none."""
        if self._found:
            raise ConfigurationError("\n".join(self._lines()), hint=self._hint)

    def accepted(self, found: ModelT | None) -> ModelT:
        """Return what `validated` has returned. Raises ConfigurationError as `refuse` does."""
        self.refuse()
        if found is None:
            raise AssertionError("what is not valid has problems")
        return found

    def _lines(self) -> list[str]:
        lines = key_lines(self._document.text)
        placed = [(nearest_line(lines, problem.path), problem) for problem in self._found]
        placed.sort(key=lambda pair: pair[0] or 0)
        shown = []
        for line, problem in placed[:MOST_SHOWN]:
            where = f"{self._document.source}:{line}" if line else self._document.source
            key = f"{show_path(problem.path)}: " if problem.path else ""
            shown.append(f"{where}: {shortened(f'{key}{problem.text}')}")
        if len(placed) > MOST_SHOWN:
            shown.append(f"{self._document.source}: and {len(placed) - MOST_SHOWN} more")
        return shown


def describe(error: ValidationError, model: type[BaseModel], data: object) -> list[Problem]:
    """Return the problems in a validation error of ``model`` on ``data``, each with its path in ``data``."""
    problems: dict[Problem, None] = {}
    for details in error.errors(include_url=False):
        if _is_echo(details):
            continue
        path = _path_in_data(details, data)
        if details["type"] == _INCONSISTENT:
            for inner, text in details.get("ctx", {})["problems"]:
                problems[Problem(path=(*path, *inner), text=text)] = None
        else:
            problems[Problem(path=path, text=_text(details, model, path))] = None
    return list(problems)


def _deeper(error: ValidationError, model: type[BaseModel], data: object) -> list[Problem]:
    """Return the problems that unknown keys hid: values that do not go together are looked for in whole tables only."""
    unknown = [_path_in_data(details, data) for details in error.errors() if details["type"] == "extra_forbidden"]
    if not unknown:
        return []
    pruned = _without(data, frozenset(unknown))
    try:
        model.model_validate(pruned)
    except ValidationError as remaining:
        return describe(remaining, model, pruned)
    return []


def _without(data: object, paths: frozenset[KeyPath], at: KeyPath = ()) -> object:
    """Return a copy of nested tables and lists without the keys at ``paths``."""
    if isinstance(data, Mapping):
        return {key: _without(value, paths, (*at, key)) for key, value in data.items() if (*at, key) not in paths}
    if isinstance(data, list):
        return [_without(value, paths, (*at, index)) for index, value in enumerate(data)]
    return data


def _is_echo(details: ErrorDetails) -> bool:
    """Tell whether pydantic calls a list too short only because it left out elements that it has refused already."""
    return details["type"] == "too_short" and len(details["input"]) >= details.get("ctx", {})["min_length"]


def _path_in_data(details: ErrorDetails, data: object) -> KeyPath:
    """Return the error's place without the parts that pydantic adds for unions, mapping keys and functions."""
    path: list[str | int] = []
    for number, part in enumerate(details["loc"], 1):
        inner = _inner(data, part)
        if inner:
            data = inner[0]
        if inner or (number == len(details["loc"]) and details["type"] == "missing"):
            path.append(part)
    return tuple(path)


def _inner(data: object, part: str | int) -> tuple[object, ...]:
    """Return the value that ``part`` names in a table or list; nothing when there is none."""
    if isinstance(data, Mapping) and part in data:
        return (data[part],)
    if isinstance(data, list | tuple) and isinstance(part, int) and 0 <= part < len(data):
        return (data[part],)
    return ()


def _text(details: ErrorDetails, model: type[BaseModel], path: KeyPath) -> str:
    kind = details["type"]
    if kind == "extra_forbidden":
        return _unknown_key(str(path[-1]), _model_at(model, path[:-1]), model)
    field = _field_at(model, path)
    if kind == "missing":
        about = f": {field.description}" if field is not None and field.description else ""
        return f"this key is required{about}"
    if kind == "value_error":
        return _complaint(details)
    value = details["input"]
    quotes = f'; in quotes, "{value}", it is a duration' if isinstance(value, dt.time) else ""
    return f"found {show_value(details['input'])}, allowed is {_allowed(details, field)}{quotes}"


def _complaint(details: ErrorDetails) -> str:
    """Return what a validator says; beside what was found, unless that is a whole table, which the reader sees."""
    error = details.get("ctx", {}).get("error", details["msg"])
    text = str(error)
    is_table = isinstance(details["input"], Mapping | BaseModel)
    if isinstance(error, NotAllowedError) or text.startswith("must be "):
        text = f"{'' if is_table else ', '}allowed is {text.removeprefix('must be ')}"
    elif not is_table:
        text = f": {text}"
    return text if is_table else f"found {show_value(details['input'])}{text}"


def _allowed(details: ErrorDetails, field: FieldInfo | None) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind in {"literal_error", "enum"}:
        words = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        listed = " or ".join(f'"{word}"' for word in words)
        return listed + (nearest(details["input"], words) if isinstance(details["input"], str) else "")
    if kind in {"tuple_type", "list_type"} and isinstance(details["input"], Mapping):
        return f"a list of tables: write [[{details['loc'][0]}]], not [{details['loc'][0]}]"
    if kind in _TYPE_WORDS or kind in _BOUND_ERRORS:
        return _TYPE_WORDS.get(kind, _number_words(field)) + _range(field)
    return _in_words(kind, context) or details["msg"].removeprefix("Input should be ")


def _in_words(kind: str, context: Mapping[str, object]) -> str:
    """Return what is allowed where the error itself says it; nothing when it does not."""
    match kind:
        case "string_pattern_mismatch":
            pattern = str(context.get("pattern", ""))
            return PATTERN_WORDS.get(pattern, f"a text that matches {pattern}")
        case "too_short":
            return f"a list of at least {context.get('min_length', 1)}"
        case "too_long":
            return f"a list of at most {context.get('max_length', 0)}"
    return ""


def _number_words(field: FieldInfo | None) -> str:
    return "a whole number" if field is not None and _is_whole(field.annotation) else "a number"


def _is_whole(annotation: object) -> bool:
    return annotation is int or any(_is_whole(argument) for argument in get_args(annotation))


def _range(field: FieldInfo | None) -> str:
    """Return `` from A to B`` as the field's bounds say."""
    bounds: dict[str, object] = {}
    for item in field.metadata if field is not None else ():
        for name in ("ge", "gt", "le", "lt"):
            if (bound := getattr(item, name, None)) is not None:
                bounds[name] = bound
    low = f"from {bounds['ge']}" if "ge" in bounds else f"above {bounds['gt']}" if "gt" in bounds else ""
    high = f"to {bounds['le']}" if "le" in bounds else f"below {bounds['lt']}" if "lt" in bounds else ""
    if not low or not high:
        low, high = low.replace("from", "at least"), high.replace("to ", "at most ")
    unit = _unit(field)
    return "".join(f" {word}" for word in (low, high, unit) if word)


def _unit(field: FieldInfo | None) -> str:
    extra = field.json_schema_extra if field is not None else None
    return str(extra.get("x-unit", "")) if isinstance(extra, dict) else ""


ALSO_CALLED = {"partition": "queue"}
"""Words of batch systems for keys."""


def _unknown_key(key: str, table: type[BaseModel] | None, root: type[BaseModel]) -> str:
    """Say that a key is unknown, with the table in which it belongs, or the nearest one that is known here."""
    known = list(table.model_fields) if table is not None else []
    homes = [header for header, keys in _tables(root).items() if key in keys]
    if (here := ALSO_CALLED.get(key)) in known:
        return f'unknown key; a {key} is called "{here}" here'
    advice = f"; it belongs in {homes[0]}" if homes else nearest(key, known)
    return f"unknown key, allowed is {', '.join(known) or 'no key at all'}{advice}"


def _tables(root: type[BaseModel], header: str = "") -> dict[str, frozenset[str]]:
    """Return the tables below ``root`` by the header a person writes for each."""
    tables = {header or "the top of the file": frozenset(root.model_fields)}
    for key, field in root.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is not None and inner.model_fields:
            path = f"{header.strip('[]')}.{key}" if header else key
            tables |= _tables(inner, f"[[{path}]]" if get_origin(field.annotation) is tuple else f"[{path}]")
    return tables


def _model_in(annotation: object) -> type[BaseModel] | None:
    """Return the first pydantic model inside an annotation such as ``tuple[Model, ...] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        if (found := _model_in(argument)) is not None:
            return found
    return None


def _model_at(root: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    model: type[BaseModel] | None = root
    for part in path:
        if isinstance(part, int) or model is None:
            continue
        field = model.model_fields.get(part)
        model = _model_in(field.annotation) if field is not None else None
    return model


def _field_at(root: type[BaseModel], path: KeyPath) -> FieldInfo | None:
    """Return the field that a key path names; None for a list element or an unknown key."""
    if not path or isinstance(path[-1], int):
        return None
    table = _model_at(root, path[:-1])
    return table.model_fields.get(str(path[-1])) if table is not None else None
