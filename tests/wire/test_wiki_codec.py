# SPDX-License-Identifier: Apache-2.0
"""WIKI messages written and read."""

from __future__ import annotations

import pytest

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.frames import FrameReader, open_reply, open_request, read_key, read_size, seal
from koala_adapter.wiki.codec.records import (
    Count,
    JobRecord,
    NodeRecord,
    Prepared,
    build_job,
    build_node,
    fit_records,
    parse_jobs,
    parse_nodes,
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
    parse_reply,
    parse_request,
    read_signal,
)
from koala_adapter.wiki.codec.words import (
    LONGEST_ID,
    LONGEST_TASK_LIST,
    MOST_NODES_OF_JOB,
    MOST_TASKS,
    Dialect,
    JobWord,
    NodeWord,
    Status,
    WaitReason,
    expand,
)

# -- What the WIKI codec writes never harms a peer: each rule of docs/wiki.md for resource managers, and each limit.


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


def test_classes_go_to_maui_with_the_free_ones() -> None:
    """Without ACLASS Maui would see no room in any class."""
    node = NodeRecord(name="n1", state=NodeWord.IDLE, processors=8, classes=(Count("batch", 8),))
    assert build_node(node, Dialect.WIKI) == b"n1:STATE=Idle;CCLASS=[batch:8];ACLASS=[batch:8];CPROC=8;"
    assert build_node(node, Dialect.WIKI2) == b"n1:STATE=Idle;CCLASS=[batch:8];CPROC=8;"


def test_empty_values_are_left_out_of_a_node() -> None:
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
    frame = seal(b"SC=0 ARG=0#", key=KEY, timestamp=1, user="x DT=SC=-1")
    assert open_reply(frame[9:], key=KEY, now=1) == b"SC=0 ARG=0#"


def test_what_is_left_out_first() -> None:
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
    built = build_request(StartJob(job="1", tasks=(), comment='x" TASKLIST=n9'), Dialect.WIKI2)
    assert built == b'CMD=STARTJOB ARG=1 TASKLIST= COMMENT="x_ TASKLIST_n9"'
    assert (
        build_request(StartJob(job="1", tasks=("n1",), comment="x"), Dialect.WIKI) == b"CMD=STARTJOB ARG=1 TASKLIST=n1"
    )


def test_responses_are_one_line() -> None:
    assert build_answer(0, "a\nb\0c\r") == b"SC=0 RESPONSE=a b c"
    assert len(build_answer(-1, "x" * 5000)) < 1100


def test_refusals_have_the_words_of_slurm() -> None:
    """A refusal to start carries reason and code as Slurm wrote them; one without a status is a plain failure."""
    refusal = not_started("58", ("n3", "n3", "n4"), WaitReason.RESOURCES, "")
    assert build_refusal(refusal) == b"SC=-913 RESPONSE=Could not start job 58(n[3-4]): Resources"
    assert build_refusal(WikiError("no")) == b"SC=-1 RESPONSE=no"


# -- What the WIKI codec reads may be as careless as real peers are; what it cannot read is refused in their words.


def jobs_of(*records: str) -> tuple[JobRecord, ...]:
    """Return what is read from records."""
    return parse_jobs(f"{len(records)}#{'#'.join(records)}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1:STATE=Idle", JobRecord(id="1", state="Idle")),
        ('1:STATE="Idle";RCLASS="batch";', JobRecord(id="1", state="Idle", queue="batch")),
        ("1:STATE=Idle;;TASKS=010;", JobRecord(id="1", state="Idle", tasks=8)),
        ("1:STATE=Idle;TASKS=0x10;WCLIMIT=-1;", JobRecord(id="1", state="Idle", tasks=16, walltime=-1)),
        ("1:STATE=Idle;QUEUETIME=0100;", JobRecord(id="1", state="Idle", queued_at=100)),
        ("1:STATE=Idle;TASKS=;UNAME=;", JobRecord(id="1", state="Idle")),
        ("1:STATE=Idle;TASKS=many;", JobRecord(id="1", state="Idle")),
        (r"1:STATE=Idle;IWD=/a\;b\#c\:d;", JobRecord(id="1", state="Idle", directory="/a;b#c:d")),
        ('1:COMMENT="a;b=c #d";STATE=Idle;', JobRecord(id="1", state="Idle", comment="a;b=c #d")),
        ("1:STATE=Running;TASKLIST=:n2:n2;", JobRecord(id="1", state="Running", task_list=("n2", "n2"))),
        ("1:STATE=Running;TASKLIST=n[1-2]*2;", JobRecord(id="1", state="Running", task_list=("n1", "n1", "n2", "n2"))),
        ("1:STATE=Running;TASKLIST=n[2-1];", JobRecord(id="1", state="Running", task_list=("n[2-1]",))),
        ("1:STATE=Idle;RMEM=9223372036854775908;", JobRecord(id="1", state="Idle", memory=100)),
        ("1:STATE=Idle;RMEM=2147483748;", JobRecord(id="1", state="Idle", memory=100)),
        ("1:STATE=Idle;COMPLETIONTIME=5;", JobRecord(id="1", state="Idle", completed_at=5)),
        ("1:STATE=Idle;COLOUR=blue;", JobRecord(id="1", state="Idle")),
        ("1:STATE=Idle;RCLASS=[a:2][b:1];", JobRecord(id="1", state="Idle", queue="[a:2][b:1]")),
        ("nebo.3:STATE=hold;", JobRecord(id="nebo.3", state="hold")),
    ],
)  # fmt: skip
def test_careless_records_are_read(text: str, expected: JobRecord) -> None:
    assert jobs_of(text) == (expected,)


