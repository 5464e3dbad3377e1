# SPDX-License-Identifier: Apache-2.0
"""Recorded WIKI exchanges: how they are read, what was answered, and where we differ."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.frames import FrameReader, Key, open_reply, read_key
from koala_adapter.wiki.codec.verbs import NOT_RUNNABLE, StartInfo
from koala_adapter.wiki.codec.words import Dialect, expand

# -- Exchanges recorded from a real Maui and real Slurms, for the tests of the WIKI codec.
# wiki.jsonl.gz and wiki2.jsonl.gz: from Slurm 16.05 with sched/wiki and sched/wiki2, byte for byte. captured.txt: from
# Maui 3.5 as the client of a small server, and of Slurm.


MORE = "KOALA_WIKI_RECORDINGS"
"""Directories with further recordings in the same form (``*.jsonl.gz``), which the same rules judge."""
SAMPLES = Path(__file__).parent / "samples" / "wiki"
KEY = read_key("42")
CAPTURED_KEY = read_key("1234567890")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One recorded request with the reply of Slurm."""

    case: str
    dialect: Dialect
    configuration: str
    request: bytes
    reply: bytes | None
    scontrol: str
    """What the commands of Slurm said of jobs, nodes and queue just before."""

    @property
    def key(self) -> Key:
        """The key that the server was given; without one it signed with 0."""
        return read_key("") if self.configuration == "wiki-nokey" else KEY

    @property
    def required_key(self) -> Key | None:
        """The key that requests had to be signed with."""
        return None if self.configuration == "wiki-nokey" else KEY

    @property
    def now(self) -> int:
        """The server's clock when it answered (or, if it did not, the client's)."""
        return timestamp(self.reply or self.request)

    def opened_reply(self) -> bytes:
        """Return the message of the reply, its signature checked."""
        assert self.reply is not None
        payload = FrameReader().feed(self.reply)
        assert payload is not None
        return open_reply(payload, key=self.key, now=self.now)


def timestamp(frame: bytes) -> int:
    """Return the TS of a frame, 0 when there is none."""
    _, _, text = frame.partition(b"TS=")
    digits = text[:10]
    return int(digits) if digits.isdigit() else 0


@cache
def golden(dialect: Dialect) -> tuple[Exchange, ...]:
    """Return all recorded exchanges of a dialect: our samples, and those of directories that the environment names."""
    directories = [SAMPLES, *(Path(path) for path in os.environ.get(MORE, "").split(os.pathsep) if path)]
    files = [file for directory in directories for file in sorted(directory.glob("*.jsonl.gz"))]
    found = []
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        found += [_exchange(record) for record in records if record["dialect"] == dialect.value]
    return tuple(found)


def _exchange(record: Mapping[str, str | None]) -> Exchange:
    reply = record["reply"]
    return Exchange(
        case=str(record["case"]),
        dialect=Dialect(str(record["dialect"])),
        configuration=str(record["configuration"]),
        request=str(record["request"]).encode("latin-1"),
        reply=None if not reply else reply.encode("latin-1"),
        scontrol=str(record["scontrol"]),
    )


def captured(direction: str) -> list[bytes]:
    """Return the frames of captured.txt: ``>`` requests, ``<`` replies."""
    lines = (SAMPLES / "captured.txt").read_text(encoding="ascii").splitlines()
    texts = [line[2:] for line in lines if line.startswith(direction)]
    return [text.replace("\\n", "\n").replace("\\0", "\0").encode("ascii") for text in texts]


