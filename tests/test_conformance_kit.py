# SPDX-License-Identifier: Apache-2.0
"""The conformance kit itself: each of these faults, put into a plugin that conforms, is found by the test named."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from koala_adapter.errors import LrmNotFoundError, LrmUnavailableError
from koala_adapter.lrm import RenderedSubmission, Submission
from koala_adapter.model import EndReason, LrmJob, LrmJobId, LrmJobState, Node
from koala_adapter.slots import PLAIN
from koala_adapter.testing import Batch, LrmConformance, LrmUnderTest, Trial, new_context
from koala_adapter.testing.jobs import names_walltime
from koala_adapter.testing.submission import CANARY
from koala_local.lrm import CAPABILITIES, PLUGIN, LocalLrm, LocalSettings
from tests.local_koala import end_daemon, namesake_job


class Reversed(LocalLrm):
    """Gives the ids in the wrong order."""

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Turn them round."""
        return (await super().submit(submission))[::-1]


class Talkative(LocalLrm):
    """Asks more often than it states."""

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Ask twice."""
        await super().jobs()
        return await super().jobs(name_prefix=name_prefix)

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Ask something else first."""
        await self.version()
        return await super().submit(submission)


class Deaf(LocalLrm):
    """Does not look at the prefix."""

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:  # noqa: ARG002
        """List all."""
        return await super().jobs()


class Optimist(LocalLrm):
    """Takes every end for a success."""

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Paint the ends."""
        return tuple(
            replace(job, end=EndReason.EXITED, exit_code=0, signal=None) if job.state is LrmJobState.ENDED else job
            for job in await super().jobs(name_prefix=name_prefix)
        )


class Idler(LocalLrm):
    """Shows busy processors as idle."""

    async def nodes(self) -> tuple[Node, ...]:
        """Forget the jobs."""
        return tuple(replace(node, processors_used=0) for node in await super().nodes())


class Narrow(LocalLrm):
    """Gives a placeholder one processor, whatever was asked for."""

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Forget what it needs."""
        return await super().submit(replace(submission, slot=PLAIN))


class Generous(LocalLrm):
    """Takes what nothing here gives."""

    def render(self, submission: Submission) -> RenderedSubmission:
        """Forget what it needs."""
        return super().render(replace(submission, slot=PLAIN))


class Leaky(LocalLrm):
    """Gives a job our environment."""

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Export what should stay here."""
        script = submission.script.replace("\n", f"\nexport {CANARY}={os.environ[CANARY]}\n", 1)
        return await super().submit(replace(submission, script=script))


class Mangler(LocalLrm):
    """Lets something expand the script."""

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Replace what looks like a variable."""
        return await super().submit(replace(submission, script=submission.script.replace("$HOME", "/root")))


class Chatterbox(LocalLrm):
    """Shows the script on a command line."""

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Pass it as an argument to what is there until somebody has looked, however long that takes."""
        state = self._context.state_directory
        lingers = f"(while [ -e {state}/pid ]; do sleep 0.2; done) </dev/null >/dev/null 2>&1 &"
        await self._context.commands.run(["sh", "-c", lingers, submission.script])
        return await super().submit(submission)


class Pushover(LocalLrm):
    """Takes what it should refuse."""

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Ignore the queue."""
        return await super().submit(replace(submission, queue=None))


class Pedant(LocalLrm):
    """Complains about jobs that are gone already."""

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Insist."""
        known = {job.id for job in await self.jobs() if job.state is not LrmJobState.ENDED}
        if not known.issuperset(ids):
            raise LrmNotFoundError("no such job")
        await super().cancel(ids)


class Forgetful(LocalLrm):
    """Does not cancel the last one."""

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Stop too early."""
        await super().cancel(ids[:-1])


class Denier(LocalLrm):
    """Takes silence for an empty cluster."""

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Hide the error."""
        try:
            return await super().jobs(name_prefix=name_prefix)
        except LrmUnavailableError:
            return ()


class Boaster(LocalLrm):
    """Can do what it says it cannot."""

    capabilities = replace(CAPABILITIES, suspend=False)


class Painter(LocalLrm):
    """Renders something else than it sends."""

    def render(self, submission: Submission) -> RenderedSubmission:
        """Add a comment."""
        rendered = super().render(submission)
        return replace(rendered, script=rendered.script + "# painted\n")


class Careless(LocalLrm):
    """Renders the script onto the command line."""

    def render(self, submission: Submission) -> RenderedSubmission:
        """Add the script to the command."""
        rendered = super().render(submission)
        return replace(rendered, command=(*rendered.command, rendered.script))


class Eternal(LocalLrm):
    """Forgets the walltime."""

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Ask for an hour."""
        return await super().submit(replace(submission, walltime=3600))


