# SPDX-License-Identifier: Apache-2.0
"""Recorded output of Slurm."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.lrm.commands import CommandResult
from koala_adapter.model import EndReason, LrmJob, LrmJobState, NodeGpus, NodeState
from koala_slurm.client import cancel_error, control_error, is_ambiguous
from koala_slurm.listing import (
    JOB_FIELDS,
    SEPARATOR,
    parse_config,
    parse_history,
    parse_jobs,
    parse_nodes,
    parse_partitions,
    parse_version,
    release_of,
)
from koala_slurm.requests import MORE_FIELDS, parse_details, parse_everything, parse_one_detailed, with_details
from koala_slurm.reserving import NODES_BUSY, reserved_cores, reserved_order
from koala_slurm.words import parse_job_id, reading_error, submission_error

# -- The plugin's parsers on what real Slurm commands of several releases printed in one and the same situation.
# Each file of samples/slurm_plugin holds the plugin's own commands as run on a cluster of one release: four nodes of
# four processors, of which n3 was lost and n4 drained, and one job for each way to wait, to run and to end.


SAMPLES = Path(__file__).parent / "samples" / "slurm_plugin"
RELEASES = sorted(path.stem for path in SAMPLES.glob("*.json"))


@dataclass(frozen=True, slots=True)
class Recorded:
    """The commands recorded with one release."""

    release: str
    results: Mapping[str, CommandResult]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the commands in a file, which has the name of the release."""
        results = {
            record["name"]: CommandResult(
                argv=tuple(record["argv"]),
                returncode=record["returncode"],
                stdout=record["stdout"].encode(),
                stderr=record["stderr"].encode(),
            )
            for record in json.loads(path.read_text())
        }
        return cls(path.stem, results)


class Samples(Recorded):
    """The plugin's own commands."""

    def text(self, name: str) -> str:
        """Return what a command printed."""
        return self.results[name].text

    def jobs(self, name: str = "jobs") -> dict[str, list[LrmJob]]:
        found: dict[str, list[LrmJob]] = {}
        for job in parse_jobs(self.text(name)):
            found.setdefault(job.name, []).append(job)
        return found


@pytest.fixture(params=RELEASES)
def samples(request: pytest.FixtureRequest) -> Samples:
    """Return the recorded commands of each release."""
    return Samples.read(SAMPLES / f"{request.param}.json")


def test_releases_from_first_to_last_are_recorded() -> None:
    """There are samples of the oldest release that we take and of the newest one."""
    assert RELEASES[0] == "20.11"
    assert RELEASES[-1] >= "25.11"


def test_version(samples: Samples) -> None:
    version = parse_version(samples.text("version"))
    assert version is not None
    assert release_of(version) == samples.release


def test_config(samples: Samples) -> None:
    config = parse_config(samples.text("config"))
    assert (config.cluster, config.max_array_size, config.accounting) == ("rec", 10001, False)
    assert (config.slurm_user, release_of(config.version)) == ("root", samples.release)


def test_no_jobs(samples: Samples) -> None:
    assert reading_error(samples.results["jobs_none"], action="listing") is None
    assert parse_jobs(samples.text("jobs_none")) == ()


def test_no_jobs_of_a_user(samples: Samples) -> None:
    """A user without jobs has none; where the user could not be looked up (26.05), nothing is known."""
    result = samples.results["jobs_user"]
    assert (reading_error(result, action="listing") is None) == (result.stderr == b"")
    assert result.text == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cancelled", (LrmJobState.ENDED, EndReason.CANCELLED, None)),
        ("stubborn", (LrmJobState.ENDED, EndReason.CANCELLED, None)),
        ("killed", (LrmJobState.ENDED, EndReason.SIGNALLED, 9)),
        ("nodefail", (LrmJobState.ENDED, EndReason.NODE_LOST, None)),
        ("timeout", (LrmJobState.ENDED, EndReason.WALLTIME, None)),
        ("deadline", (LrmJobState.ENDED, EndReason.WALLTIME, None)),
        ("dependent", (LrmJobState.QUEUED, None, None)),
        ("requeued", (LrmJobState.HELD, None, None)),
        ("two-nodes", (LrmJobState.RUNNING, None, None)),
        ("suspended", (LrmJobState.SUSPENDED, None, None)),
    ],
)
def test_one_job_of_each_kind(
    samples: Samples, name: str, expected: tuple[LrmJobState, EndReason | None, int | None]
) -> None:
    """Every way to wait, to run and to end is told, the same for all releases."""
    (job,) = samples.jobs()[name]
    assert (job.state, job.end, job.signal) == expected
    assert job.exit_code is None
    assert (job.user, job.queue) == ("root", "main")
    assert job.raw_state


