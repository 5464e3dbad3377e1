# SPDX-License-Identifier: Apache-2.0
"""Agents at work: real processes, started by their job script, with a real control center over TLS on loopback."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from koala_adapter.model import EndReason, TaskEnd
from koala_adapter.vjm.channel import Ending, Launch, LaunchFile, Release, Signal, TaskEnded, TaskStarted
from koala_adapter.vjm.jobscript import SYSTEM_PYTHONS
from koala_adapter.vjm.listener import AgentDisconnected, AgentRegistered
from tests.real.agents import LIVENESS, Site, placeholder

PYTHONS = [
    path
    for path in (shutil.which(f"python3.{minor}") for minor in range(6, 15))
    if path is not None
    and subprocess.run([path, "-c", ""], capture_output=True, check=False, timeout=30).returncode == 0
]
"""Every Python on this machine that works; a name in the PATH alone is none (pyenv has one for each)."""

EXITED = TaskEnd(reason=EndReason.EXITED, exit_code=0)


def shell(task: str, text: str) -> Launch:
    """Return the order to run a piece of shell."""
    return Launch(task=task, argv=("/bin/sh", "-c", text))


def processes_with(text: str, site: Site) -> list[int]:
    """Return the processes in directories of this site's agents whose command line contains a text."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = (process / "cwd").readlink().is_relative_to(site.directory)
            if ours and text.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


async def nothing_left(text: str, site: Site) -> None:
    """Insist that these processes end: who is killed on a busy machine may be seen for a moment yet."""
    await site.wait_until(lambda: not processes_with(text, site))


async def run(site: Site, order: Launch, index: int = 1) -> TaskEnd:
    """Run a task in a connected agent and return how it ended."""
    assert site.center.tell(placeholder(index), order)
    return await end_of(site, order.task)


async def end_of(site: Site, task: str) -> TaskEnd:
    return (await site.wait_for(TaskEnded, lambda event: event.task == task)).end


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.rpartition("/")[2])
async def test_a_placeholder_becomes_a_process(site: Site, python: str) -> None:
    """With any Python: registers, runs a command, its output and exit code arrive, it goes when released."""
    async with site.serving():
        script = site.script().replace(" ".join(SYSTEM_PYTHONS), python)
        process = site.start_agent(3, script=script)
        registered = await site.wait_for(AgentRegistered)
        assert (registered.placeholder, registered.lrm_id, registered.first) == (placeholder(3), "77", True)
        assert registered.address == "127.0.0.1"
        assert registered.ends_in is not None
        assert 500 < registered.ends_in <= 600
        end = await run(site, shell("t", "echo to out; echo to err >&2; exit 3"), 3)
        assert end == TaskEnd(reason=EndReason.EXITED, exit_code=3)
        assert (site.output("t"), site.output("t", "err")) == (b"to out\n", b"to err\n")
        assert (await site.wait_for(TaskStarted)).task == "t"
        argv = ("/bin/sh", "-c", 'echo "$A $1"', "sh", "a  b")
        set_up = Launch(task="s", argv=argv, setup=("export A=1",))
        assert (await run(site, set_up, 3), site.output("s")) == (EXITED, b"1 a  b\n")
        failed = await run(site, replace(shell("f", "true"), setup=("true", "echo why >&2; (exit 4)")), 3)
        assert (failed.reason, failed.exit_code) == (EndReason.LAUNCH_FAILED, 4)
        assert failed.detail.endswith(": why")
        assert site.center.tell(placeholder(3), Release(grace=1.0))
        assert await site.ended(process) == (0, "")
    assert not list(site.directory.glob("koala-*"))


async def test_output_by_way_of_the_named_pipes(site: Site) -> None:
    """A grandchild whose standard output is captured elsewhere can still write to its own rank's streams."""
    async with site.serving_agent():
        text = 'sh -c "echo one >$KOALA_STDOUT; echo two >$KOALA_STDERR; echo three >$KOALA_STDOUT" >/dev/null 2>&1'
        assert await run(site, shell("t", text)) == EXITED
        assert site.output("t") == b"one\nthree\n"
        assert site.output("t", "err") == b"two\n"


