# SPDX-License-Identifier: Apache-2.0
"""What the plugin ``slurm`` sends, and what it makes of Slurm's words, by release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import LrmError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.lrm import Submission
from koala_adapter.lrm.commands import CommandResult
from koala_adapter.lrm.contract import Directives
from koala_adapter.model import BatchKey, EndReason, LrmJobState, NodeState
from koala_adapter.slots import Slot
from koala_slurm import releases
from koala_slurm.client import cancel_error, control_error
from koala_slurm.listing import parse_config, parse_jobs
from koala_slurm.releases import DIFFERENCES, NEW_WORDS
from koala_slurm.settings import SlurmSettings
from koala_slurm.submission import SBATCH, dry_run_command, sbatch_command
from koala_slurm.words import (
    JOB_STATES,
    NODE_FLAGS,
    NODE_STATES,
    START_MAY_SHOW,
    WaitKind,
    job_end,
    job_state,
    node_state,
    parse_job_id,
    reading_error,
    submission_error,
    wait_kind,
)

# The command line of sbatch, the site's changes to it, and the job id in what it prints.

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
    asked = replace(SUBMISSION, queue="short", memory_mib=512, held=True, output_directory="/scratch/50%/")
    settings = SlurmSettings(account="physics", qos="low", reservation="week", environment="login")
    made = command(asked, settings=settings)
    wanted = {"--partition=short", "--mem=512M", "--hold", "--account=physics", "--qos=low", "--reservation=week"}
    assert wanted <= set(made)
    assert {"--export=NONE", "--output=/scratch/50%%/%x.%a.out"} <= set(made)


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


def test_directives_of_a_job_and_of_a_map_are_checked_as_those_of_a_site() -> None:
    with pytest.raises(LrmRejectedError, match="directive '--array=1-9' of the job would make") as caught:
        command(replace(SUBMISSION, slot=Slot(directives=("--array=1-9",))))
    assert caught.value.hint == "correct the directives of the job"
    problem = SBATCH.problem_of(Directives(map=(("gpus", ("--array=1-{n}",)),)))
    assert problem.startswith("'--array=1-{n}' of gpus in [clusters.map] would make the placeholders impossible")


def test_output_is_where_it_is_looked_for() -> None:
    kept = replace(SUBMISSION, output_directory="/scratch")
    (option,) = (argument for argument in command(kept) if argument.startswith("--output="))
    pattern = option.partition("=")[2]
    assert pattern.replace("%x", SUBMISSION.key).replace("%a", "3") == kept.output_path(3)


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
    dropped = set(command()) - set(command(drop=[name]))
    assert len(dropped) == 1


def test_rename_keeps_the_value() -> None:
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
    (text,) = (*directives.add, *directives.drop, *(old for old, _ in directives.rename))
    assert repr(text) in problem
    with pytest.raises(LrmRejectedError, match="directive"):
        sbatch_command(SUBMISSION, SlurmSettings(), directives)


def test_dry_run_changes_nothing_else() -> None:
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
    assert parse_job_id(output) == job


@given(st.text())
def test_job_id_of_anything(output: str) -> None:
    job = parse_job_id(output)
    assert job is None or (job.isdecimal() and any(line.strip().startswith(job) for line in output.splitlines()))


# What Slurm's words for states mean, and what its complaints mean.

SAMPLES = Path(__file__).parents[2] / "wire" / "samples" / "slurm_limits"


def result(stderr: str, *, returncode: int = 1, stdout: str = "") -> CommandResult:
    """Return what a command printed."""
    return CommandResult(
        argv=("command",), returncode=returncode, stdout=stdout.encode(), stderr=stderr.encode("utf-8")
    )


@pytest.mark.parametrize(
    ("word", "reason", "state"),
    [
        ("PENDING", "Resources", LrmJobState.QUEUED),
        ("PENDING", "JobHeldUser", LrmJobState.HELD),
        ("PENDING", "JobHeldAdmin", LrmJobState.HELD),
        ("PENDING", "launch failed requeued held", LrmJobState.HELD),
        ("PENDING", "job requeued in held state", LrmJobState.HELD),
        ("PENDING", "JobHoldMaxRequeue", LrmJobState.HELD),
        ("PENDING", "BeginTime", LrmJobState.QUEUED),
        ("RUNNING", "JobHeldAdmin", LrmJobState.RUNNING),
        ("REQUEUE_HOLD", "JobHeldUser", LrmJobState.HELD),
        ("CONFIGURING", "None", LrmJobState.STARTING),
        ("COMPLETING", "None", LrmJobState.ENDING),
        ("OUT_OF_MEMORY", "OutOfMemory", LrmJobState.ENDED),
        ("HIBERNATING", "None", LrmJobState.UNKNOWN),
        ("", "", LrmJobState.UNKNOWN),
        ("running", "", LrmJobState.UNKNOWN),
    ],
)
def test_job_state(word: str, reason: str, state: LrmJobState) -> None:
    assert job_state(word, reason) is state


@pytest.mark.parametrize(
    ("word", "code", "signal", "end"),
    [
        ("COMPLETED", 0, 0, EndReason.EXITED),
        ("FAILED", 3, 0, EndReason.EXITED),
        ("FAILED", 0, 9, EndReason.SIGNALLED),
        ("FAILED", 0, 53, EndReason.LAUNCH_FAILED),
        ("FAILED", 0, 0, EndReason.LAUNCH_FAILED),
        ("CANCELLED", 0, 15, EndReason.CANCELLED),
        ("TIMEOUT", 0, 15, EndReason.WALLTIME),
        ("DEADLINE", 0, 0, EndReason.WALLTIME),
        ("OUT_OF_MEMORY", 0, 125, EndReason.MEMORY),
        ("NODE_FAIL", 0, 0, EndReason.NODE_LOST),
        ("BOOT_FAIL", 0, 0, EndReason.LAUNCH_FAILED),
        ("PREEMPTED", 0, 15, EndReason.LOST),
        ("RUNNING", 0, 0, None),
        ("COMPLETING", 0, 9, None),
        ("NEW_WORD", 3, 0, None),
    ],
)
def test_job_end(word: str, code: int, signal: int, end: EndReason | None) -> None:
    assert job_end(word, exit_code=code, signal=signal) is end


def test_job_that_never_ran() -> None:
    assert job_end("FAILED", exit_code=0, signal=1, ran=False) is EndReason.LAUNCH_FAILED
    assert job_end("CANCELLED", exit_code=0, signal=0, ran=False) is EndReason.CANCELLED


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("idle", NodeState.UP),
        ("mixed", NodeState.UP),
        ("allocated", NodeState.UP),
        ("completing", NodeState.UP),
        ("planned", NodeState.UP),
        ("mixed-", NodeState.UP),
        ("idle~", NodeState.UP),
        ("idle#", NodeState.UP),
        ("idle*", NodeState.DOWN),
        ("idle~*", NodeState.DOWN),
        ("idle%", NodeState.DRAINING),
        ("idle!", NodeState.DRAINING),
        ("idle$", NodeState.DRAINING),
        ("idle@", NodeState.DRAINING),
        ("mixed@", NodeState.DRAINING),
        ("reboot^", NodeState.DOWN),
        ("draining", NodeState.DRAINING),
        ("drained", NodeState.DRAINING),
        ("drained*", NodeState.DOWN),
        ("draining@", NodeState.DRAINING),
        ("down", NodeState.DOWN),
        ("down*", NodeState.DOWN),
        ("fail", NodeState.DOWN),
        ("maint", NodeState.DRAINING),
        ("reserved", NodeState.DRAINING),
        ("unknown", NodeState.UNKNOWN),
        ("unk*", NodeState.UNKNOWN),
        ("dreaming", NodeState.UNKNOWN),
        ("", NodeState.UNKNOWN),
        ("*", NodeState.UNKNOWN),
        ("IDLE+NOT_RESPONDING", NodeState.DOWN),
        ("IDLE+DRAIN", NodeState.DRAINING),
        ("MIXED+PLANNED", NodeState.UP),
        ("IDLE+CLOUD+POWERED_DOWN", NodeState.UP),
        ("IDLE+SOME_NEW_FLAG", NodeState.UP),
        ("DOWN+DRAIN+INVALID_REG", NodeState.DOWN),
    ],
)
def test_node_state(word: str, state: NodeState) -> None:
    assert node_state(word) is state


def test_reserved_nodes_are_ours_in_a_reservation() -> None:
    assert node_state("reserved", reserved_is_up=True) is NodeState.UP
    assert node_state("reserved*", reserved_is_up=True) is NodeState.DOWN


FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        (FAILED + "Unable to contact slurm controller (connect failure)", LrmUnreachableError),
        (FAILED + "Socket timed out on send/recv operation", LrmUnavailableError),
        (FAILED + "Connection refused", LrmUnavailableError),
        (FAILED + "Zero Bytes were transmitted or received", LrmUnavailableError),
        (FAILED + "Slurm temporarily unable to accept job, sleeping and retrying", LrmUnavailableError),
        (FAILED + "Resource temporarily unavailable", LrmUnavailableError),
        (FAILED + "Unable to create job record, try again", LrmUnavailableError),
        (
            "sbatch: error: AssocMaxSubmitJobLimit\n" + FAILED + "Job violates accounting/QOS policy (job submit "
            "limit, user's size and/or time limits)",
            LrmUnavailableError,
        ),
        (FAILED + "Required partition not available (inactive or drain)", LrmUnavailableError),
        (
            "sbatch: error: invalid partition specified: x\n" + FAILED + "Invalid partition name specified",
            LrmRejectedError,
        ),
        (FAILED + "Invalid account or account/partition combination specified", LrmRejectedError),
        (FAILED + "Requested node configuration is not available", LrmRejectedError),
        (FAILED + "Invalid job array specification", LrmRejectedError),
        (FAILED + "Something that no release has said so far", LrmRejectedError),
        ("sbatch: error: no jobs on Fridays here\n" + FAILED + "Unspecified error", LrmRejectedError),
        ("sbatch: unrecognized option '--nosuch'\nTry \"sbatch --help\" for more information", LrmRejectedError),
        ("sbatch: error: Invalid --time specification", LrmRejectedError),
        ("sbatch: error: Invalid generic resource (gres) specification", LrmRejectedError),
        ("sbatch: error: This does not look like a batch script.  The first\nsbatch: error: line", LrmRejectedError),
        (FAILED + "Invalid authentication credential", LrmUnavailableError),
        ("sbatch: fatal: Could not establish a configuration source", LrmUnavailableError),
        ("Segmentation fault", LrmUnavailableError),
        ("", LrmUnavailableError),
    ],
)
def test_submission_error(stderr: str, kind: type[LrmError]) -> None:
    error = submission_error(result(stderr))
    assert type(error) is kind
    assert error.message


def test_submission_error_names_the_way_out() -> None:
    """The error shows Slurm's own words and what to do."""
    error = submission_error(result(FAILED + "Invalid account or account/partition combination specified"))
    assert "Invalid account" in error.message
    assert "sacctmgr" in error.hint


