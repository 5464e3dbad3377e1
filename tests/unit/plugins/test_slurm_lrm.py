# SPDX-License-Identifier: Apache-2.0
"""The plugin ``slurm`` as a whole, on the fake: limits, what it may claim, which commands it sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koala_adapter.errors import (
    ConfigurationError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
)
from koala_adapter.lrm import ClusterContext, PinnedStart, Submission
from koala_adapter.lrm.commands import CommandResult, child_environment
from koala_adapter.lrm.contract import Directives, ReservationRequest
from koala_adapter.lrm.rate import KeptAnswers
from koala_adapter.model import BatchKey, LrmJobId, LrmJobState, Node, NodeState
from koala_adapter.slots import Slot
from koala_adapter.testing import RecordingRunner, new_context
from koala_slurm import PLUGIN, SlurmSettings
from koala_slurm.listing import parse_config
from koala_slurm.lrm import SlurmLrm
from koala_slurm.reserving import extent_on_nodes, parse_reservations
from tests.fakes.slurm import FakeSlurm

RESERVATIONS = """\
ReservationName=koala-x-r-1-1 StartTime=2026-11-26T19:05:46 Nodes=n1 CoreCnt=2 Users=root,ann Groups=(null)
ReservationName=maintenance StartTime=2026-11-26T19:05:46 Nodes=n1 CoreCnt=2 Users=rooter Groups=(null)
"""
"""As scontrol of 22.05.8 shows them, shortened."""


async def test_reservations_are_asked_for_and_read(
    fake: FakeSlurm, context: ClusterContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    async def change(command: Sequence[str], *, action: str) -> None:
        assert action == "reserve"
        asked.append(command)

    placeholders = Submission(key=BatchKey("koala-x-r-1-1"), count=2, script="", walltime=290, queue="main")
    request = ReservationRequest(placeholders=placeholders, starts_in=14.2)
    lrm = await started(fake, replace(context, user="ann"))
    lrm.capabilities = replace(lrm.capabilities, reserve=True)
    monkeypatch.setattr(lrm._commands, "change", change)
    assert await lrm.reserve(request) == placeholders.key
    (command,) = asked
    assert {"StartTime=now+15", "Duration=5", "Users=ann", "PartitionName=main", "CoreCnt=2"} <= set(command)
    assert parse_reservations(RESERVATIONS, "ann") == {"koala-x-r-1-1": "koala-x-r-1-1"}
    with pytest.raises(LrmRejectedError, match="cannot reserve cores for user 'ann' in partition 'a b'"):
        await lrm.reserve(replace(request, placeholders=replace(placeholders, queue="a b")))


@pytest.mark.parametrize(
    ("slot", "cores_by_node", "extent"),
    [
        (Slot(threads=3), True, ("NodeCnt=3", "CoreCnt=6,6,3")),
        (Slot(threads=3), False, ("NodeCnt=3",)),
        (Slot(threads=3, memory_mib=3000), True, ("NodeCnt=5",)),
        (Slot(features=("ssd",)), True, ("NodeCnt=1", "Features=ssd", "CoreCnt=5")),
    ],
)
def test_slots_of_more_than_a_core_are_reserved_by_nodes(
    slot: Slot, *, cores_by_node: bool, extent: tuple[str, ...]
) -> None:
    placeholders = Submission(key=BatchKey("k"), count=5, script="", walltime=290, queue="main", slot=slot)
    small = Node(name="n1", state=NodeState.UP, processors=6, processors_used=6, memory_mib=4000, queues=("main",))
    nodes = [small, replace(small, name="n2", processors=8, features=("ssd",)), replace(small, queues=("tiny",))]
    assert extent_on_nodes(placeholders, nodes, cores_by_node=cores_by_node)[: len(extent)] == extent
    with pytest.raises(LrmRejectedError, match="not all of its partition have room for 7 processors"):
        extent_on_nodes(replace(placeholders, slot=Slot(threads=7)), nodes, cores_by_node=True)


HELD = Submission(key=BatchKey("koala-unit"), count=3, script="#!/bin/sh\nexit 0\n", walltime=60, held=True)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeSlurm]:
    """Return a fake cluster."""
    cluster = FakeSlurm(tmp_path / "fake", max_array_size=101)
    yield cluster
    cluster.close()


@pytest.fixture
def context(tmp_path: Path) -> ClusterContext:
    """Return a context that records commands."""
    return new_context(tmp_path)


def settings_of(fake: FakeSlurm, **changes: object) -> SlurmSettings:
    usual = {"conf": fake.conf, "bin_directory": fake.bin_directory, "submit_by": "commands"}
    return SlurmSettings.model_validate({**usual, **changes})


async def started(fake: FakeSlurm, context: ClusterContext, **changes: object) -> SlurmLrm:
    lrm = SlurmLrm(context, settings_of(fake, **changes))
    await lrm.start()
    return lrm


def sent(context: ClusterContext, program: str) -> list[Sequence[str]]:
    """Return the arguments of the commands of a program that were run."""
    assert isinstance(context.commands, RecordingRunner)
    return [command.argv[1:] for command in context.commands.commands if command.argv[0].endswith(f"/{program}")]


async def test_too_large_a_submission_is_refused_unsent(fake: FakeSlurm, context: ClusterContext) -> None:
    lrm = await started(fake, context)
    with pytest.raises(LrmRejectedError, match="100") as caught:
        await lrm.submit(replace(HELD, count=101))
    assert "MaxArraySize" in caught.value.hint
    assert sent(context, "sbatch") == []
    assert len(await lrm.submit(replace(HELD, count=100))) == 100


async def test_jobs_get_the_locale_of_the_caller(
    fake: FakeSlurm, context: ClusterContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sbatch exports its environment: what is meant for the listing of jobs stays out of it."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    lrm = await started(fake, context)
    await lrm.submit(HELD)
    assert isinstance(context.commands, RecordingRunner)
    (submission,) = [command for command in context.commands.commands if command.argv[0].endswith("/sbatch")]
    seen = child_environment(dict(submission.environment))
    assert {name: value for name, value in seen.items() if name.startswith(("LC_", "LANG"))} == {"LANG": "de_DE.UTF-8"}


async def test_whole_array_is_cancelled_by_its_bare_id(fake: FakeSlurm, context: ClusterContext) -> None:
    lrm = await started(fake, context)
    whole, part = await lrm.submit(HELD), await lrm.submit(HELD)
    await lrm.cancel([*whole, *part[:2]])
    array, other = whole[0].partition("_")[0], part[0].partition("_")[0]
    assert sent(context, "scancel") == [(array, f"{other}_[1-2]")]
    left = [job.id for job in await lrm.jobs(name_prefix="koala") if job.state is not LrmJobState.ENDED]
    assert left == [part[2]]


async def test_many_ids_are_spread_over_commands(fake: FakeSlurm, context: ClusterContext) -> None:
    lrm = await started(fake, context)
    await lrm.cancel([LrmJobId(str(number)) for number in range(1000, 1450)])
    assert [len(arguments) for arguments in sent(context, "scancel")] == [200, 200, 50]


async def test_nothing_to_do_costs_nothing(fake: FakeSlurm, context: ClusterContext) -> None:
    lrm = await started(fake, context)
    before = context.commands.window.total
    for operation in (lrm.cancel, lrm.hold, lrm.release, lrm.requeue):
        await operation([])
    await lrm.signal([], 10)
    assert context.commands.window.total == before


@pytest.mark.parametrize(("user", "uid", "may"), [("root", 0, True), ("slurm", 64, True), ("somebody", 1000, False)])
def test_who_may_suspend(user: str, uid: int, *, may: bool) -> None:
    assert parse_config("SlurmUser = slurm(64)\n").may_suspend(user=user, uid=uid) is may


async def test_suspending_is_refused_at_once_without_rights(fake: FakeSlurm, context: ClusterContext) -> None:
    """Where the plugin does not claim it, suspending is not tried."""
    lrm = await started(fake, context)
    lrm.capabilities = replace(lrm.capabilities, suspend=False)
    before = context.commands.window.total
    for operation in (lrm.suspend, lrm.resume):
        with pytest.raises(LrmUnsupportedError):
            await operation([LrmJobId("1_1")])
    assert context.commands.window.total == before


async def test_no_accounting_no_history(fake: FakeSlurm, context: ClusterContext) -> None:
    """Without an accounting storage the plugin claims none and does not run sacct."""
    lrm = await started(fake, context)
    assert not lrm.capabilities.accounting
    with pytest.raises(LrmUnsupportedError):
        await lrm.history([LrmJobId("1_1")])
    assert sent(context, "sacct") == []


async def test_hanging_accounting_is_none(
    tmp_path: Path, context: ClusterContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, run = FakeSlurm(tmp_path / "hangs", accounting=True), context.commands.run

    async def hangs(argv: Sequence[str], **more: Any) -> CommandResult:  # noqa: ANN401 - passed on
        if argv[0].endswith("/sacct"):
            raise LrmUnavailableError("sacct did not answer")
        return await run(argv, **more)

    monkeypatch.setattr(context.commands, "run", hangs)
    lrm = await started(fake, context)
    assert not lrm.capabilities.accounting
    assert len(await lrm.nodes()) == 2


@pytest.mark.parametrize("nodes", [[], ["no such"], ["n1;reboot"], ["-n1"]])
async def test_start_on_nonsense(fake: FakeSlurm, context: ClusterContext, nodes: list[str]) -> None:
    lrm = await started(fake, context)
    with pytest.raises(LrmRejectedError):
        await lrm.start_on(PinnedStart(job=LrmJobId("1_1"), nodes=tuple(nodes)))
    assert sent(context, "scontrol") == [("show", "config")]


async def test_wrong_id_does_not_reach_a_command(fake: FakeSlurm, context: ClusterContext) -> None:
    lrm = await started(fake, context)
    with pytest.raises(LrmNotFoundError):
        await lrm.modify(LrmJobId("1 Priority=0"), walltime=60)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("release", "asked"), [("25.11.7", 0), ("26.05.5", 1)])
async def test_a_partition_of_whole_nodes_is_known_on_each_release(
    tmp_path: Path, context: ClusterContext, release: str, asked: int, *, whole: bool
) -> None:
    """Where sinfo does not tell it, the listing of partitions does: once, and not with each listing of nodes."""
    cluster = FakeSlurm(tmp_path / "fake", cpus=4, release=release, whole_nodes=whole)
    lrm = await started(cluster, context)
    for _ in range(2):
        assert {node.places("main") for node in await lrm.nodes()} == {1 if whole else 4}
    assert len([words for words in sent(context, "scontrol") if words[-1] == "partition"]) == asked
    cluster.close()


async def test_a_change_of_a_partition_is_seen_later(
    tmp_path: Path, context: ClusterContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What partitions tell is read again after some minutes, here at once."""
    cluster = FakeSlurm(tmp_path / "fake", cpus=4, release="26.05.5")
    lrm = await started(cluster, context)
    cluster.conf.write_text(cluster.conf.read_text().replace('"whole_nodes": false', '"whole_nodes": true'))
    assert {node.places("main") for node in await lrm.nodes()} == {4}
    monkeypatch.setattr("koala_slurm.client.SETTINGS_KEPT", -1.0)
    assert {node.places("main") for node in await lrm.nodes()} == {1}
    cluster.close()


