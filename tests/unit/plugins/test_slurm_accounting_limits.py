# SPDX-License-Identifier: Apache-2.0
"""Limits of associations and QOS, as a real Slurm showed them, and the words of squeue for what a limit keeps back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from koala_adapter.errors import LrmRejectedError
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState
from koala_slurm.limits import over_limits, parse_accounting_limits
from koala_slurm.listing import new_separator, parse_config, parse_jobs
from koala_slurm.outside import OutsideReader
from koala_slurm.starting import StartNotes
from koala_slurm.words import START_MAY_SHOW, WaitKind, wait_kind
from tests.unit.plugins.test_slurm_outside import listing, wide

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_slurm.client import SlurmCommands

pytestmark = pytest.mark.anyio

SAMPLES = Path(__file__).parents[2] / "wire" / "samples" / "slurm_limits"
SHOWN = (SAMPLES / "assoc_mgr-22.05.8.txt").read_text()
LIMITS = parse_accounting_limits(SHOWN)
"""Account phys has 2 of 8 processors left, and 2 of 5 jobs; its user nobody runs as many jobs as it may."""
JOB = LrmJob(
    id=LrmJobId("7"),
    name="j",
    state=LrmJobState.HELD,
    user="daemon",
    processors=2,
    account="phys",
    queue="main",
    walltime=60,
)
CHEM = replace(JOB, user="nobody", account="chem")


@pytest.mark.parametrize(
    ("job", "qos", "words"),
    [
        (JOB, "normal", ""),
        (replace(JOB, processors=3), "normal", "account phys has 2 left of GrpTRES=cpu=8, and it asks for 3"),
        (replace(JOB, user="nobody"), "normal", "user nobody in account phys has 0 left of MaxJobs=2"),
        (replace(JOB, user="nobody", processors=7), "normal", "MaxTRESPJ=cpu=6, and it asks for 7"),
        (replace(JOB, user="nobody", walltime=3660), "normal", "MaxWallPJ=60, and it asks for 61"),
        (replace(JOB, walltime=660), "short", "QOS short has MaxWallPJ=10, and it asks for 11"),
        (replace(JOB, processors=1), "short", "QOS short has MinTRESPJ=cpu=2"),
        (replace(JOB, processors=5), "short", "QOS short has 4 left of GrpTRES=cpu=6"),
        # The limit of the QOS takes the place of the account's.
        (replace(JOB, processors=4), "short", ""),
        (CHEM, "short", "QOS short of user nobody has 1 left of MaxTRESPU=cpu=3, and it asks for 2"),
        (CHEM, "tight", "QOS tight of account chem has 0 left of MaxJobsPA=1"),
        (replace(JOB, nodes_least=2), "tight", "QOS tight has MaxTRESPJ=node=1, and it asks for 2"),
        (replace(JOB, account="", processors=100), "", ""),
        (replace(JOB, user="stranger", processors=100), "no such", ""),
    ],
)
def test_what_a_limit_keeps_back(job: LrmJob, qos: str, words: str) -> None:
    """It is named with what is left of it."""
    found = over_limits([job], {job.id: (qos,)}, LIMITS).get(job.id, "")
    assert words in found
    assert bool(found) == bool(words)


def test_what_is_left_is_shared_in_order() -> None:
    """What was released has its share already; who fits into the rest is not kept back by who does not."""
    jobs = [replace(JOB, id=LrmJobId(str(number)), processors=1) for number in range(4)]
    jobs[0] = replace(jobs[0], state=LrmJobState.QUEUED)
    jobs[1] = replace(jobs[1], processors=2)
    found = over_limits(jobs, {job.id: ("normal",) for job in jobs}, LIMITS)
    assert set(found) == {"1", "3"}
    assert found[LrmJobId("1")] == "account phys has 1 left of GrpTRES=cpu=8, and it asks for 2"


def test_a_limit_of_nodes_bounds_where_the_user_leaves_it_open() -> None:
    """So nobody is told that the job may have more."""
    assert LIMITS.bounding(JOB, ("tight",)).node_bounds == (1, 1)
    assert LIMITS.bounding(JOB, ("normal",)).node_bounds == (1, None)


def test_the_qos_of_a_partition_comes_first() -> None:
    """Only what it leaves open is the job's own QOS's."""
    job = replace(JOB, processors=5, walltime=660)
    assert "QOS short" in over_limits([job], {job.id: ("short", "normal")}, LIMITS)[job.id]
    assert "account phys" in over_limits([job], {job.id: ("tight", "normal")}, LIMITS)[job.id]


@pytest.mark.parametrize(
    ("text", "enforced"),
    [("associations,limits,qos", True), ("associations,limits,safe", True), ("associations", False), ("none", False)],
)
def test_whether_limits_hold(text: str, enforced: bool) -> None:  # noqa: FBT001
    """Only then are they asked for."""
    assert parse_config(f"AccountingStorageEnforce = {text}\n").limits_enforced is enforced


class Commands:
    """A Slurm that prints what a test gives it."""

    def __init__(self, outputs: Mapping[str, str]) -> None:
        """``outputs`` by a word of the command."""
        self.outputs = outputs
        self.asked: list[str] = []

    async def read(self, command: Sequence[str], *, action: str, environment: Mapping[str, str] | None = None) -> str:  # noqa: ARG002
        """Return what is printed; refuse what there is nothing for."""
        self.asked.append(" ".join(command))
        found = next((text for word, text in self.outputs.items() if word in command), None)
        if found is None:
            raise LrmRejectedError("Access/permission denied")
        return found


@pytest.mark.parametrize(("enforced", "shown"), [(True, True), (True, False), (False, True)])
async def test_jobs_that_limits_keep_back_are_told(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    enforced: bool,  # noqa: FBT001
    shown: bool,  # noqa: FBT001
) -> None:
    """Where limits hold and may be seen; where they may not be seen, jobs are listed all the same."""
    separator = new_separator()
    monkeypatch.setattr("koala_slurm.outside.new_separator", lambda: separator)
    plain = {
        "Reason": "JobHeldAdmin",
        "cpus-per-task": "1",
        "Feature": "(null)",
        "ReqNodes": "(null)",
        "TimeLimit": "1:00",
    }
    rows = [wide(JobArrayID=n, UserName="daemon", NumCPUs="2", Account="phys", **plain) for n in ("7", "8")]
    values = "Account=phys QOS=normal NumNodes=1 NumCPUs=2"
    details = "".join(f"JobId={number} JobName=j\n   {values}\n\n" for number in ("7", "8"))
    outputs = {"squeue": listing(separator, *rows), "job": details, "partition": ""}
    commands = Commands(outputs | ({"assoc_mgr": SHOWN} if shown else {}))
    reader = OutsideReader(cast("SlurmCommands", commands), StartNotes(tmp_path))
    reader.limits_enforced = enforced
    first, second = await reader.jobs()
    assert first.obstacle == ""
    assert ("0 left of GrpTRES=cpu=8" in second.obstacle) == (enforced and shown)
    assert any("assoc_mgr" in command for command in commands.asked) == enforced


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