@pytest.mark.parametrize("stderr", ["slurm_load_jobs error: Unable to contact slurm controller (connect failure)", ""])
@pytest.mark.parametrize("returncode", [1, -9])
def test_failed_listing_is_no_listing(stderr: str, returncode: int) -> None:
    error = reading_error(result(stderr, returncode=returncode), action="listing")
    assert isinstance(error, LrmUnavailableError)


def test_listing_with_a_warning_is_one() -> None:
    """A word on stderr alone does not make a listing fail, but Slurm's own failure does, whatever the exit status."""
    assert reading_error(result("squeue: debug: nothing", returncode=0), action="listing") is None
    for words in ("slurm_load_jobs error: Socket timed out", "squeue: error: Invalid user: nobody"):
        failed = result(words, returncode=0)
        assert isinstance(reading_error(failed, action="listing"), LrmUnavailableError)


KILL = "scancel: error: Kill job error on job id "


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ("", None),
        (KILL + "5: Invalid job id specified", None),
        (KILL + "5: Job/step already completing or completed", None),
        (KILL + "5: Access/permission denied", LrmRejectedError),
        (KILL + "5: Unable to contact slurm controller (connect failure)", LrmUnreachableError),
        (
            KILL + "5: Access/permission denied\n" + KILL + "6: Socket timed out on send/recv operation",
            LrmUnavailableError,
        ),
        (KILL + "5: Invalid job id specified\n" + KILL + "6: Access/permission denied", LrmRejectedError),
        (KILL + "5: A new complaint", LrmUnavailableError),
    ],
)
def test_cancel_error(stderr: str, kind: type[LrmError] | None) -> None:
    """Silence is success, unless the exit status says otherwise."""
    error = cancel_error(result(stderr, returncode=210 if stderr else 0))
    assert type(error) is (kind or type(None))
    assert isinstance(cancel_error(result("", returncode=137)), LrmUnavailableError)


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ("5_1: Requested operation is presently disabled", LrmRejectedError),
        ("Access/permission denied for job 5_1", LrmRejectedError),
        (
            "Job update not available right now, the DB index is being set, try again in a bit for job 5",
            LrmRejectedError,
        ),
        ("slurm_suspend error: Unable to contact slurm controller (connect failure)", LrmUnreachableError),
        ("something new", LrmRejectedError),
    ],
)
def test_control_error(stderr: str, kind: type[LrmError]) -> None:
    assert type(control_error(result(stderr), action="hold")) is kind