async def test_the_next_command_asks_for_no_settings_again(tmp_path: Path) -> None:
    """What the first one was told serves one that trusts it, and checks of the same command."""
    cluster = FakeSlurm(tmp_path / "fake", cpus=4, release="26.05.5")
    found: list[list[str]] = []
    for trusted in 0.0, 60.0, 0.0:
        context = new_context(tmp_path)
        assert isinstance(context.commands, RecordingRunner)
        context.commands.kept_answers = KeptAnswers(tmp_path / "answers", trusted=trusted)
        lrm = await started(cluster, context)
        assert {node.places("main") for node in await lrm.nodes()} == {4}
        await lrm.queues()
        found.append([Path(command.argv[0]).name for command in context.commands.commands])
    asked = ["scontrol", "scontrol", "sinfo", "scontrol"]
    assert found == [asked, asked[2:], asked]
    cluster.close()


async def test_version_costs_a_request_only_where_no_controller_has_said_it(
    fake: FakeSlurm, context: ClusterContext
) -> None:
    """Then it is that of the commands."""
    lrm = SlurmLrm(context, settings_of(fake))
    assert await lrm.version() == "slurm 22.05.8"
    assert sent(context, "sinfo") == [("--version",)]
    lrm = await started(fake, context)
    assert await lrm.version() == "slurm 22.05.8"
    assert sent(context, "sinfo") == [("--version",)]