class Modern(LocalLrm):
    """Comes upon a word for a state that it does not know."""

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Show it, as a plugin must that does not guess."""
        return tuple(
            replace(job, state=LrmJobState.UNKNOWN, raw_state="HIBERNATING")
            if job.state is LrmJobState.RUNNING
            else job
            for job in await super().jobs(name_prefix=name_prefix)
        )


class Sleeper(LocalLrm):
    """Takes running jobs for suspended ones."""

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Paint them."""
        return tuple(
            replace(job, state=LrmJobState.SUSPENDED) if job.state is LrmJobState.RUNNING else job
            for job in await super().jobs(name_prefix=name_prefix)
        )


class Tardy(LocalLrm):
    """Shows an end a second late."""

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Show jobs that have just ended as running."""
        return tuple(
            replace(job, state=LrmJobState.RUNNING, end=None) if self._ended_just_now(job) else job
            for job in await super().jobs(name_prefix=name_prefix)
        )

    def _ended_just_now(self, job: LrmJob) -> bool:
        if job.state is not LrmJobState.ENDED:
            return False
        first_seen: dict[LrmJobId, float] = self.__dict__.setdefault("first_seen", {})
        return time.monotonic() < first_seen.setdefault(job.id, time.monotonic()) + 1


class Impatient(LocalLrm):
    """Starts held jobs."""

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Drop the hold."""
        return await super().submit(replace(submission, held=False))


class Selfish(LocalLrm):
    """Takes all jobs for its own user's."""

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Paint the users."""
        return tuple(replace(job, user=self._context.user) for job in await super().jobs(name_prefix=name_prefix))


class Anonymous(LocalLrm):
    """Does not say whose a job is."""

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Leave the users out."""
        return tuple(replace(job, user="") for job in await super().jobs(name_prefix=name_prefix))


class Sweeping(LocalLrm):
    """Cancels by name."""

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Take all that are called so."""
        jobs = await self.jobs()
        names = {job.name for job in jobs if job.id in ids}
        await super().cancel([job.id for job in jobs if job.name in names])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A broken plugin and the test that must find it."""

    lrm: type[LocalLrm]
    test: str
    arguments: tuple[tuple[str, object], ...] = ()


FAULTS = (
    Fault(lrm=Reversed, test="test_one_request_gives_ids_in_order"),
    Fault(lrm=Talkative, test="test_one_request_gives_ids_in_order"),
    Fault(lrm=Talkative, test="test_poll_stays_within_its_bound"),
    Fault(lrm=Deaf, test="test_found_again_by_name"),
    Fault(lrm=Optimist, test="test_exit_code"),
    Fault(lrm=Optimist, test="test_death_by_signal"),
    Fault(lrm=Optimist, test="test_array_elements_end_apart"),
    Fault(lrm=Idler, test="test_more_jobs_than_processors"),
    Fault(lrm=Leaky, test="test_our_environment_stays_here"),
    Fault(lrm=Mangler, test="test_awkward_script_arrives"),
    Fault(lrm=Chatterbox, test="test_secret_is_on_no_command_line"),
    Fault(lrm=Pushover, test="test_rejected_submission_leaves_nothing"),
    Fault(lrm=Pedant, test="test_cancel_what_is_not_there"),
    Fault(lrm=Forgetful, test="test_cancel_running"),
    Fault(lrm=Boaster, test="test_unsupported_is_said"),
    Fault(lrm=Painter, test="test_what_is_rendered_is_sent"),
    Fault(lrm=Careless, test="test_render_is_pure"),
    Fault(lrm=Eternal, test="test_walltime_is_requested"),
    Fault(lrm=Eternal, test="test_walltime_is_enforced"),
    Fault(lrm=Selfish, test="test_a_strangers_job_of_the_same_name", arguments=(("later", True),)),
    Fault(lrm=Anonymous, test="test_a_strangers_job_of_the_same_name", arguments=(("later", False),)),
    Fault(lrm=Anonymous, test="test_jobs_say_whose_they_are"),
    Fault(lrm=Sweeping, test="test_a_strangers_job_of_the_same_name", arguments=(("later", True),)),
    Fault(lrm=Narrow, test="test_slot_has_its_processors"),
    Fault(lrm=Generous, test="test_keys_of_a_slot_are_expressed_or_refused"),
    Fault(lrm=Impatient, test="test_held_submission_waits"),
)


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[Path]:
    """Give the directory of a cluster, and end its daemon afterwards."""
    yield tmp_path
    await end_daemon(tmp_path / "state")


