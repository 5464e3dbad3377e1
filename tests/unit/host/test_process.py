# SPDX-License-Identifier: Apache-2.0
"""Parts that every process has: the door for connections, users, ports, files, clocks and its supervisor."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from click.testing import CliRunner

from koala_adapter.cli.koala import koala
from koala_adapter.errors import EXIT_CONFIGURATION
from koala_adapter.host import sockets as freeport
from koala_adapter.host.accepting import Admission
from koala_adapter.host.clock import HostClocks, ServiceClock, seconds_since_boot
from koala_adapter.host.privatedirectory import make_directory, make_private_directory, transient_directory, weakness
from koala_adapter.host.process import ServiceManager, under_supervision
from koala_adapter.host.sockets import local_tcp_user
from tests.unit.service.standins import HOUR, NOON, SteppedClocks

# -- Directories for secrets: what another user could put in their place is not used, and nothing of it is changed.


FOREIGN = 54321
"""A user id that nobody has."""

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def sticky(path: Path) -> Path:
    """Make a directory in which everybody may make files, as /tmp is."""
    path.mkdir()
    path.chmod(0o1777)
    return path


@only_root
@pytest.mark.parametrize(
    ("below", "command"),
    [("", "status"), ("state", "status"), ("", "cancel 1"), ("", "serve"), ("", "reap"), ("", "clusters")],
)
def test_a_link_of_somebody_else_is_not_followed(tmp_path: Path, below: str, command: str) -> None:
    """It is refused with path, owner and way out, and the directory that it names stays as it is."""
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o755)
    (ours / "state").mkdir(mode=0o755)
    link = sticky(tmp_path / "shared") / "link"
    link.symlink_to(ours)
    os.lchown(link, FOREIGN, FOREIGN)
    before = sorted(ours.rglob("*"))
    result = CliRunner().invoke(koala, ["--state", str(link / below), *command.split()])
    assert result.exit_code == EXIT_CONFIGURATION
    said = " ".join(result.output.split())
    assert f"{link} is a symbolic link of user {FOREIGN}, who can point it anywhere" in said.replace("- ", "-")
    assert "--state" in said
    assert [mode_of(ours), mode_of(ours / "state")] == [0o755, 0o755]
    assert sorted(ours.rglob("*")) == before


@only_root
def test_links_and_parents_of_somebody_else(tmp_path: Path) -> None:
    """Wherever on the way they are: before a link, behind it, and in a chain of links."""
    shared = sticky(tmp_path / "shared")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, FOREIGN, FOREIGN)
    (tmp_path / "ours").mkdir()
    (shared / "first").symlink_to("second")
    (shared / "second").symlink_to("../ours")
    (shared / "into").symlink_to(theirs)
    assert weakness(shared / "first" / "state") == ""
    os.lchown(shared / "second", FOREIGN, FOREIGN)
    assert weakness(shared / "first" / "state").startswith(f"{shared / 'second'} is a symbolic link of user {FOREIGN}")
    assert weakness(shared / "into" / "state").startswith(f"{theirs} belongs to user {FOREIGN}")
    # What is in their directory is theirs; the way out of it is not.
    assert weakness(theirs / ".." / "ours" / "state") == ""


def test_links_of_our_own_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o755)
    link = sticky(tmp_path / "shared") / "link"
    link.symlink_to(tmp_path / "disk")
    make_directory(link)
    assert mode_of(tmp_path / "disk") == 0o755, "a directory of scripts may be one that the user has opened"
    make_private_directory(link)
    assert mode_of(tmp_path / "disk") == 0o700, "the state directory may not"
    make_private_directory(link / "deep" / "er")
    assert [mode_of(tmp_path / "disk" / one) for one in ("deep", "deep/er")] == [0o700] * 2


@pytest.mark.parametrize(("mode", "who"), [(0o777, "everybody"), (0o775, f"group {FOREIGN}")])
def test_a_directory_that_others_can_write_to(tmp_path: Path, mode: int, who: str) -> None:
    """What is in it could be exchanged at any time, unless it is sticky."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    shared = tmp_path / "shared"
    (shared / "mine").mkdir(parents=True)
    os.chown(shared, 0, FOREIGN)
    shared.chmod(mode)
    expected = f"{who} can write to {shared} (mode {mode:04o}) and so replace what is in it"
    assert weakness(shared / "mine") == expected
    for make in (make_directory, make_private_directory):
        with pytest.raises(PermissionError) as caught:
            make(shared / "new" / "one")
        assert caught.value.strerror == expected
    assert not (shared / "new").exists()
    shared.chmod(mode | stat.S_ISVTX)
    assert weakness(shared / "mine") == ""


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        weakness(tmp_path / "a" / "state")


