# SPDX-License-Identifier: Apache-2.0
"""What each rank of a component needs: keys of a job file, made into slots, and how a site asks for it in submissions.

First the keys, then the tables of a site file by which its submissions differ from those of a plugin.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
    create_model,
    model_validator,
)

from koala_adapter.config.diagnosis import inconsistent, not_among, show_value
from koala_adapter.config.fields import (
    ChargeName,
    DirectiveArgument,
    FeatureName,
    Flag,
    FlagName,
    Mebibytes,
    Name,
    QueueName,
    Whole,
)
from koala_adapter.config.written import NotAllowedError
from koala_adapter.lrm.mapping import MAP_KEYS, arguments_of, braces_problem
from koala_adapter.model import ClusterName
from koala_adapter.slots import Slot

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from koala_adapter.config.tomlfile import KeyPath

MOST_THREADS = 65_536
MOST_GPUS = 1024
MOST_LICENSES = 1_000_000
MOST_NAMES = 100
"""Features, licenses, and arguments for one cluster."""

# -- Values --------------------------------------------------------------------------------------------------


class Gpus(NamedTuple):
    """GPUs of a slot."""

    number: int
    kind: str = ""
    """Empty: any."""


GPUS_WORDS = f'a whole number from 0 to {MOST_GPUS}, or a kind and a number, such as "a100:2"'
GPUS_PATTERN = r"^([A-Za-z_][A-Za-z0-9_.+-]{0,62}:)?[0-9]{1,4}$"


def parse_gpus(value: object) -> Gpus:
    """Return the GPUs of a number or of a text such as ``a100:2``. Raises NotAllowedError."""
    kind, number = "", value
    if isinstance(value, str) and re.fullmatch(GPUS_PATTERN, value):
        kind, _, digits = value.rpartition(":")
        number = int(digits)
    if not isinstance(number, int) or isinstance(number, bool) or not (1 if kind else 0) <= number <= MOST_GPUS:
        raise NotAllowedError(GPUS_WORDS)
    return Gpus(number, kind)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_LICENSES:
        raise NotAllowedError(f"a whole number from 1 to {MOST_LICENSES}")
    return value


def _one_or_by_cluster(value: object) -> str | None:
    if isinstance(value, str):
        return "one"
    return "by cluster" if isinstance(value, dict) else None


BY_CLUSTER_WORDS = 'a name in quotes, or a table by cluster, such as { alpha = "long" }'

_GPUS_SCHEMA: Any = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": MOST_GPUS},
        {"type": "string", "pattern": GPUS_PATTERN},
    ]
}
_by_cluster = partial(Discriminator, custom_error_type="by_cluster", custom_error_message=BY_CLUSTER_WORDS)

GpusWanted: TypeAlias = Annotated[Gpus, PlainValidator(parse_gpus), WithJsonSchema(_GPUS_SCHEMA)]
QueueWanted: TypeAlias = Annotated[
    Annotated[QueueName, Tag("one")] | Annotated[dict[Name, QueueName], Tag("by cluster")],
    _by_cluster(_one_or_by_cluster),
]
ChargeWanted: TypeAlias = Annotated[
    Annotated[ChargeName, Tag("one")] | Annotated[dict[Name, ChargeName], Tag("by cluster")],
    _by_cluster(_one_or_by_cluster),
]


# -- The keys ------------------------------------------------------------------------------------------------


class SlotTable(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """What each rank of a component needs on its node."""

    threads: Whole = Field(
        default=1,
        ge=1,
        le=MOST_THREADS,
        description="Processors of each rank, all on one node. The rank finds their number in KOALA_THREADS and "
        "OMP_NUM_THREADS.",
    )
    memory: Mebibytes | None = Field(
        default=None,
        description='Memory of each rank, in MiB or as a text such as "4GiB" or "500M". Default: that of the site '
        "file, or else of the batch system.",
    )
    gpus: GpusWanted | None = Field(
        default=None,
        description='GPUs of each rank: a number, or a kind and a number, such as "a100:2". The kind is a word of the '
        "batch system.",
    )
    exclusive: Flag = Field(default=False, description="true: nothing else runs on the node of a rank.")
    scratch: Mebibytes | None = Field(
        default=None,
        description="Space on the node's own disk for each rank, written as memory is.",
    )
    features: tuple[FeatureName, ...] = Field(
        default=(),
        max_length=MOST_NAMES,
        description='Words of the site, all of which the node of a rank has, such as ["avx512"].',
    )
    licenses: dict[FeatureName, Annotated[int, BeforeValidator(_count)]] = Field(
        default={},
        max_length=MOST_NAMES,
        description="Licenses of each rank that the batch system counts: a table, license = number.",
    )
    queue: QueueWanted | None = Field(
        default=None,
        description='Queue or partition: one for all clusters, or a table such as { alpha = "long" }. A cluster that '
        "is not named has that of the site file, or else of the batch system.",
    )
    account: ChargeWanted | None = Field(
        default=None,
        description="Account or project that is charged, written as queue is.",
    )
    qos: ChargeWanted | None = Field(
        default=None,
        description="Quality of service, written as queue is.",
    )
    directives: dict[Name, Annotated[tuple[DirectiveArgument, ...], Field(max_length=MOST_NAMES)]] = Field(
        default={},
        description='Further arguments of the submission to a cluster: a table such as { alpha = ["--reservation=x"] '
        "}. They stand behind those of the site file.",
    )


BY_CLUSTER = ("queue", "account", "qos", "directives")
"""Keys whose value may name clusters."""


def slots_of(table: SlotTable, ranks: int) -> tuple[Slot, tuple[tuple[ClusterName, Slot], ...]]:
    """Return what so many ranks need together, and what they need on the clusters that the table names."""
    gpus = table.gpus or Gpus(0)
    slot = Slot(
        threads=table.threads * ranks,
        ranks=ranks,
        memory_mib=table.memory or 0,
        gpus=gpus.number,
        gpu_kind=gpus.kind,
        exclusive=table.exclusive,
        scratch_mib=table.scratch or 0,
        features=tuple(dict.fromkeys(table.features)),
        licenses=tuple(table.licenses.items()),
        queue=table.queue if isinstance(table.queue, str) else "",
        account=table.account if isinstance(table.account, str) else "",
        qos=table.qos if isinstance(table.qos, str) else "",
    )
    own: dict[ClusterName, dict[str, Any]] = {}
    for key, values in _tables_by_cluster(table):
        for name, value in values.items():
            own.setdefault(ClusterName(name), {})[key] = value
    return slot, tuple((name, replace(slot, **values)) for name, values in own.items())


def unknown_clusters(
    components: Collection[tuple[int, SlotTable]], known: Collection[str]
) -> Iterator[tuple[KeyPath, str]]:
    """Yield the clusters that slots name and that are not in the site file, by the place in the job file."""
    for index, table in components:
        for key, values in _tables_by_cluster(table):
            for name in values:
                if name not in known:
                    yield ("components", index, key, name), not_among(name, known, what="a cluster of the site")


def _tables_by_cluster(table: SlotTable) -> Iterator[tuple[str, Mapping[str, object]]]:
    for key in BY_CLUSTER:
        value = getattr(table, key)
        if isinstance(value, dict):
            yield key, value


# -- What a site changes in submissions: [clusters.directives] and [clusters.map] ----------------------------


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
