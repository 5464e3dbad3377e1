# SPDX-License-Identifier: Apache-2.0
"""What a job asks for in chunks (``-l select=2:ncpus=4:mem=1gb``), where it may go, and where it runs. Pure.

Processors of one chunk stay together; chunks are what can be put on one vnode or another (pbs_resources(7B)).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError
from koala_pbs.values import number_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LARGEST_SELECTION = 100_000
"""Chunks of one job: more is nonsense, and would fill the memory."""

_PARTS = {"+": re.compile(r'(?:"[^"]*"|\'[^\']*\'|[^+"\'])+'), ":": re.compile(r'(?:"[^"]*"|\'[^\']*\'|[^:"\'])+')}
_CONSUMABLE = re.compile(r"[0-9]+(?:\.[0-9]+)?[kmgtp]?[bw]?", re.ASCII | re.IGNORECASE)
_VNODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\[\]-]*", re.ASCII)
PLACES = frozenset({"vnode", "host"})
NOT_CONSUMED = frozenset({"mpiprocs", "ompthreads", *PLACES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One chunk; those of a selection are listed singly."""

    processors: int
    resources: tuple[tuple[str, str], ...]
    """All resources in their order, ``ncpus`` among them where the job names it."""

    def value(self, name: str) -> str:
        """Return the value of a resource; empty when it is not asked for."""
        return next((value for key, value in self.resources if key == name), "")

    @property
    def vnode(self) -> str:
        """The vnode or host that it must be on; empty: any."""
        return self.value("vnode") or self.value("host")

    def on(self, vnode: str) -> str:
        """Return the chunk, once, tied to a vnode."""
        pairs = (f"{name}={value}" for name, value in self.resources if name not in PLACES)
        return ":".join(("1", *pairs, f"vnode={vnode}"))

    def taken_from(self, vnode: str) -> str:
        """Return what it takes from a vnode, as ``qrun -H`` wants it."""
        used = (
            f"{name}={value}"
            for name, value in self.resources
            if name not in {"ncpus", *NOT_CONSUMED} and _CONSUMABLE.fullmatch(value)
        )
        return f"({':'.join((vnode, f'ncpus={self.processors}', *used))})"


def parse_select(text: str) -> tuple[Chunk, ...]:
    """Return the chunks of ``2:ncpus=4:mem=1gb+1:ncpus=2``, each singly. Raises ValueError."""
    chunks: list[Chunk] = []
    for part in _PARTS["+"].findall(text):
        words = _PARTS[":"].findall(part)
        count = int(words.pop(0)) if words and words[0].isdecimal() else 1
        pairs = tuple((name, value) for name, _, value in (word.partition("=") for word in words))
        ncpus = dict(pairs).get("ncpus", "1")
        chunk = Chunk(processors=number_of(ncpus, 1), resources=pairs)
        if count + len(chunks) > LARGEST_SELECTION:
            raise ValueError(f"select={text[:60]} has too many chunks")
        chunks += [chunk] * count
    return tuple(chunks)


def placement_of(place: str) -> str:
    """Return how chunks are arranged: ``free``, ``pack``, ``scatter`` or ``vscatter``."""
    words = place.split(":")
    return next((word for word in ("pack", "vscatter", "scatter") if word in words), "free")


