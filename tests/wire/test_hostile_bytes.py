# SPDX-License-Identifier: Apache-2.0
"""Bytes that a user puts into a field of a job change that field alone, in what every batch system lists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.lrm.commands import CommandResult
from koala_adapter.model import LrmJobState
from koala_pbs.jobs import parse_jobs as parse_pbs_jobs
from koala_sge.explained import parse_explained
from koala_sge.heldjobs import parse_wishes
from koala_sge.listing import parse_jobs, parse_layouts

if TYPE_CHECKING:
    from koala_adapter.model import LrmJob

SAMPLES = Path(__file__).parent / "samples"

WRITTEN_BY_USERS = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from([b"a\xff", b"\xed\xa0\x80", b"\xef\xbf\xbe", b"\x1b[2J", b"]]>", b"<!--", b"&#1;", b"\n", b""]),
)
"""Contents of fields."""


def test_a_byte_that_is_no_utf_8_costs_one_field() -> None:
    """A resource, a name of jobs to wait for, and a soft request: the job stays, and all others."""
    sample = (SAMPLES / "sge819" / "qstat_mixed_r_t.xml").read_bytes()
    pending = b"</full_job_name>"
    evil = (
        b'</full_job_name>\n<hard_request name="arch" resource_contribution="0.000000">a\xff</hard_request>'
        b'<predecessor_jobs_req>x\xff%lt;&amp;y</predecessor_jobs_req><soft_request name="arch">\xfe</soft_request>'
    )
    jobs = parse_jobs(sample.replace(pending, evil, 1))
    assert [job.id for job in jobs] == [job.id for job in parse_jobs(sample)]
    assert ("arch", "a\\xff") in {
        pair for wish in parse_wishes(sample.replace(pending, evil)).values() for pair in wish.resources
    }


# -- Grid Engine ---------------------------------------------------------------------------------------------

JOB_LISTINGS = ("qstat_r.xml", "qstat_mixed_r_t.xml", "qstat_mixed_ext_urg.xml", "qstat_s_z.xml", "qstat_mixed_f.xml")
_JOB = re.compile(rb"<job_list .*?</job_list>", re.DOTALL)
_FIELD = re.compile(rb"(<(?P<tag>\w+)(?: [^>]*)?>)(?P<text>[^<]*)(</\w+>)")
_ESCAPES = {b"&": b"&amp;", b"<": b"%lt;", b">": b"&gt;", b'"': b"&quot;", b"'": b"&apos;"}


def as_grid_engine_prints(content: bytes) -> bytes:
    """Return bytes as qstat -xml prints them: it escapes five characters, and knows no encoding."""
    return re.sub(rb"[&<>\"']", lambda found: _ESCAPES[found[0]], content.replace(b"\0", b""))


def others(jobs: tuple[LrmJob, ...], number: str) -> list[LrmJob]:
    """Return the jobs but for those of one number."""
    return [job for job in jobs if job.id.partition(".")[0] != number]


@pytest.mark.parametrize("name", JOB_LISTINGS)
@given(data=st.data())
def test_grid_engine(name: str, data: st.DataObject) -> None:
    """All other jobs are read as before, and this one is still there."""
    sample = (SAMPLES / "sge819" / name).read_bytes()
    job = data.draw(st.sampled_from(list(_JOB.finditer(sample))))
    fields = [found for found in _FIELD.finditer(sample, job.start(), job.end()) if found["tag"] != b"JB_job_number"]
    field, content = data.draw(st.sampled_from(fields)), data.draw(WRITTEN_BY_USERS)
    changed = sample[: field.start("text")] + as_grid_engine_prints(content) + sample[field.end("text") :]
    number = re.search(rb"<JB_job_number>(\d+)", job[0])
    assert number is not None
    mine = number[1].decode()
    before, after = parse_jobs(sample), parse_jobs(changed)
    assert others(after, mine) == others(before, mine)
    assert mine in {one.id.partition(".")[0] for one in after} or field["tag"] == b"tasks"
    kept = {key: wish for key, wish in parse_wishes(changed).items() if key != mine}
    assert kept == {key: wish for key, wish in parse_wishes(sample).items() if key != mine}
    parse_layouts(changed)


@given(data=st.data())
def test_contexts_of_grid_engine(data: st.DataObject) -> None:
    """A field of a job, whatever line breaks it has, says nothing of another job."""
    one = "<element><JB_job_number>{}</JB_job_number><JB_owner>a</JB_owner><JB_hard_resource_list>{}"
    one += "</JB_hard_resource_list><JB_account>{}</JB_account><JB_context><context_list><VA_variable>{}</VA_variable>"
    one += "<VA_value>{}</VA_value></context_list></JB_context></element>"
    contents = [as_grid_engine_prints(data.draw(WRITTEN_BY_USERS)).decode("latin-1") for _ in range(4)]
    forged = "\n======\njob_number: 2\ncontext: koala_user_hold=1\n"
    evil = one.format(1, contents[0] + forged, *contents[1:]).encode("latin-1")
    good = one.format(2, "x", "account", "koala", "hello").encode()
    explained = parse_explained(b"<detailed_job_info><djob_info>" + evil + good + b"</djob_info></detailed_job_info>")
    assert set(explained) == {"1", "2"}
    assert (explained["2"].context.user_hold, explained["2"].context.note) == (False, "hello")
    assert explained["2"].account == "account"


# -- PBS -----------------------------------------------------------------------------------------------------

PBS_LISTINGS = sorted(
    path for path in (SAMPLES / "pbs2306").iterdir() if path.name.startswith("qstat") and '"Jobs"' in path.read_text()
)
SET_BY_PBS = frozenset({"job_state", "substate"})


def test_a_job_of_pbs_that_cannot_be_read_hides_no_other() -> None:
    """It is UNKNOWN, never absent, and says why."""
    text = (SAMPLES / "pbs2306" / "qstat-one.out").read_text()
    (job,) = parse_pbs_jobs(re.sub(r'"select"\s*:\s*"', '"select":"9999999:ncpus=1+', text))
    assert (job.state, job.name, job.user) == (LrmJobState.UNKNOWN, "koala-run", "root")
    assert "cannot be read" in job.reason


def texts_of(value: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of all texts in a document."""
    if isinstance(value, dict):
        return [inner for key, one in value.items() for inner in texts_of(one, (*path, key))]
    return [path] if isinstance(value, str) else []


