# SPDX-License-Identifier: Apache-2.0
"""Which of the jobs that a batch system lists are placeholders without an owner."""

from __future__ import annotations

from koala_adapter.model import BatchKey, LrmJob, LrmJobId, LrmJobState, PlaceholderId
from koala_adapter.service.leftovers import Owned, leftovers


def job(name: str, *, user: str = "me", state: LrmJobState = LrmJobState.RUNNING) -> LrmJob:
    return LrmJob(id=LrmJobId(name), name=name, state=state, user=user, processors=1, array_index=1)


def test_only_placeholders_without_an_owner_are_left_over() -> None:
    owned = Owned(instance="0123abcd", placeholders={PlaceholderId(batch=BatchKey("koala-0123abcd-6"), index=1)})
    listing = [
        job("koala-0123abcd-6"),
        job("koala-0123abcd-7"),
        job("koala-0123abcd-8", state=LrmJobState.ENDED),
        job("koala-0123abcd-9", state=LrmJobState.ENDING),
        job("koala-0123abcd-10", user="you"),
        job("koala-fedc9876-1"),
        job("koala-bears"),
        job("koala-0123abcd-7-old"),
    ]
    found = leftovers("alpha", listing, owned, user="me", all_instances=False)
    assert [one.name for one in found] == ["koala-0123abcd-7"]
    everything = leftovers("alpha", listing, owned, user="me", all_instances=True)
    assert [(one.name, one.ours) for one in everything] == [("koala-0123abcd-7", True), ("koala-fedc9876-1", False)]