def parse_exec_vnode(text: str) -> tuple[tuple[str, int], ...]:
    """Return vnodes with their processors of ``(n3:ncpus=2)+(n4:ncpus=1)``, or of the form that ``qrun -H`` leaves."""
    found: dict[str, int] = {}
    for part in text.replace("(", "").replace(")", "").split("+"):
        name, *resources = part.split(":")
        processors = dict(word.partition("=")[::2] for word in resources).get("ncpus", "0")
        if name:
            found[name] = found.get(name, 0) + number_of(processors)
    return tuple(found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Chunks and the vnodes that they are to run on, in the order of the job's chunks."""

    pairs: tuple[tuple[Chunk, str], ...]

    @property
    def select(self) -> str:
        """The selection that ties the job to them."""
        return "+".join(_merged([chunk.on(vnode) for chunk, vnode in self.pairs]))

    @property
    def destination(self) -> str:
        """The same for ``qrun -H``."""
        return "+".join(chunk.taken_from(vnode) for chunk, vnode in self.pairs)

    @property
    def hosts(self) -> str:
        """The same for Torque's ``qrun -H``: ``n1:ppn=2+n2:ppn=1``."""
        return "+".join(f"{node}:ppn={count}" for node, count in self.processors.items())

    @property
    def processors(self) -> Mapping[str, int]:
        """Processors on each vnode."""
        counts: dict[str, int] = {}
        for chunk, vnode in self.pairs:
            counts[vnode] = counts.get(vnode, 0) + chunk.processors
        return counts


def _merged(parts: Sequence[str]) -> Iterator[str]:
    """Yield equal neighbours as one chunk with a count."""
    count = 0
    for number, part in enumerate(parts):
        count += 1
        if number + 1 == len(parts) or parts[number + 1] != part:
            yield f"{count}{part[1:]}"
            count = 0


def tied_place(place: str) -> str:
    """Return the arrangement of a job that is tied to vnodes: free, and what it says of sharing as it was."""
    return ":".join(("free", *(word for word in place.split(":") if word in {"excl", "exclhost", "shared"})))


def assign(job: str, select: str, nodes: Sequence[str]) -> Assignment:
    """Return which chunk of a job goes to which of the nodes, of which there is one entry for each processor.

    Raises LrmRejectedError when its chunks cannot be divided so.
    """
    for node in nodes:
        if not _VNODE.fullmatch(node):
            raise LrmRejectedError(f"{node!r} is no node name", hint="name vnodes that pbsnodes -av shows")
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node] = counts.get(node, 0) + 1
    try:
        chunks = parse_select(select)
    except ValueError as error:
        raise LrmRejectedError(f"job {job}: {error}") from error
    chosen = _divide(chunks, counts)
    if chosen is None:
        wanted = f"{len(chunks)} chunks of {', '.join(sorted({str(one.processors) for one in chunks}))} processors"
        given = ", ".join(f"{count} on {node}" for node, count in counts.items()) or "none"
        message = f"job {job} asks for {wanted}, which cannot be divided as {given}"
        raise LrmRejectedError(message, hint="the processors of one chunk (select) stay together")
    return Assignment(pairs=tuple(zip(chunks, chosen, strict=True)))


TRIES = 10_000
"""Places for chunks of different sizes that are tried before a division is given up."""


def _divide(chunks: Sequence[Chunk], counts: Mapping[str, int]) -> list[str] | None:
    """Return a vnode for each chunk so that all counts are used up; None when that cannot be (or is not found)."""
    if sum(chunk.processors for chunk in chunks) != sum(counts.values()) or not chunks:
        return None
    # Those that insist on a place first, then the largest: the rest fits around them.
    order = sorted(range(len(chunks)), key=lambda number: (not chunks[number].vnode, -chunks[number].processors))
    left, chosen, begun = dict(counts), [""] * len(chunks), list(counts)
    tries = 0
    stack: list[tuple[int, Iterator[str]]] = []
    position = 0
    while position < len(order):
        if len(stack) == position:
            stack.append((position, iter(begun)))
        chunk = chunks[order[position]]
        for vnode in stack[position][1]:
            if left[vnode] >= chunk.processors and chunk.vnode in {"", vnode}:
                left[vnode] -= chunk.processors
                chosen[order[position]] = vnode
                position += 1
                break
        else:
            stack.pop()
            position -= 1
            tries += 1
            if position < 0 or tries > TRIES:
                return None
            left[chosen[order[position]]] += chunks[order[position]].processors
    return chosen
