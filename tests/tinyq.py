# SPDX-License-Identifier: Apache-2.0
"""The imaginary batch system ``tinyq`` of docs/plugins.md, as a command that keeps its jobs in a file and runs none.

The "server" is a directory, named by TINYQ_SERVER; without it the server is down. Standard library only: it is run as
a program by whatever Python runs the tests.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from pathlib import Path

NODES = "t1|up|2|0\nt2|up|2|0\n"


def submit(server: Path, arguments: list[str]) -> str:
    """Add jobs; print banners around the number, as real sites do."""
    parser = argparse.ArgumentParser()
    for option in ("--name", "--array", "--seconds", "--output"):
        parser.add_argument(option, required=True)
    parser.add_argument("--queue", default="main")
    options = parser.parse_args(arguments)
    if options.queue != "main":
        sys.exit(f"tinyq: no such queue: {options.queue}")
    if not sys.stdin.buffer.read().startswith(b"#!"):
        sys.exit("tinyq: this is no script")
    number = int((server / "last").read_text()) + 1 if (server / "last").exists() else 1
    (server / "last").write_text(str(number))
    with (server / "jobs").open("a") as file:
        for index in range(1, int(options.array) + 1):
            file.write(f"{number}|{index}|{options.name}|waiting|{os.environ['USER']}|\n")
    return f"*** Maintenance on day 12 ***\n{number}\nHave a nice day\n"


def cancel(server: Path, ids: list[str]) -> str:
    """Drop jobs; unknown ones are passed over."""
    lines = listing(server).splitlines(keepends=True)
    kept = [line for line in lines if ".".join(line.split("|")[:2]) not in ids]
    (server / "jobs").write_text("".join(kept))
    return ""


def listing(server: Path) -> str:
    """Return all jobs."""
    return (server / "jobs").read_text() if (server / "jobs").exists() else ""


def answer(server: Path, name: str, rest: list[str]) -> str:
    """Do one subcommand and return what it prints."""
    if name == "submit":
        return submit(server, rest)
    if name == "cancel":
        return cancel(server, rest)
    return {"version": "tinyq 1.4\n", "nodes": NODES, "list": listing(server)}[name]


def main(arguments: list[str]) -> None:
    """Do one subcommand."""
    server = Path(os.environ.get("TINYQ_SERVER", "/nonexistent"))
    if not server.is_dir():
        sys.exit("tinyq: cannot connect to server")
    with (server / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        name, rest = arguments[0], arguments[1:]
        sys.stdout.write(answer(server, name, rest))


if __name__ == "__main__":
    main(sys.argv[1:])
