# SPDX-License-Identifier: Apache-2.0
"""Parts of the agent on their own: its surroundings, output, results, private directories, and guard."""

from __future__ import annotations

import ast
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.vjm.agent import place
from koala_adapter.vjm.agent import task as tasks
from koala_adapter.vjm.agent.holding import MOST_IN_VAIN, Agent, pause_before_dialling
from koala_adapter.vjm.agent.node import FatalError, Settings, Timers, clock
from koala_adapter.vjm.agent.place import Workplace, claim_directory, make_private_directory, remove_stale, remove_tree
from koala_adapter.vjm.agent.processes import (
    KEPT,
    LaunchError,
    Output,
    oom_kills,
    read_bytes,
    session_of,
    signal_all,
    task_environment,
    write_file,
)
from koala_adapter.vjm.agent.results import STEP, Results
from tests.real.systems.processes import PATIENCE, wait_until
from tests.unit.vjm.test_usage import launched, workplace

__all__ = ["workplace"]

GIVEN: dict[str, object] = {
    "host": "center", "port": 4433, "fingerprint": "AB" * 32, "batch": "b", "lease": 60.0, "end_margin": 10.0,
    "walltime": 3600.0, "token": "a-token", "token_file": None, "array_index_variable": "SGE_TASK_ID",
    "job_id_variable": "JOB_ID", "await_suspended": False,
}  # fmt: skip


def see_exit(task: tasks.Task) -> None:
    """Wait until the process of a task has ended, and have the task see it."""
    assert task.pid is not None
    os.waitid(os.P_PID, task.pid, os.WEXITED | os.WNOWAIT)
    assert task.look()


def settings(environment: dict[str, str] | None = None, **changes: object) -> Settings:
    return Settings(GIVEN | changes, environment or {})


@pytest.mark.parametrize(
    ("environment", "index"),
    [({"SGE_TASK_ID": "7"}, 7), ({"SGE_TASK_ID": "undefined"}, 1), ({}, 1), ({"SGE_TASK_ID": ""}, 1)],
)
def test_index_comes_from_the_named_variable(environment: dict[str, str], index: int) -> None:
    """A job that is no array element has index 1 (Grid Engine says "undefined")."""
    assert settings(environment).index == index


def test_job_id_is_made_fit_for_the_channel() -> None:
    """Whatever a prolog puts there, the Hello stays well-formed."""
    assert settings({"JOB_ID": "12\n3 \x1b4"}).lrm_id == "1234"
    assert settings({}).lrm_id == ""


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [
        pytest.param(None, 100, 100, id="Slurm's end comes first"),
        pytest.param(None, 10_000, 3600, id="the walltime that was asked for ends first"),
        pytest.param(-7200, -6600, 600, id="the clock of the node is ahead"),
        pytest.param(7200, 7800, 600, id="the clock of the node is behind"),
    ],
)
def test_the_walltime_ends_at_the_earlier_of_two_ends(start: int | None, end: int, left: int) -> None:
    """Times of the controller's clock are compared with each other where the node's is another one."""
    now, times = int(time.time()), {"START": start, "END": end}
    given = {f"SLURM_JOB_{name}_TIME": str(now + at) for name, at in times.items() if at is not None}
    found = settings(given).ends_at
    assert found is not None
    assert found - clock() == pytest.approx(left, abs=5)
    assert settings(walltime=None).ends_at is None


def test_an_agent_that_can_never_act_on_a_message_ends_with_its_words() -> None:
    """It connects anew a few times, for it may have been a garbled line; a fault of its own it does not hide."""
    agent = Agent(settings())
    for _ in range(MOST_IN_VAIN - 1):
        with pytest.raises(OSError, match="makes no sense"):
            agent.received(b'{"kind": "welcome"}')
        agent.received(b'{"kind": "pong"}')
    with pytest.raises(FatalError, match="cannot act on 'welcome'"):
        agent.received(b'{"kind": "welcome"}')


