# SPDX-License-Identifier: Apache-2.0
"""A submission's options, and the changes that a site file makes to them (add, drop, rename)."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from koala_adapter.plugin.directives import Directives

SHORT_NAMES: Mapping[str, str] = {
    "-A": "--account",
    "-a": "--array",
    "-c": "--cpus-per-task",
    "-D": "--chdir",
    "-H": "--hold",
    "-J": "--job-name",
    "-M": "--clusters",
    "-n": "--ntasks",
    "-o": "--output",
    "-p": "--partition",
    "-q": "--qos",
    "-t": "--time",
    "-W": "--wait",
}

OURS = frozenset({"--parsable", "--job-name", "--array"})
"""Options without which a submission could not be recognized again."""

HARMFUL = frozenset({"--clusters", "--test-only", "--wait", "--wrap"})
"""Options that would send the job elsewhere, nowhere, or make sbatch wait for its end."""


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a command line; ``value`` None for a flag."""

    name: str
    value: str | None = None

    def argument(self) -> str:
        """Return the option as one argument."""
        return self.name if self.value is None else f"{self.name}={self.value}"


def long_name(text: str) -> str:
    """Return the long name in an option as written in a site file (``-p``, ``--time=5`` ...)."""
    name = text.strip().partition("=")[0].split(maxsplit=1)[0] if text.strip() else ""
    if name.startswith("-") and not name.startswith("--"):
        return SHORT_NAMES.get(name[:2], name[:2])
    return name


def arguments(options: Iterable[Option], directives: Directives) -> tuple[str, ...]:
    """Return the arguments of a submission after the site's changes: drop, then rename, then add at the end.

    Raises LrmRejectedError, naming the directive, for one that is malformed or would make the submission unusable.
    """
    problem = problem_of(directives)
    if problem:
        raise LrmRejectedError(problem, hint="correct the directives of this cluster in the site file")
    dropped = {long_name(name) for name in directives.drop}
    renamed = {long_name(old): new.strip() for old, new in directives.rename}
    kept = (option for option in options if option.name not in dropped)
    changed = (replace(option, name=renamed.get(option.name, option.name)) for option in kept)
    return (*(word for option in changed for word in _written(option)), *_added(directives))


def _written(option: Option) -> tuple[str, ...]:
    if option.name.startswith("--") or option.value is None:
        return (option.argument(),)
    return (option.name, option.value)


def _added(directives: Directives) -> Iterator[str]:
    for text in directives.add:
        yield from shlex.split(text)


def problem_of(directives: Directives) -> str:
    """Return what is wrong with a site's directives, as a sentence; empty when nothing is."""
    found = (
        *(_problem_of_added(text) for text in directives.add),
        *(_problem_of_name("drop", text) for text in directives.drop),
        *(_problem_of_rename(old, new) for old, new in directives.rename),
    )
    return next(filter(None, found), "")


def _problem_of_added(text: str) -> str:
    if _has_controls(text):
        return f"directive {text!r} to add contains a line break or another control character"
    try:
        words = shlex.split(text)
    except ValueError as error:
        return f"directive {text!r} to add cannot be read: {error}"
    # A word that belongs to no option would be taken for the name of the script.
    if not words or not words[0].startswith("-") or words[0] in {"-", "--"}:
        return f"directive {text!r} to add is no option"
    option, *values = words
    if values and (len(values) > 1 or "=" in option or values[0].startswith("-")):
        return f"directive {text!r} to add is more than one option with one value"
    if long_name(option) in OURS | HARMFUL:
        return f"directive {text!r} to add would make the placeholders impossible to follow"
    return ""


def _problem_of_name(verb: str, text: str) -> str:
    if _has_controls(text):
        return f"directive {text!r} to {verb} contains a line break or another control character"
    if not text.strip().startswith("-"):
        return f"directive {text!r} to {verb} is no option"
    if long_name(text) in OURS:
        return f"directive {text!r} to {verb} is one without which the placeholders could not be followed"
    return ""


def _problem_of_rename(old: str, new: str) -> str:
    problem = _problem_of_name("rename", old)
    if problem:
        return problem
    if _has_controls(new) or not new.strip().startswith("-") or len(new.split()) != 1 or "=" in new:
        return f"new name {new!r} of directive {old!r} is no option's name"
    if long_name(new) in OURS | HARMFUL:
        return f"new name {new!r} of directive {old!r} would make the placeholders impossible to follow"
    return ""


def _has_controls(text: str) -> bool:
    return _CONTROL.search(text) is not None
