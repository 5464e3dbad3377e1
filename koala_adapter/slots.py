# SPDX-License-Identifier: Apache-2.0
"""Slots: what a rank, or worker, of a component needs on one node, and how many such slots a cluster has.

A placeholder holds one slot. Units: memory and scratch space in MiB, sizes in processors.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What one rank needs on one node, and on which terms it is asked for. By default a processor and nothing else.

    Several ranks may share one: it has the processors of all of them.
    """

    threads: int = 1
    """Processors, all on one node."""
    ranks: int = 1
    """Ranks that share it."""
    memory_mib: int = 0
    """Memory on its node; 0: what the site file, or else the batch system, gives."""
    gpus: int = 0
    gpu_kind: str = ""
    """Kind of the GPUs in the word of the batch system, such as ``a100``; empty: any."""
    exclusive: bool = False
    """Nothing else runs on its node."""
    scratch_mib: int = 0
    """Space on the node's own disk."""
    features: tuple[str, ...] = ()
    """Words of the site, all of which its node has, such as ``avx512``."""
    licenses: tuple[tuple[str, int], ...] = ()
    """Licenses that the batch system counts, by name."""
    queue: str = ""
    """Partition or queue; empty: that of the site file, or else the batch system's default."""
    account: str = ""
    """Account or project that is charged; empty: the batch system's default."""
    qos: str = ""
    """Quality of service; empty: the batch system's default."""
    directives: tuple[str, ...] = ()
    """Further arguments of the submission, after those of the site file."""

    @property
    def shape(self) -> Slot:
        """The part that decides how many of them a node holds."""
        return replace(self, ranks=1, licenses=(), account="", qos="", directives=())

    @property
    def threads_of_rank(self) -> int:
        """Processors of each of its ranks."""
        return self.threads // self.ranks

    @property
    def is_plain(self) -> bool:
        """Whether its shape is one processor and nothing else."""
        return self.shape == PLAIN

    def beyond(self, expressible: frozenset[str]) -> tuple[str, ...]:
        """Return the keys that this slot sets and that are not among the ``expressible`` ones.

        What asks for GPUs of a kind asks for their number, too.
        """
        known = expressible | {"gpus"} if self.gpu_kind and "gpu_kind" in expressible else expressible
        return tuple(key for key in SLOT_KEYS if key not in known and _is_set(self, key))

    def __str__(self) -> str:
        """Say what it is, for people: ``2 processors, 4096 MiB, 1 GPU (a100)``."""
        parts = [counted(self.threads, "processor")]
        parts += [f"{self.memory_mib} MiB"] if self.memory_mib else []
        if self.gpus:
            parts.append(counted(self.gpus, "GPU") + (f" ({self.gpu_kind})" if self.gpu_kind else ""))
        parts += ["a whole node"] if self.exclusive else []
        parts += [f"{self.scratch_mib} MiB of scratch space"] if self.scratch_mib else []
        parts += [f"features {', '.join(self.features)}"] if self.features else []
        parts += [f"queue {self.queue}"] if self.queue else []
        return ", ".join(parts)


PLAIN = Slot()


def ranks_of(count: int, slot: Slot) -> str:
    """Say what a number of slots holds and needs, for people: ``2 ranks of 2 processors, 4096 MiB``."""
    if slot.ranks > 1:
        return f"{counted(count, 'slot')} of {slot.ranks} ranks and {slot}"
    return f"{counted(count, 'rank')} of {slot}"


SLOT_KEYS: tuple[str, ...] = (
    "threads",
    "gpus",
    "gpu_kind",
    "exclusive",
    "scratch",
    "features",
    "licenses",
    "account",
    "qos",
    "directives",
)
"""Keys of a slot that a plugin may not be able to express; queue and memory are part of every submission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCount:
    """How many slots of a shape a cluster has, as one look at its nodes shows."""

    slot: Slot
    """Its shape."""
    most: int
    """Slots when nothing else runs, whatever the state of the nodes."""
    idle: int
    """Slots that a new job could get now."""
    processors: int = 1
    """Placeholders of one processor for which the place of one slot would be enough, at least."""
    other_queue: bool = False
    """It is in another queue than that by which the processors of the cluster are counted."""
    lack: str = ""
    """Why there is none: what the node that comes nearest lacks."""


def _is_set(slot: Slot, key: str) -> bool:
    name = {"scratch": "scratch_mib"}.get(key, key)
    default = next(field.default for field in fields(Slot) if field.name == name)
    return bool(getattr(slot, name) != default)


def counted(count: int, noun: str) -> str:
    """Return a number of things in words, such as ``1 slot`` and ``2 slots``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
