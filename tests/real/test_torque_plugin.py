# SPDX-License-Identifier: Apache-2.0
"""The plugin ``pbs`` on a real Torque, where the machine has one: the conformance kit, as an ordinary user.

KOALA_TEST_TORQUE is the directory of its commands. It must be there for tests alone: they fill all its processors.
Torque takes no jobs of root, so the tests must be run by another user.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koala_adapter.model import LrmJobId, LrmJobState
from koala_adapter.testing import LrmConformance, LrmUnderTest, RecordingRunner, Trial
from koala_pbs import PLUGIN, PbsSettings
from tests.real.systems.requirements import require
from tests.undertest import StartsByOperator, started_plugin

pytestmark = pytest.mark.never_required

# Read before tests/conftest.py takes it out of the environment.
COMMANDS = os.environ.get("KOALA_TEST_TORQUE", "")


def missing_for_torque() -> list[str]:
    """Say what is missing for a Torque. Empty: nothing."""
    if not COMMANDS:
        return ["a Torque for tests (KOALA_TEST_TORQUE, the directory of its commands; it is in no package registry)"]
    if not (Path(COMMANDS) / "qsub").exists():
        return [f"qsub in {COMMANDS} (KOALA_TEST_TORQUE)"]
    return [] if os.getuid() else ["a user other than root, whose jobs Torque does not take"]


class TorqueConformance(LrmConformance):
    """The conformance kit on a real Torque."""

    operator = False

    @pytest.fixture
    async def under_test(self, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on it."""
        require(missing_for_torque())
        settings = PbsSettings(dialect="torque", bin_directory=Path(COMMANDS), operator=self.operator)
        async with started_plugin(
            PLUGIN,
            settings,
            tmp_path,
            unknown_id=LrmJobId("999999.vm"),
            patience=60,
            walltime_precision=60,
        ) as under:
            yield under

    async def test_version(self, trial: Trial) -> None:
        """What the server calls itself; one that was built from its sources has no number."""
        assert (await trial.lrm.version()).startswith("torque ")

    async def test_one_request_gives_ids_in_order(self, trial: Trial) -> None:
        """Each placeholder is a request; the listing shows their ids with the indices 1 to n."""
        count = trial.under_test.processors + 1
        batch = trial.prepare(count=count)
        before = trial.requests()
        batch = await trial.send(batch)
        assert trial.requests() - before == len(set(batch.ids)) == count
        jobs = await trial.until(lambda: trial.jobs(batch), lambda seen: len(seen) == count, what="all are listed")
        assert [jobs[id_].array_index for id_ in batch.ids] == list(range(1, count + 1))

    async def test_what_is_rendered_is_sent(self, live_trial: Trial) -> None:
        """The first of the commands, and the script that arrives, are those that ``render`` shows."""
        trial = live_trial
        body = 'if [ -r "$0" ]; then cat "$0"; fi > "$d/.self.$index"; mv "$d/.self.$index" "$d/self"'
        batch = trial.prepare(count=2, body=body, wait=False)
        rendered = trial.lrm.render(batch.submission)
        runner = trial.under_test.context.commands
        assert isinstance(runner, RecordingRunner)
        before = len(runner.commands)
        batch = await trial.send(batch)
        assert runner.commands[before].argv == rendered.command
        arrived = await trial.wait_file(batch.directory / "self")
        assert arrived.decode() in {"", rendered.script}

    async def test_each_placeholder_is_held_by_itself(self, live_trial: Trial) -> None:
        """They are jobs of their own, so that one of them can be held."""
        count = live_trial.under_test.processors + 2
        batch = await live_trial.submit(count=count)
        await live_trial.wait_states(
            batch, *[LrmJobState.RUNNING] * (count - 2), *[LrmJobState.QUEUED] * 2, what="two wait"
        )
        states = dict(zip(batch.ids, await live_trial.states(batch), strict=True))
        waiting = [id_ for id_, state in states.items() if state is LrmJobState.QUEUED]
        await live_trial.lrm.hold(waiting[:1])
        await live_trial.wait_states(batch, *[LrmJobState.RUNNING] * (count - 2), LrmJobState.HELD, LrmJobState.QUEUED)


class TestAsUser(TorqueConformance):
    """As an ordinary user."""


class TestAsOperator(StartsByOperator, TorqueConformance):
    """As an operator, who starts, suspends and requeues jobs. The user of the tests must be one."""

    operator = True
