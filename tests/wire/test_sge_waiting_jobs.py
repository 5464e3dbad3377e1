# SPDX-License-Identifier: Apache-2.0
"""What Grid Engine 8.1.9 tells of where waiting jobs may run, and of their contexts; and its submission verifier."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from koala_adapter.errors import LrmUnavailableError
from koala_sge.explained import JobContext, noted, parse_explained
from koala_sge.heldjobs import Wishes, instances_on, nodes_of, parse_instances, parse_wishes
from koala_sge.listing import has_access_lists, parse_limits

SAMPLES = Path(__file__).parent / "samples" / "sge819"
PIECE = Path(__file__).parents[2] / "conf" / "sge_jsv.sh"
LISTING = b"""<?xml version='1.0'?>
<job_info><queue_info/><job_info>
<job_list state="pending"><JB_job_number>15</JB_job_number><JB_owner>ann</JB_owner><state>hqw</state><slots>2</slots>
<requested_pe name="any">2</requested_pe><hard_request name="h_rt" resource_contribution="0.000000">60</hard_request>
<hard_request name="arch" resource_contribution="0.000000">vax</hard_request>
<hard_req_queue>n4.q</hard_req_queue><hard_req_queue>n2.q@@allhosts</hard_req_queue>
<master_hard_req_queue>n2.q</master_hard_req_queue></job_list>
<job_list state="pending"><JB_job_number>16</JB_job_number><JB_owner>bob</JB_owner><state>hqw</state><slots>1</slots>
<soft_request name="h_rt">60</soft_request><soft_req_queue>n2.q</soft_req_queue></job_list>
</job_info></job_info>"""


def explained(*contexts: dict[str, str]) -> bytes:
    """Return what qstat -xml -j prints of jobs 1, 2 ... with these contexts."""
    words = [
        "".join(
            f"<context_list><VA_variable>{k}</VA_variable><VA_value>{v}</VA_value></context_list>"
            for k, v in one.items()
        )
        for one in contexts
    ]
    jobs = "".join(
        f"<element><JB_job_number>{number}</JB_job_number><JB_context>{text}</JB_context></element>"
        for number, text in enumerate(words, start=1)
    )
    return f"<detailed_job_info><djob_info>{jobs}</djob_info></detailed_job_info>".encode()


def test_hard_requests_of_a_listing() -> None:
    """Soft ones do not matter."""
    wishes = parse_wishes(LISTING)
    assert wishes["15"] == Wishes(
        user="ann",
        resources=(("arch", "vax"), ("h_rt", "60")),
        queues=("n2.q@@allhosts", "n4.q"),
        master_queues=("n2.q",),
        environment="any",
        walltime=60,
    )
    assert wishes["15"].selected.resources == (("arch", "vax"),)
    assert wishes["16"] == Wishes(user="bob")


def test_contexts() -> None:
    """A mark of the verifier, a word of ours, other people's words, none."""
    found = parse_explained(
        explained(
            {"koala_user_hold": "1", "x": "1"},
            {},
            {"koala_queues": "n2.q+*@node7"},
            {"a": "b", "koala_queues": "*"},
        )
    )
    assert {number: job.context for number, job in found.items()} == {
        "1": JobContext(user_hold=True),
        "2": JobContext(),
        "3": JobContext(queues=("n2.q", "*@node7")),
        "4": JobContext(queues=()),
    }


def test_jobs_that_are_not_known_or_not_told() -> None:
    """Unknown jobs are none, in the words of each release; a qmaster that does not answer is an error."""
    assert parse_explained((SAMPLES / "err_qstat_j_unknown.xml").read_bytes()) == {}
    assert (
        parse_explained(
            b"<?xml version='1.0'?>\n<unknown_jobs xmlns:xsd='x'>\n<>\n<ST_name>9</ST_name></></unknown_jobs>"
        )
        == {}
    )
    with pytest.raises(LrmUnavailableError, match="comunication_error"):
        parse_explained(b"<?xml version='1.0'?>\n<comunication_error ><AN_status>11</AN_status></comunication_error>")


def test_groups_accounts_and_submissions() -> None:
    """As Grid Engine 8.1.9 printed them; the account of jobs that have none is no account."""
    job = parse_explained((SAMPLES / "qstat_j_error_state.xml").read_bytes())["1"]
    assert (job.group, job.account, job.submitted_at) == ("root", "", 1795259488.0)
    assert job.error_reasons == {1: "can't chdir to /nonexistent: No such file or directory"}


@pytest.mark.parametrize("queues", [(), ("a.q",), ("a.q@n1", "*@@group")])
def test_queues_come_back_from_a_context(queues: tuple[str, ...]) -> None:
    """As they were noted."""
    name, _, value = noted(queues).partition("=")
    assert parse_explained(explained({name: value}))["1"].context.queues == queues


def test_selected_instances_and_their_nodes() -> None:
    """Lines of qselect, by host or one by one."""
    found = parse_instances("a.q@n1\nb.q@n1\na.q@n2\nno such thing\n")
    assert nodes_of(found, by_queue=False) == {"n1", "n2"}
    assert nodes_of(found, by_queue=True) == found
    assert instances_on("n1", found, by_queue=False) == ("a.q@n1", "b.q@n1")
    assert instances_on("a.q@n1", found, by_queue=True) == ("a.q@n1",)


def test_access_lists_and_limits_of_queues() -> None:
    """NONE is none."""
    text = "qname a.q\nuser_lists NONE\nxuser_lists NONE\ns_rt 60\nh_rt 100\nqname b.q\nuser_lists {}\nh_rt INFINITY\n"
    assert not has_access_lists(text.format("NONE"))
    assert has_access_lists(text.format("arusers,[n1=staff]"))
    assert parse_limits(text, names=("h_rt",)) == {"a.q": 100, "b.q": None}


def verified(*parameters: str) -> list[str]:
    """Return what the site's piece changes of a job."""
    words = ["START", *(f"PARAM {parameter}" for parameter in parameters), "BEGIN", "QUIT"]
    done = subprocess.run(
        ["sh", str(PIECE)], input="".join(f"{word}\n" for word in words), capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "STARTED"
    assert lines[-1].startswith("RESULT STATE")
    return lines[1:-1]


@pytest.mark.parametrize(
    ("parameters", "changes"),
    [
        (("N test",), ["PARAM h u"]),
        (("N test", "h u"), ["PARAM h u", "PARAM ac koala_user_hold=1"]),
        (("h u", "ac a=b,c"), ["PARAM h u", "PARAM ac a=b,c,koala_user_hold=1"]),
        (("N debug-1", "h u"), []),
    ],
)
def test_a_hold_of_its_user_is_kept_apart(parameters: tuple[str, ...], changes: list[str]) -> None:
    """All jobs come in held; one that its user holds, too, is marked."""
    assert verified(*parameters) == changes