@pytest.mark.parametrize("path", PBS_LISTINGS, ids=lambda path: path.name)
@given(data=st.data())
def test_pbs(path: Path, data: st.DataObject) -> None:
    """All other jobs are read as before, and this one is still there."""
    document = json.loads(path.read_text(), strict=False)
    before = {job.id: job for job in parse_pbs_jobs(json.dumps(document))}
    id_ = data.draw(st.sampled_from(sorted(document["Jobs"])))
    places = [place for place in texts_of(document["Jobs"][id_]) if place[0] not in SET_BY_PBS]
    place, content = data.draw(st.sampled_from(places)), data.draw(WRITTEN_BY_USERS) or b"x"
    entry = document["Jobs"][id_]
    for name in place[:-1]:
        entry = entry[name]
    entry[place[-1]] = "KOALA-MARK"
    written = json.dumps(content.decode("latin-1"), ensure_ascii=False)[1:-1].encode("latin-1")
    raw = json.dumps(document, indent=4).encode().replace(b"KOALA-MARK", written)
    after = {
        job.id: job for job in parse_pbs_jobs(CommandResult(argv=("qstat",), returncode=0, stdout=raw, stderr=b"").text)
    }
    assert set(after) == set(before)
    number = id_.partition(".")[0].partition("[")[0]
    assert {key: job for key, job in after.items() if not key.startswith(number)} == {
        key: job for key, job in before.items() if not key.startswith(number)
    }
