# SPDX-License-Identifier: Apache-2.0
"""How a site asks for what a slot needs: the arguments of ``[clusters.map]``, filled in for a submission.

A plugin calls :func:`divide`. It refuses what a cluster cannot express, and tells apart what the site maps from what
the plugin is to express in its own way. All functions are pure.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError
from koala_adapter.slots import PLAIN, SLOT_KEYS, Slot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from koala_adapter.lrm.contract import Directives, Submission

# -- What a site file may say --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Braces:
    """Placeholders in braces for the values of a key, such as ``{gpus}``."""

    required: str
    """The word without which the arguments would not ask for the key; empty: there is no value."""
    others: frozenset[str] = frozenset()
    """Further words that the arguments may have."""

    @property
    def allowed(self) -> frozenset[str]:
        """All words that the arguments may have."""
        return self.others | ({self.required} if self.required else frozenset())


MAP_KEYS: Mapping[str, Braces] = MappingProxyType(
    {
        "threads": Braces("n"),
        "memory": Braces("mib"),
        "gpus": Braces("n"),
        "gpu_kind": Braces("kind", frozenset({"n"})),
        "exclusive": Braces(""),
        "scratch": Braces("mib"),
        "features": Braces("name"),
        "licenses": Braces("name", frozenset({"n"})),
        "account": Braces("name"),
        "qos": Braces("name"),
    }
)
"""Keys that a site may map. ``gpu_kind`` takes the place of ``gpus`` for a slot that names a kind; the arguments of
``features`` and ``licenses`` are there once for each name."""

_BRACES = re.compile(r"\{([^{}]*)\}")
_FIRST = ("-", ":")
"""First characters of an argument: of an option, and of a part of the chunk that PBS is asked for."""


def arguments_of(text: str) -> tuple[str, ...]:
    """Split the value of a key of ``[clusters.map]`` into arguments: options with their values.

    Raises ValueError, with what is allowed, for a text that cannot be divided so.
    """
    allowed = 'arguments that begin with -, such as "-l gpu={n}"'
    try:
        shlex.split(text)
        # Quotes stay, because an argument is divided once more when it is used.
        words = shlex.split(text, posix=False)
    except ValueError:
        raise ValueError(f"{allowed}, with both quotes of each quoted part") from None
    if not words or not words[0].startswith(_FIRST) or not text.isprintable():
        raise ValueError(allowed)
    found: list[str] = []
    for word in words:
        if word.startswith(_FIRST):
            found.append(word)
        else:
            found[-1] += f" {word}"
    return tuple(found)


def braces_problem(key: str, text: str) -> str:
    """Return which words in braces are allowed in the arguments of a key; empty when they are right."""
    braces = MAP_KEYS[key]
    found = set(_BRACES.findall(text))
    stray = set("{}") & set(_BRACES.sub("", text))
    if not stray and found <= braces.allowed and (not braces.required or braces.required in found):
        return ""
    if not braces.required:
        return "arguments without braces"
    others = "".join(f", perhaps also {{{word}}}" for word in sorted(braces.others))
    return f"arguments with {{{braces.required}}}{others} and no other braces"


# -- A submission, divided -----------------------------------------------------------------------------------

_VALUE = re.compile(r"\w[\w.=/@#%-]*")
_VALUE_WORDS = "one word of letters, digits and . _ - = / @ # %, that begins with a letter or digit"
"""Without what divides lists and chunks in the words of some batch system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """A submission divided into native keys and arguments for the rest."""

    rest: Submission
    """The submission without what is mapped, and without the directives of its slot."""
    mapped: frozenset[str]
    """Keys of MAP_KEYS for which the site's arguments stand."""
    arguments: tuple[str, ...]
    """Those of the site, filled in."""
    own: tuple[str, ...]
    """Directives of the slot."""
    site: Directives
    """Changes that the site makes to every submission."""

    @property
    def directives(self) -> Directives:
        """Directives of site and slot in order: added words, mapped arguments, directives of the slot."""
        return replace(self.site, add=(*self.site.add, *self.arguments, *self.own))

    @property
    def words(self) -> tuple[str, ...]:
        """Arguments that the directives add to a command line."""
        return tuple(word for text in self.directives.add for word in shlex.split(text))


