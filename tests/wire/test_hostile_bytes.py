# SPDX-License-Identifier: Apache-2.0
"""Bytes that a user puts into a field of a job change that field alone, in what every batch system lists."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.lrm.commands import CommandResult
from koala_adapter.model import LrmJob, LrmJobState
from koala_adapter.wiki.codec.records import parse_jobs as parse_wiki_jobs
from koala_adapter.wiki.codec.words import Dialect
from koala_local.jobs import JobRecord, decode, encode
from koala_pbs.torque import read_torque
from koala_sge.heldjobs import parse_explained, parse_wishes
from koala_sge.listing import parse_jobs, parse_layouts
from koala_slurm.listing import JOB_FIELDS, SEPARATOR, new_separator
from koala_slurm.listing import parse_jobs as parse_slurm_jobs
from koala_slurm.requests import MORE_FIELDS, parse_details, parse_everything, parse_one_detailed
from koala_wiki.lrm import to_job
from tests.examples import examples
from tests.pbs_listings import parse_jobs as parse_pbs_jobs
from tests.unit.plugins.test_local_parts import SAMPLE

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
    return [job for job in jobs if job.id.partition(".")[0] != number]


@examples(50)
@given(name=st.sampled_from(JOB_LISTINGS), data=st.data())
def test_grid_engine(name: str, data: st.DataObject) -> None:
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
    one = "<element><JB_job_number>{}</JB_job_number><JB_owner>a</JB_owner><JB_hard_resource_list>{}"
    one += "</JB_hard_resource_list><JB_account>{}</JB_account><JB_context><context_list><VA_variable>{}</VA_variable>"
    one += "<VA_value>{}</VA_value></context_list></JB_context></element>"
    contents = [as_grid_engine_prints(data.draw(WRITTEN_BY_USERS)).decode("latin-1") for _ in range(4)]
    forged = "\n======\njob_number: 2\ncontext: koala_user_hold=1\n"
    evil = one.format(1, contents[0] + forged, *contents[1:]).encode("latin-1")
    good = one.format(2, "x", "account", "koala", "hello").encode()
    explained = parse_explained(b"<detailed_job_info><djob_info>" + evil + good + b"</djob_info></detailed_job_info>")
    assert set(explained) == {"1", "2"}
    assert explained["2"].user_hold is False
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
    if isinstance(value, dict):
        return [inner for key, one in value.items() for inner in texts_of(one, (*path, key))]
    return [path] if isinstance(value, str) else []


@examples(60)
@given(path=st.sampled_from(PBS_LISTINGS), data=st.data())
def test_pbs(path: Path, data: st.DataObject) -> None:
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


# -- Torque --------------------------------------------------------------------------------------------------

TORQUE_LISTINGS = [SAMPLES / name / "qstat-tx.xml" for name in ("torque", "torque61")]
TORQUE_FIELDS = (
    "Job_Name", "Account_Name", "Error_Path", "Output_Path", "Variable_List", "init_work_dir", "nodes", "submit_args",
    "Resource_List", "depend", "Mail_Users",
)  # fmt: skip
"""That a user can give any text, or much of it."""
_TORQUE_JOB = re.compile(r"<Job>.*?</Job>", re.DOTALL)


def torque_jobs(text: str) -> dict[str, LrmJob]:
    """Return the jobs of a listing by their ids."""
    return {job.id: job for job in parse_pbs_jobs(text, read_torque)}


@examples(50)
@given(path=st.sampled_from(TORQUE_LISTINGS), escaped=st.booleans(), data=st.data())
def test_torque(path: Path, escaped: bool, data: st.DataObject) -> None:  # noqa: FBT001 - a parameter
    """All other jobs are read as before, and this one is still there; also where an older Torque escapes nothing."""
    text = path.read_text()
    job = data.draw(st.sampled_from(list(_TORQUE_JOB.finditer(text))))
    fields = [
        found
        for name in TORQUE_FIELDS
        if (found := re.compile(rf"<{name}>(?P<text>[^<]*)</{name}>").search(text, job.start(), job.end()))
    ]
    field, content = data.draw(st.sampled_from(fields)), data.draw(st.one_of(WRITTEN_BY_USERS, TAGS))
    raw = b"x" + content.replace(b"\0", b"")
    if escaped:
        raw = re.sub(rb"[&<>\"']", lambda found: b"&#%d;" % found[0][0], raw)
    printed = text[: field.start("text")].encode() + raw + text[field.end("text") :].encode()
    after = torque_jobs(CommandResult(argv=("qstat",), returncode=0, stdout=printed, stderr=b"").text)
    before = torque_jobs(text)
    number = re.search(r"<Job_Id>([^<]*)</Job_Id>", job[0])
    assert number is not None
    assert set(after) == set(before)
    assert {key: one for key, one in after.items() if key != number[1]} == {
        key: one for key, one in before.items() if key != number[1]
    }


TAGS = st.lists(
    st.sampled_from(
        [b"<b>", b"</b>", b"<b/>", b"</Job>", b"<Job>", b"</Data>", b"</Job_Name>", b"<", b">", b"&", b"x"]
    ),
    max_size=6,
).map(b"".join)


def test_a_job_of_torque_that_is_there_twice_is_not_believed() -> None:
    """One of the two is what somebody has written into a variable: the other jobs are read."""
    text = TORQUE_LISTINGS[0].read_text()
    forged = "</Variable_List></Job><Job><Job_Id>102.head.site</Job_Id><Job_Name>x</Job_Name><job_state>C</job_state>"
    after = torque_jobs(text.replace("PBS_O_QUEUE=batch,", f"{forged}<Variable_List>PBS_O_QUEUE=batch,", 1))
    before = torque_jobs(text)
    assert after.keys() == before.keys()
    assert after["102.head.site"].state is LrmJobState.UNKNOWN
    assert "twice" in after["102.head.site"].reason
    unconcerned = before.keys() - {"101.head.site", "102.head.site"}
    assert {key: after[key] for key in unconcerned} == {key: before[key] for key in unconcerned}


@pytest.mark.parametrize(
    "record",
    [
        "<Job_Id>nonsense</Job_Id><Job_Name>x</Job_Name><job_state>R</job_state>",
        "<Job_Id>-x</Job_Id>",
        "<Job_Id>999.head.site</Job_Id>",
        "<Job_Id>999.head.site</Job_Id><Job_Name>x</Job_Name>",
        "<Job_Id>999.head.site</Job_Id><job_state>R</job_state><exec_host>n1/0-9999999</exec_host>",
        "<Job_Id>999.head.site</Job_Id><Job_Name>x</Job_Name><job_state>R</job_state>",
        "<Job_Name>x</Job_Name>",
        "",
    ],
)
@pytest.mark.parametrize("path", TORQUE_LISTINGS, ids=lambda path: path.parent.name)
def test_a_record_that_a_user_has_written_ends_no_listing_of_torque(path: Path, record: str) -> None:
    """An older Torque escapes nothing: what a variable makes of its own job costs that job's fields alone."""
    text = path.read_text()
    carrier = re.search(r"<Job_Id>([^<]*)</Job_Id>(?:(?!</Job>).)*<Variable_List>", text, re.DOTALL)
    assert carrier is not None
    forged = f"x</Variable_List></Job><Job>{record}<Variable_List>"
    after = torque_jobs(text[: carrier.end()] + forged + text[carrier.end() :])
    before = torque_jobs(text)
    assert after.keys() - {"999.head.site"} == before.keys()
    assert {key: after[key] for key in before.keys() - {carrier[1]}} == {
        key: job for key, job in before.items() if key != carrier[1]
    }


