# SPDX-License-Identifier: Apache-2.0
"""How a site's submissions differ from those of a plugin: the tables [clusters.directives] and [clusters.map]."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

from pydantic import AfterValidator, BaseModel, Field, create_model, model_validator

from koala_adapter.config.diagnosis import inconsistent, show_value
from koala_adapter.config.fields import DirectiveArgument, FlagName
from koala_adapter.config.written import NotAllowedError
from koala_adapter.lrm.mapping import MAP_KEYS, arguments_of, braces_problem

if TYPE_CHECKING:
    from collections.abc import Mapping


class DirectivesConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Changes to every submission, for flags that the site requires or forbids."""

    add: tuple[DirectiveArgument, ...] = Field(
        default=(),
        description='Arguments added to every submission, such as "--account=physics" or "-l h_vmem=2G".',
    )
    drop: tuple[FlagName, ...] = Field(
        default=(),
        description='Flags left out of every submission, by name, such as "--no-requeue".',
    )
    rename: dict[FlagName, FlagName] = Field(
        default={},
        description="Table: the flag as koala writes it = the flag as this site wants it.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        both = sorted(set(self.drop) & set(self.rename))
        if both:
            problems = [
                (("rename", flag), f"{show_value(flag)} is also dropped: allowed is one of the two") for flag in both
            ]
            raise inconsistent(*problems)
        return self


def _arguments(text: str, key: str) -> str:
    """Return the arguments of a key of [clusters.map] as they are. Raises NotAllowedError."""
    try:
        arguments_of(text)
    except ValueError as error:
        raise NotAllowedError(str(error)) from None
    if problem := braces_problem(key, text):
        raise NotAllowedError(problem)
    return text


_MAPPED_KEYS: Mapping[str, tuple[str, str]] = {
    "threads": ("the processors of a slot, all on one node. {n}: their number", "-pe smp {n}"),
    "memory": ("the memory of a slot. {mib}: MiB", "-l mem_free={mib}M"),
    "gpus": ("GPUs of any kind. {n}: their number", "-l gpu={n}"),
    "gpu_kind": ("GPUs of a kind, in place of gpus. {kind}: the kind, {n}: their number", "-l gpu_{kind}={n}"),
    "exclusive": ("a whole node. No braces", "-l exclusive=true"),
    "scratch": ("space on the node's own disk. {mib}: MiB", "-l scratch={mib}M"),
    "features": ("a feature of the node, once for each. {name}: the feature", "-l {name}=true"),
    "licenses": ("a license, once for each. {name}: the license, {n}: how many", "-l {name}={n}"),
    "account": ("the account that is charged. {name}: the account", "-P {name}"),
    "qos": ("a quality of service. {name}: its name", "-l {name}=true"),
}
"""What is asked for with the arguments of a key, and an example of them."""


class _Mapped(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """How this site asks for what a slot needs, where the plugin has no way of its own, or another one is wanted."""

    def to_map(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the arguments of each key that is given, in the form that plugins take."""
        given = ((key, getattr(self, key)) for key in MAP_KEYS)
        return tuple((key, arguments_of(text)) for key, text in given if text is not None)


def _mapped_key(key: str) -> tuple[object, object]:
    """Return type and field of a key of [clusters.map]."""
    meaning, example = _MAPPED_KEYS[key]
    described = f'Arguments that ask for {meaning}. Example: "{example}".'
    return Annotated[str, AfterValidator(partial(_arguments, key=key))] | None, Field(
        default=None, description=described
    )


MapConfig = create_model(
    "MapConfig",
    __base__=_Mapped,
    __module__=__name__,
    __doc__=_Mapped.__doc__,
    **cast("Any", {key: _mapped_key(key) for key in MAP_KEYS}),
)