async def test_secrets_are_not_in_the_process_listing(site: Site) -> None:
    """Neither command line nor environment of the agent holds the token, and its task cannot read it from stdin."""
    async with site.serving_agent() as process:
        for name in ("cmdline", "environ"):
            text = (await anyio.Path(f"/proc/{process.pid}/{name}").read_bytes()).decode()
            assert site.token not in text
        await run(site, shell("t", "cat; cat /proc/$PPID/fd/0"))
        assert site.output("t") == b""


@pytest.mark.parametrize(
    ("order", "code", "told"),
    [
        (Launch(task="t", argv=("no-such-program",)), 127, "no-such-program: command not found"),
        (Launch(task="t", argv=("true",), working_directory="/no/such/dir"), 126, "working directory /no/such/dir"),
        (
            Launch(task="t", argv=("true",), files=(LaunchFile(target="../x", mode=0o644, content=b""),)),
            126,
            "'../x' is not a path below the working directory",
        ),
        (Launch(task="t", argv=("true",), environment=(("A=B", "c"),)), 126, "cannot start"),
    ],
)
async def test_launch_failures_say_why(site: Site, order: Launch, code: int, told: str) -> None:
    """What cannot be started ends with the code that a shell would give and a text for the user; the agent lives on."""
    async with site.serving_agent():
        end = await run(site, order)
        assert (end.reason, end.exit_code) == (EndReason.LAUNCH_FAILED, code)
        assert told in end.detail
        assert await run(site, shell("next", "true")) == EXITED


async def test_a_launch_is_carried_out_once(site: Site) -> None:
    """Repeated orders, during the run and after it, start nothing, but the state is told again."""
    async with site.serving_agent():
        order = shell("t", f"echo x >>{site.directory}/count; read line <{site.directory}/go")
        os.mkfifo(site.directory / "go")
        for _ in range(3):
            site.center.tell(placeholder(), order)
        await site.wait_for(TaskStarted)
        await site.wait_until(lambda: sum(isinstance(event, TaskStarted) for event in site.events) == 3)
        await anyio.Path(site.directory / "go").write_text("\n")
        assert (await site.wait_for(TaskEnded)).end == EXITED
        seen = len(site.events)
        site.center.tell(placeholder(), order)
        assert (await site.wait_for(TaskEnded, after=seen)).end == EXITED
        assert (site.directory / "count").read_text() == "x\n"


async def test_several_tasks_at_once_and_in_turn(site: Site) -> None:
    """One placeholder can serve several tasks, each with its own output and end."""
    async with site.serving_agent():
        for number in range(5):
            site.center.tell(placeholder(), shell(f"t{number}", f"echo {number}; exit {number}"))
        for number in range(5):
            assert (await end_of(site, f"t{number}")).exit_code == number
            assert site.output(f"t{number}") == f"{number}\n".encode()


async def test_large_output_is_complete_before_the_end_is_told(site: Site) -> None:
    """Megabytes on both streams arrive byte for byte, and the files are whole when the end is told."""
    async with site.serving_agent():
        assert await run(site, shell("t", "seq 1 700000; seq 1 300000 >&2")) == EXITED
        assert site.output("t") == "".join(f"{i}\n" for i in range(1, 700001)).encode()
        assert site.output("t", "err") == "".join(f"{i}\n" for i in range(1, 300001)).encode()


