# SPDX-License-Identifier: Apache-2.0
"""More jobs than the clusters can hold: all finish, no threshold is exceeded, and the controllers are spared."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import pytest

from koala_adapter.config.jobfile import load_job
from koala_adapter.model import JobId
from koala_adapter.outcome import JobState
from tests.real.leftovers import Traces
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.real.conftest import NewSlurm, NewUser
    from tests.real.systems import SlurmCluster

pytestmark = [pytest.mark.real("slurmctld", "slurmd"), pytest.mark.timeout(600)]

JOBS = 10
PROCESSORS = 4
THRESHOLD = 2
BOUND = 120
"""Requests per minute that the site allows."""
LOOKS = 0.4
"""Seconds between two looks of the observer."""

States: TypeAlias = "Counter[str]"


class Observer:
    """Looks at what Slurm itself shows, past koala and its bounds, as often as it can."""

    def __init__(self, *clusters: SlurmCluster) -> None:
        """Begin with nothing seen."""
        self._clusters = clusters
        self.seen: dict[str, list[States]] = {cluster.name: [] for cluster in clusters}
        """For each look the number of placeholders by state."""

    def look(self) -> None:
        """Look once at each cluster."""
        for cluster in self._clusters:
            rows = cluster.squeue("--states=PENDING,CONFIGURING,RUNNING,COMPLETING", form="%T|%j")
            self.seen[cluster.name].append(Counter(state for state, name in rows if name.startswith("koala-")))

    def most(self, cluster: str, *states: str) -> int:
        """Return the largest number of placeholders in these states together that were seen at once."""
        return max(sum(seen[state] for state in states) for seen in self.seen[cluster]) if self.seen[cluster] else 0


@contextmanager
def looking(look: Callable[[], None]) -> Iterator[None]:
    """Look again and again during the block; what goes wrong there fails the test."""
    done = threading.Event()
    troubles: list[Exception] = []

    def again() -> None:
        try:
            while not done.wait(LOOKS):
                look()
        except Exception as error:  # noqa: BLE001 - raised again where the test sees it
            troubles.append(error)

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if troubles:
        raise troubles[0]


def test_ten_jobs_share_what_holds_two(
    new_user: NewUser, new_slurm: NewSlurm, record_property: Callable[[str, object], None]
) -> None:
    """All ten finish, two at a time; the threshold is kept at every moment, and so is the bound of requests."""
    free = new_slurm("free", cpus=PROCESSORS)
    kept = new_slurm("kept", cpus=PROCESSORS + THRESHOLD)
    limits = {"requests_per_minute": BOUND, "poll_interval": 1.25}
    user = new_user(free, kept, clusters={"free": limits, "kept": {**limits, "threshold": THRESHOLD}})
    traces = Traces(user)
    go = user.directory / "go"
    command = ("sh", "-c", f"echo $KOALA_RANK of $KOALA_SIZE; until [ -e {go} ]; do sleep 0.2; done")
    parts = [part(name, 2, *command, environment=traces.mark) for name in ("free", "kept")]
    observer = Observer(free, kept)
    with looking(observer.look):
        # Not by ten commands: those take longer to come up than the jobs to run.
        job = load_job(user.job_file(*parts), job_id=JobId(""), user="root", submitted_at=0)
        jobs = [user.client.submit(job) for _ in range(JOBS)]
        # Both are full at some time, so that there is something to be kept.
        wait_until(
            lambda: all(observer.most(name, "RUNNING") == PROCESSORS for name in ("free", "kept")),
            seconds=PATIENCE,
            what="both are full",
            details=user.details,
        )
        go.touch()
        reports = [user.wait_over(job, seconds=2 * PATIENCE) for job in jobs]
    for report in reports:
        assert report.outcome is not None
        assert (report.state, report.outcome.exit_code) == (JobState.COMPLETED, 0)
        lines = [user.output_of(report.id, f"c{1 + rank // 2}", rank % 2) for rank in range(4)]
        assert lines == [b"%d of 4\n" % rank for rank in range(4)]
    active = ("CONFIGURING", "RUNNING", "COMPLETING")
    for name in ("free", "kept"):
        assert observer.most(name, "PENDING", *active) <= PROCESSORS
    for cluster in user.run("clusters", "--json").json:
        name, largest = cluster["name"], cluster["largest_requests_per_minute"]
        print(f"{name}: {largest} requests in a minute at most, allowed are {BOUND}")  # noqa: T201 - to be seen
        record_property(f"largest_requests_per_minute[{name}]", largest)
        assert 0 < largest <= cluster["requests_per_minute"] == BOUND
    traces.expect_none()
