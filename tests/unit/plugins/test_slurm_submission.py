# SPDX-License-Identifier: Apache-2.0
"""The command line of sbatch, the site's changes to it, and the job id in what it prints."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import LrmRejectedError
from koala_adapter.lrm import Submission
from koala_adapter.lrm.contract import Directives
from koala_adapter.model import BatchKey
from koala_adapter.slots import Slot
from koala_slurm.settings import SlurmSettings
from koala_slurm.submission import SBATCH, dry_run_command, sbatch_command
from koala_slurm.words import parse_job_id

if TYPE_CHECKING:
    from collections.abc import Sequence

SUBMISSION = Submission(key=BatchKey("koala-1x"), count=4, script="#!/bin/sh\n: secret\n", walltime=61)


def command(
    submission: Submission = SUBMISSION,
    *,
    settings: SlurmSettings | None = None,
    add: Sequence[str] = (),
    drop: Sequence[str] = (),
    rename: Sequence[tuple[str, str]] = (),
) -> tuple[str, ...]:
    """Return the command line of a submission with the site's changes."""
    directives = Directives(add=tuple(add), drop=tuple(drop), rename=tuple(rename))
    return sbatch_command(submission, settings or SlurmSettings(), directives)


def test_plain_submission() -> None:
    """A submission is one array of single processors, named by its key, with its walltime in whole minutes."""
    assert command() == (
        "sbatch",
        "--parsable",
        "--ignore-pbs",
        "--job-name=koala-1x",
        "--array=1-4",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=1",
        "--time=2",
        "--no-requeue",
        "--chdir=/",
        "--output=/dev/null",
        "--open-mode=append",
        "--export=ALL",
    )


def test_everything_asked_for() -> None:
    """Queue, memory, hold and the settings each become their option."""
    asked = replace(SUBMISSION, queue="short", memory_mib=512, held=True, output_directory="/scratch/50%/")
    settings = SlurmSettings(account="physics", qos="low", reservation="week", environment="login")
    made = command(asked, settings=settings)
    wanted = {"--partition=short", "--mem=512M", "--hold", "--account=physics", "--qos=low", "--reservation=week"}
    assert wanted <= set(made)
    assert {"--export=NONE", "--output=/scratch/50%%/%x.%a.out"} <= set(made)


@pytest.mark.parametrize(("seconds", "minutes"), [(1, 1), (59, 1), (60, 1), (61, 2), (3600, 60), (86401, 1441)])
def test_walltime_is_rounded_up(seconds: int, minutes: int) -> None:
    """Slurm's walltime is never shorter than asked, and at least a minute."""
    assert f"--time={minutes}" in command(replace(SUBMISSION, walltime=seconds))


@pytest.mark.parametrize(
    ("slot", "options"),
    [
        (Slot(threads=4), {"--nodes=1", "--ntasks=1", "--cpus-per-task=4"}),
        (Slot(gpus=2), {"--gres=gpu:2"}),
        (Slot(gpus=2, gpu_kind="a100"), {"--gres=gpu:a100:2"}),
        (Slot(exclusive=True), {"--exclusive"}),
        (Slot(scratch_mib=2048), {"--tmp=2048M"}),
        (Slot(features=("ib", "avx512")), {"--constraint=ib&avx512"}),
        (Slot(licenses=(("matlab", 2), ("comsol@lic", 1))), {"--licenses=matlab:2,comsol@lic:1"}),
        (Slot(account="physics"), {"--account=physics"}),
        (Slot(qos="high"), {"--qos=high"}),
        (Slot(directives=("--comment=x", "-x n7")), {"--comment=x", "-x", "n7"}),
    ],
)
def test_slots_become_options(slot: Slot, options: set[str]) -> None:
    assert options <= set(command(replace(SUBMISSION, slot=slot), settings=SlurmSettings(account="site", qos="low")))


def test_a_slot_takes_precedence_over_the_settings() -> None:
    made = command(replace(SUBMISSION, slot=Slot(account="own")), settings=SlurmSettings(account="site", qos="low"))
    assert [word for word in made if word.startswith(("--account", "--qos"))] == ["--account=own", "--qos=low"]


def test_mapped_keys_take_the_place_of_options() -> None:
    directives = Directives(
        map=(
            ("threads", ("--cpus-per-gpu={n}",)),
            ("memory", ("--mem-per-cpu={mib}M",)),
            ("gpus", ("--gpus-per-node={n}",)),
            ("account", ("--wckey={name}",)),
        )
    )
    asked = replace(SUBMISSION, memory_mib=512, slot=Slot(threads=2, gpus=1, account="physics"))
    made = sbatch_command(asked, SlurmSettings(account="site"), directives)
    assert made[-4:] == ("--mem-per-cpu=512M", "--cpus-per-gpu=2", "--gpus-per-node=1", "--wckey=physics")
    assert not [word for word in made if word.startswith(("--cpus-per-task", "--mem=", "--gres", "--account"))]


def test_directives_of_a_job_are_checked_as_those_of_a_site() -> None:
    with pytest.raises(LrmRejectedError, match="directive '--array=1-9' of the job would make") as caught:
        command(replace(SUBMISSION, slot=Slot(directives=("--array=1-9",))))
    assert caught.value.hint == "correct the directives of the job"


def test_a_map_is_checked_as_directives_are() -> None:
    problem = SBATCH.problem_of(Directives(map=(("gpus", ("--array=1-{n}",)),)))
    assert problem.startswith("'--array=1-{n}' of gpus in [clusters.map] would make the placeholders impossible")


