# SPDX-License-Identifier: Apache-2.0
"""Which jobs of Grid Engine the site's hook holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState
from koala_adapter.testing import new_context
from koala_sge import SgeLrm, SgeSettings
from koala_sge.explained import ExplainedJob
from koala_sge.heldjobs import possibly_hook_holds, without_users

if TYPE_CHECKING:
    from pathlib import Path


def job(id_: str, state: LrmJobState, letters: str) -> LrmJob:
    """Return a job."""
    return LrmJob(id=LrmJobId(id_), name="x", state=state, user="u", processors=1, raw_state=letters)


JOBS = (
    job("1", LrmJobState.HELD, "hqw"),
    job("2", LrmJobState.HELD, "hqw"),
    job("3", LrmJobState.RUNNING, "hr"),
    job("4", LrmJobState.RUNNING, "r"),
    job("5.1", LrmJobState.HELD, "hqw"),
)


def test_operators_holds_are_not_ours() -> None:
    """What is not in user hold waits for somebody else; what runs with a hold would come back in it."""
    assert [one.id for one in possibly_hook_holds(JOBS, {"1", "5.1"})] == ["1", "3", "5.1"]


def test_what_users_hold_is_left_to_them() -> None:
    """By the word that conf/sge_jsv.sh leaves in the context of the job, or of the array."""
    explained = {"1": ExplainedJob(), "2": ExplainedJob(), "5": ExplainedJob(user_hold=True)}
    assert [one.id for one in without_users(JOBS, explained)] == ["1", "2"]


def test_what_is_not_known_is_not_released() -> None:
    """A job of which Grid Engine has told nothing may be held by its user."""
    assert without_users(JOBS, {}) == ()


QSTAT = """#!/bin/sh
case "$*" in
*-j*) echo 'unable to contact qmaster using port 6444 on host "h"' >&2; exit 1 ;;
*) echo "<job_info><job_info><job_list state='pending'><JB_job_number>7</JB_job_number><JB_name>x</JB_name>\
<JB_owner>ann</JB_owner><state>hqw</state><slots>1</slots></job_list></job_info></job_info>" ;;
esac
"""


@pytest.mark.anyio
@pytest.mark.parametrize("words", ["unable to contact qmaster", "<comunication_error/>"])
async def test_nothing_is_given_back_while_contexts_are_not_told(tmp_path: Path, words: str) -> None:
    """A qmaster that answers the listing, and not what is asked of the jobs: their users' holds stay."""
    qstat = tmp_path / "qstat"
    answer = "echo '<comunication_error/>'; exit 0" if words.startswith("<") else f"echo '{words}' >&2; exit 1"
    qstat.write_text(QSTAT.replace(QSTAT.splitlines()[2], f"*-j*) {answer} ;;"))
    qstat.chmod(0o755)
    settings = SgeSettings(root=tmp_path, bin_directory=tmp_path)
    lrm = SgeLrm(new_context(tmp_path / "state"), settings)
    with pytest.raises(LrmUnavailableError):
        await lrm.held_by_hook()


COUNTING = """#!/bin/sh
echo "$(basename "$0") $*" >> "$(dirname "$0")/asked"
case "$(basename "$0") $*" in
*-j*) echo "<detailed_job_info><djob_info><element><JB_job_number>7</JB_job_number><JB_group>staff</JB_group>\
<JB_account>bio</JB_account><JB_submission_time>100</JB_submission_time></element></djob_info></detailed_job_info>" ;;
qstat*) cat "$(dirname "$0")/jobs.xml" ;;
qconf*) echo "qname a.q" ;;
qselect*) echo "a.q@n1" ;;
esac
"""
ONE = (
    "<job_list><JB_job_number>{0}</JB_job_number><JB_name>x</JB_name><JB_owner>ann</JB_owner><state>{1}</state>"
    "<slots>1</slots>{2}</job_list>"
)


def counting(directory: Path, *jobs: str) -> SgeLrm:
    """Return the plugin with commands that list these jobs and note what was asked."""
    for name in ("qstat", "qconf", "qselect"):
        (directory / name).write_text(COUNTING)
        (directory / name).chmod(0o755)
    (directory / "jobs.xml").write_text(f"<job_info><queue_info/><job_info>{''.join(jobs)}</job_info></job_info>")
    return SgeLrm(new_context(directory / "state"), SgeSettings(root=directory, bin_directory=directory))


@pytest.mark.anyio
async def test_a_running_job_was_submitted_before_it_started(tmp_path: Path) -> None:
    """Its listing has no time of submission, group or account; asked for once, they are there."""
    started = "<JAT_start_time>2026-11-21T11:04:38</JAT_start_time><queue_name>a.q@n1</queue_name>"
    lrm = counting(tmp_path, ONE.format(7, "r", started))
    (first,), (again,) = await lrm.jobs(), await lrm.jobs()
    assert first == again
    assert (first.group, first.account, first.submitted_at) == ("staff", "bio", 100.0)
    assert (tmp_path / "asked").read_text().count("-j 7") == 1


@pytest.mark.anyio
async def test_requests_of_a_listing_are_bounded_whatever_waits(tmp_path: Path) -> None:
    """Many jobs in hold, each with another request."""
    wishes = '<hard_request name="arch">a{0}</hard_request><master_hard_req_queue>q{0}</master_hard_req_queue>'
    lrm = counting(tmp_path, *(ONE.format(number, "hqw", wishes.format(number)) for number in range(1, 60)))
    await lrm.jobs()
    asked = (tmp_path / "asked").read_text().splitlines()
    # The hosts are asked for beside.
    assert len(asked) + 1 <= lrm.requests_per_listing
    assert any(line.startswith("qselect") for line in asked)