def test_a_listing_in_which_no_id_is_one_is_refused() -> None:
    """It is not taken for one without jobs: all that is tracked would seem to be gone."""
    text = re.sub(r"<Job_Id>[^<]*</Job_Id>", "<Job_Id>job:1</Job_Id>", TORQUE_LISTINGS[0].read_text())
    with pytest.raises(ValueError, match="'job:1' is no job id"):
        torque_jobs(text)


# -- Slurm ---------------------------------------------------------------------------------------------------

SLURM_LISTINGS = sorted((SAMPLES / "slurm_plugin").glob("*.json"))
FORGED = st.sampled_from(
    [
        b"x\nJobId=2 JobName=evil\n   Licenses=all",
        b"\x1f" * 40,
        b"1\x1froot\x1fRUNNING\n",
        b"a\n\n",
    ]
)


def recorded(path: Path, name: str) -> str:
    """Return what a recorded command printed."""
    return next(str(one["stdout"]) for one in json.loads(path.read_text()) if one["name"] == name)


def as_text(raw: bytes) -> str:
    """Return what the plugin reads of bytes."""
    return CommandResult(argv=("squeue",), returncode=0, stdout=raw, stderr=b"").text


@examples(50)
@given(path=st.sampled_from(SLURM_LISTINGS), data=st.data())
def test_names_of_slurm(path: Path, data: st.DataObject) -> None:
    end = new_separator()
    rows = [row.split(SEPARATOR, len(JOB_FIELDS) - 1) for row in recorded(path, "jobs").splitlines() if row.strip()]
    before = [parse_slurm_jobs(SEPARATOR.join(row) + end, end) for row in rows]
    number = data.draw(st.integers(0, len(rows) - 1))
    rows[number][-1] = as_text(data.draw(st.one_of(WRITTEN_BY_USERS, FORGED)))
    after = parse_slurm_jobs("\n".join(SEPARATOR.join(row) + end for row in rows), end)
    mine = {job.id for job in before[number]}
    assert [job for job in after if job.id not in mine] == [
        job for place, jobs in enumerate(before) if place != number for job in jobs
    ]
    assert mine <= {job.id for job in after}


