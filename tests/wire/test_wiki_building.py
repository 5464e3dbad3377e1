# SPDX-License-Identifier: Apache-2.0
"""What the WIKI codec writes never harms a peer: each rule of docs/wiki.md for resource managers, and each limit."""

from __future__ import annotations

import pytest

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.frames import open_reply, read_key, seal
from koala_adapter.wiki.codec.records import (
    Count,
    JobRecord,
    NodeRecord,
    Prepared,
    build_job,
    build_node,
    build_nodes,
    fit_records,
)
from koala_adapter.wiki.codec.verbs import (
    Initialize,
    ModifyJob,
    RequeueJob,
    StartJob,
    build_answer,
    build_refusal,
    build_request,
    not_started,
)
from koala_adapter.wiki.codec.words import (
    JOB_ATTRIBUTES,
    LONGEST_ID,
    LONGEST_TASK_LIST,
    MOST_NODES_OF_JOB,
    MOST_TASKS,
    NODE_ATTRIBUTES,
    Dialect,
    HostFormat,
    JobWord,
    NodeWord,
    WaitReason,
)

KEY = read_key("42")
JOB = JobRecord(id="7", state=JobWord.IDLE, user="ada", tasks=4)


def test_the_smallest_job_for_maui() -> None:
    """Id, state first, and each attribute ended by a semicolon, also the last."""
    assert build_job(JOB, Dialect.WIKI) == b"7:STATE=Idle;TASKS=4;UNAME=ada;"


def test_maui_never_gets_a_word_it_does_not_know() -> None:
    """NAME, which would rename the job, and the words of WIKI2 stay away from Maui."""
    full = JobRecord(
        id="7",
        state=JobWord.RUNNING,
        user="ada",
        tasks=1,
        name="my job",
        exit_code=1,
        excluded_hosts=("n1",),
    )
    assert build_job(full, Dialect.WIKI) == b"7:STATE=Running;TASKS=1;UNAME=ada;"
    sent = build_job(full, Dialect.WIKI2)
    assert b'NAME="my job";' in sent
    assert b"EXITCODE=1;" in sent


UNKNOWN_TO_MAUI = {"NAME", "EXITCODE", "EXCLUDE_HOSTLIST", "MAXNODES", "WCKEY", "GRES", "SUBMITHOST", "CAT", "FEATURES"}


def test_the_table_for_maui_has_none_of_the_unknown_words() -> None:
    """No attribute that Maui does not know, or misunderstands, is marked as sent to it."""
    sent = {item.name for item in (*JOB_ATTRIBUTES, *NODE_ATTRIBUTES) if Dialect.WIKI in item.dialects}
    assert sent & UNKNOWN_TO_MAUI == set()


def test_each_attribute_has_a_field() -> None:
    """The tables name fields that the records have."""
    assert all(hasattr(JobRecord(id="1"), item.field) for item in JOB_ATTRIBUTES)
    assert all(hasattr(NodeRecord(name="n"), item.field) for item in NODE_ATTRIBUTES)


def test_classes_go_to_maui_with_the_free_ones() -> None:
    """Without ACLASS Maui would see no room in any class."""
    node = NodeRecord(name="n1", state=NodeWord.IDLE, processors=8, classes=(Count("batch", 8),))
    assert build_node(node, Dialect.WIKI) == b"n1:STATE=Idle;CCLASS=[batch:8];ACLASS=[batch:8];CPROC=8;"
    assert build_node(node, Dialect.WIKI2) == b"n1:STATE=Idle;CCLASS=[batch:8];CPROC=8;"


def test_empty_values_are_left_out_of_a_node() -> None:
    """Maui reads on into stray memory after an empty value."""
    node = NodeRecord(name="n1", state=NodeWord.DOWN, features=("", ""), reason=" ", partition="")
    assert build_node(node, Dialect.WIKI) == b"n1:STATE=Down;"
    assert build_node(node, Dialect.WIKI2) == b"n1:STATE=Down;"


