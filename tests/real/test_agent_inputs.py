# SPDX-License-Identifier: Apache-2.0
"""Large input files: found on the node, or fetched over the connection of an agent, by real agents."""

from __future__ import annotations

import hashlib
import os
import signal
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from koala_adapter.model import EndReason
from koala_adapter.vjm.channel import FETCHES, INPUT_PIECE, Launch, LaunchFile, Release
from koala_adapter.vjm.jobscript import SYSTEM_PYTHONS
from koala_adapter.vjm.listener import AgentDisconnected, AgentRegistered
from tests.real.agents import Site, placeholder
from tests.real.test_agent_local import EXITED, PYTHONS, end_of, run

SHARE = "koala-" + "a" * 32
SIZE = 3 * FETCHES * INPUT_PIECE + 12345
PIECES = -(-SIZE // INPUT_PIECE)


class Content:
    """A large input file and what a launch says of it."""

    def __init__(self, site: Site, size: int = SIZE) -> None:
        self.path = site.directory / "content"
        self.path.write_bytes(os.urandom(size))
        self.digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        site.inputs[self.digest] = self.path
        self.file = LaunchFile(target="data/large", mode=0o600, digest=self.digest, size=size, modified=1_500_000_000)

    def launch(self, task: str, *argv: str, **changes: object) -> Launch:
        """Return the order to run a command in a directory with the file."""
        values: dict[str, object] = {"files": (self.file,), "share": SHARE, **changes}
        return Launch(task=task, argv=argv or ("sha256sum", "data/large"), **values)  # type: ignore[arg-type]

    @property
    def listed(self) -> bytes:
        """What sha256sum prints of it."""
        return f"{self.digest}  data/large\n".encode()


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.rpartition("/")[2])
async def test_a_large_file_is_fetched_once_for_a_node(site: Site, python: str) -> None:
    """Ranks of one node share it, may only read it, and nothing of it is left when the last one has ended."""
    content, go = Content(site), site.directory / "go"
    os.mkfifo(go)
    script = f"sha256sum data/large; stat -c '%a %Y' data/large; read line <{go}"
    async with site.serving():
        for index in (1, 2):
            site.start_agent(index, script=site.script().replace(" ".join(SYSTEM_PYTHONS), python))
            await site.registered(index)
            assert site.center.tell(placeholder(index), content.launch(f"t{index}", "sh", "-c", script))
        for task in ("t1", "t2"):
            expected = f"{content.digest}  data/large\n400 1500000000\n".encode()
            await site.wait_for_output(task, expected)
        assert len(site.sent) == PIECES
        descriptor = os.open(go, os.O_RDWR)
        os.write(descriptor, b"\n\n")
        assert [await end_of(site, task) for task in ("t1", "t2")] == [EXITED, EXITED]
        os.close(descriptor)
        for index, process in enumerate(site.processes, 1):
            site.center.tell(placeholder(index), Release(grace=1.0))
            assert await site.ended(process) == (0, "")
    assert not list(site.directory.glob("koala-*"))


async def test_a_large_file_that_the_node_sees_is_not_sent(site: Site) -> None:
    """It is looked for by its digest and by its path; another content of the same size is not taken for it."""
    content, place = Content(site), site.directory / "place"
    place.mkdir()
    async with site.serving_agent():
        content.file = replace(content.file, source=str(content.path))
        assert await run(site, content.launch("path", places=(str(place),))) == EXITED
        content.path.rename(place / content.digest)
        assert await run(site, content.launch("digest", places=(str(place),))) == EXITED
        assert site.sent == []
        site.inputs[content.digest] = (place / content.digest).rename(content.path)
        (place / content.digest).write_bytes(bytes(SIZE))
        content.file = replace(content.file, source="")
        assert await run(site, content.launch("other", places=(str(place),))) == EXITED
        assert len(site.sent) == PIECES
    for task in ("path", "digest", "other"):
        assert site.output(task) == content.listed


@pytest.mark.parametrize("lost", ["connection", "agent"])
async def test_what_arrived_of_a_large_file_is_not_sent_twice(site: Site, lost: str) -> None:
    """After a broken connection the agent goes on with it, and after its own end another one of the node."""
    content = Content(site)
    async with site.serving():
        for index in (1, 2):
            site.start_agent(index)
            await site.registered(index)
        first, second = site.processes
        site.after_piece = PIECES // 2, lambda: os.killpg(first.pid, signal.SIGSTOP)
        assert site.center.tell(placeholder(1), content.launch("t1"))
        await site.wait_until(lambda: len(site.sent) >= PIECES // 2)
        assert site.center.tell(placeholder(2), content.launch("t2"))
        await site.wait_until(lambda: shares(second.pid))
        if lost == "agent":
            os.killpg(first.pid, signal.SIGKILL)
        else:
            site.center.disconnect(placeholder(1), "as a test wants it")
            os.killpg(first.pid, signal.SIGCONT)
            await site.wait_for(AgentDisconnected)
            known = len(site.events)
            registered = await site.wait_for(AgentRegistered, after=known)
            assert registered.tasks == ()
            assert (await end_of(site, "t1")) == EXITED
        assert (await end_of(site, "t2")) == EXITED
        assert site.output("t2") == content.listed
        assert len(site.sent) <= PIECES + FETCHES


def shares(agent: int) -> bool:
    """Tell whether an agent uses the shared directory."""
    links = (Path("/proc", str(agent), "fd", name) for name in os.listdir(f"/proc/{agent}/fd"))  # noqa: PTH208
    return any(link.is_symlink() and link.readlink().name == SHARE for link in links)


@pytest.mark.parametrize("fault", ["gone", "shorter", "changed"])
async def test_a_large_file_that_cannot_be_had_whole_fails_its_task(site: Site, fault: str) -> None:
    """No process is started with a part of it, or with another content."""
    content = Content(site)
    if fault == "gone":
        content.path.unlink()
    elif fault == "shorter":
        os.truncate(content.path, SIZE // 2)
    else:
        content.path.write_bytes(bytes(SIZE))
    async with site.serving_agent():
        end = await run(site, content.launch("t", "touch", str(site.directory / "started")))
    said = {"gone": "No such file or directory", "shorter": "it has become shorter", "changed": "another content"}
    assert end.reason is EndReason.LAUNCH_FAILED
    assert "input file 'data/large': " in end.detail
    assert said[fault] in end.detail
    assert not (site.directory / "started").exists()


async def test_a_release_does_not_wait_for_a_large_file(site: Site) -> None:
    """What has come of it is removed."""
    content = Content(site)
    async with site.serving_agent() as process:
        site.after_piece = 1, lambda: site.center.tell(placeholder(), Release(grace=1.0))
        end = await run(site, content.launch("t"))
        assert (end.reason, end.detail) == (EndReason.CANCELLED, "released")
        assert await site.ended(process) == (0, "")
    assert not list(site.directory.glob("koala-*"))


async def test_a_large_file_is_copied_where_it_cannot_be_linked(site: Site) -> None:
    """The directory of the rank is on another file system, and has the file already the second time."""
    content = Content(site)
    with TemporaryDirectory(dir="/dev/shm") as there:
        async with site.serving_agent():
            for task in ("first", "second"):
                assert await run(site, content.launch(task, working_directory=there)) == EXITED
                assert site.output(task) == content.listed
        assert os.stat(f"{there}/data/large").st_nlink == 1  # noqa: PTH116 - in a directory of this test alone
