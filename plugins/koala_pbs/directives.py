# SPDX-License-Identifier: Apache-2.0
"""The changes that a site file makes to a submission's options (add, drop, rename). Pure.

An option is named by its flag (``-r``), or by flag and resource (``-l walltime``), as one writes it for qsub.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from koala_adapter.plugin.directives import Directives

OURS = frozenset({"-N", "-J", "-v", "-C"})
"""Flags without which a submission could not be recognized again, or its script would be read for directives."""

HARMFUL = frozenset({"-I", "-X", "-z", "-V", "--", "-a"})
"""Flags that make qsub wait, say no id, start no script, start it some day, or export an environment."""

_HARMFUL_ATTRIBUTES = ("block", "interactive", "array_indices")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TWO_WORDS = 2


def arguments(options: Iterable[Sequence[str]], directives: Directives) -> tuple[str, ...]:
    """Return the arguments of a submission after the site's changes: drop, then rename, then add at the end.

    Raises LrmRejectedError, naming the directive, for one that is malformed or would make the submission unusable.
    """
    problem = problem_of(directives)
    if problem:
        raise LrmRejectedError(problem, hint="correct the directives of this cluster in the site file")
    kept = (option for option in options if not any(_is_named(option, name) for name in directives.drop))
    changed = (word for option in kept for word in _renamed(option, directives.rename))
    return (*changed, *(word for text in directives.add for word in shlex.split(text)))


def _is_named(option: Sequence[str], name: str) -> bool:
    flag, *rest = name.split(maxsplit=1)
    return option[0] == flag and (not rest or (len(option) > 1 and option[1].partition("=")[0] == rest[0]))


def _renamed(option: Sequence[str], pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for old, new in pairs:
        if _is_named(option, old):
            flag, *resource = new.split(maxsplit=1)
            value = option[1] if len(option) > 1 else ""
            yield flag
            if resource:
                yield f"{resource[0]}={value.partition('=')[2]}"
            elif value:
                yield value
            return
    yield from option


def problem_of(directives: Directives) -> str:
    """Return what is wrong with a site's directives, as a sentence; empty when nothing is."""
    found = (
        *(_problem_of_added(text) for text in directives.add),
        *(_problem_of_name("drop", text) for text in directives.drop),
        *(_problem_of_rename(old, new) for old, new in directives.rename),
    )
    return next(filter(None, found), "")


def _problem_of_added(text: str) -> str:
    if _CONTROL.search(text):
        return f"directive {text!r} to add contains a line break or another control character"
    try:
        words = shlex.split(text)
    except ValueError as error:
        return f"directive {text!r} to add cannot be read: {error}"
    # A word that belongs to no option would be taken for the name of the script.
    if not words or not re.fullmatch(r"-[A-Za-z].*|--", words[0]):
        return f"directive {text!r} to add is no option"
    if len(words) > _TWO_WORDS or (len(words) == _TWO_WORDS and words[1].startswith("-")):
        return f"directive {text!r} to add is more than one option with one value"
    value = words[1] if len(words) == _TWO_WORDS else words[0][2:]
    if words[0][:2] in OURS | HARMFUL or (words[0][:2] == "-W" and value.startswith(_HARMFUL_ATTRIBUTES)):
        return f"directive {text!r} to add would make the placeholders impossible to follow"
    return ""


def _problem_of_name(verb: str, text: str) -> str:
    if _CONTROL.search(text):
        return f"directive {text!r} to {verb} contains a line break or another control character"
    words = text.split()
    if not words or not re.fullmatch(r"-[A-Za-z]", words[0]) or len(words) > _TWO_WORDS:
        return f"directive {text!r} to {verb} is no option: write a flag such as -r, or flag and resource: -l walltime"
    if words[0] in OURS:
        return f"directive {text!r} to {verb} is one without which the placeholders could not be followed"
    return ""


def _problem_of_rename(old: str, new: str) -> str:
    problem = _problem_of_name("rename", old)
    if problem:
        return problem
    words = new.split()
    if _CONTROL.search(new) or not words or not re.fullmatch(r"-[A-Za-z]", words[0]) or len(words) > _TWO_WORDS:
        return f"new name {new!r} of directive {old!r} is no option's name"
    if words[0] in OURS | HARMFUL:
        return f"new name {new!r} of directive {old!r} would make the placeholders impossible to follow"
    return ""
