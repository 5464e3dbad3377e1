# SPDX-License-Identifier: Apache-2.0
"""What the WIKI codec reads may be as careless as real peers are; what it cannot read is refused in their words."""

from __future__ import annotations

import pytest

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.frames import FrameReader, open_reply, open_request, read_key, read_size, seal
from koala_adapter.wiki.codec.records import Count, JobRecord, NodeRecord, join_records, parse_jobs, parse_nodes
from koala_adapter.wiki.codec.verbs import build_refusal, parse_reply, parse_request, read_signal
from koala_adapter.wiki.codec.words import Dialect, Status, expand
from tests.wire.wiki_answers import parse_event

KEY = read_key("42")


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
        ("1:STATE=Idle;COLOUR=blue;", JobRecord(id="1", state="Idle", extra=(("COLOUR", "blue"),))),
        ("1:STATE=Idle;RCLASS=[a:2][b:1];", JobRecord(id="1", state="Idle", queue="[a:2][b:1]")),
        ("nebo.3:STATE=hold;", JobRecord(id="nebo.3", state="hold")),
    ],
)  # fmt: skip
def test_careless_records_are_read(text: str, expected: JobRecord) -> None:
    """Each way of writing that a real peer has, or that Maui accepts, gives the values that were meant."""
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
    """What does not begin with a number is no list."""
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
    """Nonsense ends in an error that has an answer, not in a gigabyte of names."""
    with pytest.raises(WikiError) as caught:
        expand(text)
    assert caught.value.status is Status.BAD_REQUEST


def test_a_reply_after_a_nul_is_ignored() -> None:
    """Everything from the first NUL on does not exist, also for the checksum."""
    payload = seal(b"SC=0 RESPONSE=ok", key=KEY, timestamp=9, user="u")[9:]
    assert open_reply(payload + b"\0 and more", key=KEY, now=9).message == b"SC=0 RESPONSE=ok"


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
    """The caller gets status and text of a refusal."""
    with pytest.raises(WikiError, match="No such job") as caught:
        parse_reply(b"SC=-700 RESPONSE=No such job").require()
    assert caught.value.status == -700
    with pytest.raises(WikiError, match="no status code"):
        parse_reply(b"ARG=0#")


@pytest.mark.parametrize("skew", [-3600, 3600])
def test_replies_may_be_an_hour_off(skew: int) -> None:
    """Maui's tolerance; one second more is refused."""
    payload = seal(b"SC=0", key=KEY, timestamp=1_000_000, user="u")[9:]
    assert open_reply(payload, key=KEY, now=1_000_000 + skew).verified
    with pytest.raises(WikiError, match="time stamp"):
        open_reply(payload, key=KEY, now=1_000_000 + skew + (1 if skew > 0 else -1))


def test_requests_may_be_five_minutes_off() -> None:
    """Slurm's tolerance; one second more is refused with its status."""
    payload = seal(b"CMD=GETJOBS ARG=0:ALL", key=KEY, timestamp=1000, user="u")[9:]
    assert open_request(payload, key=KEY, now=1300).verified
    with pytest.raises(WikiError) as caught:
        open_request(payload, key=KEY, now=1301)
    assert caught.value.status is Status.CLOCK_SKEW


def test_another_key_is_noticed_on_both_sides() -> None:
    """A wrong key is refused with a status in a request, and said with a way out in a reply."""
    payload = seal(b"CMD=GETJOBS ARG=0:ALL", key=read_key("43"), timestamp=1000, user="u")[9:]
    with pytest.raises(WikiError) as caught:
        open_request(payload, key=KEY, now=1000)
    assert caught.value.status is Status.BAD_CHECKSUM
    with pytest.raises(WikiError, match="key") as caught:
        open_reply(payload, key=KEY, now=1000)
    assert caught.value.status is None


@pytest.mark.parametrize("header", [b"0000001\n\n", b" 0000001\n", b"+0000001X", b"       1\n"])
def test_sizes_are_read_as_c_reads_them(header: bytes) -> None:
    """Blanks, a plus sign, and any ninth byte."""
    assert read_size(header) == 1


@pytest.mark.parametrize("header", [b"-0000001\n", b"abcdefgh\n", b"0x000001\n", b"99999999\n", b"        \n", b"0000"])
def test_sizes_that_are_none_end_the_connection(header: bytes) -> None:
    """No answer is possible, so the error has no status."""
    with pytest.raises(WikiError) as caught:
        read_size(header)
    assert caught.value.status is None


def test_a_cut_frame_is_reported_with_what_came() -> None:
    """The reader says how much of the header or of the body arrived."""
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
    reader.end()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"CMD=INITIALIZE ARG=USEHOSTEXP=X", "INITIALIZE has invalid USEHOSTEXP"),
        (b"CMD=INITIALIZE ARG=EPORT=99999", "INITIALIZE has invalid EPORT"),
        (b"CMD=JOBWILLRUN ARG=5 STARTTIME=x NODES=n1", "Invalid STARTTIME value"),
        (b"CMD=JOBWILLRUN ARG=5", "Missing NODES value"),
        (b"CMD=JOBWILLRUN ARG=5 NODES=n1 PREEMPT=a:b", "Invalid PREEMPT value"),
        (b"CMD=CANCELJOB ARG=5 TYPE=SOFTLY", "Invalid TYPE value"),
        (b"CMD=STARTJOB ARG=5 TASKLIST=n[3-1]", "STARTJOB TASKLIST is invalid"),
        (b"CMD=JOBADDTASK ARG=5 n1", "unsupported request type"),
        (b"CMD=SIGNALJOB ARG=5 VALUE=99999", "SIGNALJOB has invalid signal value"),
        (b"CMD=GETJOBS ARG=ALL", "Invalid ARG value"),
        (b"GETJOBS", "request lacks CMD"),
    ],
)
def test_malformed_requests_get_the_listed_answer(message: bytes, expected: str) -> None:
    """What is wrong is said in Slurm's words with its status."""
    with pytest.raises(WikiError) as caught:
        parse_request(message, Dialect.WIKI2)
    assert build_refusal(caught.value) == b"SC=-300 RESPONSE=" + expected.encode()


def test_a_server_may_understand_fewer_verbs() -> None:
    """A verb that is not offered is unsupported."""
    with pytest.raises(WikiError, match="unsupported request type"):
        parse_request(b"CMD=GETJOBS ARG=0:ALL", Dialect.WIKI, verbs=())


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


def test_events_are_four_digits_and_a_nul() -> None:
    """Both known events, and nothing else."""
    assert parse_event(b"1234\0") == 1234
    assert parse_event(b"1235\0") == 1235
    for data in (b"1236\0", b"1234", b"", b"12345"):
        with pytest.raises(WikiError):
            parse_event(data)


def test_a_list_of_records_is_one_message() -> None:
    """Records are joined by "#", with none at the end."""
    assert join_records([]) == b"SC=0 ARG=0#"
    assert join_records([b"a:STATE=Idle;", b"b:STATE=Idle;"]) == b"SC=0 ARG=2#a:STATE=Idle;#b:STATE=Idle;"