def checksums() -> list[tuple[str, bytes, bytes]]:
    """Return triples of key, message and checksum."""
    lines = (SAMPLES / "checksums.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    return [(key, message.encode(), checksum.encode()) for key, message, checksum in rows]


# -- Answers to JOBWILLRUN as a scheduler reads them; a resource manager only writes them.


_OLD_START_INFO: Final = re.compile(
    r"STARTINFO=(?P<job>[^\s:]+):(?P<tasks>[0-9]{1,9})@(?P<start>[0-9]{1,15}),(?P<nodes>\S*)", re.ASCII
)
_START_INFO: Final = re.compile(
    r"STARTINFO=(?P<job>\S+) TASKS=(?P<tasks>[0-9]{1,9}) STARTTIME=(?P<start>[0-9]{1,15}) NODES=(?P<nodes>\S*)"
    r"(?: PREEMPT=(?P<preempt>\S*))?",
    re.ASCII,
)


def parse_start_info(argument: str) -> StartInfo | None:
    """Return the answer to JOBWILLRUN from what follows ARG=; None: never. Raises WikiError for anything else."""
    if argument.startswith(NOT_RUNNABLE):
        return None
    for pattern in (_START_INFO, _OLD_START_INFO):
        found = pattern.match(argument)
        if found:
            preempt = found["preempt"] if pattern is _START_INFO else None
            return StartInfo(
                job=found["job"],
                tasks=int(found["tasks"]),
                start=int(found["start"]),
                nodes=expand(found["nodes"]),
                preempt=tuple(filter(None, (preempt or "").split(","))),
                old=pattern is _OLD_START_INFO,
            )
    raise WikiError(f"the answer to JOBWILLRUN cannot be understood: {argument[:80]!r}")


# -- Why we read or write some recorded exchanges in another way than Slurm: rules on what is said, for any recording.
# No rule names a recording. Each looks at the bytes of an exchange, so that what it excuses in those we have it excuses
# in others, and nothing else.


SERVED = "served"
CLOSED = "closed"
REFUSED, BAD_CHECKSUM = -300, -422
Reaction = tuple[int, str] | str

_JOB = re.compile(r"ARG=(\S*)")
_LIST = re.compile(r"(?:TASKLIST|NODES)=(\S*)|ARG=[+-]?[0-9]*:(\S*)")

# -- reactions to requests ----------------------------------------------------------------------------------------


def _text(exchange: Exchange) -> str:
    return exchange.request[9:].decode("utf-8", "surrogateescape")


def _status(reaction: Reaction) -> int:
    return 0 if isinstance(reaction, str) else reaction[0]


def _any_word_is_a_job(exchange: Exchange, ours: Reaction, slurms: Reaction) -> bool:
    job = _JOB.search(_text(exchange))
    only_id = slurms == (REFUSED, "Invalid ARG value") and ours == SERVED
    return only_id and job is not None and not job[1].isdecimal()


def _checksums_are_checked(exchange: Exchange, ours: Reaction, _slurms: Reaction) -> bool:
    return exchange.dialect is Dialect.WIKI and _status(ours) == BAD_CHECKSUM


def _slurm_hangs_or_dies(exchange: Exchange, ours: Reaction, _slurms: Reaction) -> bool:
    return exchange.reply is None and ours == SERVED


def _tasks_are_added_and_released(exchange: Exchange, ours: Reaction, _slurms: Reaction) -> bool:
    resizes = re.search(r"CMD=JOB(?:ADD|RELEASE|REMOVE)TASK", _text(exchange))
    return resizes is not None and (ours == SERVED or _status(ours) == REFUSED)


def _a_size_is_positive(exchange: Exchange, ours: Reaction, _slurms: Reaction) -> bool:
    return ours == CLOSED and exchange.request[:8].strip().startswith(b"-")


def _a_list_names_hosts(exchange: Exchange, ours: Reaction, _slurms: Reaction) -> bool:
    lists = [first or second for first, second in _LIST.findall(_text(exchange))]
    senseless = [text for text in lists if text and (not text.strip(":,") or text.count("[") != text.count("]"))]
    return _status(ours) == REFUSED and bool(senseless)


REACTIONS: Mapping[str, Callable[[Exchange, Reaction, Reaction], bool]] = {
    "a job id is any word for us: what Slurm refuses as no number is looked up, and answered": _any_word_is_a_job,
    "sched/wiki takes any checksum; we check it in both dialects": _checksums_are_checked,
    "Slurm hangs or dies of it; we read the request": _slurm_hangs_or_dies,
    "Slurm refuses these verbs before it reads on": _tasks_are_added_and_released,
    "a negative size ends the connection": _a_size_is_positive,
    "Slurm guesses what a list without names, or a range without an end, could mean": _a_list_names_hosts,
}


def reason_of_reaction(exchange: Exchange, ours: Reaction, slurms: Reaction) -> str:
    """Return why our reader reacts in another way than Slurm; empty: there is no reason."""
    return next((why for why, holds in REACTIONS.items() if holds(exchange, ours, slurms)), "")


# -- requests in the words that we use ----------------------------------------------------------------------------

VERBS = (
    *("GETNODES", "GETJOBS", "STARTJOB", "CANCELJOB", "SUSPENDJOB", "RESUMEJOB", "MODIFYJOB", "REQUEUEJOB"),
    *("SIGNALJOB", "NOTIFYJOB", "INITIALIZE", "JOBWILLRUN"),
)
_OF_BOTH = frozenset({"BANK", "DEPEND", "HOSTLIST", "NODES", "PARTITION", "TIMELIMIT"})
_OF_WIKI2 = frozenset({"COMMENT", "JOBNAME", "MINSTARTTIME", "RFEATURES", "VARIABLELIST", "GRES", "WCKEY"})
CHANGEABLE: Mapping[Dialect, frozenset[str]] = {Dialect.WIKI: _OF_BOTH, Dialect.WIKI2: _OF_BOTH | _OF_WIKI2}
_REQUEST = re.compile(r".*?CMD=(?P<verb>[A-Z]+)\S*\s+.*?ARG=(?P<rest>.*)", re.DOTALL)
_WORD = re.compile(r"(?P<name>[A-Z0-9_]+)=(?P<value>\"[^\"]*\"|'[^']*'|\S*)")
_RANGE = re.compile(r"(?P<stem>[^\[*]*)(?:\[(?P<ranges>[^\]]*)\])?(?:\*(?P<times>[0-9]+))?")
_SINCE = re.compile(r"\s*(?P<since>[+-]?[0-9]*):(?P<wanted>\S*)")


def in_one_form(message: bytes, dialect: Dialect) -> tuple[str, ...]:
    """Return a request in which all ways to say the same are one: its verb, its object, and its words in their order.

    Lists are written out; a time that is missing or negative is 0; a kind of cancellation that is missing is ADMIN; a
    bare text ends at the blank; signals are numbers; what follows a verb, and words that mean nothing, are dropped.
    """
    found = _REQUEST.match(message.decode("utf-8", "surrogateescape"))
    assert found, message
    verb, rest = next(verb for verb in VERBS if found["verb"].startswith(verb)), found["rest"]
    if verb in {"GETNODES", "GETJOBS"}:
        wanted = _SINCE.match(rest)
        assert wanted, message
        since = max(0, int(wanted["since"])) if wanted["since"] not in {"", "+", "-"} else 0
        return (verb, str(since), *written_out(wanted["wanted"]))
    if verb == "NOTIFYJOB":
        return (verb, *" ".join(rest.split("\n")).strip().split("MSG=", 1))
    object_ = "" if verb == "INITIALIZE" or rest.startswith("JOBID=") else rest.split(None, 1)[0]
    words = {match["name"]: match["value"] for match in _WORD.finditer(rest)}
    if verb == "CANCELJOB":
        words.setdefault("TYPE", "ADMIN")
    known = _KNOWN.get(verb)
    kept = {name: value for name, value in words.items() if known is None or name in known}
    if verb == "STARTJOB" and dialect is Dialect.WIKI:
        kept.pop("COMMENT", None)
    if verb.endswith("TASK"):
        object_ = " ".join(word for word in rest.split() if word != "DEFAULT")
    return (verb, object_, *(f"{name}={_one_value(verb, name, value)}" for name, value in sorted(kept.items())))


_KNOWN: Mapping[str, frozenset[str]] = {
    "STARTJOB": frozenset({"TASKLIST", "COMMENT"}),
    "CANCELJOB": frozenset({"TYPE", "COMMENT"}),
    "SUSPENDJOB": frozenset(),
    "RESUMEJOB": frozenset(),
    "REQUEUEJOB": frozenset(),
    "SIGNALJOB": frozenset({"VALUE"}),
    "INITIALIZE": frozenset({"EPORT", "USEHOSTEXP"}),
    "JOBWILLRUN": frozenset({"JOBID", "STARTTIME", "NODES", "PREEMPT"}),
}


def _one_value(verb: str, name: str, value: str) -> str:
    bare = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value
    if name == "TASKLIST" or (verb == "JOBWILLRUN" and name == "NODES"):
        return " ".join(written_out(bare))
    if name == "JOBID":
        job, _, nodes = bare.partition(",")
        return " ".join((job, *written_out(nodes)))
    if verb == "SIGNALJOB" and not bare.isdecimal():
        return str(signal.Signals[f"SIG{bare.upper().removeprefix('SIG')}"].value)
    return bare


def written_out(text: str) -> tuple[str, ...]:
    """Return the names of a list such as ``n[1,3-4]*2:m1``, each as often as it is meant."""
    names: list[str] = []
    for part in re.findall(r"(?:[^\[:,]|\[[^\]]*\])+", text):
        found = _RANGE.fullmatch(part)
        assert found, part
        numbers = [""] if found["ranges"] is None else _numbers(found["ranges"])
        names += [f"{found['stem']}{number}" for number in numbers for _ in range(int(found["times"] or 1))]
    return tuple(names)


def _numbers(ranges: str) -> list[str]:
    found = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
    return found


def never_sent(message: bytes, dialect: Dialect) -> str:
    """Return why we do not send a request at all; empty: we do."""
    text = message.decode("utf-8", "surrogateescape")
    if "CMD=MODIFYJOB" not in text:
        return ""
    names = {match["name"] for match in _WORD.finditer(text.partition("ARG=")[2])}
    if not names or not names <= CHANGEABLE[dialect]:
        return "Slurm answers with success, and does nothing"
    if dialect is Dialect.WIKI and "HOSTLIST" in names and "BANK" not in names:
        return "it kills a slurmctld with sched/wiki"
    return ""


# -- replies ------------------------------------------------------------------------------------------------------

PER_PROCESSOR = 2**31
_RECORD_OF_NOTHING = b"(null)"
_TEXTS = re.compile(rb"(?:^|;)(?:ACCOUNT|COMMENT|NAME|QOS|RCLASS|RFEATURES|IWD|WCKEY|GRES|CAT)=(?P<text>[^;]*)")
_MARKS = re.compile(rb"[\"';#:\[\]\\\s_,]+")
_ATTRIBUTE = re.compile(rb"[A-Z][A-Z0-9_]*=.*", re.DOTALL)


def as_we_spell(message: bytes, dialect: Dialect) -> bytes:
    """Return a recorded reply without habits of Slurm that a peer is better off without.

    FEATURES for FEATURE, a colon before a list, the flag "for each processor" in an amount of memory, classes without
    a number, and jobs that do not exist, counted and sent as ``(null)``.
    """
    if dialect is Dialect.WIKI:
        message = message.replace(b";FEATURES=", b";FEATURE=").replace(b";TASKLIST=:", b";TASKLIST=")
        message = re.sub(rb";RCLASS=([^;\[]+);", rb";RCLASS=[\1:1];", message)
        message = re.sub(rb";RMEM=([0-9]{10});", _without_flag, message)
    return _without_nothing(message)


def _without_flag(found: re.Match[bytes]) -> bytes:
    return b";RMEM=%d;" % (int(found[1]) % PER_PROCESSOR)


def _without_nothing(message: bytes) -> bytes:
    head, mark, rest = message.partition(b"ARG=")
    count, *records = rest.split(b"#")
    if not mark or _RECORD_OF_NOTHING not in records:
        return message
    kept = [record for record in records if record != _RECORD_OF_NOTHING]
    number = int(count) - (len(records) - len(kept))
    return b"#".join([head + mark + b"%d" % number, *kept]) if kept else head + mark + b"0#"


def has_users_marks(message: bytes) -> bool:
    """Tell whether a user's text has what separates records, attributes or values, which Slurm sends as it is."""
    records = message.partition(b"ARG=")[2].split(b"#")[1:]
    split = any(not _ATTRIBUTE.fullmatch(part) for record in records for part in _attributes(record))
    marked = any(re.search(rb"[\"'#:\[\]]", text) for text in map(_inner, _TEXTS.findall(message)))
    return split or marked


def _attributes(record: bytes) -> list[bytes]:
    return record.partition(b":")[2].split(b";")[:-1]


def _inner(text: bytes) -> bytes:
    return text[1:-1] if len(text) > 1 and text.startswith(b'"') and text.endswith(b'"') else text


def without_marks(message: bytes) -> bytes:
    """Return a message in which no sign that could stand in a user's text is told from another."""
    return _MARKS.sub(b"_", message)


def is_shortened(exchange: Exchange, message: bytes) -> bool:
    """Tell whether sched/wiki left out of its records what Maui needs: it did for a time after the last change."""
    since = re.search(rb"ARG=([0-9]+):", exchange.request)
    needed = b"UNAME=" if b"GETJOBS" in exchange.request else b"CPROC="
    later = since is not None and int(since[1]) > 0
    return exchange.dialect is Dialect.WIKI and later and needed not in message