async def test_a_restart_of_the_center_changes_nothing(site: Site) -> None:
    """Through two restarts during the run every byte arrives once, the end is told, and told again afterwards."""
    async with site.serving_agent() as process:
        os.mkfifo(site.directory / "go")
        text = f"i=0; while [ $i -lt 300 ]; do seq 1 1000; i=$((i+1)); done; read line <{site.directory}/go"
        site.center.tell(placeholder(), shell("t", text))
        await site.wait_for(TaskStarted)
    seen = len(site.events)
    async with site.serving():
        again = await site.wait_for(AgentRegistered, after=seen)
        assert not again.first
        assert [(report.task, report.running) for report in again.tasks] == [("t", True)]
    seen = len(site.events)
    async with site.serving():
        await site.wait_for(AgentRegistered, after=seen)
        await anyio.Path(site.directory / "go").write_text("\n")
        assert (await site.wait_for(TaskEnded, after=seen)).end == EXITED
        assert site.output("t") == "".join(f"{i}\n" for i in range(1, 1001)).encode() * 300
    seen = len(site.events)
    async with site.serving():
        again = await site.wait_for(AgentRegistered, after=seen)
        assert [(report.task, report.running, report.end) for report in again.tasks] == [("t", False, EXITED)]
        site.center.tell(placeholder(), Release(grace=0))
        assert (await site.ended(process))[0] == 0


async def test_output_waits_while_the_center_is_away(site: Site) -> None:
    """What is not acknowledged is kept to a bound, then the program waits; nothing is lost, the agent stays small."""
    async with site.serving_agent() as process:
        site.center.tell(placeholder(), shell("t", f"read line <{site.directory}/go; head -c 20000000 /dev/zero"))
        os.mkfifo(site.directory / "go")
        await site.wait_for(TaskStarted)
    await anyio.Path(site.directory / "go").write_text("\n")
    seen = len(site.events)
    async with site.serving():
        await site.wait_for(AgentRegistered, after=seen)
        assert (await site.wait_for(TaskEnded, after=seen)).end == EXITED
        assert site.output("t") == bytes(20_000_000)
        status = await anyio.Path(f"/proc/{process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s*(\d+) kB", status)
        assert peak is not None
        assert int(peak[1]) < 40_000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
async def test_a_signal_ends_the_lines_before_a_task(site: Site, number: int) -> None:
    """As it would end the task; that is no failure of a line."""
    async with site.serving_agent():
        order = replace(shell("t", "echo ran"), setup=("echo here; sleep 1000",))
        assert site.center.tell(placeholder(1), order)
        await site.wait_for_output("t", b"here\n")
        site.center.tell(placeholder(1), Signal(task="t", signal=number))
        assert (await end_of(site, "t")).signal == number
        assert site.output("t") == b"here\n"


async def test_nothing_of_a_task_outlives_it(site: Site) -> None:
    """What a task leaves in the background is killed, also in process groups and sessions of its own."""
    async with site.serving_agent():
        text = "sleep 61235 & set -m; sleep 61235 >/dev/null 2>&1 & setsid sleep 61235 >/dev/null 2>&1 & echo started"
        assert await run(site, shell("t", text)) == EXITED
        assert site.output("t") == b"started\n"
        await nothing_left("sleep\x0061235", site)


async def test_a_daemon_without_the_environment_of_its_task_does_not_outlive_it(site: Site, tmp_path: Path) -> None:
    """The agent is its parent by then. What another task runs meanwhile is spared, and ends with the last of them."""
    async with site.serving_agent():
        begun = tmp_path / "begun"
        daemon = f"setsid env -i /bin/sh -c '>{begun}; exec /bin/sleep 61245' >/dev/null 2>&1 &"
        until = f"until [ -e {begun} ]; do sleep 0.02; done"
        site.center.tell(placeholder(), shell("other", f"until [ -e {tmp_path}/go ]; do sleep 0.02; done"))
        await site.wait_for(TaskStarted)
        assert await run(site, shell("t", f"{daemon} {until}")) == EXITED
        assert len(processes_with("sleep\x0061245", site)) == 1
        (tmp_path / "go").touch()
        assert await end_of(site, "other") == EXITED
        await nothing_left("sleep\x0061245", site)


SPEAKER = """
import os, socket, sys
koala = socket.socket(socket.AF_UNIX)
directory, name = os.path.split(os.environ["KOALA_APP_SOCKET"])
os.chdir(directory)  # the whole path may be too long for an address
koala.connect(name)
koala.sendall(b"00000022\\nhello version=1 away=1")
print("said", flush=True)
print(koala.recv(13), flush=True)
"""


