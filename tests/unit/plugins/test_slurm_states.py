# SPDX-License-Identifier: Apache-2.0
"""What Slurm's words for states mean, and what its complaints mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.lrm.commands import CommandResult
from koala_adapter.model import EndReason, LrmJobState, NodeState
from koala_slurm.client import cancel_error, control_error
from koala_slurm.listing import parse_jobs
from koala_slurm.words import (
    END_REASONS,
    JOB_STATES,
    START_MAY_SHOW,
    WaitKind,
    job_end,
    job_state,
    node_state,
    reading_error,
    submission_error,
    wait_kind,
)

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
    """Known words have one meaning, with the reason where it says more; unknown words are unknown."""
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
    """The reason of an end is told where Slurm tells it, and not at all before the end."""
    assert job_end(word, exit_code=code, signal=signal) is end


def test_job_that_never_ran() -> None:
    """The status of a job that never had a node is no exit status."""
    assert job_end("FAILED", exit_code=0, signal=1, ran=False) is EndReason.LAUNCH_FAILED
    assert job_end("CANCELLED", exit_code=0, signal=0, ran=False) is EndReason.CANCELLED


def test_every_end_state_has_a_reason() -> None:
    """No state counts as ended without a reason."""
    ended = {word for word, state in JOB_STATES.items() if state is LrmJobState.ENDED}
    assert set(END_REASONS) | {"COMPLETED", "FAILED"} == ended


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
    """A node is as bad as the worst that is said of it; flags count like words."""
    assert node_state(word) is state


def test_reserved_nodes_are_ours_in_a_reservation() -> None:
    """Who submits into a reservation may use reserved nodes, but no broken ones."""
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
    """A refusal for good is told from a "later"; whatever leaves doubt counts as unknown."""
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
    """A listing that failed, even without a word, is an error and never an empty list."""
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
    """Jobs that are gone are cancelled; of several complaints the worst counts."""
    error = cancel_error(result(stderr, returncode=210 if stderr else 0))
    assert type(error) is (kind or type(None))


def test_silent_failure_of_scancel_is_unknown() -> None:
    """An exit status without a word is no cancellation."""
    assert isinstance(cancel_error(result("", returncode=137)), LrmUnavailableError)


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ("5_1: Invalid job id specified", LrmNotFoundError),
        ("5_1: Requested operation is presently disabled", LrmRejectedError),
        ("Access/permission denied for job 5_1", LrmRejectedError),
        ("5_1: Invalid node name specified", LrmRejectedError),
        (
            "Job update not available right now, the DB index is being set, try again in a bit for job 5",
            LrmRejectedError,
        ),
        ("slurm_suspend error: Unable to contact slurm controller (connect failure)", LrmUnreachableError),
        ("something new", LrmRejectedError),
    ],
)
def test_control_error(stderr: str, kind: type[LrmError]) -> None:
    """Complaints of scontrol are told apart."""
    assert type(control_error(result(stderr), action="hold")) is kind


def test_quiet_control_is_done() -> None:
    """A scontrol that says nothing has done it; one that fails says so by its exit status."""
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
    """A job that was released starts yet, or does not."""
    assert wait_kind(reason) is kind
    row = ("7", "ann", "PENDING", "6", "main", "", "1795000000", "N/A", "N/A", "0:0", reason, "job")
    (job,) = parse_jobs("\x1f".join(row) + "\x1f\n")
    assert job.blocked == (kind not in START_MAY_SHOW)
