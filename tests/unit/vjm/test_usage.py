# SPDX-License-Identifier: Apache-2.0
"""What an agent measures of its tasks, on real processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from koala_adapter.vjm.agent import usage
from koala_adapter.vjm.agent.node import AgentState, Timers
from koala_adapter.vjm.agent.place import Workplace
from koala_adapter.vjm.agent.processes import start
from koala_adapter.vjm.agent.task import Task
from koala_adapter.vjm.agent.usage import Counts, Usage, counts_of, reap

if TYPE_CHECKING:
    from koala_adapter.vjm.agent.node import Settings

MIB = 2**20
BURN = "import time\nwhile time.process_time() < {}: pass"
"""A program that uses so many seconds of processor time."""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    """Return the place of an agent's task, without a guard over it."""
    (tmp_path / "1").mkdir()
    monkeypatch.setattr(Workplace, "new_directory", lambda _place: str(tmp_path / "1"))
    agent = AgentState(cast("Settings", SimpleNamespace(batch="b")))
    with agent.selector:
        made = Workplace(agent)
        yield made
        made.finish()


def launched(place: Workplace, argv: list[str], **more: object) -> Task:
    """Return a task that was started. ``more``: of the control center's message."""
    task = Task(place, "1:0")
    message = {"argv": argv, "working_directory": None, "files": [], "environment": [], "time_limit": None}
    task.launch(message | more)
    return task


def used(place: Workplace, script: str, *arguments: str) -> dict[str, Any]:
    """Run a script of a shell to its end and return what the agent tells of it."""
    task = launched(place, ["sh", "-c", script, sys.executable, *arguments])
    while not task.complete:
        place.timers.run()
        task.look()
        task.advance()
        for key, mask in place.selector.select(0.01):
            key.data(mask)
    assert task.end is not None
    told: dict[str, Any] = task.end["usage"]
    return told


def test_children_count(workplace: Workplace) -> None:
    """Also those that are gone: the kernel adds up what is reaped."""
    told = used(workplace, '"$0" -c "$1"; head -c 3000000 /dev/zero | cat >/dev/null', BURN.format(0.5))
    assert told["user_seconds"] + told["system_seconds"] == pytest.approx(0.5, abs=0.25)
    assert told["read_bytes"] >= 6_000_000 <= told["written_bytes"]
    assert told["gpu_seconds"] is None


def test_what_is_left_behind_counts(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed at the end of its task is reaped by others."""
    monkeypatch.setattr("koala_adapter.vjm.agent.task.DRAIN", 0.0)
    stays = f"{BURN.format(0.2)}\nprint(file=open('fifo', 'w'), flush=True)\ntime.sleep(600)"
    told = used(workplace, 'mkfifo fifo; "$0" -c "$1" & read line <fifo', stays)
    assert told["user_seconds"] + told["system_seconds"] > 0.15


def test_adopted_processes_count_when_they_are_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel tells of children, which not every one does; one that runs is left alone."""
    reader, writer = os.pipe()
    ended = start([sys.executable, "-c", BURN.format(0.2)], "/", {}, [writer, writer])
    runs = start(["sleep", "600"], "/", {}, [writer, writer])
    try:
        os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(usage, "children_of", lambda _pid: [ended, runs])
        counts = Counts()
        usage.reap_orphans((), counts)
        assert counts.user + counts.system > 0.15
        assert counts.read > 0
        with pytest.raises(ChildProcessError):
            reap(ended)
        assert reap(runs, os.WNOHANG) is None
    finally:
        os.kill(runs, signal.SIGKILL)
        reap(runs)
        os.close(reader)
        os.close(writer)


def test_memory_of_several_processes_is_added_up() -> None:
    """What they share counts once, as after a fork."""
    program = """
import os, time
shared = b"x" * (60 * 2**20)
for _ in range(3):
    if not os.fork():
        own = b"y" * (20 * 2**20)
        os.write(1, b".")
        time.sleep(600)
time.sleep(600)
"""
    reader, writer = os.pipe()
    pid = start([sys.executable, "-c", program], "/", {}, [writer, writer])
    try:
        for _ in range(3):
            assert os.read(reader, 1) == b"."
        followed, counts = Usage(Timers(), pid, b"no such mark", {}), Counts()
        followed.end(counts)
    finally:
        os.killpg(pid, signal.SIGKILL)
        reap(pid)
        os.close(reader)
        os.close(writer)
    assert 120 * MIB < followed.told(counts)["memory_bytes"] < 170 * MIB


def test_pauses_grow() -> None:
    """A task of days costs some looks a minute at most."""
    pauses: list[float] = []

    class Kept(Timers):
        def after(self, seconds: float, call: Callable[[], object]) -> None:
            pauses.append(seconds)
            if len(pauses) < 20:
                call()

    Usage(Kept(), 2**22, b"no such mark", {})
    assert pauses[0] == usage.FIRST_PAUSE
    assert sorted(pauses) == pauses
    assert pauses[-1] == usage.LONGEST_PAUSE


def test_a_process_that_is_gone_has_used_nothing() -> None:
    assert vars(counts_of(2**22)) == vars(Counts())


@pytest.mark.parametrize(("answer", "known"), [("50\n25\n", True), ("[N/A]\n", False), ("", False)])
def test_gpus_are_busy_as_nvidia_says(tmp_path: Path, answer: str, *, known: bool) -> None:
    """A program in its place answers: the part of the time in which each GPU was busy, in per cent."""
    program = tmp_path / usage.NVIDIA
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\nprintf "%b" "{answer!r}"\n'.replace("'", ""))
    program.chmod(0o700)
    gpus = usage.Gpus({"PATH": f"{tmp_path}:{os.defpath}", usage.GPUS_GIVEN: "0,3"})
    gpus.look()
    since = gpus.since
    assert gpus.asked is not None
    os.waitid(os.P_PID, gpus.asked, os.WEXITED | os.WNOWAIT)
    gpus.look()
    assert (gpus.seconds is not None) == known
    if gpus.seconds is not None:
        assert gpus.seconds == pytest.approx(0.75 * (gpus.since - since), rel=0.2)
    assert (tmp_path / "asked").read_text().startswith("-i 0,3 --query-gpu=utilization.gpu")


def test_without_nvidia_nothing_is_asked(tmp_path: Path) -> None:
    gpus = usage.Gpus({"PATH": str(tmp_path), usage.GPUS_GIVEN: "0"})
    gpus.look()
    assert gpus.asked is None
    assert gpus.seconds is None