async def test_a_process_hears_that_its_agent_has_lost_koala(site: Site) -> None:
    """At once, so that it does not stop for a change that nobody can make for now."""
    async with site.serving_agent():
        order = Launch(task="t", argv=(sys.executable, "-c", SPEAKER), application=True)
        site.center.tell(placeholder(), order)
        await site.wait_for_output("t", b"said\n")
    async with site.serving():
        assert await end_of(site, "t") == EXITED
        assert site.output("t") == b"said\nb'00000004\\naway'\n"


async def test_release_reaches_ranks_in_sessions_of_their_own(site: Site) -> None:
    """A starter that ignores SIGTERM, as hydra's proxy does, does not keep its rank from hearing of the end."""
    async with site.serving_agent() as process:
        rank = "trap 'echo asked >$KOALA_STDOUT; exit' TERM; echo ready >$KOALA_STDOUT; while :; do sleep 0.05; done"
        starter = "trap : TERM; setsid /bin/sh ./rank >/dev/null & while kill -0 $!; do wait; done 2>/dev/null"
        files = (LaunchFile(target="rank", mode=0o644, content=rank.encode()),)
        site.center.tell(placeholder(), replace(shell("t", starter), files=files))
        await site.wait_for_output("t", b"ready\n")
        site.center.tell(placeholder(), Release(grace=10))
        assert (await site.ended(process))[0] == 0
        assert site.output("t") == b"ready\nasked\n"


async def turned_away(site: Site, *, times: int) -> None:
    """Close the connections of the agent, where the control center was, until it has tried so many times."""
    tries = 0
    enough = anyio.Event()

    async def turn_away(connection: SocketStream) -> None:
        nonlocal tries
        await connection.aclose()
        tries += 1
        if tries == times:
            enough.set()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=site.port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, turn_away)
        with anyio.fail_after(LIVENESS):
            await enough.wait()
        tasks.cancel_scope.cancel()


async def test_an_agent_whose_process_speaks_with_koala_comes_back_soon(tmp_path: Path) -> None:
    """Its whole program may wait: the pauses between its tries do not grow."""
    site = Site(tmp_path, lease=25.0)
    try:
        async with site.serving_agent():
            site.center.tell(placeholder(), replace(shell("t", "echo ready; sleep 60"), application=True))
            await site.wait_for_output("t", b"ready\n")
        await turned_away(site, times=10)  # if the pauses grew, its lease would have ended it before
    finally:
        site.close()


async def test_a_released_agent_that_is_cut_off_keeps_its_last_words(site: Site) -> None:
    """An agent that cannot deliver its last messages waits as long as its lease lasts, then it ends.

    The pauses between its tries do not grow: so many of them would take longer than the lease.
    """
    async with site.serving_agent() as process:
        text = "trap 'echo asked; sleep 1; echo last words; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
        site.center.tell(placeholder(), shell("t", text))
        await site.wait_for_output("t", b"ready\n")
        site.center.tell(placeholder(), Release(grace=2))
        await site.wait_for_output("t", b"ready\nasked\n")
    await turned_away(site, times=30)  # for longer than an agent that is heard takes to leave
    assert process.poll() is None
    async with site.serving():
        await site.wait_for_output("t", b"ready\nasked\nlast words\n")
        assert (await site.ended(process))[0] == 0


async def test_release_ends_a_stubborn_task(site: Site) -> None:
    """SIGTERM first, SIGKILL after the grace, last output delivered, the reason is that it was cancelled."""
    async with site.serving_agent() as process:
        text = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done"
        site.center.tell(placeholder(), shell("t", text))
        await site.wait_for_output("t", b"ready\n")
        site.center.tell(placeholder(), Release(grace=5))
        end = (await site.wait_for(TaskEnded)).end
        assert (end.reason, end.signal) == (EndReason.CANCELLED, signal.SIGKILL)
        assert site.output("t") == b"ready\nasked\n"
        assert await site.ended(process) == (0, "")
        gone = await site.wait_for(AgentDisconnected)
        assert (gone.detail, gone.closed) == ("closed by the agent", True)