def test_what_waits_for_something_else_than_processors(samples: Samples) -> None:
    """A dependency, a begin time: processors that come free start none of these; nodes may be busy or down."""
    waiting = [job for jobs in samples.jobs().values() for job in jobs if job.state is LrmJobState.QUEUED]
    blocked = {job.reason.partition(",")[0] for job in waiting if job.blocked}
    assert blocked >= {"Dependency", "BeginTime"}
    assert not any("ReqNodeNotAvail" in reason for reason in blocked)
    others = {job.reason.partition(",")[0] for job in waiting if not job.blocked}
    assert others <= {"", "Priority", "Resources", "ReqNodeNotAvail"}
    for reason in ("Priority", "Resources", "None", "Licenses", "QOSMaxCpuPerUserLimit", "JobArrayTaskLimit"):
        row = ["7", "bob", "PENDING", "2", "main", "", *[""] * (len(JOB_FIELDS) - 8), reason, "local"]
        (job,) = parse_jobs(SEPARATOR.join(row))
        assert job.blocked == (reason not in {"Priority", "Resources", "None"})


def test_elements_that_exited(samples: Samples) -> None:
    jobs = samples.jobs()["koala-exits"]
    assert [(job.array_index, job.end, job.exit_code) for job in jobs] == [
        (index, EndReason.EXITED, index * 3) for index in (0, 1, 2)
    ]
    assert [job.id for job in jobs] == [f"{jobs[0].id.partition('_')[0]}_{index}" for index in (0, 1, 2)]


def test_output_that_could_not_be_opened(samples: Samples) -> None:
    """A job without a place for its output failed to launch; the oldest release shows it as an exit."""
    (job,) = samples.jobs()["badoutput"]
    assert job.end is (EndReason.EXITED if samples.release == "20.11" else EndReason.LAUNCH_FAILED)
    assert job.exit_code != 0


def test_jobs_on_their_nodes(samples: Samples) -> None:
    jobs = samples.jobs("jobs_early")
    (two,) = jobs["two-nodes"]
    assert (two.nodes, two.processors) == (("n1", "n2"), 2)
    running = jobs["koala-k1x-running-with-a-name-that-is-longer-than-any-column"]
    assert [job.array_index for job in running] == [1, 2, 3]
    for job in running:
        assert job.state is LrmJobState.RUNNING
        assert job.started_at is not None
        assert job.ends_at == job.started_at + 300
        assert job.submitted_at is not None
        assert job.submitted_at <= job.started_at
    assert [job.state for job in jobs["stubborn"]] == [LrmJobState.ENDING]


def test_elements_that_wait_together(samples: Samples) -> None:
    held = samples.jobs()["held|a strange name"]
    assert [(job.array_index, job.state, job.nodes, job.reason) for job in held] == [
        (index, LrmJobState.HELD, (), "JobHeldUser") for index in (1, 2, 3, 4)
    ]
    assert {job.started_at for job in held} == {job.ends_at for job in held} == {None}
    waiting = samples.jobs()["waits"]
    assert [(job.array_index, job.processors) for job in waiting] == [(1, 16), (2, 16)]
    assert all(job.state is LrmJobState.QUEUED and "UnavailableNodes" in job.reason for job in waiting)
    assert len({job.id for job in (*held, *waiting)}) == 6


def test_every_second_element(samples: Samples) -> None:
    """Elements in steps are all there, the last one, which squeue --array leaves out, too."""
    jobs = samples.jobs("jobs_steps")["steps"]
    assert [job.array_index for job in jobs] == list(range(2, 101, 2))


