# SPDX-License-Identifier: Apache-2.0
"""What must hold for the WIKI codec whatever comes: what is built is read back, and nothing but WikiError is raised."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec import verbs as requests
from koala_adapter.wiki.codec.frames import FrameReader, open_reply, open_request, read_key, seal
from koala_adapter.wiki.codec.records import (
    Attribute,
    Count,
    JobRecord,
    Kind,
    NodeRecord,
    Prepared,
    attributes,
    build_job,
    build_node,
    fit_records,
    join_records,
    parse_jobs,
    parse_nodes,
)
from koala_adapter.wiki.codec.verbs import (
    StartInfo,
    build_answer,
    build_request,
    build_start_info,
    parse_reply,
    parse_request,
)
from koala_adapter.wiki.codec.words import (
    CancelType,
    Dialect,
    HostFormat,
    JobWord,
    NodeWord,
    compressed,
    expand,
    plain,
    ranges,
)
from tests.wire.wiki_samples import KEY, golden, parse_start_info, timestamp

HOSTS = st.from_regex(r"[a-z][a-z0-9.-]{0,5}[0-9]{0,4}", fullmatch=True)
JOB_IDS = st.from_regex(r"[A-Za-z0-9_.\[\]*+-]{1,12}", fullmatch=True).filter(lambda text: text != "ALL")
WORDS = st.from_regex(r"[A-Za-z0-9_./+-]{1,10}", fullmatch=True)
TEXTS = st.text(st.characters(blacklist_characters=':;#"\\\x7f', blacklist_categories=("Cc", "Cs")), max_size=20).map(
    str.strip
)
TIMES = st.integers(0, 2**40)
COUNTS = st.integers(0, 2**31 - 1)
COUNTED = st.lists(st.builds(Count, name=WORDS.filter(lambda word: "/" not in word), amount=COUNTS), max_size=3)

VALUES: dict[Kind, st.SearchStrategy[object]] = {
    Kind.COUNT: COUNTS,
    Kind.TIME: TIMES,
    Kind.FLOAT: st.integers(0, 10**9).map(lambda number: number / 1000),
    Kind.WORD: WORDS,
    Kind.TEXT: TEXTS,
    Kind.NAMES: st.lists(WORDS, max_size=3).map(tuple),
    Kind.TASKS: st.lists(HOSTS, max_size=6).map(tuple),
    Kind.HOSTS: st.lists(HOSTS, max_size=6).map(tuple),
    Kind.CLASSES: COUNTED.map(tuple),
    Kind.QUEUE: WORDS,
}


def optional(attribute: Attribute) -> st.SearchStrategy[object]:
    """Return values of an attribute, its default included."""
    empty = None if attribute.kind in {Kind.COUNT, Kind.TIME, Kind.FLOAT} else VALUES[attribute.kind]
    return st.none() | VALUES[attribute.kind] if empty is None else empty


def wanted(record: type, dialect: Dialect) -> dict[str, st.SearchStrategy[object]]:
    return {name: optional(item) for name, item in attributes(record).items() if dialect in item.dialects}


def jobs(dialect: Dialect) -> st.SearchStrategy[JobRecord]:
    """Return job records that can be built in a dialect."""
    own = {"id": JOB_IDS, "state": st.sampled_from([str(word) for word in JobWord]), "user": WORDS, "tasks": COUNTS}
    others = {name: values for name, values in wanted(JobRecord, dialect).items() if name not in own}
    return st.fixed_dictionaries(own, optional=others).map(
        lambda values: JobRecord(**values)  # type: ignore[arg-type]
    )


def nodes(dialect: Dialect) -> st.SearchStrategy[NodeRecord]:
    """Return node records that can be built in a dialect."""
    own = {"name": HOSTS, "state": st.sampled_from([str(word) for word in NodeWord])}

    def complete(node: NodeRecord) -> NodeRecord:
        # Maui gets both or it takes the missing one for "none are free".
        return node if dialect is Dialect.WIKI2 or node.classes_free else replace(node, classes_free=node.classes)

    others = {name: values for name, values in wanted(NodeRecord, dialect).items() if name not in own}
    return (
        st.fixed_dictionaries(own, optional=others)
        .map(lambda values: NodeRecord(**values))  # type: ignore[arg-type]
        .map(complete)
    )


@pytest.mark.parametrize("dialect", list(Dialect))
@given(data=st.data())
def test_job_records_survive(dialect: Dialect, data: st.DataObject) -> None:
    listed = data.draw(st.lists(jobs(dialect), max_size=4))
    hosts = data.draw(st.sampled_from(HostFormat))
    message = join_records([build_job(job, dialect, hosts=hosts) for job in listed])
    assert parse_jobs(parse_reply(message).require()) == tuple(listed)


@pytest.mark.parametrize("dialect", list(Dialect))
@given(data=st.data())
def test_node_records_survive(dialect: Dialect, data: st.DataObject) -> None:
    listed = data.draw(st.lists(nodes(dialect), max_size=4))
    message = join_records([build_node(node, dialect) for node in listed])
    assert parse_nodes(parse_reply(message).require()) == tuple(listed)


@pytest.mark.parametrize("dialect", list(Dialect))
@given(data=st.data())
def test_brief_records_keep_what_a_scheduler_needs(dialect: Dialect, data: st.DataObject) -> None:
    job = data.draw(jobs(dialect))
    full, brief = build_job(job, dialect), build_job(job, dialect, brief=True)
    (read,) = parse_jobs(parse_reply(join_records([brief])).require())
    assert len(brief) <= len(full)
    for item in fields(JobRecord):
        assert getattr(read, item.name) in {getattr(job, item.name), item.default}
    assert (read.id, read.state, read.tasks, read.walltime) == (job.id, job.state, job.tasks, job.walltime)


HARMFUL = st.text(st.sampled_from(':;#"\\\n\t =[],\0é\ud800a1'), min_size=0, max_size=12)


@pytest.mark.parametrize("dialect", list(Dialect))
@given(text=HARMFUL, names=st.lists(HARMFUL, max_size=3))
@example(text=" ", names=[])
def test_no_value_can_break_a_record(dialect: Dialect, text: str, names: list[str]) -> None:
    """Whatever a user calls things: one record stays one record with the same attributes around the value."""
    job = JobRecord(
        id="1",
        state=JobWord.IDLE,
        user=text or "u",
        tasks=1,
        directory=text,
        comment=text,
        queue=text,
        features=tuple(names),
        account=text,
        group="end",
    )
    built = build_job(job, dialect)
    (read,) = parse_jobs(parse_reply(join_records([built])).require())
    assert (read.id, read.state, read.tasks, read.group) == ("1", JobWord.IDLE, 1, "end")
    assert built.count(b";") == sum(getattr(read, name) not in {None, "", ()} for name in attributes(JobRecord))
    assert built.startswith(b"1:STATE=Idle;")
    assert built.endswith(b";GNAME=end;")
    assert not re.search(rb"[A-Z]=;", built)
    assert not set(built) & set(b"\n\t\0\\#")
    if dialect is Dialect.WIKI:
        assert b'"' not in built
        assert built.count(b"=") >= built.count(b";")


@given(hosts=st.lists(HOSTS, max_size=12))
def test_host_lists_survive(hosts: list[str]) -> None:
    assert expand(plain(hosts)) == tuple(hosts)
    assert expand(compressed(hosts)) == tuple(hosts)
    assert expand(ranges(hosts)) == tuple(hosts)
    assert expand(":" + plain(hosts)) == tuple(hosts)


CHANGES = st.dictionaries(
    st.sampled_from(["BANK", "DEPEND", "NODES", "PARTITION", "TIMELIMIT"]), WORDS, min_size=1, max_size=3
).map(lambda changes: tuple(sorted(changes.items(), key=lambda change: change[0] != "BANK")))


def all_requests(dialect: Dialect) -> st.SearchStrategy[requests.Request]:
    comments = st.just("")
    if dialect is Dialect.WIKI2:
        comments = TEXTS.map(lambda text: text.replace("'", "").replace("=", ""))
    ids = st.lists(JOB_IDS, max_size=4).map(tuple)
    old = st.sampled_from([True])
    tasks = st.lists(HOSTS, max_size=6).map(tuple)
    some: dict[type[requests.Request], st.SearchStrategy[requests.Request]] = {
        requests.GetNodes: st.builds(requests.GetNodes, since=TIMES, names=st.none() | tasks),
        requests.GetJobs: st.builds(requests.GetJobs, since=TIMES, ids=st.none() | ids),
        requests.StartJob: st.builds(requests.StartJob, job=JOB_IDS, tasks=tasks, comment=comments),
        requests.CancelJob: st.builds(
            requests.CancelJob, job=JOB_IDS, type=st.sampled_from(CancelType), comment=comments
        ),
        requests.SuspendJob: st.builds(requests.SuspendJob, job=JOB_IDS),
        requests.ResumeJob: st.builds(requests.ResumeJob, job=JOB_IDS),
        requests.RequeueJob: st.builds(requests.RequeueJob, job=JOB_IDS),
        requests.ModifyJob: st.builds(requests.ModifyJob, job=JOB_IDS, changes=CHANGES),
        requests.SignalJob: st.builds(requests.SignalJob, job=JOB_IDS, signal=st.integers(1, 64)),
        requests.NotifyJob: st.builds(requests.NotifyJob, job=JOB_IDS, message=TEXTS),
        requests.Initialize: st.builds(
            requests.Initialize,
            event_port=st.none() | st.integers(0, 65535),
            hosts=st.none() | st.sampled_from(HostFormat),
        ),
        requests.WillRun: st.builds(requests.WillRun, job=JOB_IDS, nodes=tasks, not_before=st.none() | TIMES)
        | st.builds(requests.WillRun, job=JOB_IDS, nodes=tasks, preempt=st.lists(JOB_IDS, max_size=2).map(tuple))
        | st.builds(requests.WillRun, job=JOB_IDS, nodes=tasks, not_before=st.none() | TIMES, old=old),
    }
    return st.one_of([strategy for kind, strategy in some.items() if dialect in kind.dialects])


@pytest.mark.parametrize("dialect", list(Dialect))
@given(data=st.data())
def test_requests_survive(dialect: Dialect, data: st.DataObject) -> None:
    request = data.draw(all_requests(dialect))
    frame = seal(build_request(request, dialect), key=KEY, timestamp=1_700_000_000, user="root")
    payload = FrameReader().feed(frame)
    assert payload is not None
    assert parse_request(open_request(payload, key=KEY, now=1_700_000_100), dialect) == request


@given(status=st.integers(-9999, 9999), text=TEXTS)
def test_answers_survive(status: int, text: str) -> None:
    reply = parse_reply(build_answer(status, text))
    assert (reply.status, reply.text, reply.argument) == (status, text, None)


@given(
    info=st.builds(
        StartInfo, job=JOB_IDS, tasks=COUNTS.filter(lambda n: n < 10**9), start=TIMES, nodes=st.just(("n1",))
    )
    | st.builds(
        StartInfo,
        job=JOB_IDS,
        tasks=st.integers(0, 999),
        start=TIMES,
        nodes=st.lists(HOSTS, max_size=5).map(tuple),
        old=st.sampled_from([True]),
    )
    | st.none()
)
def test_answers_to_willrun_survive(info: StartInfo | None) -> None:
    """Both forms of the answer to JOBWILLRUN are read back, and "never" as well."""
    assert parse_start_info(parse_reply(build_start_info(info)).require()) == info


@given(message=st.binary(max_size=200).filter(lambda data: b"\0" not in data), data=st.data())
def test_frames_survive_any_pieces(message: bytes, data: st.DataObject) -> None:
    frame = seal(message, key=KEY, timestamp=5, user="u")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(frame)), max_size=5)))
    pieces = [frame[a:b] for a, b in zip([0, *cuts], [*cuts, len(frame)], strict=True)]
    reader = FrameReader()
    results = [payload for piece in pieces if (payload := reader.feed(piece)) is not None]
    assert open_reply(results[-1], key=KEY, now=5) == message
    assert reader.missing == 0


def read_everything(data: bytes) -> None:
    """Let every reader of the codec have the same bytes."""
    readers: list[Callable[[bytes], object]] = [
        lambda some: FrameReader().feed(some),
        lambda some: open_request(some, key=KEY, now=1_795_253_272),
        lambda some: open_request(some, key=None, now=0),
        lambda some: open_reply(some, key=KEY, now=1_795_253_272),
        lambda some: open_reply(some, key=None, now=0),
        lambda some: parse_request(some, Dialect.WIKI),
        lambda some: parse_request(some, Dialect.WIKI2),
        parse_reply,
        lambda some: parse_nodes(some.decode("utf-8", "surrogateescape")),
        lambda some: parse_jobs(some.decode("utf-8", "surrogateescape")),
        lambda some: parse_start_info(some.decode("utf-8", "surrogateescape")),
        lambda some: expand(some.decode("utf-8", "surrogateescape")),
        lambda some: read_key(some.decode("latin-1")),
    ]
    for read in readers:
        try:
            result = read(data)
        except WikiError:
            continue
        assert result is not NotImplemented


@given(data=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """No bytes raise anything but WikiError."""
    read_everything(data)


PIECES = st.sampled_from(
    [b"CMD=", b"ARG=", b"SC=", b"TS=", b"DT=", b"AUTH=", b"CK=", b"TASKLIST=", b"TYPE=", b"VALUE=", b"NODES=", b"MSG="]
    + [kind.verb.encode() for kind in requests.REQUESTS]
    + [b"STATE=", b"TASKS=", b"CCLASS=[a:1]", b"CRES=a:1", b"RCLASS=", b"WCLIMIT=", b"CPULOAD=", b"RMEM=", b"COMMENT="]
    + [b"0", b"-1", b"99999999999999999999", b"0x", b"1e999", b"n[1-3]", b"n[", b"*9", b",", b":", b";", b"#", b'"']
    + [b"\\", b" ", b"\n", b"\0", b"1", b"ALL", b"JOBID=", b"STARTINFO=", b"(null)", b"\xff", b"=", b"0:", b"1#"]
)


@given(pieces=st.lists(PIECES, max_size=30))
def test_any_words_of_the_protocol_are_read_or_refused(pieces: list[bytes]) -> None:
    read_everything(b"".join(pieces))


FRAMES = [
    (exchange, frame)
    for dialect in Dialect
    for exchange in golden(dialect)
    for frame in (exchange.request, exchange.reply)
    if frame is not None and len(frame) < 5000
]


@given(data=st.data())
def test_damaged_recordings_are_read_or_refused(data: st.DataObject) -> None:
    """A recorded frame with some bytes changed, removed or doubled raises nothing but WikiError."""
    _, frame = data.draw(st.sampled_from(FRAMES))
    damaged = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged)))
        match data.draw(st.sampled_from(["change", "remove", "insert", "double"])):
            case "change":
                damaged[place : place + 1] = data.draw(st.binary(min_size=1, max_size=1))
            case "remove":
                del damaged[place : place + data.draw(st.integers(1, 20))]
            case "insert":
                damaged[place:place] = data.draw(st.binary(max_size=5))
            case _:
                damaged[place:place] = damaged[place : place + 30]
    for some in (bytes(damaged), bytes(damaged[9:]), bytes(damaged).partition(b"DT=")[2]):
        read_everything(some)
        read_everything(some.partition(b"ARG=")[2])


@given(data=st.data())
def test_damaged_signatures_are_noticed(data: st.DataObject) -> None:
    """One changed byte of what is signed never goes unnoticed (16 bits of CRC find every single-byte error)."""
    exchange, frame = data.draw(st.sampled_from([(e, f) for e, f in FRAMES if f is e.reply and e.key == KEY]))
    payload = bytearray(frame[9:-1])
    place = data.draw(st.integers(payload.index(b"DT="), len(payload) - 1))
    payload[place] ^= data.draw(st.integers(1, 127))
    with pytest.raises(WikiError):
        open_reply(bytes(payload), key=exchange.key, now=timestamp(frame))


@given(
    sizes=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.booleans()), max_size=20),
    limit=st.integers(40, 900),
)
def test_records_are_made_to_fit(sizes: list[tuple[int, int, bool]], limit: int) -> None:
    records = [Prepared(full=b"f" * max(pair), brief=b"b" * min(pair), finished=finished) for *pair, finished in sizes]
    try:
        chosen = fit_records(records, limit=limit)
    except WikiError:
        smallest = sum(len(record.brief) + 1 for record in records if not record.finished)
        assert smallest + len("SC=0 ARG=#") + 20 > limit
        return
    assert len(join_records(chosen)) <= limit
    assert len(chosen) >= sum(not record.finished for record in records)
