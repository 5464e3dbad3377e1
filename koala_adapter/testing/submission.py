# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - these are tests
"""Conformance tests of submitting, and of jobs of other users with the same name.

A submission is one request, ids come in order, the script arrives unharmed, and nothing of koala's environment leaks.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.errors import LrmRejectedError, LrmUnsupportedError
from koala_adapter.lrm.contract import expressible
from koala_adapter.lrm.listing import attribute, possibly_ours
from koala_adapter.model import LrmJobState, PlaceholderId
from koala_adapter.slots import SLOT_KEYS, Slot
from koala_adapter.testing.trial import RecordingRunner, SecretWatcher

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from koala_adapter.lrm import Submission
    from koala_adapter.model import LrmJob, LrmJobId
    from koala_adapter.testing.trial import Batch, Trial


# -- Submitting ----------------------------------------------------------------------------------------------

CANARY = "KOALA_CONFORMANCE_CANARY"
"""Variable that is set in our own environment and must reach no job."""

AWKWARD_LINES = (
    "$HOME ${PATH} $(id) `id` $$ $0 $1 $@ !! \\$x",
    "'single' \"double\" ''' \"\"\" '\\'' \\\" \\\\ \\n \\t \\",
    "tab\there, trailing blanks   ",
    "  leading blanks; a ; b & c | d > e < f * ? [a-z] {a,b} ~ # no comment",
    "%i %A %a %j %% $TASK_ID $JOB_ID {{x}} {x} %s %d",
    "grüße, 漢字, ελληνικά, 🐨, zero\u200bwidth",
    "EOF",
    "",
    "-n --array=1-9 -t 1",
)
DIRECTIVE_LINES = (
    "#SBATCH --partition=koala-no-such-queue --time=1",
    "#$ -q koala-no-such-queue -l h_rt=1",
    "#PBS -q koala-no-such-queue",
    "#BSUB -q koala-no-such-queue",
)


class SubmissionTests:
    """Tests of ``submit`` and of the jobs that it creates."""

    async def test_no_submission_is_said(self, trial: Trial) -> None:
        """A plugin that cannot submit says so when it is asked to, and for what it would send."""
        if trial.lrm.capabilities.submit:
            pytest.skip(f"{type(trial.lrm).__name__} can submit")
        submission = trial.prepare().submission
        with pytest.raises(LrmUnsupportedError):
            await trial.lrm.submit(submission)
        with pytest.raises(LrmUnsupportedError):
            trial.lrm.render(submission)

    async def test_one_request_gives_ids_in_order(self, trial: Trial) -> None:
        """A submission costs one request; the listing shows its ids with the indices 1 to n."""
        trial.need("submit")
        count = trial.under_test.processors + 1
        await trial.lrm.version()
        batch = trial.prepare(count=count)
        before = trial.requests()
        batch = await trial.send(batch)
        assert trial.requests() - before == 1
        assert len(set(batch.ids)) == len(batch.ids) == count
        assert all(id_ and id_ == id_.strip() for id_ in batch.ids)
        jobs = await trial.until(lambda: trial.jobs(batch), lambda seen: len(seen) == count, what="all are listed")
        assert {job.id: job.array_index for job in jobs.values()} == {
            id_: index for index, id_ in enumerate(batch.ids, start=1)
        }
        assert {job.processors for job in jobs.values()} == {1}
        assert len({job.user for job in jobs.values()} - {""}) == 1

    async def test_placeholders_know_who_they_are(self, live_trial: Trial) -> None:
        """One alone, and each of several, finds its index, from 1, and its job id in the declared variables."""
        live_trial.need("submit")
        trial = live_trial
        batches = [await trial.submit(count=count, wait=False) for count in (1, trial.under_test.processors)]
        for batch in batches:
            await trial.wait_reports(batch, len(batch.ids))
            reports = batch.reports()
            assert set(reports) == {str(index) for index in range(1, len(batch.ids) + 1)}
            for index, id_ in enumerate(batch.ids, start=1):
                seen_index, seen_id, _process = reports[str(index)]
                assert seen_index == str(index)
                assert seen_id, f"${trial.lrm.job_id_variable} is empty in the job"
                assert id_.startswith(seen_id), f"the job calls itself {seen_id}, the plugin calls it {id_}"

    async def test_found_again_by_name(self, trial: Trial) -> None:
        """A submission is found by its name, by a prefix of it and among all, not by another name."""
        trial.need("submit")
        batch, other = await trial.submit(count=2), await trial.submit()
        prefix = batch.key[:-2]

        async def found() -> bool:
            by_name = {job.id for job in await trial.lrm.jobs(name_prefix=batch.key)}
            by_prefix = {job.id for job in await trial.lrm.jobs(name_prefix=prefix)}
            everything = {job.id for job in await trial.lrm.jobs()}
            return by_name == {*batch.ids} and by_prefix == {*batch.ids, *other.ids} and by_prefix <= everything

        await trial.until(found, bool, what="found by name, by prefix and among all")
        assert await trial.lrm.jobs(name_prefix="koala-never-submitted") == ()

    async def test_jobs_are_listed_oldest_first(self, trial: Trial) -> None:
        """Jobs that were submitted one after the other are listed in that order, elements by their indices."""
        trial.need("submit")
        batches = [await trial.submit(count=2, held=trial.lrm.capabilities.hold) for _ in range(3)]
        wanted = [id_ for batch in batches for id_ in batch.ids]

        async def listed() -> list[LrmJobId]:
            return [job.id for job in await trial.lrm.jobs() if job.id in wanted]

        await trial.until(listed, lambda seen: len(seen) == len(wanted), what="all are listed")
        assert await listed() == wanted

    async def test_concurrent_submissions(self, trial: Trial) -> None:
        """Submissions made at the same time keep their ids apart."""
        trial.need("submit")
        batches = [trial.prepare(count=2) for _ in range(4)]
        async with anyio.create_task_group() as tasks:
            for batch in batches:
                tasks.start_soon(trial.send, batch)

        async def listed() -> list[int]:
            return [len(await trial.jobs(batch)) for batch in batches]

        await trial.until(listed, lambda seen: seen == [2] * 4, what="each submission is listed with its own two jobs")

    async def test_awkward_script_arrives(self, live_trial: Trial) -> None:
        """A script of 200 KiB, full of characters that get mangled easily, arrives byte for byte."""
        live_trial.need("submit")
        lines = [f"{number:05d} {AWKWARD_LINES[number % len(AWKWARD_LINES)]}" for number in range(5000)]
        text = "".join(f"{line}\n" for line in lines)
        assert len(text.encode()) > 200 * 1024
        assert await self._echo(live_trial, text) == text.encode()

    async def test_foreign_directives_are_text(self, live_trial: Trial) -> None:
        """Lines in the script that look like directives of a batch system are obeyed by none."""
        live_trial.need("submit")
        text = "".join(f"{line}\n" for line in DIRECTIVE_LINES)
        assert await self._echo(live_trial, text) == text.encode()

    async def _echo(self, trial: Trial, text: str) -> bytes:
        body = f'cat > "$d/.echo" <<\'KoalaEnd\'\n{text}KoalaEnd\nmv "$d/.echo" "$d/echo"'
        batch = await trial.submit(body=body, wait=False)
        return await trial.wait_file(batch.directory / "echo")

    async def test_what_is_rendered_is_sent(self, live_trial: Trial) -> None:
        """The command that is run and the script that arrives are those that ``render`` shows."""
        live_trial.need("submit")
        trial = live_trial
        body = 'if [ -r "$0" ]; then cat "$0"; fi > "$d/.self.$index"; mv "$d/.self.$index" "$d/self"'
        batch = trial.prepare(count=2, body=body, wait=False)
        rendered = trial.lrm.render(batch.submission)
        runner = trial.under_test.context.commands
        before = len(runner.commands) if isinstance(runner, RecordingRunner) else 0
        batch = await trial.send(batch)
        sent = [command.argv for command in runner.commands[before:]] if isinstance(runner, RecordingRunner) else []
        if sent:
            assert sent == [rendered.command]
        arrived = await trial.wait_file(batch.directory / "self")
        if arrived:
            assert arrived.decode() == rendered.script

    async def test_our_environment_stays_here(self, live_trial: Trial) -> None:
        """A variable of our own environment does not appear in the job's."""
        live_trial.need("submit")
        canary = os.environ[CANARY]
        batch = await live_trial.submit(body='env > "$d/.env"; mv "$d/.env" "$d/env"', wait=False)
        environment = (await live_trial.wait_file(batch.directory / "env")).decode(errors="replace")
        assert "PATH=" in environment
        assert CANARY not in environment
        assert canary not in environment

    async def test_secret_is_on_no_command_line(self, live_trial: Trial) -> None:
        """What the script holds is in no process's arguments or environment, from submission to end."""
        live_trial.need("submit")
        secret = secrets.token_hex(16)
        with SecretWatcher(secret) as watcher:
            for _ in range(3):
                batch = await live_trial.submit(body=f": {secret}", wait=False)
                await live_trial.wait_reports(batch, 1)
        assert watcher.leaks == set()

    async def test_output_goes_to_its_directory(self, live_trial: Trial) -> None:
        """What a placeholder prints is found in files of the output directory."""
        live_trial.need("submit")
        batch = await live_trial.submit(body="echo koala-out; echo koala-err >&2", wait=False)

        async def printed() -> str:
            files = sorted((batch.directory / "output").rglob("*"))
            return "".join(file.read_text(errors="replace") for file in files if file.is_file())

        await live_trial.until(
            printed,
            lambda text: "koala-out" in text and "koala-err" in text,
            what="stdout and stderr in files",
        )

    async def test_rejected_submission_leaves_nothing(self, trial: Trial) -> None:
        """An impossible submission is refused with LrmRejectedError and no job of its name appears."""
        trial.need("submit")
        batch = trial.prepare(count=2, queue=trial.under_test.unknown_queue)
        with pytest.raises(LrmRejectedError) as caught:
            await trial.lrm.submit(batch.submission)
        assert caught.value.message
        later = await trial.submit()
        await trial.until(lambda: trial.jobs(later), bool, what="a later job is listed")
        assert await trial.jobs(batch) == {}

    async def test_same_script_twice(self, trial: Trial) -> None:
        """Two submissions are two, however alike: ids are never used again."""
        trial.need("submit")
        first, second = await trial.submit(count=2), await trial.submit(count=2)
        assert not set(first.ids) & set(second.ids)

    async def test_held_submission_waits(self, live_trial: Trial) -> None:
        """A submission in hold is HELD and does not start; an LRM without hold refuses it."""
        live_trial.need("submit")
        trial = live_trial
        if not trial.lrm.capabilities.hold:
            await self._held_is_refused(trial, trial.prepare(held=True).submission)
            return
        batch = await trial.submit(count=2, held=True)
        await trial.wait_states(batch, LrmJobState.HELD, LrmJobState.HELD)
        await trial.run_another()
        assert await trial.states(batch) == [LrmJobState.HELD] * 2
        assert batch.reports() == {}

    async def _held_is_refused(self, trial: Trial, submission: Submission) -> None:
        with pytest.raises((LrmRejectedError, LrmUnsupportedError)):
            await trial.lrm.submit(submission)