async def test_missing_commands_are_unavailable_and_named(context: ClusterContext, tmp_path: Path) -> None:
    """Without Slurm's commands every request says which is missing, and ``check`` says what to do."""
    lrm = SlurmLrm(context, SlurmSettings(bin_directory=tmp_path, submit_by="commands"))
    with pytest.raises(LrmUnavailableError, match="sinfo"):
        await lrm.nodes()
    results = {result.subject: result for result in await lrm.check()}
    assert not results["commands"].ok
    assert "bin_directory" in results["commands"].remedy
    assert "submission" not in results


async def test_a_controller_that_does_not_answer_is_asked_once(fake: FakeSlurm, context: ClusterContext) -> None:
    lrm = SlurmLrm(context, settings_of(fake))
    fake.stop_server()
    with pytest.raises(LrmUnavailableError) as caught:
        await lrm.start()
    results = {result.subject: result for result in await lrm.check()}
    assert sent(context, "scontrol") == [("show", "config")]
    assert results["commands"].ok
    assert (results["controller"].ok, results["controller"].found) == (False, caught.value.message)
    fake.start_server()
    await lrm.start()
    assert {result.ok for result in await lrm.check()} == {True}


async def test_check_tells_limits(fake: FakeSlurm, context: ClusterContext) -> None:
    """``check`` names commands, version, limits and partitions, and tries a submission without sending one."""
    lrm = await started(fake, context)
    results = {result.subject: result for result in await lrm.check()}
    assert [result for result in results.values() if not result.ok] == []
    assert results["version"].found == "22.05.8"
    assert "at most 100 placeholders" in results["controller"].found
    assert "main up (4 processors, no walltime limit, default)" in results["partitions"].found
    assert "to start at" in results["submission"].found
    assert "none configured" in results["accounting"].found
    assert await lrm.jobs() == ()


