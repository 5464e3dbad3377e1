# SPDX-License-Identifier: Apache-2.0
"""A limit on the size of files stands for a full disk: output and journal wait, and everybody is told why."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.local_koala import LIVENESS, Koala, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.local_koala import Running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MIB = 1024 * 1024
LINES = 400_000
LARGE = f"seq {LINES}"
"""Writes 2.6 MiB."""
UNTIL = "echo started; until [ -e {}/{} ]; do sleep 0.1; done; echo done"
WORDS = "File too large"


def unwrapped(text: str) -> str:
    """Return a text without the breaks that long paths make in its lines."""
    return " ".join(text.split())


def limit(process: Running, size: int) -> None:
    """Let a process make no file longer than this; as if a disk were full, and not for what it has started before."""
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))


def test_output_waits_and_the_reason_is_told(koala: Koala) -> None:
    """To who follows, to who asks, and to the log; when it can be written all of it is there."""
    service = koala.serve()
    limit(service, MIB)
    running = koala.start("run", koala.job(LARGE))
    eventually(lambda: koala.has("1") and WORDS in koala.report("1").trouble)
    assert WORDS in koala.inside("status", "1").stdout
    report = koala.json("status", "1")
    assert report["state"] == "running"
    assert WORDS in report["trouble"]
    assert str(koala.state / "jobs" / "1") in report["trouble"].replace("\n", "")
    assert WORDS in koala.inside("explain", "1").stdout
    eventually(lambda: "contact" not in koala.inside("explain", "1").stdout)  # agents are heard all the same
    limit(service, resource.RLIM_INFINITY)
    _, said = running.communicate(timeout=LIVENESS)
    assert running.returncode == 0, said
    assert WORDS in said
    assert "can be written again" in unwrapped(said)
    assert koala.json("status", "1")["trouble"] == ""
    expected = "".join(f"{number}\n" for number in range(1, LINES + 1))
    for component in ("left", "right"):
        assert (koala.state / "jobs" / "1" / component / "0.out").read_text() == expected
    service.terminate()
    _, logged = service.communicate(timeout=LIVENESS)
    assert "output cannot be written" in logged
    assert "output can be written again" in logged


def test_a_job_that_is_cancelled_meanwhile_ends_and_says_what_is_missing(koala: Koala) -> None:
    """Nobody waits for space for ever."""
    service = koala.serve()
    limit(service, MIB)
    running = koala.start("run", koala.job(LARGE))
    eventually(lambda: koala.has("1") and WORDS in koala.report("1").trouble)
    koala.inside("cancel", "1")
    running.communicate(timeout=LIVENESS)
    assert running.returncode == 243
    assert "The end of its output could not be written" in unwrapped(koala.inside("explain", "1").stdout)
    assert koala.placeholders() == []


def test_a_journal_that_cannot_be_written_stops_decisions_and_nothing_else(koala: Koala) -> None:
    """Nothing is accepted, agents stay in contact, and all goes on as soon as there is room."""
    service = koala.serve()
    running = koala.start("run", koala.job(UNTIL.format(koala.directory, "go")))
    assert running.stdout is not None
    assert "started" in running.stdout.readline()
    eventually(lambda: koala.state_of("1") == "running")  # output comes before the word that a process has started
    limit(service, 0)
    refused = koala.inside("submit", koala.job("true", name="other"), check=246)
    assert "the journal cannot be written" in unwrapped(refused.stderr)
    assert "the journal cannot be written" in koala.json("status", "1")["trouble"]
    assert "the journal cannot be written" in unwrapped(koala.inside("cancel", "1", check=246).stderr)
    (koala.directory / "go").touch()
    assert "the journal cannot be written" in unwrapped(koala.inside("explain", "1").stdout)
    assert koala.state_of("1") == "running"
    assert service.poll() is None
    limit(service, resource.RLIM_INFINITY)
    written, said = running.communicate(timeout=LIVENESS)
    assert running.returncode == 0, said
    assert written.count("done") == 2
    assert "the journal cannot be written" in unwrapped(said)
    assert koala.run("run", koala.job("true", name="other")).returncode == 0
    assert [one["state"] for one in koala.json("status")] == ["completed", "completed"]
    service.terminate()
    _, logged = service.communicate(timeout=LIVENESS)
    assert logged.count("nothing is decided until the journal can be written") == 1
    assert logged.count("the journal can be written again") == 1


@pytest.fixture
def small_disk(koala: Koala) -> Iterator[Path]:
    """Give the state directory a file system of its own, of 3 MiB."""
    koala.state.mkdir(mode=0o700)
    options = ["-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs"]
    done = subprocess.run(["mount", *options, str(koala.state)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield koala.state
    finally:
        subprocess.run(["mount", "-o", "remount,size=100m", str(koala.state)], check=True)
        koala.close()
        subprocess.run(["umount", "--lazy", str(koala.state)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_run_goes_on_when_a_full_disk_has_room_again(koala: Koala, small_disk: Path) -> None:
    """Its application is not given up for that: its output waits, the reason is told, and nothing is lost."""
    running = koala.start("run", koala.job(LARGE))
    eventually(lambda: koala.has("1") and "No space left" in koala.report("1").trouble)
    assert running.poll() is None
    subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)
    _, said = running.communicate(timeout=LIVENESS)
    assert running.returncode == 0, said
    assert "No space left on device" in unwrapped(said)
    expected = "".join(f"{number}\n" for number in range(1, LINES + 1))
    for component in ("left", "right"):
        assert (koala.state / "jobs" / "1" / component / "0.out").read_text() == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_run_that_waits_for_a_full_disk_can_be_interrupted(koala: Koala, small_disk: Path) -> None:
    """Who does not want to make room is not kept: Ctrl-C ends the command."""
    running = koala.start("run", koala.job(LARGE))
    eventually(lambda: koala.has("1") and "No space left" in koala.report("1").trouble)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=LIVENESS)
    assert running.returncode != 0, said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("size", "code", "words"),
    [(0, 245, "cannot use the state directory"), (100, 246, "cannot open the journal: File too large")],
)
def test_a_service_does_not_start_where_nothing_can_be_written(koala: Koala, size: int, code: int, words: str) -> None:
    """It says why and ends, with a code after which systemd does not try again."""
    first = koala.serve()
    first.kill()
    first.wait()
    process = koala.start_anew(
        "serve",
        # Python would leave the first bytes of bytecode where all other tests look for it.
        environment={"PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )
    _, said = process.communicate(timeout=LIVENESS)
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert words in unwrapped(said)
