# SPDX-License-Identifier: Apache-2.0
"""Patterns of output files: what a job file may say, and what the agent takes them for."""

from __future__ import annotations

import fnmatch
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from koala_adapter.config.fields import OutputPattern
from koala_adapter.vjm.agent.results import NamePattern, Patterns

PATTERN: TypeAdapter[str] = TypeAdapter(OutputPattern)


def wanted(patterns: list[str], path: str) -> bool:
    """Tell whether the agent takes a file for wanted: it, or a directory above it, matches."""
    followed = Patterns(patterns)
    states = followed.start
    for name in path.split("/"):
        matched, states = followed.step(states, name)
        if matched:
            return True
    return False


@pytest.mark.parametrize(
    ("given_", "kept"),
    [("a", "a"), ("./a//b/", "a/b"), ("**/x-?.[ch]", "**/x-?.[ch]"), (" ", " "), ("a/.../b", "a/.../b")],
)
def test_patterns_are_normalized(given_: str, kept: str) -> None:
    """What means nothing to a path is left out, so that the agent need not know of it."""
    assert PATTERN.validate_python(given_) == kept


@pytest.mark.parametrize("pattern", ["", ".", "/", "/a", "..", "a/../b", "a\0b", "n" * 256, "d/" * 2100 + "x"])
def test_patterns_that_lead_nowhere_are_refused(pattern: str) -> None:
    """Absolute ones, those out of the rank's directory, and those longer than any path."""
    with pytest.raises(ValidationError, match="a path"):
        PATTERN.validate_python(pattern)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("result-*", "result-1", True),
        ("result-*", "d/result-1", False),
        ("*", "a", True),
        ("*", ".a", False),
        (".*", ".a", True),
        ("d", "d/deep/.file", True),
        ("d/*", "d/a/b", True),
        ("d/*.x", "d/a/b.x", False),
        ("**", "a/b/c", True),
        ("**", ".git/x", False),
        ("**/*.txt", "a.txt", True),
        ("**/*.txt", "a/b/c.txt", True),
        ("**/*.txt", "a/.b/c.txt", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "b/z", False),
        ("a/**", "a/x", True),
        ("[a-c]?[!x]", "bzy", True),
        ("[a-c]?[!x]", "bzx", False),
        ("[]]", "]", True),
        ("[", "[", True),
        ("[!]", "[!]", True),
        ("[z-a]", "m", False),
        ("a\\*", "a\\b", True),
        ("x.y", "xzy", False),
        ("ä?", "äö", True),
    ],
)
def test_matching(pattern: str, path: str, *, expected: bool) -> None:
    """As in a shell, with ``**`` for any number of directories; a directory is wanted with all that is in it."""
    assert wanted([pattern], path) is expected


@given(pattern=st.text("ab*?", min_size=1, max_size=12), name=st.text("ab", min_size=1, max_size=12))
def test_names_match_as_in_the_library(pattern: str, name: str) -> None:
    """What Python's own matching of names says, the agent says, too."""
    assert NamePattern(pattern).matches(name) is fnmatch.fnmatchcase(name, pattern)


def test_no_pattern_takes_long() -> None:
    """Many stars, which make other ways of matching try all places for all of them, are matched at once."""
    began = time.process_time()
    assert not NamePattern("*a" * 100 + "b").matches("a" * 255)
    assert time.process_time() - began < 10