def test_quiet_control_is_done() -> None:
    assert control_error(result("", returncode=0), action="hold") is None
    assert control_error(result("", returncode=1), action="hold") is not None


@pytest.mark.parametrize("release", ["22.05.8", "26.05"])
def test_every_reason_of_slurm_is_known(release: str) -> None:
    """All words of the libraries of two releases."""
    words = (SAMPLES / f"wait-reasons-{release}.txt").read_text().split()
    assert len(words) > 150
    assert [word for word in words if wait_kind(word) is WaitKind.UNKNOWN] == []


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("", WaitKind.PROCESSORS),
        ("None", WaitKind.PROCESSORS),
        ("Resources", WaitKind.PROCESSORS),
        ("Cleaning", WaitKind.PASSING),
        ("AssocGrpCpuLimit", WaitKind.SHARED_LIMIT),
        ("AssocMaxJobsLimit", WaitKind.SHARED_LIMIT),
        ("QOSMaxJobsPerUserLimit", WaitKind.SHARED_LIMIT),
        ("MaxJobsPerAccount", WaitKind.SHARED_LIMIT),
        ("QOSMaxCpuPerJobLimit", WaitKind.OWN_LIMIT),
        ("AssocMaxNodePerJobLimit", WaitKind.OWN_LIMIT),
        ("QOSMinCpuNotSatisfied", WaitKind.OWN_LIMIT),
        ("(BadConstraints)", WaitKind.OWN_LIMIT),
        ("ReqNodeNotAvail", WaitKind.PROCESSORS),
        ("ReqNodeNotAvail, UnavailableNodes:n2", WaitKind.PROCESSORS),
        ("ReqNodeNotAvail(Unavailable:n2)", WaitKind.PROCESSORS),
        ("ReqNodeNotAvail, May be reserved for other job", WaitKind.PROCESSORS),
        ("ReqNodeNotAvail, Reserved for maintenance", WaitKind.SITE),
        ("MpiPortsBusy", WaitKind.OTHERS),
        ("MaxCpuRunMinsPerUser", WaitKind.SHARED_LIMIT),
        ("JobArrayTaskLimit", WaitKind.OTHERS),
        ("Job's account not permitted to use this partition (aa allows chem not phys)", WaitKind.OWN_LIMIT),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            WaitKind.PROCESSORS,
        ),
        ("a word of tomorrow", WaitKind.UNKNOWN),
    ],
)
def test_what_a_reason_means(reason: str, kind: WaitKind) -> None:
    assert wait_kind(reason) is kind
    row = ("7", "ann", "PENDING", "6", "main", "", "1795000000", "N/A", "N/A", "0:0", reason, "job")
    (job,) = parse_jobs("\x1f".join(row) + "\x1f\n")
    assert job.blocked == (kind not in START_MAY_SHOW)


