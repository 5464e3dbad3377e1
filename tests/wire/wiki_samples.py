# SPDX-License-Identifier: Apache-2.0
"""Exchanges recorded from a real Maui and real Slurms, for the tests of the WIKI codec.

wiki.jsonl.gz and wiki2.jsonl.gz: from Slurm 16.05 with sched/wiki and sched/wiki2, byte for byte. captured.txt: from
Maui 3.5 as the client of a small server, and of Slurm.
"""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.wiki.codec.frames import Envelope, FrameReader, Key, open_reply, read_key
from koala_adapter.wiki.codec.words import Dialect

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    def opened_reply(self) -> Envelope:
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
