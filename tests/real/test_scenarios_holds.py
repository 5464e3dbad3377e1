# SPDX-License-Identifier: Apache-2.0
"""Placeholders that somebody put in hold in their batch system: whoever waits is told who holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.real.lrms import local_job, placeholders, submissions
from tests.real.systems import SlurmCluster
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part

if TYPE_CHECKING:
    from koala_adapter.report.values import JobReport
    from tests.real.conftest import NewUser
    from tests.real.lrms import System
    from tests.real.systems import GridEngineCell
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")]

HOLD = {
    "operator": {True: ("scontrol", "hold"), False: ("qhold", "-h", "o")},
    "user": {True: ("scontrol", "uhold"), False: ("qhold", "-h", "u")},
}
RELEASE = {True: ("scontrol", "release"), False: ("qrls", "-h", "uo")}


def holders(report: JobReport) -> list[tuple[str, int]]:
    """Return who holds how many placeholders of a job."""
    return [(one.holder, one.placeholders) for component in report.components for one in component.holds]


def expect_told(user: KoalaUser, system: System, holder: str, said: str) -> None:
    """Put the queued placeholders of a job in hold; insist that it is told by whom, and that it runs once released."""
    slurm = isinstance(system, SlurmCluster)
    number = ""
    size = system.slots if not isinstance(system, SlurmCluster) else system.cpus * len(system.nodes)
    with local_job(system, size):
        file = user.job_file(part(system.name, 2, "true"))
        shown = user.directory / "progress"
        command = user.start_into(shown, "run", str(file))
        wait_until(lambda: len(placeholders(system)) == 2, seconds=PATIENCE, what="queued", details=user.details)
        number = submissions(system, user.prefix)[-1][1]
        system.run(*HOLD[holder][slurm], number)
        report = user.wait("1", lambda report: bool(holders(report)), what="in hold")
    assert holders(report) == [(holder, 2)]
    told = user.run("explain", "1").text
    assert f"2 in hold {said}" in told, told
    assert f"2 in hold {said}" in user.run("status", "1").text
    assert user.run("status", "1", "--json").json["components"][0]["holds"][0]["holder"] == holder
    words = f"2 in hold there: {holder}"
    wait_until(lambda: words in shown.read_text(), seconds=PATIENCE, what=words, details=shown.read_text)
    system.run(*RELEASE[slurm], number)
    try:
        assert command.wait(PATIENCE) == 0, shown.read_text()
    finally:
        command.kill()


@pytest.mark.parametrize(
    ("holder", "said"),
    [
        ("operator", "by an operator (JobHeldAdmin)"),
        ("user", "by its user or a submission hook (JobHeldUser)"),
    ],
)
def test_hold_in_slurm_is_told(new_user: NewUser, slurm_a: SlurmCluster, holder: str, said: str) -> None:
    """`scontrol hold` by an operator, and a user's own, which a hook's looks like."""
    expect_told(new_user(slurm_a), slurm_a, holder, said)


@pytest.mark.parametrize(
    ("holder", "said"), [("operator", "by an operator for"), ("user", "by its user or a submission hook for")]
)
def test_hold_in_grid_engine_is_told(new_user: NewUser, sge_cell: GridEngineCell, holder: str, said: str) -> None:
    """`qhold -h o` and `qhold -h u`."""
    expect_told(new_user(sge_cell), sge_cell, holder, said)