def test_timers_run_in_order_of_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set forward or back neither makes a call early nor puts it off."""
    timers = Timers()
    called: list[str] = []
    assert timers.wait() is None
    timers.after(3600, lambda: called.append("late"))
    timers.after(0, lambda: called.append("second"))
    timers.after(-1, lambda: called.append("first"))
    assert timers.wait() == 0
    for hours in (2, -2):
        monkeypatch.setattr(time, "time", lambda hours=hours: 1.8e9 + 3600 * hours)
        timers.run()
        assert called == ["first", "second"]
        left = timers.wait()
        assert left is not None
        assert 3500 < left <= 3600


def _a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.chmod(0o640),
        lambda path: path.chmod(0o602),
        lambda path: [path.rename(path.with_name("real")), path.symlink_to("real")],
        _a_fifo,
        lambda path: path.unlink(),
        pytest.param(
            lambda path: os.chown(path, 65534, 65534),
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away"),
        ),
    ],
    ids=["readable by group", "writable by others", "a link", "a fifo", "missing", "of another user"],
)
def test_token_file_that_others_can_touch_is_refused(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    """A token that somebody else can have read or placed is no proof, and the agent says so."""
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("the-token\n")
    assert settings(token=None, token_file=str(path)).token == "the-token"
    spoil(path)
    with pytest.raises(FatalError, match="token file"):
        settings(token=None, token_file=str(path))


def test_task_environment_is_free_of_the_batch_system() -> None:
    """Nothing of the LRM and of MPI starters gets through but its GPUs; the rest does, and what was asked for wins."""
    base = {
        "PATH": "/bin", "HOME": "/home/u", "TMPDIR": "/scratch", "LANG": "C", "JAVA_HOME": "/opt/java",
        "SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n", "SBATCH_X": "1", "SGE_TASK_ID": "1", "JOB_ID": "2",
        "PE_HOSTFILE": "x", "NSLOTS": "1", "QUEUE": "q", "PBS_JOBID": "3", "PMI_RANK": "0", "PMI2_X": "1",
        "PMIX_RANK": "0", "OMPI_X": "1", "HYDRA_X": "1", "KOALA_TOKEN": "secret", "SRUN_DEBUG": "3",
        "CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "0", "SGE_HGR_gpu": "1",
    }  # fmt: skip
    built = task_environment(base, [["KOALA_RANK", "3"], ["LANG", "de_DE.UTF-8"]])
    assert built == {
        "PATH": "/bin", "HOME": "/home/u", "TMPDIR": "/scratch", "JAVA_HOME": "/opt/java", "KOALA_RANK": "3",
        "LANG": "de_DE.UTF-8", "CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "0", "SGE_HGR_gpu": "1",
    }  # fmt: skip


@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C", "LANG": "C"}, {"LANG": "de_DE.UTF-8", "LC_TIME": "C"}])
def test_tasks_get_no_locale_that_python_has_chosen(given: dict[str, str]) -> None:
    """Python sets LC_CTYPE for itself where the locale is that of C; the node may not even have what it sets."""
    program = "from koala_adapter.vjm.agent.processes import node_environment; print(node_environment())"
    roots = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", program], env={**given, "PYTHONPATH": roots}, capture_output=True, check=True, timeout=90
    )
    seen = ast.literal_eval(done.stdout.decode())
    assert {name: value for name, value in seen.items() if name.startswith(("LC_", "LANG"))} == given


def test_input_files_are_written(tmp_path: Path) -> None:
    """One that is there is replaced; a link in its place is not followed."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "a" / "b").mkdir(parents=True)
    path = tmp_path / "a/b/ä.txt"
    path.symlink_to(victim)
    for content in (b"old", b"new"):
        write_file(str(tmp_path), "a/b/ä.txt", 0o777, content)
    assert path.read_bytes() == b"new"
    assert path.lstat().st_mode & 0o777 == 0o755
    assert [entry.name for entry in path.parent.iterdir()] == ["ä.txt"]
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    "target", ["/etc/x", "../x", "a/../../x", "..", ".", "", "a//x", "a/", "./x", "x\0y", "link/x", "a/link/x"]
)
def test_input_files_cannot_leave_the_directory(tmp_path: Path, target: str) -> None:
    """Neither a path nor a link that somebody planted leads out of the working directory."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for directory in (outside, inside / "a"):
        directory.mkdir(parents=True)
    (inside / "link").symlink_to(outside)
    (inside / "a" / "link").symlink_to(outside)
    with pytest.raises(LaunchError, match="input file"):
        write_file(str(inside), target, 0o644, b"x")
    assert not list(outside.iterdir())
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["inside", "outside"]


@pytest.mark.parametrize(
    ("membership", "files", "count"),
    [
        ("0::/slurm/job_3\n", {"slurm/job_3/memory.events": "low 0\noom 2\noom_kill 2\noom_group_kill 0\n"}, 2),
        (
            "4:memory:/slurm/uid_0/job_3\n3:cpu,cpuacct:/\n",
            {"memory/slurm/uid_0/job_3/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"},
            1,
        ),
        ("0::/gone\n", {}, 0),
        ("", {}, 0),
    ],
)
def test_oom_kills_are_counted(tmp_path: Path, membership: str, files: dict[str, str], count: int) -> None:
    """Both versions of control groups are understood, and neither is needed."""
    (tmp_path / "cgroup").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert oom_kills(str(tmp_path / "cgroup"), str(tmp_path / "fs")) == count


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 100_000)),
        st.tuples(st.just("send"), st.just(0)),
        st.tuples(st.just("acknowledge"), st.integers(0, 400_000)),
        st.tuples(st.just("reconnect"), st.just(0)),
    ),
    max_size=30,
)


@given(steps=steps)
def test_output_is_kept_until_acknowledged(steps: list[tuple[str, int]]) -> None:
    """Through any sequence of writes, sends, acknowledgements and lost connections, every byte arrives in its place."""
    output = Output()
    written = bytearray()
    arrived = bytearray()
    for step, number in steps:
        if step == "write":
            data = bytes((len(written) + i) % 251 for i in range(min(number, output.room)))
            written += data
            output.add(data)
        elif step == "send" and output.unsent:
            offset, data = output.next()
            assert offset <= len(arrived), "a gap"
            arrived += data[len(arrived) - offset :]
        elif step == "acknowledge":
            output.acknowledge(min(number, len(arrived)))
        else:
            output.rewind()
    while output.unsent:
        offset, data = output.next()
        arrived += data[len(arrived) - offset :]
    output.acknowledge(len(arrived))
    assert arrived == written
    assert output.safe


def test_output_bounds_what_it_keeps() -> None:
    output = Output()
    output.add(bytes(KEPT))
    assert output.room == 0
    output.acknowledge(10)
    assert output.room == 10
    output.acknowledge(KEPT + 5)
    assert output.safe


def test_processes_of_a_task_are_found(tmp_path: Path) -> None:
    """By their session, or by the mark in their environment; a strange name does not confuse it, others are spared."""
    program = tmp_path / "a ) 1 (b"
    program.symlink_to("/bin/sleep")
    marked, plain = {"KOALA_STDOUT": "/x/1/out"}, {"KOALA_STDOUT": "/x/1/out2"}
    processes = [
        subprocess.Popen([program, "60"], start_new_session=True, env=environment)
        for environment in (plain, marked, plain)
    ]
    try:
        wait_until_executed(processes)
        assert session_of(processes[0].pid) == processes[0].pid
        assert signal_all(processes[0].pid, b"KOALA_STDOUT=/x/1/out\0", 9) == 2
        assert [process.wait(timeout=90) for process in processes[:2]] == [-9, -9]
        assert session_of(processes[0].pid) is None
        assert processes[2].poll() is None
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_until_executed(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until each process has the environment that it was started with (with vfork it has when Popen returns)."""
    deadline = time.monotonic() + 10
    while not all(b"KOALA_STDOUT" in read_bytes(f"/proc/{process.pid}/environ") for process in processes):
        assert time.monotonic() < deadline


