# SPDX-License-Identifier: Apache-2.0
"""Command lines of the fake: an option that is not declared is refused in the words of the real command."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tests.fakes.slurm.state import Job, State


class Refusal(Exception):  # noqa: N818 - no error of the fake, but what it plays
    """The command complains with this text and ends with this status."""

    def __init__(self, text: str, status: int = 1) -> None:
        """``text`` goes to stderr as it is."""
        super().__init__(text)
        self.text = text
        self.status = status


class Parser(argparse.ArgumentParser):
    """Knows options by their full names only."""

    def __init__(self, program: str) -> None:
        """``program`` begins its complaints."""
        super().__init__(prog=program, add_help=False, allow_abbrev=False)

    def flags(self, *names: str) -> None:
        """Declare options without values."""
        for name in names:
            self.add_argument(name, action="store_true")

    def values(self, *names: str) -> None:
        """Declare options with values."""
        for name in names:
            self.add_argument(name, default="")

    def error(self, message: str) -> NoReturn:
        """Refuse as getopt does."""
        option = message.rpartition(" ")[2]
        raise Refusal(
            f"{self.prog}: unrecognized option '{option}'\nTry \"{self.prog} --help\" for more information", 255
        )


def selected(state: State, text: str) -> list[Job]:
    """Return the jobs that an argument such as ``12``, ``12_3`` or ``12_[1-3,5]`` names; none for a wrong one."""
    array, _, rest = text.partition("_")
    if not rest:
        return [job for job in state.jobs if str(job.array) == array]
    elements: set[int] = set()
    for item in rest.strip("[]").split(","):
        first, _, last = item.partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            return []
        elements |= set(range(int(first), int(last or first) + 1))
    return [job for job in state.jobs if str(job.array) == array and job.element in elements]


def split_jobs(text: str) -> list[str]:
    """Split a list of jobs at the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
