# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - these are tests
"""Conformance beside other users: whose a job is, and that another user's job of the same name is never ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import LrmJobState, PlaceholderId
from koala_adapter.plugin.attribution import attribute, possibly_ours

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from koala_adapter.model import LrmJob
    from koala_adapter.testing.trial import Batch, Trial


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
        batch = trial.prepare(count=2)
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
