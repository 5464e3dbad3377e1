# SPDX-License-Identifier: Apache-2.0
"""Files that tasks leave: real agents send them to a real control center, which keeps them or refuses them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from koala_adapter.model import EndReason, TaskEnd
from koala_adapter.service.results import LEDGER_NAME, Results, ResultStore, read_ledger
from koala_adapter.vjm.channel import Launch, LaunchFile, Release, TaskEnded, TaskFiles
from koala_adapter.vjm.listener import AgentRegistered
from tests.real.agents import Site, placeholder
from tests.vanishing import size_below

MIB = 1024 * 1024
EXITED = TaskEnd(reason=EndReason.EXITED, exit_code=0)


class Deliveries:
    """A site whose control center keeps files: the task ``t`` is rank 0 of component c1 of job 1."""

    def __init__(self, directory: Path, *, per_rank: int = 50 * MIB, per_job: int = 60 * MIB) -> None:
        self.site = Site(directory)
        self.job = directory / "jobs" / "1"
        self.directory = self.job / "c1" / "0"
        self.bounds = {"per_rank": per_rank, "per_job": per_job}
        self.restart()

    def restart(self) -> None:
        """Forget all that a service knows that was killed."""
        self.site.results = Results(lambda _, task: self.job / "c1" / task, ResultStore(**self.bounds))

    async def run(self, text: str, *patterns: str, task: str = "0", files: tuple[LaunchFile, ...] = ()) -> TaskEnd:
        """Run a piece of shell in the connected agent and return how it ended."""
        order = Launch(task=task, argv=("/bin/sh", "-c", text), output_files=patterns, files=files)
        assert self.site.center.tell(placeholder(), order)
        return (await self.site.wait_for(TaskEnded, lambda event: event.task == task)).end

    async def said(self, task: str = "0") -> TaskFiles:
        """Return what the agent said of the files when all were there."""
        await self.site.wait_until(lambda: f"c1/{task}" in read_ledger(self.job))
        return read_ledger(self.job)[f"c1/{task}"]

    @property
    def arrived(self) -> dict[str, bytes]:
        """The files that are there."""
        found = (path for path in self.directory.rglob("*") if path.is_file())
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in found}


@pytest.fixture
def deliveries(tmp_path: Path) -> Iterator[Deliveries]:
    """Return a site without agents; none is left at the end."""
    made = Deliveries(tmp_path)
    yield made
    made.site.close()


async def test_wanted_files_arrive_before_the_end_is_told(deliveries: Deliveries) -> None:
    """Patterns, directories as a whole, names of any bytes; private files, of which programs stay programs."""
    async with deliveries.site.serving_agent():
        text = (
            "echo one >result-1; echo two >result-2; echo no >other; echo h >.hidden;"
            "mkdir -p out/deep/er logs/a/b; echo x >out/deep/er/.x; : >out/empty; chmod 755 out/empty;"
            "echo l >logs/a/b/l.txt; echo m >logs/m.txt; echo n >logs/n.dat;"
            'echo raw >"$(printf "out/\\377\\n\\033")"; head -c 3000000 /dev/zero >large.bin'
        )
        assert await deliveries.run(text, "result-*", "out", "logs/**/*.txt", "[k-m]arge.???", "none*") == EXITED
        assert deliveries.arrived == {
            "result-1": b"one\n", "result-2": b"two\n", "out/deep/er/.x": b"x\n", "out/empty": b"",
            "logs/a/b/l.txt": b"l\n", "logs/m.txt": b"m\n", os.fsdecode(b"out/\xff\n\x1b"): b"raw\n",
            "large.bin": bytes(3_000_000),
        }  # fmt: skip
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (deliveries.job, *deliveries.job.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert modes[deliveries.directory / "out" / "empty"] == 0o700
    assert {mode for path, mode in modes.items() if path.is_file() and path.name != "empty"} == {0o600}
    said = await deliveries.said()
    assert (said.arrived, said.left, said.omitted) == (8, 0, 0)
    assert not (deliveries.job / "c1" / "0.partial").exists()


async def test_files_of_a_rank_that_failed_or_was_killed(deliveries: Deliveries) -> None:
    """They arrive as those of others do, but its end is told at once, since it ends the other ranks.

    So do those of a task that is ended for its time limit, or released.
    """
    async with deliveries.site.serving_agent() as process:
        assert (await deliveries.run("echo 3 >result; exit 3", "*")).exit_code == 3
        assert (await deliveries.said()).arrived == 1
        assert (await deliveries.run("echo 9 >result; kill -9 $$", "*", task="1")).signal == 9
        assert (await deliveries.said("1")).arrived == 1
        text = "echo r >result; echo there; exec sleep 600"
        limited = Launch(task="3", argv=("/bin/sh", "-c", text), output_files=("result",), time_limit=10.0)
        deliveries.site.center.tell(placeholder(), limited)
        await deliveries.site.wait_for_output("3", b"there\n")
        assert (await deliveries.said("3")).arrived == 1
        order = Launch(task="2", argv=("/bin/sh", "-c", text), output_files=("result",))
        deliveries.site.center.tell(placeholder(), order)
        await deliveries.site.wait_for_output("2", b"there\n")
        deliveries.site.center.tell(placeholder(), Release(grace=1))
        assert (await deliveries.site.ended(process))[0] == 0
        assert (await deliveries.said("2")).arrived == 1
    assert [(deliveries.job / "c1" / rank / "result").read_text() for rank in "0123"] == ["3\n", "9\n", "r\n", "r\n"]
    assert not list(deliveries.site.directory.glob("koala-*"))


async def test_what_is_left_is_named(deliveries: Deliveries) -> None:
    """Files that nobody asked for are counted and named; input files are none of them, unless they were changed."""
    files = tuple(LaunchFile(target=name, mode=0o644, content=b"data") for name in ("in/same", "in/changed"))
    async with deliveries.site.serving_agent():
        text = "echo more >>in/changed; echo r >result.txt; mkdir out; for i in $(seq 30); do : >out/$i; done"
        assert await deliveries.run(text, files=files) == EXITED
        said = await deliveries.said()
        assert (said.arrived, said.left, len(said.left_names)) == (0, 32, 20)
        assert {"in/changed", "result.txt"} < set(said.left_names)
        assert await deliveries.run("true", files=files, task="1") == EXITED
        assert await deliveries.run("cat in/same", "*", files=files, task="2") == EXITED
        assert (await deliveries.said("2")).arrived == 0
    assert set(read_ledger(deliveries.job)) == {"c1/0", "c1/2"}
    assert deliveries.arrived == {}


async def test_files_of_the_node_are_linked(deliveries: Deliveries) -> None:
    """They are found by the names of the job, are no results unless they were changed, and stay where they are."""
    there = deliveries.site.directory / "sets"
    there.mkdir()
    (there / "one").write_text("data\n")
    links = {"in/one": there / "one", "sets": there}
    files = tuple(LaunchFile(target=target, mode=0, link=str(path)) for target, path in links.items())
    missing = LaunchFile(target="one", mode=0, link=f"{there}/none")
    async with deliveries.site.serving_agent():
        assert await deliveries.run("cat in/one sets/one > out", "**", files=files) == EXITED
        said = await deliveries.said()
        end = await deliveries.run("true", files=(missing,), task="1")
        assert f"the input file 'one': there is no {there}/none on " in end.detail
    assert deliveries.arrived == {"out": b"data\ndata\n"}
    assert (said.omissions, said.left) == ((), 0)
    assert (there / "one").read_text() == "data\n"


async def test_links_are_not_followed_out(deliveries: Deliveries) -> None:
    """A link to a file of the rank is that file; all others are refused by name, and nothing foreign is read."""
    async with deliveries.site.serving_agent():
        text = (
            "mkdir d; echo i >d/inner; ln -s d/inner latest; ln -s /etc/passwd out; ln -s /etc etc; ln -s ../.. up;"
            "ln -s nowhere dangling; ln -s d directory; mkfifo fifo; ln -s /etc d/etc"
        )
        assert await deliveries.run(text, "**") == EXITED
        said = await deliveries.said()
    assert deliveries.arrived == {"d/inner": b"i\n", "latest": b"i\n"}
    reasons = {one.path: one.reason for one in said.omissions}
    assert set(reasons) == {"out", "etc", "up", "dangling", "directory", "fifo", "d/etc"}
    assert "leads out" in reasons["out"]
    assert "no regular file" in reasons["fifo"]


async def test_files_beyond_the_bounds_are_named(tmp_path: Path) -> None:
    """Each bound is kept, also by what was there before a restart; what is too large is told with size and bound."""
    deliveries = Deliveries(tmp_path, per_rank=1000, per_job=1500)
    try:
        async with deliveries.site.serving_agent():
            text = "head -c 900 /dev/zero >a; head -c 200 /dev/zero >b; head -c 2000000 /dev/zero >c; echo x >d"
            assert await deliveries.run(text, "*") == EXITED
            said = await deliveries.said()
            assert (said.arrived, said.omitted) == (2, 2)
            reasons = {one.path: one.reason for one in said.omissions}
            told = "it has 200 bytes, and 900 bytes of other files are there: a rank may leave 1000 bytes"
            assert reasons["b"] == told
            assert "it has 1.907 MiB" in reasons["c"]
            assert await deliveries.run("truncate -s 8T vast || exit 1; echo x >x", "*", task="2") == EXITED
            said = await deliveries.said("2")
            assert (said.arrived, [one.path for one in said.omissions]) == (1, ["vast"])
            assert "it has 8 TiB" in said.omissions[0].reason
        assert sorted(deliveries.arrived) == ["a", "d"]
        deliveries.restart()
        async with deliveries.site.serving():
            await deliveries.site.wait_for(AgentRegistered, lambda event: not event.first)
            assert await deliveries.run("head -c 700 /dev/zero >e; head -c 500 /dev/zero >f", "*", task="1") == EXITED
            said = await deliveries.said("1")
        assert [one.path for one in said.omissions] == ["e"]
        assert "a job may leave 1.465 KiB" in said.omissions[0].reason
    finally:
        deliveries.site.close()


async def test_what_is_said_of_files_and_cannot_be_written_is_waited_for(deliveries: Deliveries) -> None:
    """The agent stays connected, and is told as soon as it is kept; until then its task has not ended."""
    site, ledger = deliveries.site, deliveries.job / LEDGER_NAME
    ledger.mkdir(parents=True)
    async with site.serving_agent():
        order = Launch(task="0", argv=("/bin/sh", "-c", "echo x >a"), output_files=("a",))
        assert site.center.tell(placeholder(), order)
        await site.wait_until(lambda: len(site.unwritten) >= 2)
        assert {(stream, why) for _, stream, _, why in site.unwritten} == {("files", "Is a directory")}
        ledger.rmdir()
        assert (await deliveries.said()).arrived == 1
        assert (await site.wait_for(TaskEnded)).end.exit_code == 0
    assert [type(event) for event in site.events].count(AgentRegistered) == 1
    assert site.written == [("0", "files")]


async def test_files_survive_restarts_of_the_center(deliveries: Deliveries) -> None:
    """Killed twice while files are on their way: what has come is not sent again, and all is whole in the end."""
    content = os.urandom(1000) * 20_000
    site = deliveries.site
    site.heartbeat = (
        10.0  # a busy machine may need seconds for so long an order, and silence must not end the connection
    )
    async with site.serving_agent() as process:
        files = (LaunchFile(target="in", mode=0o600, content=content),)
        text = "for i in 1 2; do cp in big-$i; done; for i in 1 2 3; do echo $i >small-$i; done; exit 4"
        order = Launch(task="0", argv=("/bin/sh", "-c", text), output_files=("big-*", "small-*"), files=files)
        site.center.tell(placeholder(), order)
        assert (await site.wait_for(TaskEnded)).end.exit_code == 4
        site.center.tell(placeholder(), Release(grace=1))  # from now on the agent stays only for its files
        await site.wait_until(lambda: size_below(deliveries.job) >= 2 * MIB)
    assert (await anyio.to_thread.run_sync(size_below, deliveries.job)) < 2 * len(content)
    for more in (6 * MIB, 100 * MIB):
        deliveries.restart()
        async with site.serving():
            if more < 2 * len(content):
                await site.wait_until(lambda: size_below(deliveries.job) >= 6 * MIB)
            else:
                said = await deliveries.said()
                assert (await site.ended(process))[0] == 0
    assert (said.arrived, said.size, said.omitted) == (5, 2 * len(content) + 6, 0)
    assert set(deliveries.arrived) == {"big-1", "big-2", "small-1", "small-2", "small-3"}
    assert deliveries.arrived["big-1"] == deliveries.arrived["big-2"] == content
    assert not (deliveries.job / "c1" / "0.partial").exists()


async def test_a_tree_without_bottom_costs_nobody_anything(deliveries: Deliveries) -> None:
    """Deeper than any path may be long, and locked: the rank ends as it did, and the tree is removed."""
    async with deliveries.site.serving_agent() as process:
        program = (
            "import os\nfor depth in range(1500):\n    os.mkdir('deep')\n    os.chdir('deep')\n"
            "open('bottom', 'w').close()\nos.chdir('..')\nos.chmod('deep', 0o500)\nos.chmod('.', 0)\n"
        )
        files = (LaunchFile(target="dig.py", mode=0o600, content=program.encode()),)
        assert await deliveries.run("python3 dig.py; ln -s /etc link; echo r >result", "result", files=files) == EXITED
        assert deliveries.arrived == {"result": b"r\n"}
        deliveries.site.center.tell(placeholder(), Release(grace=1))
        assert (await deliveries.site.ended(process))[0] == 0
    assert not list(deliveries.site.directory.glob("koala-*"))