def test_zero_is_a_value() -> None:
    """STARTTIME=0 means "not started" and is sent, as are no free processors."""
    assert b"STARTTIME=0;" in build_job(JobRecord(id="7", state="Idle", user="a", tasks=1, started_at=0), Dialect.WIKI)
    assert b"APROC=0;" in build_node(NodeRecord(name="n1", state="Busy", processors_free=0), Dialect.WIKI)


@pytest.mark.parametrize(
    "job",
    [
        JobRecord(id="", state="Idle", user="a", tasks=1),
        JobRecord(id="a b", state="Idle", user="a", tasks=1),
        JobRecord(id="a:b", state="Idle", user="a", tasks=1),
        JobRecord(id="a#", state="Idle", user="a", tasks=1),
        JobRecord(id="\udcff", state="Idle", user="a", tasks=1),
        JobRecord(id="x" * (LONGEST_ID + 1), state="Idle", user="a", tasks=1),
        JobRecord(id="é" * 32, state="Idle", user="a", tasks=1),
        JobRecord(id="1", state="idle", user="a", tasks=1),
        JobRecord(id="1", state="Cancelled", user="a", tasks=1),
        JobRecord(id="1", state="", user="a", tasks=1),
        JobRecord(id="1", state="Idle", tasks=1),
        JobRecord(id="1", state="Idle", user="a"),
        JobRecord(id="1", state="Idle", user="a", tasks=1, walltime=-1),
        JobRecord(id="1", state="Idle", user="a", tasks=1, queued_at=-5),
        JobRecord(id="1", state="Running", user="a", tasks=1, task_list=("n1", "n 2")),
        JobRecord(id="1", state="Running", user="a", tasks=1, task_list=("n[1-2]",)),
        JobRecord(id="1", state="Running", user="a", tasks=9000, task_list=("n1",) * (MOST_TASKS + 1)),
        JobRecord(
            id="1",
            state="Running",
            user="a",
            tasks=1,
            task_list=tuple(f"n{i}" for i in range(MOST_NODES_OF_JOB + 1)),
        ),
        JobRecord(id="1", state="Running", user="a", tasks=1, task_list=("n" * 60,) * (LONGEST_TASK_LIST // 60)),
    ],
)
def test_what_maui_cannot_take_is_not_built(job: JobRecord) -> None:
    """Ids with separators or too long, unknown states, missing parts, negative numbers, and task lists without room."""
    with pytest.raises(WikiError) as caught:
        build_job(job, Dialect.WIKI)
    assert caught.value.status is None


def test_the_longest_id_is_sent() -> None:
    """63 bytes fit."""
    record = build_job(JobRecord(id="x" * LONGEST_ID, state="Idle", user="a", tasks=1), Dialect.WIKI)
    assert record.startswith(b"x" * LONGEST_ID + b":STATE")


@pytest.mark.parametrize("name", ["", "n 1", "n1:n2", "n;", "ALL,n", "n[1-3]", "n*2", "n=1", 'n"', "x" * 64])
def test_node_names_are_checked(name: str) -> None:
    """A name that is none is refused in records and lists, never sent in another spelling."""
    with pytest.raises(WikiError):
        build_node(NodeRecord(name=name, state="Idle"), Dialect.WIKI)
    with pytest.raises(WikiError):
        build_request(StartJob(job="1", tasks=("n1", name)), Dialect.WIKI)


def test_a_reply_that_is_too_large_is_not_sealed() -> None:
    """The limit counts the signature block; one byte more is refused."""
    size = len(seal(b"x" * 100, key=KEY, timestamp=1, user="u")) - 9
    assert seal(b"x" * 100, key=KEY, timestamp=1, user="u", limit=size)
    with pytest.raises(WikiError, match="too large"):
        seal(b"x" * 101, key=KEY, timestamp=1, user="u", limit=size)


def test_a_user_name_cannot_forge_a_message() -> None:
    """What the sender is called cannot end its field."""
    frame = seal(b"SC=0 ARG=0#", key=KEY, timestamp=1, user="x DT=SC=-1")
    assert open_reply(frame[9:], key=KEY, now=1).message == b"SC=0 ARG=0#"


def test_what_is_left_out_first() -> None:
    """Finished jobs become brief, then go; then the others become brief; then it is refused."""
    records = [
        Prepared(full=b"a" * 100, brief=b"a" * 50),
        Prepared(full=b"f" * 100, brief=b"f" * 50, finished=True),
        Prepared(full=b"b" * 100, brief=b"b" * 50),
    ]
    around = len("SC=0 ARG=#") + 20 + 3
    lengths = [[len(text) for text in fit_records(records, limit=around + room)] for room in (300, 299, 249, 198, 120)]
    assert lengths == [[100, 100, 100], [100, 50, 100], [100, 100], [50, 100], [50, 50]]
    with pytest.raises(WikiError, match="too many"):
        fit_records(records, limit=around + 80)


@pytest.mark.parametrize(
    ("request_", "dialect"),
    [
        (RequeueJob(job="1"), Dialect.WIKI),
        (Initialize(event_port=99999), Dialect.WIKI2),
        (ModifyJob(job="1", changes=()), Dialect.WIKI2),
        (ModifyJob(job="1", changes=(("COLOUR", "blue"),)), Dialect.WIKI2),
        (ModifyJob(job="1", changes=(("BANK", "a=b"),)), Dialect.WIKI2),
        (ModifyJob(job="1", changes=(("HOSTLIST", "n1"),)), Dialect.WIKI),
        (ModifyJob(job="1", changes=(("JOBNAME", "x"),)), Dialect.WIKI),
        (StartJob(job="1", tasks=("n1",) * (MOST_TASKS + 1)), Dialect.WIKI),
        (StartJob(job="1 TASKLIST=n2", tasks=("n1",)), Dialect.WIKI),
    ],
)
def test_requests_that_a_dialect_cannot_say_are_not_built(request_: RequeueJob | ModifyJob, dialect: Dialect) -> None:
    """Verbs of the other dialect, unknown changes, and whatever could be taken for something else."""
    with pytest.raises(WikiError) as caught:
        build_request(request_, dialect)
    assert caught.value.status is None


def test_comments_cannot_contain_other_parameters() -> None:
    """Slurm looks for parameters wherever they stand, so a comment has no equals sign."""
    built = build_request(StartJob(job="1", tasks=(), comment='x" TASKLIST=n9'), Dialect.WIKI2)
    assert built == b'CMD=STARTJOB ARG=1 TASKLIST= COMMENT="x_ TASKLIST_n9"'
    assert (
        build_request(StartJob(job="1", tasks=("n1",), comment="x"), Dialect.WIKI) == b"CMD=STARTJOB ARG=1 TASKLIST=n1"
    )


def test_responses_are_one_line() -> None:
    """Control characters do not reach the peer, and the text has an end."""
    assert build_answer(0, "a\nb\0c\r") == b"SC=0 RESPONSE=a b c"
    assert len(build_answer(-1, "x" * 5000)) < 1100


def test_refusals_have_the_words_of_slurm() -> None:
    """A refusal to start carries reason and code as Slurm wrote them; one without a status is a plain failure."""
    refusal = not_started("58", ("n3", "n3", "n4"), WaitReason.RESOURCES)
    assert build_refusal(refusal) == b"SC=-913 RESPONSE=Could not start job 58(n[3-4]): Resources"
    assert build_refusal(WikiError("no")) == b"SC=-1 RESPONSE=no"


def test_equal_neighbours_share_a_record() -> None:
    """With the third host format consecutive equal nodes are one record, others keep their own."""
    nodes = [NodeRecord(name=f"n{i}", state="Idle" if i != 3 else "Down", processors=4) for i in range(1, 6)]
    built = list(build_nodes(nodes, Dialect.WIKI2, hosts=HostFormat.NODES))
    assert built == [b"n[1-2]:STATE=Idle;CPROC=4;", b"n3:STATE=Down;CPROC=4;", b"n[4-5]:STATE=Idle;CPROC=4;"]
    assert len(list(build_nodes(nodes, Dialect.WIKI, hosts=HostFormat.NODES))) == 5