@pytest.mark.parametrize("ordered", [True, False])
def test_an_end_that_was_ordered_needs_no_explanation(
    *, ordered: bool, workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that the control center's signal has ended is over at once; for another cause is waited for a while."""
    monkeypatch.setattr(tasks, "SETTLE", 3600.0)
    task = launched(workplace, ["sleep", "600"])
    task.advance()
    if ordered:
        task.order(signal.SIGTERM)
    else:
        task.signal(signal.SIGTERM)
    see_exit(task)
    for key, mask in workplace.selector.select(0):
        key.data(mask)
    task.advance()
    assert (task.end is not None) == ordered
    monkeypatch.setattr(tasks, "SETTLE", 0.0)
    task.advance()
    assert task.end is not None
    assert task.end.pop("usage")["written_bytes"] == 0
    assert task.end == {"reason": "signalled", "exit_code": None, "signal": 15, "detail": ""}
    task.advance()


PREPARED = "trap 'echo saved > saved' USR1; echo ready > ready; while :; do sleep 0.05; done"


def test_a_warning_reaches_those_processes_alone_that_have_a_handler(tmp_path: Path, workplace: Workplace) -> None:
    """The shell around a program, which would die of the signal, does not get it."""
    warning = {"signal": int(signal.SIGUSR1), "after": 3600.0}
    argv = ["sh", "-c", f'sh -c "{PREPARED}"; true']
    task = launched(workplace, argv, working_directory=str(tmp_path), warning=warning)
    wait_until((tmp_path / "ready").exists, seconds=PATIENCE, what="the program runs")
    task.warn(signal.SIGUSR1)
    wait_until((tmp_path / "saved").exists, seconds=PATIENCE, what="it has saved its state")
    assert not task.look()
    task.kill()
    see_exit(task)


def test_the_end_of_a_task_is_told_after_its_last_words(
    tmp_path: Path, workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its process said to koala is read once it is gone, though the loop never saw it, and is sent before."""
    monkeypatch.setattr(tasks, "DRAIN", 0.0)
    monkeypatch.chdir(tmp_path)
    task = launched(workplace, ["false"], application=True)
    assert task.application is not None
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("1/application")  # short enough for an address, wherever tests are run
        client.sendall(b"00000004\nlast")
        see_exit(task)
        task.advance()
        assert task.end is not None
        for key, mask in workplace.selector.select(0):
            key.data(mask)
        task.advance()
        assert (task.complete, task.tellable, task.safe) == (True, False, False)
        assert task.application.next() == b"00000004\nlast"
        assert task.tellable


@pytest.mark.parametrize(
    ("failures", "silence", "speaking", "leaving", "pause"),
    [
        (1, 0.0, False, False, 0.5),
        (50, 59.0, False, False, 6.0),
        (50, 59.0, True, False, 1.0),
        (50, 61.0, True, False, 6.0),
        (1, 0.0, True, False, 0.5),
        (50, 59.0, True, True, 0.5),
        (50, 300.0, False, True, 0.5),
    ],
)
def test_an_agent_connects_again_soon_where_somebody_waits(
    failures: int,
    silence: float,
    speaking: bool,  # noqa: FBT001 - likewise
    leaving: bool,  # noqa: FBT001
    pause: float,
) -> None:
    """A program whose processes stand at a point waits for the slowest agent; nobody does so for ever."""
    assert pause_before_dialling(failures, silence, speaking=speaking, leaving=leaving) == pause


# The files that a task left are looked for in short steps, between which the agent does all else.


def test_files_are_looked_for_in_steps(tmp_path: Path) -> None:
    """On a slow file system many take long, and an agent that is silent meanwhile would be given up.

    Nothing is sent, and the directory is kept, until it is known what there is; also over a new connection.
    """
    for number in range(5 * STEP):
        (tmp_path / str(number)).write_text("x")
    results = Results("1:0", str(tmp_path), {"output_files": ["*"], "working_directory": None}, {})
    steps = 0
    for _ in results.collect():
        steps += 1
        assert results.has_files
        assert results.next() is None
        results.rewind()
        assert results.next() is None
    assert steps == 5
    sent = 0
    while (found := results.next()) is not None:
        message, data = found
        assert data == b"x"
        assert message["kind"] == "file"
        results.acknowledge(message["number"], message["offset"] + 1, "")
        sent += 1
        if sent == 5 * STEP:
            break
    assert sent == 5 * STEP
    assert not results.has_files
    last, _ = results.next() or ({}, b"")
    assert (last["kind"], last["arrived"]) == ("files", 5 * STEP)


# The process that ends what a killed agent leaves, and leaves alone what an agent has ended itself.

AGENT = """
import os, sys
from koala_adapter.vjm.agent.place import claim_directory
from koala_adapter.vjm.agent.place import Guard

directory, session, dismissed = sys.argv[1:]
guard = Guard("b")
guard.start(directory, claim_directory(directory))
guard.watch(int(session))
if dismissed == "True":
    guard.dismiss()
os._exit(0)
"""


@pytest.mark.parametrize("dismissed", [False, True])
def test_what_is_left_is_ended_unless_the_agent_has_seen_to_it(tmp_path: Path, *, dismissed: bool) -> None:
    """Looking through all processes of a node takes longer than all else that a guard does."""
    directory = tmp_path / "koala"
    (directory / "1").mkdir(parents=True)
    lock = os.open(directory, os.O_RDONLY)
    environment = {"KOALA_STDOUT": f"{directory}/1/out"}
    with subprocess.Popen(["/bin/sleep", "900"], env=environment, start_new_session=True) as task:
        subprocess.run([sys.executable, "-c", AGENT, str(directory), str(task.pid), str(dismissed)], check=True)
        fcntl.flock(lock, fcntl.LOCK_EX)  # given up by the end of the guard
        os.close(lock)
        if dismissed:
            assert task.poll() is None
            task.kill()
    assert task.returncode == -9
    assert directory.exists() is dismissed


# Private directories of agents: removed whatever is in them, and only when nobody alive has them.


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """Return where a tree can be made that is too deep for pytest to remove, should the agent have left it."""
    path = tmp_path / "top"
    yield path
    subprocess.run(["chmod", "-Rf", "u+rwx", path], check=False, timeout=60)
    subprocess.run(["rm", "-rf", path], check=True, timeout=60)


def deep(top: Path, depth: int) -> None:
    top.mkdir()
    place = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deep", dir_fd=place)
        inner = os.open("deep", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=place))
    os.close(place)


def test_a_place_that_cannot_be_written_to_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is private wherever it is; where none can be made, the refusal names the first place."""
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    monkeypatch.setattr(place, "OTHER_PLACES", (str(tmp_path / "neither"), str(other)))
    made = Path(make_private_directory())
    assert (made.parent, made.stat().st_mode & 0o777) == (other, 0o700)
    monkeypatch.setattr(place, "OTHER_PLACES", (str(tmp_path / "neither"),))
    with pytest.raises(FileNotFoundError) as refused:
        make_private_directory()
    assert refused.value.filename == str(tmp_path / "none")


def test_any_tree_is_removed(tmp_path: Path, top: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    deep(top, 1200)
    for name in ("owner", "deep/owner", "name\n", os.fsdecode(b"\xff")):
        (top / name).touch()
    (top / "link").symlink_to(kept)
    (top / "deep" / "link").symlink_to(kept / "file")
    os.mkfifo(top / "deep" / "pipe")
    for number in range(50):
        (top / "wide" / str(number)).mkdir(parents=True)
    (top / "wide").chmod(0)
    (top / "deep" / "deep").chmod(0o500)
    remove_tree(str(top))
    assert not top.exists()
    assert (kept / "file").exists()
    remove_tree(str(top))


def test_a_link_in_the_place_of_the_tree_is_not_followed(tmp_path: Path) -> None:
    """It, and what it leads to, stays."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    remove_tree(str(tmp_path / "link"))
    assert (tmp_path / "kept").exists()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / ("koala-" + "0" * 32)
    made.mkdir(mode=0o700)
    (made / "1").mkdir()
    return made


def test_what_the_dead_left_is_removed(tmp_path: Path, directory: Path) -> None:
    lock = claim_directory(str(directory))
    assert lock is not None
    remove_stale(str(tmp_path))
    assert (directory / "1").exists()
    os.close(lock)
    remove_stale(str(tmp_path))
    assert not directory.exists()


def test_what_is_not_proved_to_be_ours_and_dead_stays(tmp_path: Path, directory: Path) -> None:
    """Without a word of its owner, from another machine, readable by others, of another name, or only a link to one."""
    remove_stale(str(tmp_path))
    assert directory.exists()
    lock = claim_directory(str(directory))
    assert lock is not None
    os.close(lock)
    mine = (directory / "owner").read_bytes()
    (directory / "owner").write_bytes(b"another " + mine)
    remove_stale(str(tmp_path))
    assert directory.exists()
    (directory / "owner").write_bytes(mine)
    directory.chmod(0o750)
    remove_stale(str(tmp_path))
    assert directory.exists()
    directory.chmod(0o700)
    other = directory.rename(tmp_path / "koala-mine")
    directory.symlink_to(other)
    remove_stale(str(tmp_path))
    assert (other / "1").exists()