async def test_check_finds_refused_settings(fake: FakeSlurm, context: ClusterContext) -> None:
    """A submission that Slurm would refuse is found before the first job."""
    refused = replace(context, directives=Directives(add=("--nosuch=1",)))
    lrm = SlurmLrm(refused, settings_of(fake))
    results = {result.subject: result for result in await lrm.check()}
    assert not results["submission"].ok
    assert "--nosuch" in results["submission"].found
    assert "directives" in results["submission"].remedy


async def test_old_release_is_refused(tmp_path: Path, context: ClusterContext) -> None:
    """A release whose listings were never seen is no good."""
    lrm = SlurmLrm(context, settings_of(FakeSlurm(tmp_path / "old", release="19.05.5")))
    results = {result.subject: result for result in await lrm.check()}
    assert not results["version"].ok
    assert "20.11" in results["version"].remedy


def test_unusable_directives_are_found_when_the_site_is_read(context: ClusterContext) -> None:
    wrong = replace(context, directives=Directives(drop=("--job-name",)))
    with pytest.raises(ConfigurationError, match="--job-name"):
        PLUGIN.factory(wrong, SlurmSettings())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("conf", "slurm.conf"),
        ("bin_directory", "bin"),
        ("account", ""),
        ("qos", "two words"),
        ("reservation", "line\nbreak"),
        ("command_timeout", 0),
        ("command_timeout", 3600),
        ("use_pyslurm", "always"),
        ("environment", "mine"),
        ("partition", "main"),
    ],
)
def test_settings_are_checked(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        SlurmSettings.model_validate({key: value})


async def test_sizes_of_arrays_are_kept_until_they_are_forgotten(fake: FakeSlurm, context: ClusterContext) -> None:
    lrm = await started(fake, context)
    ids = await lrm.submit(HELD)
    lrm.forget(HELD.key)
    await lrm.cancel(ids)
    assert sent(context, "scancel") == [(f"{ids[0].partition('_')[0]}_[1-3]",)]


async def test_no_answer_is_worse_than_a_refusal(
    fake: FakeSlurm, context: ClusterContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever part of a cancellation it concerns: the jobs of that part are cancelled again."""
    lrm = await started(fake, context)
    said = iter(
        (b"scancel: error: Kill job error on job id 1: Access/permission denied", b"scancel: error: Socket timed out")
    )

    async def answer(*_: object, **__: object) -> CommandResult:
        return CommandResult(argv=("scancel",), returncode=1, stdout=b"", stderr=next(said))

    monkeypatch.setattr(lrm._commands, "run", answer)
    with pytest.raises(LrmUnavailableError):
        await lrm.cancel([LrmJobId(str(number)) for number in range(1000, 1300)])