def test_a_transient_directory_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    """By the next one that is made; one that is in use is left alone."""
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from koala_adapter.host.privatedirectory import transient_directory\n"
        "with transient_directory(Path(sys.argv[1])) as directory:\n"
        "    (directory / 'key').write_text('secret'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = tmp_path / "private"
    with transient_directory(parent) as used:
        (used / "key").write_text("secret")
        subprocess.run([sys.executable, "-c", program, str(parent)], check=False)
        assert len(list(parent.iterdir())) == 2
        with transient_directory(parent) as another:
            assert {*parent.iterdir()} == {used, another}
            assert mode_of(another) == 0o700
        assert (used / "key").read_text() == "secret"
    assert list(parent.iterdir()) == []


# -- The service clock goes forward by what has really passed, whatever is done to the time of day.


@pytest.mark.parametrize("step", [2 * HOUR, -2 * HOUR])
def test_a_step_of_the_time_of_day_does_not_move_it(step: float) -> None:
    """It goes on by the seconds that pass; people read the time that agrees with their clock."""
    machine = SteppedClocks()
    clock = ServiceClock(machine.clocks)
    machine.passes(10)
    machine.is_set(step)
    machine.passes(5)
    assert clock.now() == pytest.approx(NOON + 15)
    assert clock.now() + clock.offset == pytest.approx(machine.time_of_day)


@pytest.mark.parametrize("step", [2 * HOUR, -2 * HOUR])
def test_a_restart_on_the_same_boot_continues_exactly(step: float) -> None:
    """The time of day may be set before, while and after nobody was there."""
    machine = SteppedClocks()
    former = ServiceClock(machine.clocks)
    machine.is_set(step)
    machine.passes(20)
    before = former.reading()
    machine.is_set(step)
    machine.passes(30)
    clock = ServiceClock(machine.clocks, before=before, latest=before.time)
    assert clock.now() == pytest.approx(NOON + 50)


def test_after_another_boot_the_time_of_day_says_how_long_the_machine_was_away() -> None:
    """What was wrong with the time of day before does not matter."""
    machine = SteppedClocks()
    former = ServiceClock(machine.clocks)
    machine.is_set(2 * HOUR)
    machine.passes(20)
    before = former.reading()
    machine.reboots(100)
    clock = ServiceClock(machine.clocks, before=before, latest=before.time)
    assert clock.now() == pytest.approx(NOON + 120)
    assert clock.offset == pytest.approx(2 * HOUR)


def test_after_another_boot_with_a_clock_set_back_it_stands_where_it_was() -> None:
    """It never goes back behind the last event."""
    machine = SteppedClocks()
    before = ServiceClock(machine.clocks).reading()
    machine.reboots(-2 * HOUR)
    clock = ServiceClock(machine.clocks, before=before, latest=NOON + 1)
    assert clock.now() == pytest.approx(NOON + 1)
    machine.passes(9)
    assert clock.now() == pytest.approx(NOON + 10)


def test_where_boots_have_no_name_the_time_of_day_is_asked() -> None:
    """Two boots that are not known are not the same one."""
    machine = SteppedClocks(boot="")
    before = ServiceClock(machine.clocks).reading()
    machine.passes(60)
    machine.since_boot = 3.0
    assert ServiceClock(machine.clocks, before=before).now() == pytest.approx(NOON + 60)


def test_a_journal_without_readings_goes_on_by_the_time_of_day_but_never_back() -> None:
    """What versions before this clock have noted were times of day."""
    machine = SteppedClocks()
    assert ServiceClock(machine.clocks, latest=NOON - 60).now() == pytest.approx(NOON)
    assert ServiceClock(machine.clocks, latest=NOON + 60).now() == pytest.approx(NOON + 60)


