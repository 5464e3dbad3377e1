# SPDX-License-Identifier: Apache-2.0
"""Jobs as a program describes them: the tables of a job file as immutable values, same names and defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from os import PathLike, fspath
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypedDict

from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Word: TypeAlias = "str | PathLike[str]"
InputFile: TypeAlias = "str | PathLike[str] | Mapping[str, str | PathLike[str]]"

WALLTIME = "1h"
"""How long a job may run unless it says otherwise, as for `koala run -- PROGRAM`."""
LONGEST_NAME = 60
"""Characters of a program's name that a job is called by."""


class SlotKeys(TypedDict, total=False):
    """The arguments of :class:`SlotKeywords`, for those that hand them on."""

    threads: int
    memory: int | str
    gpus: int | str
    exclusive: bool
    scratch: int | str
    features: str | Sequence[str]
    licenses: Mapping[str, int]
    queue: str | Mapping[str, str]
    account: str | Mapping[str, str]
    qos: str | Mapping[str, str]
    directives: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotKeywords:
    """What each rank needs on its node, by the keys of a component in a job file."""

    threads: int | None = None
    """Processors of each rank, all on one node. Default: 1."""
    memory: int | str | None = None
    """Of each rank: MiB, or a text such as "4GiB"."""
    gpus: int | str | None = None
    """Of each rank: a number, or kind and number such as "a100:2"."""
    exclusive: bool | None = None
    """Nothing else runs on the node of a rank."""
    scratch: int | str | None = None
    """Space on the node's own disk for each rank, as ``memory``."""
    features: str | Sequence[str] = ()
    """Words of the site, all of which the node has."""
    licenses: Mapping[str, int] = field(default_factory=dict)
    queue: str | Mapping[str, str] | None = None
    """One for all clusters, or a mapping of clusters to queues; so are ``account`` and ``qos``."""
    account: str | Mapping[str, str] | None = None
    qos: str | Mapping[str, str] | None = None
    directives: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Further arguments of the submission, by cluster."""


SLOT_NAMES = tuple(one.name for one in fields(SlotKeywords))


class HasId(Protocol):
    """A job that was handed in, such as a handle on it."""

    @property
    def id(self) -> str:
        """Its id."""


# fmt: off
ALONE = frozenset({
    "command", "processors", "ranks_per_slot", "minimum", "maximum", "initial", "cluster", "flexible", "input_files",
    "output_files",
}).union(SLOT_NAMES)
# fmt: on
"""What a job without ``components`` says of its only one."""
LISTS = frozenset({"export", "setup", "software", "features"})
"""Lists of texts of which one alone may stand for a list of it."""


def require_slot_keys(owner: str, given: SlotKeys) -> None:
    """Raise TypeError, as Python itself does, for a keyword argument of ``owner`` that is no key of a slot."""
    for name in given:
        if name not in SLOT_NAMES:
            raise TypeError(f"{owner} got an unexpected keyword argument {name!r}")


@dataclass(frozen=True, slots=True)
class Component(SlotKeywords):
    """A part of a job that runs in one cluster: a table ``[[components]]`` of a job file.

    What is None, or empty, is as the job file has it by default. All is checked when the job is submitted.

    >>> Component(["./simulate", "--steps", "100"], processors=4, cluster="alpha").processors
    4
    """

    command: Sequence[Word]
    """Program and arguments. No shell reads it."""
    _: KW_ONLY
    processors: int | None = None
    """Number of ranks, each of ``threads`` processors. Default: 1, unless ``minimum`` and ``maximum`` are given."""
    ranks_per_slot: int | None = None
    """Ranks that share one job of the batch system: it has the ``threads`` of all of them. Default: 1."""
    name: str | None = None
    minimum: int | None = None
    """Fewest ranks of a job that is not rigid."""
    maximum: int | None = None
    initial: int | None = None
    cluster: str | None = None
    """Where it must run. Default: the placement policy chooses."""
    launcher: str | None = None
    flexible: bool | None = None
    """Several clusters may share the processors, with a placement policy that splits."""
    input_files: Sequence[InputFile] = ()
    """Files that each process finds beside it: paths, or mappings with ``source`` and ``target``."""
    output_files: Sequence[str] = ()
    """Patterns of the files that are fetched from each process when it has ended."""
    environment: Mapping[str, str] = field(default_factory=dict)
    export: str | Sequence[str] = ()
    """Variables of the present environment that its processes get, beside those of the job: names and patterns."""
    setup: str | Sequence[str] = ()
    """Lines that a shell runs before each process, after those of the job."""
    software: str | Sequence[str] = ()
    """Names of software of the site file that it needs, beside that of the job."""
    container: Word | None = None
    """Image in which its processes run. Default: that of the job."""
    sizes: str | None = None
    retire_signal: str | None = None
    retire_command: Sequence[str] = ()
    retire_grace: float | str | None = None
    """Seconds, or a text such as "30s"; so are the other times."""
    point_patience: float | str | None = None
    done_patience: float | str | None = None

    def values(self) -> dict[str, object]:
        """Return the given values by the keys of a job file."""
        return _with_processors(dict(_given(self)))


@dataclass(frozen=True, slots=True)
class Job(SlotKeywords):
    """One job: of one program, or of ``components`` that start together, wherever each of them runs.

    >>> Job(["./simulate"], processors=4, walltime="10m").values()["components"]
    [{'command': ['./simulate'], 'processors': 4}]

    What is None, or empty, is as in a job file. All is checked when the job is submitted.
    """

    command: Sequence[Word] = ()
    """Program and arguments of a job of one component. No shell reads it."""
    _: KW_ONLY
    components: Sequence[Component] = ()
    """In the place of ``command`` and what belongs to it."""
    processors: int | None = None
    ranks_per_slot: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    initial: int | None = None
    cluster: str | None = None
    flexible: bool | None = None
    input_files: Sequence[InputFile] = ()
    output_files: Sequence[str] = ()
    name: str | None = None
    """Name in reports. Default: that of its first program."""
    kind: str | None = None
    """``rigid``, ``moldable``, ``malleable`` or ``evolving``."""
    runner: str | None = None
    """``ranks``, ``workers``, ``adaptive`` or ``sweep``."""
    array: str | None = None
    """A task for each of these indices, such as "1-100", with "%10" for at most ten at once."""
    placement: str | None = None
    notify: Sequence[str] = ()
    """What of it is told as the site file says: ``start``, ``end`` or ``fail``."""
    after: Sequence[str | HasId] = ()
    """Jobs that must have ended well before: ids, names, handles; "12:failed" or "12:any" for those that need not."""
    walltime: float | str = WALLTIME
    """How long it may run: seconds, or a text such as "10m"."""
    warn_before: float | str | None = None
    """So long before that an adaptive program is told that the end is near, workers are asked to end, and
    ``checkpoint_signal`` is sent."""
    checkpoint_signal: str | None = None
    """Signal, such as "USR1", to the processes that have a handler for it, so that they save their state."""
    requeue_on_walltime: bool | None = None
    """It runs again when its walltime is over, or a process has ended with status 75, until it is finished."""
    retries: int | None = None
    """How often it runs again after an end that is one of ``retry_on``."""
    retry_on: Sequence[str | int] = ()
    """``failed``, ``lost``, ``memory``, ``walltime`` and exit statuses. Default: failed and lost."""
    priority: int | str | None = None
    """``low``, ``normal``, ``high``, ``super-high``, or a number: higher goes first."""
    claiming: str | None = None
    """``placeholders``, or ``reserve`` where batch systems can."""
    maximum_tries: int | None = None
    working_directory: Word | None = None
    """Directory on the nodes in which the processes start. Default: a private one for each, which is removed."""
    launcher: str | None = None
    """``process``, or ``mpi``: all processes form one MPI world."""
    mpi_resize: str | None = None
    sweep: Mapping[str, object] = field(default_factory=dict)
    """The table ``[sweep]`` of a job with runner ``sweep``: its parameters, and how they are combined."""
    relay: bool | None = None
    """Processes whose nodes cannot connect to each other reach each other through koala."""
    host_ports: Sequence[int] = ()
    """Ports of koala's host to which the processes may connect, at KOALA_HOST_ADDRESS."""
    environment: Mapping[str, str] = field(default_factory=dict)
    export: str | Sequence[str] = ()
    """Variables of the present environment that the processes get: "all", or names and patterns."""
    setup: str | Sequence[str] = ()
    """Lines that a shell runs on the node before each process, such as "module load gcc/12"."""
    software: str | Sequence[str] = ()
    """Names of software of the site file: the job runs only on clusters that have it."""
    container: Word | None = None
    """Image in which the processes run, by the container runtime of their cluster."""

    def values(self) -> dict[str, object]:
        """Return the given values by the keys of a job file.

        Raises ConfigurationError when it has neither a command nor components, or both.
        """
        alone = {name: value for name, value in _given(self) if name in ALONE}
        header = {name: value for name, value in _given(self) if name not in ALONE}
        if alone and self.components:
            said = ", ".join(alone)
            hint = "say it of the components: koala.Component(...)"
            raise ConfigurationError(f"koala.Job: given together with components: {said}", hint=hint)
        if self.after:
            header["after"] = [one if isinstance(one, str) else one.id for one in self.after]
        components = [component.values() for component in self.components] or [_with_processors(alone)]
        if "command" not in components[0]:
            raise ConfigurationError("koala.Job: it has nothing to run", hint='koala.Job(["./program"])')
        return {"name": _name_of(components[0]["command"]), **header, "components": components}


def _name_of(command: object) -> str:
    """Return how a job is called that has no name: by its program, as far as that is printable."""
    program = PurePath(str(command[0])).name if isinstance(command, list) else ""
    return "".join(one for one in program if one.isprintable())[:LONGEST_NAME].strip() or "job"


def _with_processors(component: dict[str, object]) -> dict[str, object]:
    sized = {"processors", "minimum", "maximum"} & component.keys()
    return component if sized else {**component, "processors": 1}


def _given(described: SlotKeywords) -> Iterator[tuple[str, object]]:
    """Yield what was given, as TOML would have it: what to run, then what its ranks need."""
    for one in sorted(fields(described), key=lambda one: one.name in SLOT_NAMES):
        value = _plain(getattr(described, one.name)) if one.name != "components" else None
        if value not in (None, [], {}):
            yield one.name, _listed(one.name, value)


def _listed(name: str, value: object) -> object:
    """Return the value of a key, a text that stands for a list of it as that list."""
    alone = name in LISTS and isinstance(value, str) and (name, value) != ("export", "all")
    return [value] if alone else _plain(value)


def _plain(value: object) -> object:
    """Return a value in lists, tables, texts and numbers alone; what cannot be one is refused with the rest."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value