@pytest.mark.parametrize(
    ("number", "walltime", "reason"),
    [
        (signal.SIGTERM, 600.0, EndReason.CANCELLED),
        (signal.SIGTERM, 25.0, EndReason.WALLTIME),
        (signal.SIGINT, 600.0, EndReason.CANCELLED),
        (signal.SIGUSR1, 25.0, EndReason.WALLTIME),
        (signal.SIGXCPU, 600.0, EndReason.WALLTIME),
    ],
)
async def test_a_signal_from_the_batch_system(
    site: Site, number: signal.Signals, walltime: float, reason: EndReason
) -> None:
    """The agent says why it goes, then how its task ended, and is gone; nothing is left on the node."""
    async with site.serving():
        process = site.start_agent(script=site.script(walltime=walltime))
        await site.wait_for(AgentRegistered)
        site.center.tell(placeholder(), shell("t", "echo working; sleep 61237"))
        await site.wait_for(TaskStarted)
        await site.wait_for_output("t", b"working\n")
        process.send_signal(number)
        assert (await site.wait_for(Ending)).reason is reason
        end = (await site.wait_for(TaskEnded)).end
        assert (end.reason, end.signal) == (reason, signal.SIGTERM)
        code, errors = await site.ended(process)
        assert code == 5
        assert number.name in errors
        await nothing_left("sleep\x0061237", site)


async def test_a_notice_far_from_the_end_of_the_walltime_ends_nothing(site: Site) -> None:
    """Grid Engine announces a suspension by SIGUSR1 (-notify)."""
    async with site.serving():
        process = site.start_agent(script=site.script(walltime=600.0))
        await site.wait_for(AgentRegistered)
        process.send_signal(signal.SIGUSR1)
        assert process.stderr is not None
        assert b"got SIGUSR1" in await anyio.to_thread.run_sync(process.stderr.readline)
        assert await run(site, shell("t", "true")) == EXITED
        assert not [event for event in site.events if isinstance(event, Ending)]


async def test_agents_that_were_stopped_for_longer_than_their_lease(tmp_path: Path) -> None:
    """One comes back and its task goes on, if that is wanted; another one ends itself."""
    site = Site(tmp_path, lease=4.0, heartbeat=1.0)
    try:
        async with site.serving():
            for index in (1, 2):
                site.start_agent(index, script=site.script(await_suspended=index == 1))
                await site.registered(index)
            site.center.tell(placeholder(), shell("t", f"until [ -e '{tmp_path}/go' ]; do sleep 0.1; done"))
            await site.wait_for(TaskStarted)
            for process in site.processes:
                process.send_signal(signal.SIGSTOP)
            await site.wait_for(AgentDisconnected)
            await anyio.sleep(2 * site.lease)  # that is how long they are to be stopped
            before = len(site.events)
            for process in site.processes:
                process.send_signal(signal.SIGCONT)
            await site.wait_for(AgentRegistered, lambda event: event.placeholder == placeholder(), after=before)
            (tmp_path / "go").touch()
            assert (await site.wait_for(TaskEnded, after=before)).end == EXITED
            assert (await site.ended(site.processes[1]))[0] == 4
    finally:
        site.close()


@pytest.mark.parametrize("end_margin", [2.0, 20.0])
async def test_walltime_ends_by_the_agents_own_clock(site: Site, end_margin: float) -> None:
    """Before an LRM that kills without a warning comes, the agent ends its task and says why."""
    async with site.serving():
        process = site.start_agent(script=site.script(walltime=14.0, end_margin=end_margin))
        await site.wait_for(AgentRegistered)
        site.center.tell(placeholder(), Launch(task="t", argv=("sleep", "61239")))
        assert (await site.wait_for(Ending)).reason is EndReason.WALLTIME
        assert (await site.wait_for(TaskEnded)).end.reason is EndReason.WALLTIME
        assert (await site.ended(process))[0] == 5