def divide(submission: Submission, native: frozenset[str], directives: Directives, *, system: str) -> Divided:
    """Divide a submission into what a site maps and what a plugin expresses natively.

    ``native``: the keys of SLOT_KEYS that the plugin expresses here. ``system``: name of the batch system, for
    messages. Raises LrmRejectedError, naming each key, for what neither of the two expresses, and for a value that is
    no plain word.
    """
    slot, site = submission.slot, dict(directives.map)
    _require_words(slot, system)
    missing = slot.beyond(native | (site.keys() & set(SLOT_KEYS)))
    if missing:
        keys = ", ".join(missing)
        mappable = [key for key in missing if key in MAP_KEYS]
        remedy = f"say in [clusters.map] of the site file how this cluster is asked for {' and '.join(mappable)}, or "
        hint = f"{remedy if mappable else ''}leave {'it' if len(missing) == 1 else 'them'} out of the job"
        raise LrmRejectedError(f"{system} cannot be asked for {keys} on this cluster", hint=hint)
    arguments: list[str] = []
    mapped = set()
    for key, values in _asked(submission):
        if key in site:
            mapped.add(key)
            arguments += [_filled(text, one) for one in values for text in site[key]]
    rest = replace(
        submission,
        memory_mib=None if "memory" in mapped else submission.memory_mib,
        slot=replace(_without(slot, mapped), directives=()),
    )
    return Divided(
        rest=rest, mapped=frozenset(mapped), arguments=tuple(arguments), own=slot.directives, site=directives
    )


def sample(text: str) -> str:
    """Return a mapped argument with sample values, for checking."""
    return _filled(text, {"n": "1", "mib": "1", "kind": "kind", "name": "name"})


def _asked(submission: Submission) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yield each mapped key that a submission sets, with its values."""
    slot = submission.slot
    if submission.memory_mib is not None:
        yield "memory", [{"mib": str(submission.memory_mib)}]
    if slot.threads != PLAIN.threads:
        yield "threads", [{"n": str(slot.threads)}]
    if slot.gpus:
        count = str(slot.gpus)
        yield ("gpu_kind", [{"n": count, "kind": slot.gpu_kind}]) if slot.gpu_kind else ("gpus", [{"n": count}])
    if slot.exclusive:
        yield "exclusive", [{}]
    if slot.scratch_mib:
        yield "scratch", [{"mib": str(slot.scratch_mib)}]
    yield "features", [{"name": name} for name in slot.features]
    yield "licenses", [{"name": name, "n": str(count)} for name, count in slot.licenses]
    yield from ((key, [{"name": name}]) for key, name in (("account", slot.account), ("qos", slot.qos)) if name)


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _BRACES.sub(lambda found: values.get(found[1], found[0]), text)


def _without(slot: Slot, mapped: set[str]) -> Slot:
    """Return a slot without the keys that are mapped."""
    fields = {"scratch": ("scratch_mib",), "gpu_kind": ("gpus", "gpu_kind")}
    names = [name for key in mapped - {"memory"} for name in fields.get(key, (key,))]
    return replace(slot, **{name: getattr(PLAIN, name) for name in names})


def _require_words(slot: Slot, system: str) -> None:
    """Raise LrmRejectedError for a name that could be taken for something else in a command line."""
    named = (
        ("gpu_kind", [slot.gpu_kind]),
        ("features", slot.features),
        ("licenses", [name for name, _ in slot.licenses]),
        ("account", [slot.account]),
        ("qos", [slot.qos]),
    )
    for key, names in named:
        for name in names:
            if name and not _VALUE.fullmatch(name):
                raise LrmRejectedError(
                    f"{system} cannot be asked for {key} {name!r}", hint=f"allowed is {_VALUE_WORDS}"
                )