@pytest.mark.parametrize(
    ("argument", "ids"),
    [
        ("0#", []),
        ("0", []),
        ("-1#1:STATE=Idle;", []),
        ("2#1:STATE=Idle;#2:STATE=Idle;", ["1", "2"]),
        ("5#1:STATE=Idle;#2:STATE=Idle;#", ["1", "2"]),
        ("1#1:STATE=Idle;#2:STATE=Idle;", ["1"]),
        ("0x2#1:STATE=Idle;#2:STATE=Idle;", ["1", "2"]),
        ("3#(null)#2:STATE=Idle;#(null)", ["2"]),
        ("1#1:STATE=Idle;COMMENT=#1 of # many;", ["1"]),
        ("2#no record#2:STATE=Idle;", ["2"]),
        ("1#:STATE=Idle;", []),
    ],
)
def test_counts_that_do_not_agree_are_survived(argument: str, ids: list[str]) -> None:
    """Too many, too few, none, a "#" in a comment, and texts that are no records."""
    assert [job.id for job in parse_jobs(argument)] == ids


@pytest.mark.parametrize("argument", ["", "#", "x#1:STATE=Idle;", "Jobs not runable"])
def test_a_list_without_a_number_is_refused(argument: str) -> None:
    with pytest.raises(WikiError):
        parse_jobs(argument)


def test_many_nodes_in_one_record_become_nodes() -> None:
    """A compressed node record stands for each of its nodes; the misspelt FEATURES is understood."""
    nodes = parse_nodes("1#n[1-2,5]:STATE=Idle;FEATURES=a:b;CCLASS=[x:2][y];CPULOAD=.5;")
    assert [node.name for node in nodes] == ["n1", "n2", "n5"]
    assert nodes[2] == NodeRecord(
        name="n5",
        state="Idle",
        features=("a", "b"),
        classes=(Count("x", 2), Count("y", 1)),
        load=0.5,
    )


@pytest.mark.parametrize("text", ["n[1-99999999]", "n1*999999999", "n[1-400][1-400][1-400]", "n[", "n]", "n[a]", "n*x"])
def test_host_lists_that_would_fill_the_memory_are_refused(text: str) -> None:
    with pytest.raises(WikiError) as caught:
        expand(text)
    assert caught.value.status is Status.BAD_REQUEST


def test_a_reply_after_a_nul_is_ignored() -> None:
    """Everything from the first NUL on does not exist, also for the checksum."""
    payload = seal(b"SC=0 RESPONSE=ok", key=KEY, timestamp=9, user="u")[9:]
    assert open_reply(payload + b"\0 and more", key=KEY, now=9) == b"SC=0 RESPONSE=ok"


@pytest.mark.parametrize(
    ("message", "status", "text"),
    [
        (b"SC=0;ARG=0#", 0, "0#"),
        (b"x SC=5 ARG=0#", 5, "0#"),
        (b"SC=0 RSP=fine", 0, "fine"),
        (b"SC=0", 0, ""),
        (b"SC=0 RESPONSE=ARG= is missing", 0, "ARG= is missing"),
    ],
)
def test_free_forms_of_replies_are_read(message: bytes, status: int, text: str) -> None:
    """What follows the number is free, as Maui sees it."""
    reply = parse_reply(message)
    assert (reply.status, reply.require()) == (status, text)


def test_a_failure_is_raised_with_the_words_of_the_peer() -> None:
    with pytest.raises(WikiError, match="No such job") as caught:
        parse_reply(b"SC=-700 RESPONSE=No such job").require()
    assert caught.value.status == -700
    with pytest.raises(WikiError, match="no status code"):
        parse_reply(b"ARG=0#")


