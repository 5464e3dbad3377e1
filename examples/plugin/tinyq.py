#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The imaginary batch system ``tinyq``, as one command: a fake that runs its jobs.

Its "server" is a directory, named by TINYQ_SERVER; without it the server is down. There is no daemon: what is due
by now, that jobs which have ended leave the list and waiting ones start where there is room, is done whenever the
command is called, and each job calls it at its end. Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

NODES = {"t1": 2, "t2": 2}
"""Processors by node."""
RUN = 'timeout --foreground "$1" /bin/sh "$2"; rm -f "$3"; TINYQ_SERVER="$4" "$5" -S "$6" advance; kill -KILL 0'
"""Runs a script for so many seconds at most, has what waits for its processor start, and ends what it left behind."""


class Job(NamedTuple):
    """One line of the list of jobs."""

    number: str
    index: str
    name: str
    state: str
    user: str
    node: str

    @property
    def id(self) -> str:
        """As `tinyq cancel` takes it; also the name of the directory of the job."""
        return f"{self.number}.{self.index}"


class Server:
    """The directory that holds the list of jobs, and what belongs to each of them."""

    def __init__(self, directory: Path) -> None:
        """Read the list."""
        self._directory = directory
        lines = (directory / "jobs").read_text().splitlines() if (directory / "jobs").exists() else []
        self.jobs = [Job(*line.split("|")) for line in lines]

    def store(self) -> None:
        """Write the list."""
        (self._directory / "jobs").write_text("".join("|".join(job) + "\n" for job in self.jobs))

    def advance(self) -> None:
        """Do what a batch system does by itself: forget the jobs that have ended, and start those that fit."""
        for job in [job for job in self.jobs if job.state == "running" and not self._lives(job)]:
            self.forget(job)
        for position, job in enumerate(self.jobs):
            node = next((name for name, processors in NODES.items() if self.used(name) < processors), None)
            if node is None:
                return
            # An array of "nobody" stands for another user's: it waits for ever.
            if job.state == "waiting" and job.user != "nobody":
                self._start(job)
                self.jobs[position] = job._replace(state="running", node=node)

    def used(self, node: str) -> int:
        """Return the processors of a node that jobs use."""
        return sum(job.node == node for job in self.jobs)

    def add(self, options: argparse.Namespace, script: bytes) -> str:
        """Take an array of jobs and return its number."""
        last = self._directory / "last"
        number = str(int(last.read_text()) + 1 if last.exists() else 1)
        last.write_text(number)
        for index in range(1, int(options.array) + 1):
            job = Job(number, str(index), options.name, "waiting", os.environ["USER"], "")
            place = self._directory / job.id
            place.mkdir(mode=0o700)
            (place / "script").write_bytes(script)
            (place / "seconds").write_text(options.seconds)
            (place / "output").write_text(options.output.replace("%INDEX%", job.index))
            self.jobs.append(job)
        return number

    def forget(self, job: Job) -> None:
        """End a job, if it runs, with all its processes, and drop it from the list."""
        with suppress(OSError, ValueError):
            os.killpg(int((self._directory / job.id / "pid").read_text()), signal.SIGKILL)
        shutil.rmtree(self._directory / job.id, ignore_errors=True)
        self.jobs.remove(job)

    def _start(self, job: Job) -> None:
        place = self._directory / job.id
        ours = {name: os.environ[name] for name in ("HOME", "USER", "LOGNAME", "PATH") if name in os.environ}
        limit, program = (place / "seconds").read_text(), str(Path(__file__).absolute())
        words = (limit, str(place / "script"), str(place / "pid"), str(self._directory), sys.executable, program)
        with Path((place / "output").read_text()).open("ab") as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", RUN, "sh", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env={**ours, "TINYQ_JOB": job.number, "TINYQ_INDEX": job.index},
                start_new_session=True,
            )
        (place / "pid").write_text(str(process.pid))

    def _lives(self, job: Job) -> bool:
        with suppress(OSError, ValueError):
            os.kill(int((self._directory / job.id / "pid").read_text()), 0)
            return True
        return False


def submit(server: Server, arguments: list[str]) -> str:
    """Add jobs; print banners around the number, as real sites do."""
    parser = argparse.ArgumentParser()
    for option in ("--name", "--array", "--seconds", "--output"):
        parser.add_argument(option, required=True)
    parser.add_argument("--queue", default="main")
    options = parser.parse_args(arguments)
    if options.queue != "main":
        sys.exit(f"tinyq: no such queue: {options.queue}")
    script = sys.stdin.buffer.read()
    if not script.startswith(b"#!"):
        sys.exit("tinyq: this is no script")
    return f"*** Maintenance on day 12 ***\n{server.add(options, script)}\nHave a nice day\n"


def cancel(server: Server, ids: list[str]) -> str:
    """End jobs; unknown ones are passed over."""
    for job in [job for job in server.jobs if job.id in ids]:
        server.forget(job)
    return ""


def answer(server: Server, name: str, rest: list[str]) -> str:
    """Do one subcommand and return what it prints."""
    if name == "submit":
        return submit(server, rest)
    if name == "cancel":
        return cancel(server, rest)
    if name == "nodes":
        return "".join(f"{node}|up|{processors}|{server.used(node)}\n" for node, processors in NODES.items())
    return {"advance": "", "version": "tinyq 1.4\n", "list": "".join("|".join(job) + "\n" for job in server.jobs)}[name]


def main(arguments: list[str]) -> None:
    """Do one subcommand, and what is due by now."""
    directory = Path(os.environ.get("TINYQ_SERVER", "/nonexistent"))
    if not directory.is_dir():
        sys.exit("tinyq: cannot connect to server")
    os.umask(0o077)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = Server(directory)
        server.advance()
        said = answer(server, arguments[0], arguments[1:])
        server.advance()
        server.store()
    sys.stdout.write(said)


if __name__ == "__main__":
    main(sys.argv[1:])
