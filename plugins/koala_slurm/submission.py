# SPDX-License-Identifier: Apache-2.0
"""The command line of sbatch(1), and the changes that a site makes to it.

The script goes in on stdin: it contains a secret, which must not show in a command line or a file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.lrm import NOWHERE
from koala_adapter.lrm.commandplugin import Option, SubmissionForm
from koala_adapter.slots import SLOT_KEYS, Slot
from koala_slurm.words import minutes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from koala_adapter.lrm import Submission
    from koala_adapter.lrm.contract import Directives
    from koala_adapter.lrm.mapping import Divided
    from koala_slurm.settings import SlurmSettings

# -- Options of sbatch ---------------------------------------------------------------------------------------

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


def long_name(text: str) -> str:
    """Return the long name in an option as written in a site file (``-p``, ``--time=5`` ...)."""
    name = text.strip().partition("=")[0].split(maxsplit=1)[0] if text.strip() else ""
    if name.startswith("-") and not name.startswith("--"):
        return SHORT_NAMES.get(name[:2], name[:2])
    return name


class SbatchForm(SubmissionForm):
    """Options have a long name and perhaps a short one; their values follow an equals sign, or a short name."""

    def name(self, word: str) -> str:
        return long_name(word)

    def is_option(self, words: Sequence[str]) -> bool:
        return words[0].startswith("-") and words[0] not in {"-", "--"}

    def is_one_option(self, words: Sequence[str]) -> bool:
        option, *values = words
        return not values or not (len(values) > 1 or "=" in option or values[0].startswith("-"))

    def is_name(self, text: str) -> bool:
        return text.strip().startswith("-")

    def is_new_name(self, text: str) -> bool:
        return self.is_name(text) and len(text.split()) == 1 and "=" not in text

    def is_named(self, option: Option, text: str) -> bool:
        return option[0] == long_name(text)

    def renamed(self, option: Option, text: str) -> Option:
        return (text.strip(), *option[1:])

    def written(self, option: Option) -> tuple[str, ...]:
        return ("=".join(option),) if option[0].startswith("--") else option


SBATCH = SbatchForm(
    system="Slurm",
    ours=frozenset({"--parsable", "--job-name", "--array"}),
    harmful=frozenset({"--clusters", "--test-only", "--wait", "--wrap"}),
    in_template=frozenset(
        {
            *("--parsable", "--ignore-pbs", "--job-name", "--array", "--chdir"),
            *("--output", "--open-mode", "--export", "--hold"),
        }
    ),
    key=re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@:-]{0,199}", re.ASCII),
    queue=re.compile(r"[^\s\x00-\x1f\x7f-]\S*"),
    queue_word="partition",
)

# -- Submissions ---------------------------------------------------------------------------------------------

SLOTS = frozenset(SLOT_KEYS)
"""Keys of a slot that sbatch has options for: all."""


def sbatch_command(submission: Submission, settings: SlurmSettings, directives: Directives) -> tuple[str, ...]:
    """Return the command line of a submission. Raises LrmRejectedError when it cannot be expressed."""
    divided = SBATCH.divided(submission, SLOTS, directives)
    return ("sbatch", *SBATCH.arguments(_options(divided, settings), divided.directives))


def dry_run_command(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the same command line for sbatch --test-only, which asks the controller and submits nothing."""
    return (command[0], "--test-only", *command[1:])


def native_specification(submission: Submission, settings: SlurmSettings, directives: Directives) -> str:
    """Return the native specification for slurm-drmaa: all that a job template lacks.

    It knows fewer options than sbatch, hours and minutes, and memory in MiB alone. Raises LrmRejectedError.
    """
    divided = SBATCH.divided(submission, SLOTS, directives)
    return SBATCH.native(map(_as_drmaa_takes, _options(divided, settings)), divided.directives)


def _as_drmaa_takes(option: Option) -> Option:
    match option:
        case ("--time", minutes_):
            return ("--time", f"0:{minutes_}")
        case ("--mem" | "--tmp" as name, amount):
            return (name, amount.removesuffix("M"))
    return option


def obstacle_to_drmaa(settings: SlurmSettings, directives: Directives) -> str:
    """Return why submissions of a cluster cannot go through slurm-drmaa; empty when they can."""
    if settings.environment != "built":
        return f"environment = {settings.environment!r} cannot be had through DRMAA"
    return SBATCH.obstacle_to_drmaa(directives)


def _options(divided: Divided, settings: SlurmSettings) -> Iterator[Option]:
    submission = divided.rest
    yield ("--parsable",)
    # sbatch obeys lines that look like directives of PBS or LSF, wherever they stand in the script.
    yield ("--ignore-pbs",)
    yield ("--job-name", submission.key)
    yield ("--array", f"1-{submission.count}")
    # A placeholder is a task on a node. Slurm counts processors as the nodes show them: cores, or their threads.
    yield ("--nodes", "1")
    yield ("--ntasks", "1")
    if "threads" not in divided.mapped:
        yield ("--cpus-per-task", str(submission.slot.threads))
    yield ("--time", str(minutes(submission.walltime)))
    # A requeued placeholder would dial in with a token that has been used.
    yield ("--no-requeue",)
    # Our own directory may not exist on the nodes.
    yield ("--chdir", "/")
    directory = submission.output_directory
    yield ("--output", NOWHERE if directory is None else f"{directory.rstrip('/').replace('%', '%%')}/%x.%a.out")
    # The directory may be everybody's: truncating would destroy a file that somebody else has put in the way.
    yield ("--open-mode", "append")
    # Anything but ALL makes slurmd run the user's login shell on the node and wait for it, NIL too before 23.11. The
    # environment of sbatch is built by us, so ALL exports nothing that is not meant to be.
    yield ("--export", "ALL" if settings.environment == "built" else "NONE")
    if submission.queue is not None:
        yield ("--partition", submission.queue)
    if submission.memory_mib is not None:
        yield ("--mem", f"{submission.memory_mib}M")
    if submission.held:
        yield ("--hold",)
    yield from _slot_options(submission.slot)
    reservation = submission.reservation or ""
    slot = submission.slot
    for name, asked in (("account", slot.account), ("qos", slot.qos), ("reservation", reservation)):
        value = asked or getattr(settings, name)
        if value is not None and name not in divided.mapped:
            yield (f"--{name}", value)


def _slot_options(slot: Slot) -> Iterator[Option]:
    if slot.gpus:
        # Of the node, and so of its one task: --gpus may be spread over nodes.
        yield ("--gres", ":".join(filter(None, ("gpu", slot.gpu_kind, str(slot.gpus)))))
    if slot.exclusive:
        yield ("--exclusive",)
    if slot.scratch_mib:
        yield ("--tmp", f"{slot.scratch_mib}M")
    if slot.features:
        yield ("--constraint", "&".join(slot.features))
    if slot.licenses:
        yield ("--licenses", ",".join(f"{name}:{count}" for name, count in slot.licenses))