def test_what_is_shown_does_not_tremble() -> None:
    """Two clocks are never read at the same moment; a time that was shown stays what it was until somebody sets one."""
    machine = SteppedClocks()
    clock = ServiceClock(machine.clocks)
    machine.is_set(0.4)
    assert clock.offset == 0.0
    machine.is_set(2 * HOUR)
    shown = clock.offset
    machine.is_set(-0.3)
    assert clock.offset == shown == pytest.approx(2 * HOUR + 0.4)


def test_it_tells_once_by_how_much_the_time_of_day_was_set() -> None:
    machine = SteppedClocks()
    clock = ServiceClock(machine.clocks)
    machine.passes(1000)
    machine.is_set(0.2)
    assert clock.step() == 0.0
    machine.is_set(-2 * HOUR)
    assert clock.step() == pytest.approx(0.2 - 2 * HOUR)
    assert clock.step() == 0.0


def test_this_machine_has_the_clocks() -> None:
    clocks = HostClocks.of_this_machine()
    assert seconds_since_boot() >= time.monotonic() - 1
    assert clocks.boot
    clock = ServiceClock()
    assert abs(clock.offset) < 1
    first = clock.now()
    assert clock.now() >= first


# -- What systemd hears of a service that it has started.


@contextmanager
def supervisor(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(path)
        found.settimeout(120)
        yield found


def test_an_abstract_name_is_understood() -> None:
    """Systemd may give one instead of a path."""
    name = f"koala-test-{os.getpid()}"
    with supervisor(f"\0{name}") as heard:
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert heard.recv(100) == b"READY=1"


async def test_it_hears_signs_of_life(tmp_path: Path) -> None:
    """Again and again, while the event loop runs."""
    path = str(tmp_path / "n")
    with supervisor(path) as heard:
        environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "3000", "WATCHDOG_PID": str(os.getpid())}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ServiceManager(environment).keep_alive)
            for _ in range(3):
                assert await anyio.to_thread.run_sync(heard.recv, 100) == b"WATCHDOG=1"
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "/nowhere/n", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": "/nowhere/n", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/nowhere/n", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "vsock:2:1"},
    ],
)
async def test_where_nobody_waits_for_them_there_are_none(environment: dict[str, str]) -> None:
    """It returns at once; nor does a supervisor that is gone disturb anybody."""
    manager = ServiceManager(environment)
    await manager.keep_alive()
    manager.ready()


@pytest.mark.parametrize("goes_on", [True, False])
async def test_it_hears_of_the_end_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, goes_on: bool
) -> None:
    """Unless the server goes on in the same process."""
    path = str(tmp_path / "n")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    with supervisor(path) as heard:
        async with anyio.create_task_group() as tasks:
            under_supervision(tasks, lambda: goes_on).ready()
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert heard.recv(100) == b"READY=1"
        heard.settimeout(0)
        if goes_on:
            with pytest.raises(BlockingIOError):
                heard.recv(100)
        else:
            assert heard.recv(100) == b"STOPPING=1"


# Sockets: ports, connections that are accepted, and who may come.

# -- Connections are accepted again when there are descriptors again.


LIVENESS = 60.0
SERVER = """\
import resource, sys
from contextlib import suppress
import anyio
from koala_adapter.host.accepting import serve_streams

async def echo(stream):
    async with stream:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            await stream.send(await stream.receive(1))

async def main():
    path = sys.argv[1]
    if path:
        listener = await anyio.create_unix_listener(path)
    else:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    print(path or listener.extra(anyio.abc.SocketAttribute.local_port), flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
    async with listener:
        await serve_streams(listener, echo)

anyio.run(main)
"""


def connection(where: str) -> socket.socket:
    if where.isdecimal():
        return socket.create_connection(("127.0.0.1", int(where)), timeout=LIVENESS)
    found = socket.socket(socket.AF_UNIX)
    found.settimeout(LIVENESS)
    found.connect(where)
    return found