# -- Slots ---------------------------------------------------------------------------------------------------
# What a plugin states it expresses; all else it refuses by name. What was asked for is what a placeholder has.

SAMPLES: Mapping[str, Slot] = MappingProxyType(
    {
        "threads": Slot(threads=2),
        "gpus": Slot(gpus=1),
        "gpu_kind": Slot(gpus=1, gpu_kind="kind"),
        "exclusive": Slot(exclusive=True),
        "scratch": Slot(scratch_mib=100),
        "features": Slot(features=("feature",)),
        "licenses": Slot(licenses=(("license", 1),)),
        "account": Slot(account="account"),
        "qos": Slot(qos="qos"),
        "directives": Slot(directives=("-x",)),
    }
)
"""A slot for each key that a plugin may state."""


class SlotTests:
    """Tests of what a placeholder needs on its node."""

    async def test_slot_has_its_processors(self, trial: Trial) -> None:
        """A placeholder of two processors has two in the listing, all on one node, and they are not idle."""
        trial.need("submit")
        if "threads" not in trial.lrm.capabilities.slots:
            pytest.skip(f"{type(trial.lrm).__name__} does not state the key 'threads'")

        async def idle() -> int:
            return sum(node.processors_idle for node in await trial.lrm.nodes())

        before = await idle()
        batch = await trial.submit(slot=Slot(threads=2))
        jobs = await trial.until(
            lambda: trial.jobs(batch),
            lambda seen: [job.state for job in seen.values()] == [LrmJobState.RUNNING],
            what="it runs",
        )
        (job,) = jobs.values()
        assert (job.processors, len(job.nodes)) == (2, 1)
        if trial.lrm.capabilities.observes_nodes:
            await trial.until(idle, lambda now: now == before - 2, what="two processors less are idle")

    async def test_keys_of_a_slot_are_expressed_or_refused(self, trial: Trial) -> None:
        """What is stated can be rendered and changes the submission; what is not is refused by its name."""
        trial.need("submit")
        plain = trial.prepare().submission
        usual = trial.lrm.render(plain)
        stated = expressible(trial.lrm.capabilities, trial.under_test.context.directives)
        unchanged: list[str] = []
        for key in SLOT_KEYS:
            asked = replace(plain, slot=trial.under_test.slots.get(key, SAMPLES[key]))
            if asked.slot.beyond(stated):
                with pytest.raises(LrmRejectedError, match=key):
                    trial.lrm.render(asked)
            else:
                shown = trial.lrm.render(asked)
                unchanged += [key] if (shown.command, shown.call) == (usual.command, usual.call) else []
        assert unchanged == []


