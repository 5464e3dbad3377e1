# SPDX-License-Identifier: Apache-2.0
"""What an outside scheduler reads of a Slurm, on what two releases printed in one and the same situation.

Each file of samples/slurm_outside holds commands as run on a cluster of four nodes of eight processors: one job spread
over two nodes, one held job for each way to ask for nodes, and one held job that was started on n3:4 and n4:2.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm.commands import CommandResult
from koala_slurm.client import control_error
from koala_slurm.listing import JOB_FIELDS, parse_config, parse_version, release_of
from koala_slurm.requests import MORE_FIELDS, parse_details, parse_everything, parse_one_detailed, with_details
from koala_slurm.reserving import NODES_BUSY, reserved_cores, reserved_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.model import LrmJob

SAMPLES = Path(__file__).parent / "samples" / "slurm_outside"
OLD, NEW = "22.05", "25.11"
UNEVEN = "1"
"""Id of the job that was started."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The commands recorded with one release."""

    release: str
    results: Mapping[str, CommandResult]

    def jobs(self) -> dict[str, LrmJob]:
        """Return one job of each name, as the plugin lists them for an outside scheduler."""
        details = parse_details(self.results["details"].text)
        listed = parse_everything(self._listing(), "|@|")
        return {job.name: with_details(job, details.of(job)) for job in listed}

    def _listing(self) -> str:
        """Return the recorded listing with the fields that the plugin asks for, of all that were recorded."""
        result = self.results["jobs"]
        names = re.findall(r"([A-Za-z-_]+):\|@\|", result.argv[-1])
        values = result.text.split("|@|")[:-1]
        rows = (values[start : start + len(names)] for start in range(0, len(values), len(names)))
        records = (dict(zip(names, (row[0].lstrip("\n"), *row[1:]), strict=True)) for row in rows)
        wanted = (*JOB_FIELDS, *MORE_FIELDS)
        return "\n".join("".join(f"{record[name]}|@|" for name in wanted) for record in records)


def read(release: str) -> Samples:
    """Return the recorded commands of a release."""
    records = json.loads((SAMPLES / f"{release}.json").read_text())
    results = {
        record["name"]: CommandResult(
            argv=tuple(record["argv"]),
            returncode=record["returncode"],
            stdout=record["stdout"].encode(),
            stderr=record["stderr"].encode(),
        )
        for record in records
    }
    return Samples(release, results)


@pytest.fixture(params=[OLD, NEW])
def samples(request: pytest.FixtureRequest) -> Samples:
    """Return the recorded commands of each release."""
    return read(str(request.param))


def test_release(samples: Samples) -> None:
    """The files are what their names say."""
    version = parse_version(samples.results["version"].text)
    assert version is not None
    assert release_of(version) == samples.release


@pytest.mark.parametrize(
    ("name", "wanted", "wanted_new"),
    [
        ("plain", None, 1),
        ("plain wide", None, None),
        ("one node", 1, 1),
        ("two nodes", 2, 2),
        ("range", None, None),
        ("low range", None, None),
        ("by node", None, None),
        ("threads", None, None),
        ("named", None, 2),
        ("whole", None, 1),
        ("memory", None, 1),
    ],
)
def test_number_of_nodes(samples: Samples, name: str, wanted: int | None, wanted_new: int | None) -> None:
    """A number of nodes that the user insists on is told from one that only follows from the processors.

    Where the new release shows the same for both, the wish is believed.
    """
    assert samples.jobs()[name].nodes_wanted == (wanted_new if samples.release == NEW else wanted)


def test_what_else_jobs_ask_for(samples: Samples) -> None:
    """Processors, their number by task and node, nodes and memory are the same for both releases."""
    jobs = samples.jobs()
    assert [jobs[name].processors for name in ("plain", "plain wide", "threads", "array")] == [6, 9, 6, 2]
    assert (jobs["threads"].processors_per_task, jobs["by node"].tasks_per_node) == (2, 3)
    assert jobs["named"].requested_nodes == ("n2", "n3")
    assert (jobs["memory"].memory_per_node_mib, jobs["processor memory"].memory_per_processor_mib) == (1500, 100)
    assert {job.walltime for job in jobs.values()} == {600}


def test_processors_on_each_node(samples: Samples) -> None:
    """The layout of running jobs is known."""
    assert sum(dict(samples.jobs()["two running"].layout).values()) == 10
    details = parse_one_detailed(samples.results["details_running"].text)
    assert dict(details.layout) == {"n3": 4, "n4": 2}


def test_numbers_of_cores_by_node(samples: Samples) -> None:
    """The controller's version tells whether a reservation takes a number of cores for each node."""
    version = parse_version(samples.results["version"].text)
    config = parse_config(f"SLURM_VERSION           = {version}\n")
    error = control_error(samples.results["reserve_by_node"], action="start_on")
    assert config.takes_cores_by_node == (error is None) == (samples.release == OLD)
    assert error is None or type(error) is LrmRejectedError
    assert reserved_order(samples.results["show_reservation"].text) == ("n3", "n4")


def test_cores_that_the_newer_release_has_chosen() -> None:
    """With the cores that are not wanted reserved before, one number for both nodes leaves no choice."""
    results = read(NEW).results
    for name in ("reserve_spare_0", "reserve_spare_1", "reserve", "unreserve_spare_0", "unreserve_spare_1"):
        assert control_error(results[name], action="start_on") is None
    assert reserved_cores(results["show_reservation"].text) == {"n3": 4, "n4": 2}
    busy = control_error(results["reserve_busy"], action="start_on")
    assert isinstance(busy, LrmUnavailableError)
    assert NODES_BUSY in busy.message.lower()


def test_steps_of_an_uneven_start(samples: Samples) -> None:
    """Each is taken; while the job is being tied it is smaller than it is, which is mended before its release."""
    for name in ("tie", "size", "release", "leave", "unreserve"):
        assert control_error(samples.results[name], action="start_on") is None
    assert parse_one_detailed(samples.results["details_tied"].text).processors == 4
    assert control_error(samples.results["err_unreserve_unknown"], action="start_on") is not None