SLURM_TEXTS = ("Name", "Comment", "WorkDir", "Account", "Feature", "Dependency", "ReqNodes")


@given(data=st.data())
def test_all_fields_of_slurm(data: st.DataObject) -> None:
    end = new_separator()
    fields = (*JOB_FIELDS, *MORE_FIELDS)
    rows = []
    for number in range(1, 4):
        row = dict.fromkeys(fields, "") | {"JobArrayID": str(number), "State": "PENDING", "NumCPUs": "1", "Name": "j"}
        rows.append(row | {"UserName": f"u{number}", "Reason": "JobHeldUser", "SubmitTime": "1700000000"})

    def printed() -> str:
        return "\n".join("".join(f"{row[name]}{end}" for name in fields) for row in rows)

    before = parse_everything(printed(), end)
    rows[1][data.draw(st.sampled_from(SLURM_TEXTS))] = as_text(data.draw(st.one_of(WRITTEN_BY_USERS, FORGED)))
    after = parse_everything(printed(), end)
    assert [job.id for job in after] == ["1", "2", "3"]
    assert (after[0], after[2]) == (before[0], before[2])
    assert (after[1].user, after[1].state) == ("u2", LrmJobState.HELD)


RECORD = """JobId={0} JobName={1}
   UserId=u(1) GroupId=g(1)
   JobState=PENDING Reason=JobHeldUser
   NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   MinCPUsNode=1 MinMemoryCPU=100M
   OverSubscribe=OK Licenses=(null)
   Comment={2}
   WorkDir={3}

"""


@given(data=st.data())
def test_details_of_slurm(data: st.DataObject) -> None:
    texts = [as_text(data.draw(st.one_of(WRITTEN_BY_USERS, FORGED))) for _ in range(3)]
    good = RECORD.format(2, "good", "", "/")
    output = RECORD.format(1, *texts) + good
    listed = {
        str(number): parse_slurm_jobs(row)[0]
        for number, row in ((1, WAITING_ROW.format(1)), (2, WAITING_ROW.format(2)))
    }
    expected = parse_details(good).of(listed["2"])
    assert parse_details(output).of(listed["2"]) in {expected, None}
    alone = parse_one_detailed(RECORD.format(1, "j", *texts[1:]))
    assert (alone.processors, alone.restrictions.licenses, alone.memory_per_processor_mib) == (1, (), 100)


WAITING_ROW = SEPARATOR.join(
    ("{}", "u", "PENDING", "1", "main", "", "1700000000", "N/A", "N/A", "0", "JobHeldUser", "j")
)


# -- WIKI ----------------------------------------------------------------------------------------------------

WIKI_JOB = '{}:STATE=Idle;UNAME=ann;GNAME=staff;UPDATETIME=1;QUEUETIME=2;TASKS=1;WCLIMIT=60;{}="{}";IWD="/home/ann";'


@examples(50)
@given(field=st.sampled_from(["COMMENT", "EXEC", "NAME"]), dialect=st.sampled_from(list(Dialect)), data=st.data())
def test_wiki(dialect: Dialect, field: str, data: st.DataObject) -> None:
    content = as_text(data.draw(st.one_of(WRITTEN_BY_USERS, FORGED, WIKI_WORDS)))
    text = re.sub(r'["\\\0]', "", content)
    first, last = WIKI_JOB.format("1", field, "a"), WIKI_JOB.format("3", field, "c")

    def read(own: str) -> list[LrmJob]:
        listed = "#".join(("3", first, WIKI_JOB.format("2", field, own), last))
        return [to_job(one, dialect) for one in parse_wiki_jobs(listed)]

    before, after = read(""), read(text)
    assert [job.id for job in after] == ["1", "2", "3"]
    assert (after[0], after[2]) == (before[0], before[2])


WIKI_WORDS = st.lists(
    st.sampled_from([b"#", b";", b":", b"=", b"STATE=Running", b"3:STATE=Running;", b"9:STATE=Idle;", b"?TPN:2", b"x"]),
    max_size=6,
).map(b"".join)


# -- The local cluster ---------------------------------------------------------------------------------------


@given(data=st.data())
def test_local(data: st.DataObject) -> None:
    text = as_text(data.draw(WRITTEN_BY_USERS))
    field = data.draw(st.sampled_from(["name", "user", "output_directory"]))
    record = replace(SAMPLE, **{field: text})  # type: ignore[arg-type] # fields of text
    assert decode(encode(record)).record(JobRecord) == record