# -- Jobs of other users -------------------------------------------------------------------------------------
# A job of another user that has the name of a placeholder is never taken for one.


class StrangerTests:
    """Tests with an array of another user that has the name of one of ours: names are public."""

    async def test_jobs_say_whose_they_are(self, trial: Trial) -> None:
        """Our jobs are listed with the user that the context names: by it the core knows them from a stranger's."""
        trial.need("submit")
        batch = await trial.submit(count=2)
        jobs = await trial.until(
            lambda: trial.jobs(batch), lambda seen: {*seen} == {*batch.ids}, what="both are listed"
        )
        assert {job.user for job in jobs.values()} == {trial.under_test.context.user}

    @pytest.mark.parametrize("later", [True, False], ids=["after ours", "before ours"])
    async def test_a_strangers_job_of_the_same_name(self, trial: Trial, *, later: bool) -> None:
        """Of two arrays of one name that of our user is found, by its ids and without them, and only that is ended."""
        trial.need("find_by_name")
        # Held: a batch system may tell of the end of a job minutes later that was ended while it was about to run.
        batch = trial.prepare(count=2, held=trial.lrm.capabilities.hold)
        if later:
            batch = await trial.send(batch)
            async with _namesake(trial, batch):
                await self._told_apart(trial, batch)
        else:
            async with _namesake(trial, batch):
                batch = await trial.send(batch)
                await self._told_apart(trial, batch)

    async def _told_apart(self, trial: Trial, batch: Batch) -> None:
        user, ids = trial.under_test.context.user, set(batch.ids)
        placeholders = {PlaceholderId(batch=batch.key, index=index): id_ for index, id_ in enumerate(batch.ids, 1)}

        async def listed() -> tuple[LrmJob, ...]:
            return await trial.lrm.jobs(name_prefix=batch.key)

        listing = await trial.until(listed, lambda seen: ids <= {job.id for job in seen}, what="ours are listed")
        ours = possibly_ours(listing, user=user, name_prefix=batch.key)
        assert {job.id for job in ours} == ids, "a stranger's job shows as ours, or as nobody's: state its user"
        # Where we cannot submit, there is nothing to find again, and elements need no index.
        for known in (placeholders, dict.fromkeys(placeholders)) if trial.lrm.capabilities.submit else ():
            found = attribute(listing, known, user=user).jobs
            assert {id_: job.id for id_, job in found.items()} == placeholders
        theirs = [job.id for job in await trial.lrm.jobs() if job.name == batch.key and job.id not in ids]
        await trial.submitter.cancel(batch.ids)
        await trial.wait_ended(batch)
        left = {job.id: job.state for job in await trial.lrm.jobs()}
        assert all(left.get(id_) not in {None, LrmJobState.ENDED} for id_ in theirs), "a stranger's job was ended"


def _namesake(trial: Trial, batch: Batch) -> AbstractAsyncContextManager[object]:
    make = trial.under_test.namesake_job
    if make is None:
        pytest.skip("the LRM under test offers no job of a second user")
    return make(batch.key, batch.submission.count + 1)
