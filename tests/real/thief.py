# SPDX-License-Identifier: Apache-2.0
"""What another user of the machine can try: a program of its own, run by Debian's Python under that user's id.

Standard input is one JSON object: ``roots`` (directories to search), ``needles`` (secrets to look for, by name),
``commands`` (each a list of arguments) and ``socket`` (path of the service's socket). Standard output is one as well:
how much was read, where each needle was found, what was said. Nothing here knows how koala keeps its secrets: it reads
whatever it is let.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 64 * 1024 * 1024
TIME = 5.0
"""Seconds for an answer."""
REQUEST = b'{"operation": "jobs"}\n'


def files(roots: list[str]) -> Iterator[Path]:
    """Yield all files below some directories, and of each process all that could hold its secrets."""
    for root in roots:
        for directory, _, names in os.walk(root):
            yield from (Path(directory, name) for name in names)
    for process in Path("/proc").glob("[0-9]*"):
        yield from (process / name for name in ("environ", "cmdline"))
        try:
            yield from list((process / "fd").iterdir())
        except OSError:
            continue


def content(path: Path) -> bytes | None:
    """Return what a file holds; None when it is not let out, or is no file."""
    try:
        # Pipes and terminals would be waited for.
        if not path.is_file() or path.stat().st_size > LARGEST:
            return None
        return path.read_bytes()
    except OSError:
        return None


def printed(command: list[str]) -> bytes:
    """Return all that a command says."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    return done.stdout + done.stderr


def answer(path: str) -> str:
    """Return what the service says to this user; the error when it cannot be reached."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIME)
        try:
            connection.connect(path)
            connection.sendall(REQUEST)
            return connection.recv(65536).decode()
        except OSError as error:
            return type(error).__name__


def main() -> None:
    """Try all."""
    given = json.load(sys.stdin)
    needles = {name: text.encode() for name, text in given["needles"].items()}
    found: dict[str, list[str]] = {name: [] for name in needles}
    count = 0

    def note(place: str, data: bytes) -> None:
        for name, needle in needles.items():
            if needle in data:
                found[name].append(place)

    for path in files(given["roots"]):
        data = content(path)
        if data is not None:
            count += 1
            note(str(path), data)
    said = {" ".join(command): printed(command) for command in given["commands"]}
    for command, data in said.items():
        note(command, data)
    result = {
        "read": count,
        "found": found,
        "said": {command: data.decode(errors="replace") for command, data in said.items()},
        "answer": answer(given["socket"]),
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
