# SPDX-License-Identifier: Apache-2.0
"""The private directories of agents that end without koala, or without any chance: none of them stays on a node."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from koala_adapter.outcome import JobState
from tests.real.leftovers import Traces
from tests.real.lrms import placeholders
from tests.real.systems import SlurmCluster
from tests.real.systems.processes import PATIENCE, SeenProcess, find_processes, wait_until
from tests.real.user import part

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.conftest import NewUser
    from tests.real.lrms import System
    from tests.real.systems import GridEngineCell
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")]


def running_directories(user: KoalaUser, traces: Traces, systems: str) -> tuple[str, set[Path]]:
    """Run a job that never ends by itself, two ranks on each system; return its id and the agents' directories."""
    parts = [part(name, 2, "sh", "-c", "touch result; exec sleep 600", environment=traces.mark) for name in systems]
    job = user.submit(user.job_file(*parts))
    user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    count = 2 * len(systems)

    def all_seen() -> bool:
        traces.note_running()
        return len(traces.directories) == count

    wait_until(all_seen, seconds=PATIENCE, what="all ranks seen")
    directories = {path.parent for path in traces.directories}
    assert len(directories) == count
    return job, directories


def cancel_behind(system: System) -> None:
    """Cancel all placeholders of a system through itself."""
    if isinstance(system, SlurmCluster):
        system.run("scancel", "--user=root")
    else:
        system.run("qdel", "-u", "*")
    wait_until(lambda: not placeholders(system), seconds=PATIENCE, what="no placeholders in the batch system")


def test_cancelled_while_the_service_is_down(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """Nobody is there to whom the agents could report; they, or their guards, remove what is theirs nevertheless."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    job, directories = running_directories(user, traces, "ac")
    user.kill()
    for system in (slurm_a, sge_cell):
        cancel_behind(system)
    wait_until(
        lambda: not any(path.exists() for path in directories),
        seconds=PATIENCE,
        what="no private directory left",
        details=lambda: str([path for path in directories if path.exists()]),
    )
    user.serve()
    user.wait_over(job)
    traces.expect_none(but_words=True)


def test_what_killed_agents_left_goes_with_the_next(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """Agent and guard killed at once, as with a control group: the next agent on the node removes what they left.

    What is in use is left alone, and the rank, which nobody watches any more, is ended.
    """
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    job, directories = running_directories(user, traces, "ac")
    for pid in find_processes(lambda process: is_agent(user, process)):
        os.kill(pid, signal.SIGKILL)
    user.wait_over(job)
    # Another test's agents may have removed them by now: they are next ones on this node, too.
    again, others = running_directories(user, Traces(user), "ac")
    wait_until(
        lambda: not any(path.exists() for path in directories),
        seconds=PATIENCE,
        what="no stale directory left",
        details=lambda: str([path for path in directories if path.exists()]),
    )
    assert all(path.exists() for path in others)
    assert user.run("cancel", again).code == 0
    traces.expect_none(but_words=True)


def is_agent(user: KoalaUser, process: SeenProcess) -> bool:
    """Tell whether a process is an agent or its guard."""
    used = any(process.uses(system.directory) for system in user.systems.values())
    ours = user.service is None or process.parent != user.service.pid
    return used and process.command.startswith("python") and ours