def test_cancelled_elements(samples: Samples) -> None:
    jobs = samples.jobs("jobs_cancelled")["held|a strange name"]
    assert [job.array_index for job in jobs if job.state is LrmJobState.HELD] == [3]
    assert {job.end for job in jobs if job.array_index != 3} <= {EndReason.CANCELLED}


def test_nodes(samples: Samples) -> None:
    nodes = {node.name: node for node in parse_nodes(samples.text("nodes"))}
    assert {name: (node.state, node.processors, node.processors_idle) for name, node in nodes.items()} == {
        "n1": (NodeState.UP, 4, 3),
        "n2": (NodeState.UP, 4, 3),
        "n3": (NodeState.DOWN, 4, 0),
        "n4": (NodeState.DRAINING, 4, 0),
    }
    assert {name: set(node.queues) for name, node in nodes.items()} == {
        "n1": {"main", "short"},
        "n2": {"main", "short"},
        "n3": {"main"},
        "n4": {"main", "shut"},
    }
    assert {node.memory_mib for node in nodes.values()} == {4000}
    assert all(node.load is not None and node.raw_state for node in nodes.values())


def _row(gres: str, used: str, memory_used: str) -> str:
    """Return a line of NODE_COMMAND, as Slurm 22.05 printed it, with other values in its last fields."""
    common = ("n1", "main*", "mixed", "4/4/0/8", "4000", "1.11", "ib,avx", "5000", "1", "4", "up", "NO")
    return "".join(f"{value}\x1f" for value in (*common, gres, used, memory_used)) + "\n"


@pytest.mark.parametrize(
    ("gres", "used", "gpus"),
    [
        ("gpu:2", "gpu:1", (NodeGpus(kind="", count=2, used=1),)),
        ("gpu:2", "gpu:0", (NodeGpus(kind="", count=2),)),
        (
            "gpu:a100:4(S:0-1),gpu:v100:2,shard:8(S:0)",
            "gpu:a100:3(IDX:0-2),gpu:v100:0(IDX:N/A),shard:0",
            (NodeGpus(kind="a100", count=4, used=3), NodeGpus(kind="v100", count=2)),
        ),
        ("gpu:1g.5gb:7(S:0)", "gpu:1g.5gb:7(IDX:0-6)", (NodeGpus(kind="1g.5gb", count=7, used=7),)),
        ("gpu:no_consume:2,fpga:1", "gpu:0,fpga:0", ()),
        ("(null)", "gpu:0", ()),
        ("", "", ()),
    ],
)
def test_gpus_of_a_node(gres: str, used: str, gpus: tuple[NodeGpus, ...]) -> None:
    (node,) = parse_nodes(_row(gres, used, "100"))
    assert node.gpus == gpus
    assert (node.memory_mib, node.memory_used_mib, node.disk_mib, node.features) == (4000, 100, 5000, ("ib", "avx"))


def test_nodes_at_work(samples: Samples) -> None:
    nodes = {node.name: node for node in parse_nodes(samples.text("nodes_early"))}
    assert (nodes["n1"].raw_state, nodes["n1"].processors_used) == ("completing", 2)
    assert (nodes["n3"].state, nodes["n3"].processors_used) == (NodeState.UP, 4)
    assert (nodes["n4"].state, nodes["n4"].processors_used) == (NodeState.DRAINING, 4)


def test_partitions(samples: Samples) -> None:
    queues = {queue.name: queue for queue in parse_partitions(samples.text("partitions"))}
    assert {
        name: (queue.up, queue.processors, queue.walltime_limit, queue.default) for name, queue in queues.items()
    } == {
        "main": (True, 16, None, True),
        "short": (True, 8, 5400, False),
        "shut": (False, 4, 172800, False),
    }


def test_submitted(samples: Samples) -> None:
    job = parse_job_id(samples.text("sbatch"))
    assert job is not None
    assert [seen.id for seen in parse_jobs(samples.text("jobs_cancelled")) if seen.id.startswith(f"{job}_")] == [
        f"{job}_{index}" for index in (1, 2, 3)
    ]


@pytest.mark.parametrize("what", ["partition", "array", "memory", "option", "reservation", "gres", "script"])
def test_refused_submissions(samples: Samples, what: str) -> None:
    result = samples.results[f"err_sbatch_{what}"]
    assert parse_job_id(result.text) is None
    assert type(submission_error(result)) is LrmRejectedError


