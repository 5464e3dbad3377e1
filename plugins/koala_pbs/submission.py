# SPDX-License-Identifier: Apache-2.0
"""Submitting placeholders: the command lines of qsub(1B). Pure.

Placeholders are elements of an array. One alone is an ordinary job, because PBS can hold, release, alter and start an
element only with its whole array; so are those that come in held, each to be released by itself. It is told its index
in the variable that PBS sets for elements. Torque's placeholders are all such jobs: it writes the number of an element
behind its name, by which it would not be found again, and behind its output path, which makes /dev/null-1 of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError
from koala_adapter.plugin import NOWHERE
from koala_drmaa.transportchoice import one_text
from koala_pbs.dialects import TORQUE_NAME
from koala_pbs.directives import arguments
from koala_pbs.jobs import INDEX_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.plugin import Submission
    from koala_adapter.plugin.directives import Directives
    from koala_pbs.settings import PbsSettings

_KEY = re.compile(r"[A-Za-z][A-Za-z0-9._+-]{0,229}", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9][^\s\x00-\x1f\x7f]*")
INDEX_IN_PATH = "^array_index^"
IN_TEMPLATE = frozenset({"-f", "-C", "-N", "-J", "-v", "-j", "-o", "-h"})
"""Flags that a DRMAA job template has attributes for, or that concern qsub itself."""


def pieces(submission: Submission, largest: int) -> tuple[range, ...]:
    """Return the indices of the placeholders that go together in one request.

    ``largest``: array that is taken. Usually all go in one; where they do not, each piece is a request.
    """
    size = 1 if submission.held else max(1, largest)
    numbers = range(1, submission.count + 1)
    return tuple(numbers[start : start + size] for start in range(0, submission.count, size))


def qsub_command(
    submission: Submission, settings: PbsSettings, directives: Directives, piece: range
) -> tuple[str, ...]:
    """Return the command line that submits some placeholders. Raises LrmRejectedError when it cannot be expressed."""
    _require(submission)
    return ("qsub", *arguments(_options(submission, settings, piece), directives))


def native_specification(submission: Submission, settings: PbsSettings, directives: Directives) -> str:
    """Return what pbs-drmaa is asked for beside what a job template says of every system. Raises LrmRejectedError."""
    _require(submission)
    options = _options(submission, settings, range(1, 2))
    return one_text(arguments((option for option in options if option[0] not in IN_TEMPLATE), directives))


def _options(submission: Submission, settings: PbsSettings, piece: range) -> Iterator[tuple[str, ...]]:
    torque = settings.dialect == TORQUE_NAME
    if not torque:
        # Without it qsub leaves a process behind that sends later submissions with the environment of this one.
        yield ("-f",)
    # Lines that look like directives are obeyed otherwise, wherever they stand in the script.
    yield ("-C", "")
    yield ("-N", submission.key)
    if len(piece) > 1:
        yield ("-J", f"{piece[0]}-{piece[-1]}")
        index = INDEX_IN_PATH
    else:
        yield ("-v", f"{INDEX_VARIABLE}={piece[0]}")
        index = str(piece[0])
    if torque:
        yield ("-l", "nodes=1:ppn=1")
        if submission.memory_mib is not None:
            yield ("-l", f"mem={submission.memory_mib}mb")
    else:
        memory = "" if submission.memory_mib is None else f":mem={submission.memory_mib}mb"
        yield ("-l", f"select=1:ncpus=1{memory}")
    yield ("-l", f"walltime={submission.walltime}")
    # A placeholder that starts twice would dial in with a token that has been used. An array must be rerunnable.
    if len(piece) == 1:
        yield ("-r", "n")
    # Not the user's login shell, whatever language that speaks.
    yield ("-S", "/bin/sh")
    yield ("-j", "oe")
    yield ("-o", submission.output_pattern(index))
    yield ("-m", "n")
    if submission.queue is not None:
        yield ("-q", submission.queue)
    if submission.held:
        yield ("-h",)
    if settings.account is not None:
        yield ("-A", settings.account)
    if settings.project is not None:
        yield ("-P", settings.project)


def _require(submission: Submission) -> None:
    demands = (
        (_KEY.fullmatch(submission.key), f"key {submission.key!r} is no usable job name"),
        (submission.count >= 1, f"{submission.count} placeholders are none"),
        (submission.walltime >= 1, f"walltime of {submission.walltime} s is none"),
        (submission.memory_mib is None or submission.memory_mib >= 1, f"memory of {submission.memory_mib} MiB is none"),
        (submission.queue is None or _WORD.fullmatch(submission.queue), f"{submission.queue!r} is no queue"),
        (_is_path(submission.output_directory or NOWHERE), f"{submission.output_directory!r} is no path for PBS"),
        (submission.script.startswith("#!"), "the script does not begin with #!"),
        ("\0" not in submission.script, "the script contains a NUL character"),
    )
    for met, problem in demands:
        if not met:
            raise LrmRejectedError(f"PBS cannot take this submission: {problem}")


def _is_path(text: str) -> bool:
    # What stands before a colon is a host for qsub, and ^ begins its own words.
    return text.startswith("/") and text.isprintable() and not set(":^,") & set(text)