@pytest.mark.parametrize("skew", [-3600, 3600])
def test_replies_may_be_an_hour_off(skew: int) -> None:
    payload = seal(b"SC=0", key=KEY, timestamp=1_000_000, user="u")[9:]
    assert open_reply(payload, key=KEY, now=1_000_000 + skew) == b"SC=0"
    with pytest.raises(WikiError, match="time stamp"):
        open_reply(payload, key=KEY, now=1_000_000 + skew + (1 if skew > 0 else -1))


def test_requests_may_be_five_minutes_off() -> None:
    """Slurm's tolerance; one second more is refused with its status."""
    payload = seal(b"CMD=GETJOBS ARG=0:ALL", key=KEY, timestamp=1000, user="u")[9:]
    assert open_request(payload, key=KEY, now=1300) == b"CMD=GETJOBS ARG=0:ALL"
    with pytest.raises(WikiError) as caught:
        open_request(payload, key=KEY, now=1301)
    assert caught.value.status is Status.CLOCK_SKEW


@pytest.mark.parametrize("header", [b"0000001\n\n", b" 0000001\n", b"+0000001X", b"       1\n"])
def test_sizes_are_read_as_c_reads_them(header: bytes) -> None:
    """Blanks, a plus sign, and any ninth byte."""
    assert read_size(header) == 1


@pytest.mark.parametrize("header", [b"-0000001\n", b"abcdefgh\n", b"0x000001\n", b"99999999\n", b"        \n", b"0000"])
def test_sizes_that_are_none_end_the_connection(header: bytes) -> None:
    with pytest.raises(WikiError) as caught:
        read_size(header)
    assert caught.value.status is None


def test_a_cut_frame_is_reported_with_what_came() -> None:
    reader = FrameReader()
    reader.feed(b"0000")
    assert reader.missing == 5
    with pytest.raises(WikiError, match="4 of 9"):
        reader.end()
    reader.feed(b"0010\nabc")
    assert reader.missing == 7
    with pytest.raises(WikiError, match="3 of 10"):
        reader.end()
    assert reader.feed(b"defghij and the next") == b"abcdefghij"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"CMD=INITIALIZE ARG=USEHOSTEXP=X", "INITIALIZE has invalid USEHOSTEXP"),
        (b"CMD=INITIALIZE ARG=EPORT=99999", "INITIALIZE has invalid EPORT"),
        (b"CMD=JOBWILLRUN ARG=5 STARTTIME=x NODES=n1", "Invalid STARTTIME value"),
        (b"CMD=JOBWILLRUN ARG=5", "Missing NODES value"),
        (b"CMD=JOBWILLRUN ARG=5 NODES=n1 PREEMPT=a:b", "Invalid PREEMPT value"),
        (b"CMD=STARTJOB ARG=5 TASKLIST=n[3-1]", "STARTJOB TASKLIST is invalid"),
        (b"CMD=JOBADDTASK ARG=5 n1", "unsupported request type"),
        (b"CMD=SIGNALJOB ARG=5 VALUE=99999", "SIGNALJOB has invalid signal value"),
    ],
)
def test_malformed_requests_get_the_listed_answer(message: bytes, expected: str) -> None:
    """What is wrong is said in Slurm's words with its status."""
    with pytest.raises(WikiError) as caught:
        parse_request(message, Dialect.WIKI2)
    assert build_refusal(caught.value) == b"SC=-300 RESPONSE=" + expected.encode()


@pytest.mark.parametrize(
    ("text", "number"),
    [("SIGUSR1", 10), ("usr2", 12), ("9", 9), ("KILL", None), ("0", None), ("99999", None), ("", None)],
)
def test_signals_are_read_as_slurm_reads_them(text: str, number: int | None) -> None:
    """Numbers, and the names on its list; KILL is not among them."""
    assert read_signal(text) == number


@pytest.mark.parametrize(
    ("text", "seed"),
    [
        ("1234567890", 0x499602D2),
        (" \t+42 keys", 42),
        ("-1", 0xFFFFFFFF),
        ("0x", 0),
        ("08", 0),
        ("banana6", 0),
        ("", 0),
        ("99999999999999999999", 0xFFFFFFFF),
        ("18446744073709551615", 0xFFFFFFFF),
        ("-99999999999999999999", 0xFFFFFFFF),
        ("0xDeadBeef17", 0xADBEEF17),
        ("00000000000000000000000000017", 15),
    ],
)
def test_keys_are_read_as_c_reads_them(text: str, seed: int) -> None:
    """Strtoul with base 0 on 64 bits, of which the low 32 count; and the key does not show itself."""
    assert read_key(text).seed == seed
    assert str(seed) not in repr(read_key(text)) or seed == 0