def test_output_is_where_it_is_looked_for() -> None:
    """The pattern of the output file gives each element the file that the contract names."""
    kept = replace(SUBMISSION, output_directory="/scratch")
    (option,) = (argument for argument in command(kept) if argument.startswith("--output="))
    pattern = option.partition("=")[2]
    assert pattern.replace("%x", SUBMISSION.key).replace("%a", "3") == kept.output_path(3)


def test_script_is_not_on_the_command_line() -> None:
    """No argument holds anything of the script."""
    assert not [argument for argument in command() if "secret" in argument]


@pytest.mark.parametrize(
    "wrong",
    [
        replace(SUBMISSION, key=BatchKey("two words")),
        replace(SUBMISSION, key=BatchKey("line\nbreak")),
        replace(SUBMISSION, key=BatchKey("../up")),
        replace(SUBMISSION, key=BatchKey("")),
        replace(SUBMISSION, count=0),
        replace(SUBMISSION, walltime=0),
        replace(SUBMISSION, memory_mib=0),
        replace(SUBMISSION, queue=""),
        replace(SUBMISSION, queue="-x"),
        replace(SUBMISSION, queue="a b"),
        replace(SUBMISSION, output_directory="relative"),
        replace(SUBMISSION, output_directory="/with\nbreak"),
        replace(SUBMISSION, script="echo no interpreter\n"),
        replace(SUBMISSION, script="#!/bin/sh\n\0"),
    ],
)
def test_impossible_submission_is_refused(wrong: Submission) -> None:
    """What Slurm could not take, or would take for something else, is refused before it is sent."""
    with pytest.raises(LrmRejectedError):
        command(wrong)


def test_add_comes_last_and_is_split_once() -> None:
    """Added options follow ours, so that theirs count; an option and its value may be written in one text."""
    made = command(add=["--time=5", "-C haswell", "--comment='two words'"])
    assert made[-4:] == ("--time=5", "-C", "haswell", "--comment=two words")


@pytest.mark.parametrize("name", ["--no-requeue", "--time", "-t", "--chdir", "-D", "--time=99"])
def test_drop_takes_option_and_value(name: str) -> None:
    """A dropped option is gone with its value, whether it is named by its long or its short name."""
    dropped = set(command()) - set(command(drop=[name]))
    assert len(dropped) == 1


def test_rename_keeps_the_value() -> None:
    """A renamed option keeps its value, also when the new name is a short one."""
    made = command(replace(SUBMISSION, memory_mib=100), rename=[("--mem", "--mem-per-cpu"), ("-t", "-t")])
    assert "--mem-per-cpu=100M" in made
    assert made[made.index("-t") + 1] == "2"
    assert "--mem=100M" not in made


@pytest.mark.parametrize(
    "directives",
    [
        Directives(add=("--comment=line\nbreak",)),
        Directives(add=("--comment=nul\0",)),
        Directives(add=("script.sh",)),
        Directives(add=("--mem=1 --time=5",)),
        Directives(add=("-p debug extra",)),
        Directives(add=("--exclusive -x",)),
        Directives(add=("--comment='open",)),
        Directives(add=("--array=1-9",)),
        Directives(add=("-J mine",)),
        Directives(add=("--wrap=true",)),
        Directives(add=("-M other",)),
        Directives(add=("--wait",)),
        Directives(add=("",)),
        Directives(add=("--",)),
        Directives(drop=("--parsable",)),
        Directives(drop=("-J",)),
        Directives(drop=("time",)),
        Directives(drop=("--ti\nme",)),
        Directives(rename=(("--array", "--tasks"),)),
        Directives(rename=(("--mem", "memory"),)),
        Directives(rename=(("--mem", "--mem=5"),)),
        Directives(rename=(("--mem", "--wrap"),)),
        Directives(rename=(("--mem", "--me\nm"),)),
    ],
)
def test_unusable_directives_are_refused(directives: Directives) -> None:
    """A directive that is malformed, or would make the placeholders impossible to follow, is refused by its text."""
    problem = SBATCH.problem_of(directives)
    assert repr([*directives.add, *directives.drop, *(new for _, new in directives.rename)][-1]) in problem or problem
    with pytest.raises(LrmRejectedError, match="directive"):
        sbatch_command(SUBMISSION, SlurmSettings(), directives)


def test_dry_run_changes_nothing_else() -> None:
    """The trial is the very submission, with --test-only."""
    made = command()
    assert [part for part in dry_run_command(made) if part != "--test-only"] == list(made)


@pytest.mark.parametrize(
    ("output", "job"),
    [
        ("123\n", "123"),
        ("123;cluster-a\n", "123"),
        ("Welcome to the cluster 2026!\n\n  4711  \nNews: 12 nodes down\n", "4711"),
        ("", None),
        ("Submitted batch job 123\n", None),
        ("12\n13\n", None),
        ("12\n12\n", None),
        ("0\n", None),
        ("-12\n", None),
        ("12;\n", None),
        ("12;a b\n", None),
        ("99999999999999999999\n", None),
        ("\u0661\u0662\n", None),
    ],
)
def test_job_id(output: str, job: str | None) -> None:
    """The id is the only line that is one; banners are passed over, ambiguity is refused."""
    assert parse_job_id(output) == job


@given(st.text())
def test_job_id_of_anything(output: str) -> None:
    """Whatever is printed, the id found is a line of it, or there is none."""
    job = parse_job_id(output)
    assert job is None or (job.isdecimal() and any(line.strip().startswith(job) for line in output.splitlines()))