PATIENT, IMPATIENT = 120.0, 1.0
"""Seconds for what comes to pass on any machine, and for what does not at all, as the plugin is faulty."""


async def start(kind: type[LocalLrm], directory: Path) -> tuple[Trial, Trial]:
    """Start a plugin; return a trial of it, and one of a plugin without the fault for cleaning up."""
    settings = LocalSettings(processors=2, answer_seconds=60, gpus=1, gpu_kind="kind", features=("feature",))
    context = new_context(directory)
    lrms = [kind(context, settings), LocalLrm(context, settings)]
    for lrm in lrms:
        await lrm.start()

    faulty, sound = (
        LrmUnderTest(
            definition=PLUGIN,
            settings=settings,
            context=context,
            lrm=lrm,
            scratch=directory,
            processors=2,
            unknown_id=LrmJobId("999_1"),
            namesake_job=namesake_job(context, settings),
            patience=patience,
            walltime_precision=patience,
            poll_interval=0.05,
        )
        for lrm, patience in zip(lrms, (IMPATIENT, PATIENT), strict=True)
    )
    return Trial(faulty), Trial(sound)


async def start_patiently(kind: type[LocalLrm], directory: Path) -> Trial:
    """Start a plugin whose fault is found at once, and may be so late."""
    trial, _sound = await start(kind, directory)
    trial.under_test = replace(trial.under_test, patience=PATIENT)
    return trial


async def run(fault: Fault, trial: Trial) -> None:
    """Run one test of the kit."""
    await getattr(LrmConformance(), fault.test)(trial, **dict(fault.arguments))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.lrm.__name__}-{fault.test}")
async def test_fault_is_found(fault: Fault, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CANARY, "0123456789abcdef")
    faulty, sound = await start(fault.lrm, state)
    await run(fault, sound)
    await sound.close()
    with pytest.raises((AssertionError, pytest.fail.Exception, TimeoutError, LrmNotFoundError)):
        await run(fault, faulty)
    await sound.lrm.cancel([job.id for job in await sound.lrm.jobs()])


async def test_unknown_state_is_named(state: Path) -> None:
    """A state that the plugin does not know is told with the word of the LRM for it."""
    trial = await start_patiently(Modern, state)
    with pytest.raises(pytest.fail.Exception, match="HIBERNATING"):
        await LrmConformance().test_states_go_forward(trial)
    await trial.close()


async def test_a_state_out_of_place_is_named(state: Path) -> None:
    trial = await start_patiently(Sleeper, state)
    with pytest.raises(pytest.fail.Exception, match="shown as suspended"):
        await LrmConformance().test_states_go_forward(trial)
    await trial.close()


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("h_rt=420", True),
        ("walltime=0:07:00", True),
        ("--time=7", True),
        ("--time=7:00", True),
        ("--time=0:7", True),
        ("--time=0:70", False),
        ("--time=70:7", False),
        ("--time=17", False),
    ],
)
def test_forms_of_a_walltime(word: str, named: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Seven minutes are known in each form that a batch system takes; other times are not taken for them."""
    assert names_walltime(RenderedSubmission(command=(word,), script=""), 7 * 60) is named


async def test_walltime_precision_may_be_longer_than_the_patience(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An LRM that ends jobs late has the time that it states for that, beside the patience for a busy machine."""
    trial = await start_patiently(Tardy, state)
    trial.under_test = replace(trial.under_test, walltime_precision=2 * PATIENT)
    bounds: list[float | None] = []

    async def wait_ended(batch: Batch, *, seconds: float | None = None) -> None:
        bounds.append(seconds)
        await Trial.wait_ended(trial, batch, seconds=seconds)

    monkeypatch.setattr(trial, "wait_ended", wait_ended)
    await LrmConformance().test_walltime_is_enforced(trial)
    assert bounds == [1 + 3 * PATIENT]


async def test_silence_is_no_empty_cluster(state: Path) -> None:
    """A plugin that returns an empty list from an unreachable LRM is found out."""

    async def stop() -> None:
        await end_daemon(state / "state")
        (state / "state" / "socket").symlink_to(state / "nowhere" / "nothing")
        trial.lrm._daemon._start = unreachable  # type: ignore[attr-defined]

    async def unreachable() -> None:
        raise LrmUnavailableError("gone")

    trial, _sound = await start(Denier, state)
    with pytest.raises(AssertionError, match=r"'jobs': 'returned \(\)'"):
        await LrmConformance().test_unavailable(trial, stop)
