# SPDX-License-Identifier: Apache-2.0
"""Submitting placeholders: the command line of sbatch(1), and the job id in what it prints.

The script goes in on stdin: it contains a secret, which must not show in a command line or a file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError
from koala_adapter.plugin import NOWHERE
from koala_drmaa.transportchoice import one_text
from koala_slurm.directives import Option, arguments
from koala_slurm.durations import minutes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.plugin import Submission
    from koala_adapter.plugin.directives import Directives
    from koala_slurm.settings import SlurmSettings

IN_TEMPLATE = frozenset(
    {
        "--parsable",
        "--ignore-pbs",
        "--job-name",
        "--array",
        "--chdir",
        "--output",
        "--open-mode",
        "--export",
        "--hold",
    }
)
"""Options that a DRMAA job template has attributes for, or that concern sbatch itself."""

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@:-]{0,199}", re.ASCII)
_WORD = re.compile(r"[^\s\x00-\x1f\x7f-]\S*")
_PARSABLE = re.compile(r"(?P<id>[0-9]{1,10})(?:;[A-Za-z0-9._-]+)?", re.ASCII)


def sbatch_command(submission: Submission, settings: SlurmSettings, directives: Directives) -> tuple[str, ...]:
    """Return the command line of a submission. Raises LrmRejectedError when it cannot be expressed."""
    _require(submission)
    return ("sbatch", *arguments(_options(submission, settings), directives))


def native_specification(submission: Submission, settings: SlurmSettings, directives: Directives) -> str:
    """Return what slurm-drmaa is asked for beside what a job template says of every system.

    It knows fewer options than sbatch, hours and minutes, and memory in MiB alone. Raises LrmRejectedError.
    """
    _require(submission)
    options = (option for option in _options(submission, settings) if option.name not in IN_TEMPLATE)
    return one_text(arguments((_as_drmaa_takes(option) for option in options), directives))


def _as_drmaa_takes(option: Option) -> Option:
    if option.name == "--time":
        return Option(name=option.name, value=f"0:{option.value}")
    if option.name == "--mem":
        return Option(name=option.name, value=(option.value or "").removesuffix("M"))
    return option


def dry_run_command(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the same command line for sbatch --test-only, which asks the controller and submits nothing."""
    return (command[0], "--test-only", *command[1:])


def _options(submission: Submission, settings: SlurmSettings) -> Iterator[Option]:
    yield Option(name="--parsable")
    # sbatch obeys lines that look like directives of PBS or LSF, wherever they stand in the script.
    yield Option(name="--ignore-pbs")
    yield Option(name="--job-name", value=submission.key)
    yield Option(name="--array", value=f"1-{submission.count}")
    yield Option(name="--ntasks", value="1")
    yield Option(name="--cpus-per-task", value="1")
    yield Option(name="--time", value=str(minutes(submission.walltime)))
    # A requeued placeholder would dial in with a token that has been used.
    yield Option(name="--no-requeue")
    # Our own directory may not exist on the nodes.
    yield Option(name="--chdir", value="/")
    yield Option(name="--output", value=_output(submission))
    # The directory may be everybody's: truncating would destroy a file that somebody else has put in the way.
    yield Option(name="--open-mode", value="append")
    # Anything but ALL makes slurmd run the user's login shell on the node and wait for it, NIL too before 23.11. The
    # environment of sbatch is built by us, so ALL exports nothing that is not meant to be.
    yield Option(name="--export", value="ALL" if settings.environment == "built" else "NONE")
    if submission.queue is not None:
        yield Option(name="--partition", value=submission.queue)
    if submission.memory_mib is not None:
        yield Option(name="--mem", value=f"{submission.memory_mib}M")
    if submission.held:
        yield Option(name="--hold")
    for name in ("account", "qos", "reservation"):
        value = getattr(settings, name)
        if value is not None:
            yield Option(name=f"--{name}", value=value)


def _output(submission: Submission) -> str:
    directory = submission.output_directory
    return NOWHERE if directory is None else f"{directory.rstrip('/').replace('%', '%%')}/%x.%a.out"


def _require(submission: Submission) -> None:
    demands = (
        (_KEY.fullmatch(submission.key), f"key {submission.key!r} is no usable job name"),
        (submission.count >= 1, f"{submission.count} placeholders are none"),
        (submission.walltime >= 1, f"walltime of {submission.walltime} s is none"),
        (submission.memory_mib is None or submission.memory_mib >= 1, f"memory of {submission.memory_mib} MiB is none"),
        (submission.queue is None or _WORD.fullmatch(submission.queue), f"{submission.queue!r} is no partition"),
        (_is_path(submission.output_directory or "/"), f"{submission.output_directory!r} is no absolute path"),
        (submission.script.startswith("#!"), "the script does not begin with #!"),
        ("\0" not in submission.script, "the script contains a NUL character"),
    )
    for met, problem in demands:
        if not met:
            raise LrmRejectedError(f"Slurm cannot take this submission: {problem}")


def _is_path(text: str) -> bool:
    return text.startswith("/") and text.isprintable()


def parse_job_id(output: str) -> str | None:
    """Return the job id that sbatch --parsable printed; None unless exactly one line is one.

    Sites print banners on stdout, so other lines are passed over; two lines that could be ids are ambiguous.
    """
    found = [match["id"] for line in output.splitlines() if (match := _PARSABLE.fullmatch(line.strip()))]
    return found[0] if len(found) == 1 and int(found[0]) > 0 else None