@pytest.mark.parametrize("what", ["time", "shut"])
def test_accepted_although_they_cannot_start(samples: Samples, what: str) -> None:
    """Too long a walltime, or a partition that is down, is taken by Slurm: the job waits for ever, not refused."""
    job = parse_job_id(samples.results[f"err_sbatch_{what}"].text)
    (seen,) = (seen for seen in parse_jobs(samples.text("jobs_cancelled")) if seen.id == job)
    assert seen.state is LrmJobState.QUEUED
    assert seen.nodes == ()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("err_uhold_unknown", LrmNotFoundError),
        ("err_release_unknown", LrmNotFoundError),
        ("err_requeue_unknown", LrmNotFoundError),
        ("err_modify_unknown", LrmNotFoundError),
        ("err_pin_unknown_job", LrmNotFoundError),
        ("err_show_unknown", LrmNotFoundError),
        ("err_pin_unknown_node", LrmRejectedError),
        ("err_suspend_held", LrmRejectedError),
        ("err_down_release", LrmUnavailableError),
    ],
)
def test_refused_changes(samples: Samples, name: str, kind: type[LrmError]) -> None:
    assert type(control_error(samples.results[name], action="change")) is kind


@pytest.mark.parametrize("verb", ["suspend", "resume"])
def test_unknown_job_of_suspend(samples: Samples, verb: str) -> None:
    """For an unknown job scontrol suspend says the same as for no answer in some releases: that is noticed."""
    result = samples.results[f"err_{verb}_unknown"]
    error = control_error(result, action=verb)
    assert isinstance(error, LrmNotFoundError) or (isinstance(error, LrmUnavailableError) and is_ambiguous(result))


def test_cancelled_what_was_not_there(samples: Samples) -> None:
    assert cancel_error(samples.results["cancel_unknown"]) is None
    assert cancel_error(samples.results["cancel_elements"]) is None


@pytest.mark.parametrize("what", ["squeue", "sinfo", "partitions", "config"])
def test_listings_without_controller(samples: Samples, what: str) -> None:
    result = samples.results[f"err_down_{what}"]
    assert isinstance(reading_error(result, action="listing"), LrmUnavailableError)


def test_writing_without_controller(samples: Samples) -> None:
    assert type(submission_error(samples.results["err_down_sbatch"])) is LrmUnreachableError
    assert type(cancel_error(samples.results["err_down_scancel"])) is LrmUnreachableError


def test_history() -> None:
    """Rows of sacct are jobs: a cancelled one names who did it, an unknown state stays unknown."""
    rows = (
        ("12_1", "root", "CANCELLED by 1000", "1", "main", "n1", "100", "200", "300", "0:15", "koala-a"),
        ("12_2", "root", "OUT_OF_ME+", "1", "main", "n[1-2]", "100", "200", "300", "0:125", "koala-a|b"),
        ("13", "root", "COMPLETED", "2", "main", "None assigned", "100", "Unknown", "Unknown", "0:0", ""),
    )
    cancelled, strange, done = parse_history("".join(f"{SEPARATOR.join(row)}\n" for row in rows))
    assert (cancelled.end, cancelled.reason, cancelled.ends_at) == (EndReason.CANCELLED, "1000", 300.0)
    assert (strange.state, strange.raw_state, strange.name) == (LrmJobState.UNKNOWN, "OUT_OF_ME", "koala-a|b")
    assert (done.state, done.nodes, done.started_at) == (LrmJobState.ENDED, (), None)


@pytest.mark.parametrize("text", ["slurm_load_jobs error: Unexpected message\n", "1_1\x1froot\n", "x" * 5000])
def test_what_is_no_listing(text: str) -> None:
    for parse in (parse_jobs, parse_nodes, parse_partitions, parse_history):
        with pytest.raises(LrmUnavailableError) as caught:
            parse(text)
        assert len(str(caught.value)) < 1000


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\n"), max_size=20), min_size=12, max_size=14))
def test_any_row_is_a_job_or_an_error(values: list[str]) -> None:
    assert len(JOB_FIELDS) == 12
    try:
        jobs = parse_jobs(SEPARATOR.join(values))
    except LrmUnavailableError:
        return
    assert all(isinstance(job, LrmJob) for job in jobs)