# The table of what differs between releases of Slurm.


def test_the_table_is_in_order() -> None:
    """By release; each is one that is served, and none is there twice."""
    since = [one.since for one in DIFFERENCES]
    assert since == sorted(since)
    assert since[0] > releases.OLDEST
    assert since[-1] <= releases.NEWEST
    assert len({(one.since, one.subject) for one in DIFFERENCES}) == len(DIFFERENCES)
    assert all(one.before != one.then for one in DIFFERENCES)


def test_what_the_code_goes_by_is_in_the_table() -> None:
    named = {one for one in vars(releases).values() if isinstance(one, releases.Difference)}
    assert named <= set(DIFFERENCES)


def test_new_words_have_a_meaning() -> None:
    assert set(NEW_WORDS) <= {*JOB_STATES, *NODE_STATES, *NODE_FLAGS.values()}
    assert all(releases.OLDEST < since <= releases.NEWEST for since in NEW_WORDS.values())


@pytest.mark.parametrize(
    ("version", "by_node", "tells"),
    [("22.05.8", True, False), ("23.11.0", False, False), ("25.11.7", False, False), ("26.05.5", False, True)],
)
def test_a_controller_of_a_release(version: str, by_node: bool, tells: bool) -> None:  # noqa: FBT001 - parameters
    config = parse_config(f"SLURM_VERSION           = {version}\n")
    assert (config.takes_cores_by_node, config.partitions_tell_more) == (by_node, tells)


@pytest.mark.parametrize(
    ("number", "controller", "fits"),
    [
        (38, (22, 5), True),
        (38, (23, 11), True),
        (38, (24, 5), False),
        (39, (24, 11), True),
        (38, (25, 11), False),
        (44, (25, 11), True),
        (45, (25, 11), False),
        (99, (25, 11), True),
        (38, (30, 5), True),
        (38, (), True),
    ],
)
def test_a_library_of_another_release(tmp_path: Path, number: int, controller: tuple[int, ...], *, fits: bool) -> None:
    """As far as slurmctld serves older ones; what is not known is tried."""
    library = tmp_path / "libdrmaa.so"
    library.write_bytes(b"\x7fELF..\0libc.so.6\0" + f"libslurm.so.{number}\0".encode() + b"drmaa_init\0")
    told = releases.misfit(library, controller)
    assert (told == "") == fits
    assert fits or f"libslurm of Slurm {releases.name_of(releases.LIBRARIES[number])}" in told


def test_a_library_that_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "libdrmaa.so").write_bytes(b"\x7fELF")
    assert releases.misfit(tmp_path / "libdrmaa.so", (25, 11)) == ""
    assert releases.misfit(tmp_path / "missing", (25, 11)) == ""