async def test_nothing_outlives_an_agent_that_is_killed(site: Site) -> None:
    """Grid Engine kills only the process group of a job: tasks, their ranks and the files go nevertheless."""
    async with site.serving_agent() as process:
        text = "setsid sleep 61241 >/dev/null 2>&1 & env -i sleep 61241 & echo started; wait"
        site.center.tell(placeholder(), shell("t", text))
        await site.wait_for_output("t", b"started\n")
        await site.wait_until(lambda: len(processes_with("sleep\x0061241", site)) == 2)  # started is not yet executed
        os.killpg(process.pid, signal.SIGKILL)
        await site.wait_for(AgentDisconnected)
        await nothing_left("sleep\x0061241", site)
        await site.wait_until(lambda: not any(site.directory.glob("koala-*")))


@pytest.mark.parametrize("which", ["task", "last command of the task"])
async def test_the_cause_of_a_killed_task_shows_late(site: Site, which: str) -> None:
    """A SIGTERM that hits the task, or only what a shell runs, before the agent: the placeholder was cancelled."""
    async with site.serving_agent() as process:
        site.center.tell(placeholder(), shell("t", "sleep 61238" if which == "task" else "sleep 61238; exit $?"))
        pid = (await site.wait_for(TaskStarted)).pid
        await site.wait_until(lambda: bool(processes_with("sleep\x0061238", site)))
        os.kill(pid if which == "task" else processes_with("sleep\x0061238", site)[0], signal.SIGTERM)
        process.terminate()
        end = (await site.wait_for(TaskEnded)).end
        assert (end.reason, end.status) == (EndReason.CANCELLED, 143)


async def test_the_lease_ends_an_agent_nobody_cares_for(site: Site) -> None:
    """With the center gone for longer than the lease, the agent ends itself and its task, and says so on stderr."""
    site.lease = 10.0
    async with site.serving_agent() as process:
        site.center.tell(placeholder(), Launch(task="t", argv=("sleep", "61240")))
        await site.wait_for(TaskStarted)
    code, errors = await site.ended(process)
    assert code == 4
    assert "no contact to the control center for 10" in errors
    await nothing_left("sleep\x0061240", site)
    assert not list(site.directory.glob("koala-*"))


async def test_a_silent_connection_is_closed_and_made_anew(site: Site) -> None:
    """An agent that is stopped loses its connection after three heartbeats, and comes back when it goes on."""
    async with site.serving_agent() as process:
        process.send_signal(signal.SIGSTOP)
        lost = await site.wait_for(AgentDisconnected)
        assert "silent" in lost.detail
        assert not site.center.tell(placeholder(), shell("t", "true"))
        seen = len(site.events)
        process.send_signal(signal.SIGCONT)
        assert not (await site.wait_for(AgentRegistered, after=seen)).first
        assert await run(site, shell("t", "true")) == EXITED


async def relay(connection: SocketStream, port: int) -> None:
    """Be a slow line: hand on what comes, to the center at once, from it 200 KB in a second."""

    async def hand_on(source: SocketStream, target: SocketStream, pause: float) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                await target.send(await source.receive(8192))
                await anyio.sleep(pause)
        group.cancel_scope.cancel()

    async with (
        connection,
        await anyio.connect_tcp("127.0.0.1", port) as center,
        anyio.create_task_group() as group,
    ):
        group.start_soon(hand_on, connection, center, 0)
        group.start_soon(hand_on, center, connection, 0.04)


async def test_a_long_order_on_a_slow_line_is_no_silence(site: Site) -> None:
    """While a file for a rank is under way for longer than any silence may last, the connection stays."""
    content = os.urandom(1_100_000)
    async with (
        site.serving(),
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as group,
    ):
        port = listener.extra(SocketAttribute.local_port)
        group.start_soon(listener.serve, partial(relay, port=site.port))
        site.start_agent(script=site.script(port=port))
        await site.wait_for(AgentRegistered)
        order = Launch(
            task="0", argv=("sh", "-c", "wc -c <in"), files=(LaunchFile(target="in", mode=0o600, content=content),)
        )
        began = anyio.current_time()
        assert site.center.tell(placeholder(), order)
        ended = await site.wait_for(TaskEnded)
        assert ended.end.exit_code == 0
        assert anyio.current_time() - began > 3 * site.heartbeat
        assert not [event for event in site.events if isinstance(event, AgentDisconnected)]
        await site.wait_for_output("0", b"1100000\n")
        group.cancel_scope.cancel()