@given(st.binary(max_size=300))
def test_any_bytes_are_nodes_or_an_error(output: bytes) -> None:
    text = output.decode("utf-8", "backslashreplace")
    for parse in (parse_nodes, parse_partitions):
        try:
            parse(text)
        except LrmUnavailableError:
            continue


# -- What an outside scheduler reads of a Slurm, on what two releases printed in one and the same situation.
# Each file of samples/slurm_outside holds commands as run on a cluster of four nodes of eight processors: one job
# spread over two nodes, one held job for each way to ask for nodes, and one held job that was started on n3:4 and n4:2.


OUTSIDE_SAMPLES = Path(__file__).parent / "samples" / "slurm_outside"
OLD, NEW = "22.05", "25.11"


class OutsideSamples(Recorded):
    """What an outside scheduler reads."""

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


@pytest.fixture(params=[OLD, NEW])
def outside_samples(request: pytest.FixtureRequest) -> OutsideSamples:
    """Return the recorded commands of each release."""
    return OutsideSamples.read(OUTSIDE_SAMPLES / f"{request.param}.json")


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
def test_number_of_nodes(
    outside_samples: OutsideSamples, name: str, wanted: int | None, wanted_new: int | None
) -> None:
    """A number of nodes that the user insists on is told from one that only follows from the processors.

    Where the new release shows the same for both, the wish is believed.
    """
    assert outside_samples.jobs()[name].nodes_wanted == (wanted_new if outside_samples.release == NEW else wanted)


def test_what_else_jobs_ask_for(outside_samples: OutsideSamples) -> None:
    """Processors, their number by task and node, nodes and memory are the same for both releases."""
    jobs = outside_samples.jobs()
    assert [jobs[name].processors for name in ("plain", "plain wide", "threads", "array")] == [6, 9, 6, 2]
    assert (jobs["threads"].processors_per_task, jobs["by node"].tasks_per_node) == (2, 3)
    assert jobs["named"].requested_nodes == ("n2", "n3")
    assert (jobs["memory"].memory_per_node_mib, jobs["processor memory"].memory_per_processor_mib) == (1500, 100)
    assert {job.walltime for job in jobs.values()} == {600}


def test_processors_on_each_node(outside_samples: OutsideSamples) -> None:
    assert sum(dict(outside_samples.jobs()["two running"].layout).values()) == 10
    details = parse_one_detailed(outside_samples.results["details_running"].text)
    assert dict(details.layout) == {"n3": 4, "n4": 2}


def test_numbers_of_cores_by_node(outside_samples: OutsideSamples) -> None:
    version = parse_version(outside_samples.results["version"].text)
    config = parse_config(f"SLURM_VERSION           = {version}\n")
    error = control_error(outside_samples.results["reserve_by_node"], action="start_on")
    assert config.takes_cores_by_node == (error is None) == (outside_samples.release == OLD)
    assert error is None or type(error) is LrmRejectedError
    assert reserved_order(outside_samples.results["show_reservation"].text) == ("n3", "n4")


def test_cores_that_the_newer_release_has_chosen() -> None:
    results = OutsideSamples.read(OUTSIDE_SAMPLES / f"{NEW}.json").results
    for name in ("reserve_spare_0", "reserve_spare_1", "reserve", "unreserve_spare_0", "unreserve_spare_1"):
        assert control_error(results[name], action="start_on") is None
    assert reserved_cores(results["show_reservation"].text) == {"n3": 4, "n4": 2}
    busy = control_error(results["reserve_busy"], action="start_on")
    assert isinstance(busy, LrmUnavailableError)
    assert NODES_BUSY in busy.message.lower()


def test_steps_of_an_uneven_start(outside_samples: OutsideSamples) -> None:
    """Each is taken; while the job is being tied it is smaller than it is, which is mended before its release."""
    for name in ("tie", "size", "release", "leave", "unreserve"):
        assert control_error(outside_samples.results[name], action="start_on") is None
    assert parse_one_detailed(outside_samples.results["details_tied"].text).processors == 4
    assert control_error(outside_samples.results["err_unreserve_unknown"], action="start_on") is not None