@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_a_flood_of_connections_ends_nothing(family: str, tmp_path: Path) -> None:
    """More than the server has descriptors for; as soon as these have gone the next one is answered."""
    path = str(tmp_path / "s") if family == "unix" else ""
    with subprocess.Popen([sys.executable, "-c", SERVER, path], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            where = server.stdout.readline().strip()
            with ExitStack() as flood:
                for _ in range(40):
                    flood.enter_context(connection(where))
                late = connection(where)
                late.send(b"x")
            with late:
                assert late.recv(1) == b"x"
            assert server.poll() is None
        finally:
            server.kill()


# -- The door of the control center: a bound on strangers that keeps nobody out for long.


async def stand(admission: Admission, log: list[str], name: str) -> None:
    """Come in and say nothing."""
    with admission.applicant() as scope:
        log.append(f"{name} in")
        await anyio.sleep_forever()
    log.append(f"{name} {'thrown out' if scope.cancelled_caught else 'left'}")


async def test_silent_peers_are_thrown_out_when_their_time_is_up() -> None:
    """Nobody stands in the door for ever."""
    admission = Admission(limit=2, time_limit=0.05, patience=0.01)
    log: list[str] = []
    with anyio.fail_after(60):
        await stand(admission, log, "a")
    assert log == ["a in", "a thrown out"]


async def test_the_oldest_makes_room_when_the_door_is_full() -> None:
    """A newcomer waits for the patience at most, and the one that stood longest goes, long before its time is up."""
    admission = Admission(limit=2, time_limit=1000, patience=0.05)
    log: list[str] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for name in ("a", "b"):
                await admission.room()
                tasks.start_soon(stand, admission, log, name)
                await anyio.wait_all_tasks_blocked()
            await admission.room()
            await anyio.wait_all_tasks_blocked()
            assert log == ["a in", "b in", "a thrown out"]
            tasks.cancel_scope.cancel()


async def test_there_is_room_as_soon_as_somebody_leaves() -> None:
    """Whoever proves itself makes room at once."""
    admission = Admission(limit=1, time_limit=1000, patience=1000)
    proved = anyio.Event()

    async def prove() -> None:
        with admission.applicant():
            await proved.wait()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prove)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(admission.room)
            await anyio.wait_all_tasks_blocked()
            proved.set()


# -- A port for somebody who needs one soon is free, and none that the system might give to another meanwhile.


def test_it_is_below_what_the_system_gives() -> None:
    """Who asks for any port gets another one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        given = listener.getsockname()[1]
    assert freeport.free_port() in freeport.UNLIKELY_PORTS
    assert given not in freeport.UNLIKELY_PORTS


def test_it_is_none_at_which_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all of those are taken it is any that is free."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(freeport, "UNLIKELY_PORTS", [taken] * 20)
        port = freeport.free_port()
    assert port != taken


# -- Addresses that only this machine reaches: what listens there needs no further protection.


def test_addresses_of_the_loopback_are_known() -> None:
    found = {
        name: freeport.is_loopback(name) for name in ("127.0.0.1", "127.7.0.1", "::1", "localhost", "0.0.0.0", "::")
    }
    assert [name for name, here in found.items() if not here] == ["0.0.0.0", "::"]
    assert not freeport.is_loopback("login.example.org")


# -- The user of a TCP connection from this machine.


@pytest.mark.parametrize(("listen", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_the_user_of_a_connection_from_here_is_known(listen: str, family: socket.AddressFamily) -> None:
    """As long as somebody has the client's socket, and no longer: the kernel then calls it root's."""
    with closing(socket.create_server((listen, 0), family=family)) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        served, _ = listener.accept()
        ends = client.getsockname()[:2], client.getpeername()[:2]
        with served:
            assert local_tcp_user(*ends) == os.geteuid()
            client.close()
            assert local_tcp_user(*ends) is None
        assert local_tcp_user(*ends) is None


def test_an_ipv4_connection_of_an_ipv6_socket_is_found() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, socket.socket(socket.AF_INET6) as client:
        port = listener.getsockname()[1]
        client.connect(("::ffff:127.0.0.1", port))
        ends = ("127.0.0.1", client.getsockname()[1]), ("127.0.0.1", port)
        assert local_tcp_user(*ends) == os.geteuid()


def test_a_socket_elsewhere_has_no_user_here() -> None:
    assert local_tcp_user(("192.0.2.1", 1), ("192.0.2.2", 2)) is None