async def test_output_that_cannot_be_written_waits_for_its_file(site: Site) -> None:
    """A full or broken disk here costs time, not output, nor contact; the end is told after all of it."""
    (site.directory / "output").write_text("a file in the place of the directory")
    async with site.serving_agent():
        text = "seq 700000 & seq 300000 >&2; wait"
        assert site.center.tell(placeholder(), shell("t", text))
        await site.wait_until(lambda: len(site.unwritten) >= 3)
        assert {why for _, _, _, why in site.unwritten} == {"Not a directory"}
        assert {stream for _, stream, _, _ in site.unwritten} == {"out", "err"}
        assert not [event for event in site.events if isinstance(event, TaskEnded)]
        (site.directory / "output").unlink()
        assert await end_of(site, "t") == EXITED
        assert site.output("t") == "".join(f"{i}\n" for i in range(1, 700001)).encode()
        assert site.output("t", "err") == "".join(f"{i}\n" for i in range(1, 300001)).encode()
        assert not [event for event in site.events if isinstance(event, AgentDisconnected)]


async def test_a_short_last_word_that_cannot_be_written_is_not_lost(site: Site) -> None:
    """Nothing follows the one piece that was put off but the end, which waits for it."""
    (site.directory / "output").write_text("a file in the place of the directory")
    async with site.serving_agent():
        assert site.center.tell(placeholder(), shell("t", "echo precious"))
        await site.wait_until(lambda: len(site.unwritten) >= 2)
        assert not [event for event in site.events if isinstance(event, TaskEnded)]
        (site.directory / "output").unlink()
        assert await end_of(site, "t") == EXITED
        assert site.output("t") == b"precious\n"


async def test_an_agent_of_an_earlier_version_sends_again_on_a_new_connection(site: Site) -> None:
    """It cannot be asked to; what it keeps comes with its next Hello."""
    (site.directory / "output").write_text("a file in the place of the directory")
    async with site.serving():
        script = site.script()
        assert script.count('"resends": True') == 1
        site.start_agent(script=script.replace('"resends": True', '"old": True'))
        await site.wait_for(AgentRegistered)
        assert site.center.tell(placeholder(), shell("t", "seq 700000"))
        await site.wait_until(lambda: len(site.unwritten) >= 2)
        (site.directory / "output").unlink()
        assert await end_of(site, "t") == EXITED
        assert site.output("t") == "".join(f"{i}\n" for i in range(1, 700001)).encode()
        assert "can be written again" in (await site.wait_for(AgentDisconnected)).detail


async def test_a_journal_that_cannot_be_written_turns_an_agent_away_for_a_while(site: Site) -> None:
    """Whose a placeholder is must be noted first; the agent tries again until it is."""
    site.unbindable = True
    async with site.serving():
        site.start_agent()
        await site.wait_until(lambda: "the journal cannot be written" in site.rejected)
        assert not site.events
        site.unbindable = False
        await site.wait_for(AgentRegistered)


async def test_output_goes_on_after_its_file_was_removed(site: Site) -> None:
    """A user who removes a file during the run loses what was in it, and nothing else."""
    async with site.serving_agent():
        os.mkfifo(site.directory / "go")
        site.center.tell(placeholder(), shell("t", f"echo one; read line <{site.directory}/go; echo two"))
        await site.wait_for_output("t", b"one\n")
        (site.directory / "output" / "t.out").unlink()
        await anyio.Path(site.directory / "go").write_text("\n")
        assert (await site.wait_for(TaskEnded)).end == EXITED
        assert site.output("t") == b"\0\0\0\0two\n"
