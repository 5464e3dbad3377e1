# SPDX-License-Identifier: Apache-2.0
"""Keys of site files that are made from the parameters of the scheduler.

A parameter is written once, in :mod:`koala_adapter.scheduler.parameters`, with its type, default, meaning, unit and
bounds. A table decorated with ``with_parameters`` has a key for it in the words of site files: a duration may be a
text, and a broken bound is refused with file and line. Read typed values from the parameters, not from the keys.
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema, create_model

from koala_adapter.config.fields import (
    AbsolutePath,
    Flag,
    MebibytesPerSecond,
    Seconds,
    Whole,
    WholeSeconds,
    known_policy,
    policy_schema,
)
from koala_adapter.policies.definition import PolicyKind
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters, Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping


TableT = TypeVar("TableT", bound=BaseModel)
Kind = type[Parameters] | type[ClusterParameters]

_IN_FILES: Mapping[tuple[object, str], object] = {
    (bool, ""): Flag,
    (int, ""): Whole,
    (int, "MiB"): Whole,
    (int, "seconds"): WholeSeconds,
    (float, "seconds"): Seconds,
    (float, "MiB/s"): MebibytesPerSecond,
    (tuple[str, ...], "absolute paths"): tuple[AbsolutePath, ...],
}
"""How a site file gives a parameter of a type and unit."""


def settings_of(kind: Kind) -> Mapping[str, Setting]:
    """Return the settings of those parameters that site files may set, by the names of the parameters."""
    return {name: setting for name, (_, setting) in _annotated(cast("Hashable", kind)).items()}


@cache  # a type hint is compiled each time that it is read
def _annotated(kind: Hashable) -> Mapping[str, tuple[object, Setting]]:
    """Return type and setting of those parameters of a kind, by their names."""
    return {
        name: (get_args(hint)[0], setting)
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for setting in getattr(hint, "__metadata__", ())
        if isinstance(setting, Setting)
    }


def with_parameters(
    kind: Kind, *, only: Collection[str] | None = None, without: Collection[str] = ()
) -> Callable[[type[TableT]], type[TableT]]:
    """Return a decorator that gives a table the keys of parameters, after its own.

    ``only``: of these parameters; None: of all that site files may set. ``without``: not of these.
    """

    def decorate(table: type[TableT]) -> type[TableT]:
        defaults = {field.name: field.default for field in fields(kind)}
        keys: dict[str, Any] = {
            setting.key or name: _key(hint, setting, defaults[name])
            for name, (hint, setting) in _annotated(cast("Hashable", kind)).items()
            if (only is None or name in only) and name not in without
        }
        return create_model(table.__name__, __base__=table, __module__=table.__module__, __doc__=table.__doc__, **keys)

    return decorate


def values_of(kind: Kind, *tables: BaseModel) -> dict[str, Any]:
    """Return the parameters that tables of a site file set, by the names of the parameters."""
    keys = {name: setting.key or name for name, setting in settings_of(kind).items()}
    return {
        name: getattr(table, key) for name, key in keys.items() for table in tables if key in type(table).model_fields
    }


def _key(hint: object, setting: Setting, default: object) -> tuple[object, object]:
    """Return type and field of the key that sets a parameter."""
    extra: dict[str, Any] = {"x-unit": setting.unit} if setting.unit in {"seconds", "MiB", "MiB/s"} else {}
    bounds: dict[str, Any] = {"ge": setting.least, "gt": setting.above, "le": setting.most}
    bounds = {name: bound for name, bound in bounds.items() if bound is not None}
    field = Field(default=default, description=setting.meaning, json_schema_extra=extra or None, **bounds)
    return _in_file(hint, setting), field


def _in_file(hint: object, setting: Setting) -> object:
    """Return the type with which a site file is read. Raises TypeError for a parameter that no file can give."""
    if get_origin(hint) is UnionType:
        (kind,) = (part for part in get_args(hint) if part is not NoneType)
        found: Any = _in_file(kind, setting)
        return found | None
    if setting.choices is not None:
        own = tuple(sorted(setting.choices))
        known = partial(known_policy, kind=PolicyKind.MALLEABILITY, own=own)
        return Annotated[str, AfterValidator(known), WithJsonSchema(policy_schema(own))]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if (hint, setting.unit) not in _IN_FILES:
        raise TypeError(f"a site file has no words for {hint} in {setting.unit or 'no unit'}")
    return _IN_FILES[hint, setting.unit]
