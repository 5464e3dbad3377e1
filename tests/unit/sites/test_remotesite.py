# SPDX-License-Identifier: Apache-2.0
"""A site by a real gateway, which a stand-in for ssh starts on this host: the transport alone is not real."""

from __future__ import annotations

import ast
import json
import os
import resource
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from koala_adapter.errors import LrmUnavailableError, LrmUnreachableError
from koala_adapter.lrm.commands import THIS_HOST, CommandRunner
from koala_adapter.lrm.lrmhost import HostProcess
from koala_adapter.sites.link import SiteAddress, gateway_file, login_command, ssh_command
from koala_adapter.sites.remotesite import FIRST_SIZE, LARGEST_SIZE, RemoteSite
from koala_adapter.testing.trial import eventually
from tests.gateways import gateway_processes, resident_gateways

SSH = """#!/bin/sh
# Stands for ssh: runs the remote command here, after what a login prints.
[ ! -e "{away}" ] || {{ echo "ssh: connect to host fs3 port 22: Connection refused" >&2; exit 255; }}
login=no
while [ "$1" != -- ]; do
    case $1 in -S) login=yes ;; esac
    shift
done
[ ! -e "{asks}" ] || [ $login = yes ] || {{ echo "fs3: Permission denied (publickey,password)." >&2; exit 255; }}
echo "Welcome to $2"
echo $$ > "{pid}"
exec sh -c "exec $3"
"""


class Place:
    """A site whose ssh is the stand-in."""

    def __init__(self, directory: Path) -> None:
        self.away, self.pid, self.directory = directory / "away", directory / "pid", directory / "there"
        self.asks, self.control = directory / "asks", directory / "login"
        self.port_file = directory / "port"
        self.ssh = directory / "bin" / "ssh"
        self.ssh.parent.mkdir()
        self.ssh.write_text(SSH.format(away=self.away, pid=self.pid, asks=self.asks))
        self.ssh.chmod(0o755)
        self.title = f"of tester@here:{directory}"
        self.program = "ssh"
        self.site = self.new_site()

    def new_site(
        self, *, stays: bool = False, lease: float = 3600, title: str = "", ports: tuple[int, int] = (0, 0)
    ) -> RemoteSite:
        """Return the site as another koala sees it. ``stays``: its gateway outlives connections; ``title``: of that."""
        address = SiteAddress(
            name="delft",
            ssh="fs3",
            program=self.program,
            directory=str(self.directory),
            listen="127.0.0.1",
            lease=lease,
            ports=ports,
        )
        file = self.port_file if stays else None
        return RemoteSite(address, title=title or self.title, port_file=file, control=self.control)

    def lead_through_pipes(self) -> None:
        """Have processes in the way of connections that can be stopped, as the gateway itself cannot."""
        self.ssh.write_text(self.ssh.read_text().replace('exec sh -c "exec $3"', 'cat | sh -c "exec $3" | cat'))

    async def break_connection(self) -> None:
        """Kill the connection and keep it down."""
        self.away.touch()
        os.kill(int(self.pid.read_text()), signal.SIGKILL)
        await self.until_away()

    async def restore(self) -> None:
        """Have connections made again."""
        self.away.unlink()
        await self.until_back()

    async def until_away(self) -> None:
        await eventually(self._trouble, bool, what="the site is away", seconds=30, interval=0.02)

    async def until_back(self) -> None:
        await eventually(self._trouble, lambda trouble: not trouble, what="the site is back", seconds=60, interval=0.02)

    async def _trouble(self) -> str:
        return self.site.trouble


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    with tempfile.TemporaryDirectory(prefix="koala-", dir="/tmp") as directory:
        place = Place(Path(directory))
        monkeypatch.setenv("PATH", str(place.ssh.parent), prepend=os.pathsep)
        monkeypatch.setattr("koala_adapter.sites.remotesite.FIRST_PAUSE", 0.1)
        yield place
        await place.site.close()


async def test_a_command_there_is_as_one_here(place: Place) -> None:
    """Output, error output, exit status and input come through whole, and the environment is built."""
    found = {}
    for name, host in (("here", THIS_HOST), ("there", place.site)):
        script = 'cat; echo "$ADDED $HOME $USER" >&2; exit 7'
        found[name] = await host.run(["sh", "-c", script], stdin=bytes(range(256)) * 1000, environment={"ADDED": "x"})
    assert found["there"] == found["here"]
    assert place.site.user == THIS_HOST.user


async def test_more_than_a_window_comes_through_beside_other_commands(place: Place) -> None:
    """One command with much output does not hold up others."""
    sizes = {}

    async def much() -> None:
        sizes["much"] = len((await place.site.run(["head", "-c", "20000000", "/dev/zero"]))[1])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(much)
        for number in range(20):
            assert (await place.site.run(["echo", str(number)]))[1] == f"{number}\n".encode()
    assert sizes == {"much": 20_000_000}


async def received(process: HostProcess, size: int) -> bytes:
    """Return what a process prints, up to a size."""
    found = b""
    while len(found) < size:
        found += await process.receive()
    return found


@pytest.mark.parametrize("where", ["here", "there"])
async def test_a_process_is_asked_while_it_runs(place: Place, tmp_path: Path, where: str) -> None:
    host = THIS_HOST if where == "here" else place.site
    script = "echo $ADDED >&2; exec cat"
    process = await host.start(["sh", "-c", script], {"ADDED": "x"}, tmp_path / "log")
    for size in (5, 2_000_000):  # more than windows and pipes hold
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.send, os.urandom(size))
            assert len(await received(process, size)) == size
    assert process.running
    await process.end_input()
    await process.ended()
    assert process.complaints() == b"x\n"
    with pytest.raises(anyio.EndOfStream):
        await process.receive()
    await process.kill()


@pytest.mark.parametrize("how", ["it is killed", "its connection is lost"])
async def test_a_process_that_is_asked_ends_with_its_asker(place: Place, tmp_path: Path, how: str) -> None:
    process = await place.site.start(["sh", "-c", "echo $$; exec cat"], {}, tmp_path / "log")
    pid = int(await process.receive())
    if how == "it is killed":
        await process.kill()
    else:
        await place.break_connection()
        with pytest.raises(anyio.EndOfStream):
            await process.receive()
    await gone(pid)


async def test_what_cannot_be_started_is_said_as_here(place: Place, tmp_path: Path) -> None:
    """A command raises the same error, and a process has ended at once."""
    with pytest.raises(LrmUnreachableError, match="cannot run /nonexistent/sbatch: No such file"):
        await CommandRunner(host=place.site).run(["/nonexistent/sbatch"])
    process = await place.site.start(["/nonexistent/python3"], {}, tmp_path / "log")
    await process.ended()
    assert b"No such file" in process.complaints()
    with pytest.raises(anyio.BrokenResourceError):
        await process.send(b"x")


async def test_a_command_ends_when_it_is_not_waited_for(place: Place, tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(place.site.run, ["sh", "-c", f"echo $$ > {tmp_path}/command; exec sleep 600"])
        pid = await written(tmp_path / "command")
        tasks.cancel_scope.cancel()
    await gone(pid)


async def written(path: Path) -> int:
    """Return the number that a command has written."""
    content = partial(THIS_HOST.text, str(path))
    found = await eventually(content, lambda text: text.endswith("\n"), what="the command runs", seconds=30)
    return int(found)


async def gone(pid: int) -> None:
    """Return when a process has ended."""
    await eventually(lambda: there(f"/proc/{pid}"), lambda yes: not yes, what=f"process {pid} has ended", seconds=30)


def exists(path: str | Path) -> bool:
    return Path(path).exists()


async def there(path: str | Path) -> bool:
    """Tell whether there is a file."""
    return exists(path)


async def test_files_there(place: Place) -> None:
    """A private file is new and readable for its owner alone; a directory that others could replace is refused."""
    made, mode = await place.site.make_directory("scripts/one")
    assert (made, mode) == (str(place.directory / "scripts/one"), 0o700)
    assert (place.directory / "scripts").stat().st_mode & 0o777 == 0o700
    path, file = f"{made}/k.sh", place.directory / "scripts" / "one" / "k.sh"
    await place.site.write_private(path, b"first")
    file.unlink()
    file.symlink_to(place.directory / "other")
    await place.site.write_private(path, b"x" * 100_000)
    assert (file.stat().st_mode & 0o777, file.is_symlink()) == (0o600, False)
    assert await place.site.read(path) == b"x" * 100_000
    assert await place.site.list_directory(made) == ["k.sh"]
    assert await place.site.text(f"{made}/none") == ""
    place.site.remove_soon(path)
    with pytest.raises(FileNotFoundError):  # nothing else was in it
        await place.site.list_directory(made)
    await place.site.write_private(path, b"again")
    assert await place.site.list_directory(made) == ["k.sh"]
    assert await place.site.resolved(f"{made}/none") == ""
    assert set(await place.site.programs(["sh", "no-such-program"])) == {"sh"}
    (place.directory / "open").mkdir(mode=0o777)
    (place.directory / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="others can write"):
        await place.site.make_directory("open/x")
    with pytest.raises(NotADirectoryError, match="Not a directory"):
        await place.site.make_directory(path)


async def test_what_is_to_be_removed_is_before_the_end(place: Place) -> None:
    made, _ = await place.site.make_directory("scripts")
    for number in range(50):
        await place.site.write_private(f"{made}/{number}.sh", b"x")
        place.site.remove_soon(f"{made}/{number}.sh")
    await place.site.close()
    assert not await there(made)
    assert place.directory.exists()


async def test_a_site_that_does_not_answer_is_away(place: Place) -> None:
    place.away.touch()
    with pytest.raises(LrmUnreachableError, match=r"site delft is away: .*Connection refused") as refusal:
        await place.site.facts()
    assert "ssh fs3" in refusal.value.hint
    with pytest.raises(LrmUnreachableError, match="is away"):
        await place.site.run(["true"])
    place.away.unlink()
    await place.until_back()
    assert (await place.site.run(["true"]))[0] == 0


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "site delft: cannot run /.*/ssh: No such file"),
        ("exec sleep 600", "site delft is away: no answer within 0.5 s"),
        ("yes | head -c 70000; exec sleep 600", "site delft is away: a login there prints more than 64 KiB"),
    ],
)
async def test_a_login_that_leads_to_no_gateway_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch, script: str | None, why: str
) -> None:
    monkeypatch.setattr("koala_adapter.sites.link.CONNECT_SECONDS", 0.5 if script == "exec sleep 600" else 600)
    monkeypatch.setattr("koala_adapter.sites.link.COMPLAINT_SECONDS", 0.1)
    place.program = str(place.ssh)
    place.site = place.new_site()
    place.ssh.write_text(f"#!/bin/sh\n{script}\n")
    if script is None:
        place.ssh.unlink()
    with pytest.raises(LrmUnreachableError, match=why):
        await place.site.facts()


async def test_a_login_node_without_the_address_for_agents_is_not_used(place: Place) -> None:
    """A name may lead to several login nodes in turn: another one is waited for."""
    address = SiteAddress(name="delft", ssh="fs3", directory=str(place.directory), listen="192.0.2.7")
    other = RemoteSite(address, title=place.title)
    other.relay_agents_to("127.0.0.1", 9)
    with pytest.raises(LrmUnreachableError, match=r"has no address 192\.0\.2\.7: another login node\?"):
        await other.facts()
    await other.close()


async def test_a_login_in_a_terminal_is_used_while_there_is_one(place: Place) -> None:
    """What asks for a password says how to log in; the stand-in takes the login's socket for the right password."""
    place.asks.touch()
    with pytest.raises(LrmUnreachableError, match="Permission denied") as refusal:
        await place.site.facts()
    assert "`koala login delft`" in refusal.value.hint
    place.control.touch()
    await place.until_back()
    command = login_command("fs3", ("-F", "config"), place.control)
    assert command[:3] == ("ssh", "-F", "config")
    assert command[command.index("-S") + 1] == str(place.control)
    assert command[-3:] == ("--", "fs3", "true")


def test_the_agent_of_the_user_is_not_lent_to_a_site() -> None:
    """The options of the site decide, as ssh takes the first value."""
    command = ssh_command(SiteAddress(name="delft", ssh="fs3", options=("-A",)), "x")
    assert command.index("-A") < command.index("ForwardAgent=no") < command.index("--")


async def test_a_connection_that_is_lost_is_made_again(place: Place, tmp_path: Path) -> None:
    """What was asked for then has an unknown outcome, and ends; files are removed by the next gateway."""
    script = tmp_path / "script"
    command = tmp_path / "command"
    script.touch()

    async def wait() -> None:
        with pytest.raises(LrmUnavailableError, match="connection to site delft was lost"):
            await place.site.run(["sh", "-c", f"echo $$ > {command}; exec sleep 600"])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        pid = await written(command)
        place.away.touch()
        os.kill(int(place.pid.read_text()), signal.SIGTERM)
    await gone(pid)
    await place.until_away()
    place.site.remove_soon(str(script))
    place.away.unlink()
    await place.until_back()
    await eventually(lambda: there(script), lambda yes: not yes, what="the file is removed", seconds=30)


async def echo(stream: anyio.abc.SocketStream) -> None:
    """Stand for a control center: send back all that comes, and end when it ends."""
    async with stream:
        async for data in stream:
            await stream.send(data)


@asynccontextmanager
async def control_center(site: RemoteSite) -> AsyncIterator[None]:
    """Have the agents of a site relayed during the block to what stands for a control center."""
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        site.relay_agents_to("127.0.0.1", listener.extra(anyio.abc.SocketAttribute.local_port))
        tasks.start_soon(listener.serve, echo)
        yield
        tasks.cancel_scope.cancel()


async def test_agents_are_relayed(place: Place) -> None:
    """Bytes go both ways, each connection for itself, also more than a window, and its end comes through."""
    async with control_center(place.site):
        await place.site.facts()
        door = place.site.door
        async with anyio.create_task_group() as agents:
            for number in range(5):
                agents.start_soon(converse, door, bytes([number]) * 300_000)
        before = door
        os.kill(int(place.pid.read_text()), signal.SIGTERM)
        await place.until_away()
        await place.until_back()
        assert place.site.door == before, "agents look for the next gateway on the same port"
        await converse(before, b"again")


async def converse(door: tuple[str, int], content: bytes) -> None:
    """Send something to a control center that sends it back, and end."""
    async with await anyio.connect_tcp(*door) as stream, anyio.create_task_group() as tasks:

        async def send() -> None:
            await stream.send(content)
            await stream.send_eof()

        tasks.start_soon(send)
        found = b"".join([piece async for piece in stream])
    assert found == content


async def test_a_gateway_listens_at_the_ports_of_its_site(place: Place) -> None:
    """At the first one that is free, whatever port an earlier one had."""
    with taken_port() as taken:
        place.port_file.write_text("1024")
        site = place.new_site(stays=True, ports=(taken, taken + 100))
        async with control_center(site):
            await site.facts()
            assert site.door is not None
            assert taken < site.door[1] <= taken + 100
            await site.close()
        place.site = place.new_site(ports=(taken, taken))
        place.site.relay_agents_to("127.0.0.1", 1)
        with pytest.raises(LrmUnreachableError, match="Address already in use"):
            await place.site.facts()


@contextmanager
def taken_port() -> Iterator[int]:
    """Take a port, with room for some more above it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if port <= 65_000:
            yield port
        else:
            with taken_port() as other:
                yield other


async def test_another_port_is_relayed_to_who_names_it(place: Place) -> None:
    """Only a port that is known here, for example that of a sweep's tasks."""
    listeners = [await anyio.create_tcp_listener(local_host="127.0.0.1") for _ in range(3)]
    center, tasks, secret = [one.extra(anyio.abc.SocketAttribute.local_port) for one in listeners]
    place.site.relay_agents_to("127.0.0.1", center)
    place.site.relay_to(tasks)
    async with anyio.create_task_group() as group:
        for listener, name in zip(listeners, (b"center ", b"tasks ", b"secret "), strict=True):
            group.start_soon(listener.serve, partial(named, name))
        await place.site.facts()
        for said, expected in (
            (b"\x16hello", b"center \x16hello"),
            (b"koala %d\n\x16hello" % tasks, b"tasks \x16hello"),
            (b"koala %d\n\x16hello" % secret, b""),
            (b"koala is no number", b"center koala is no number"),
        ):
            async with await anyio.connect_tcp(*place.site.door) as stream:
                await stream.send(said[:3])
                await stream.send(said[3:])
                await stream.send_eof()
                assert b"".join(await pieces(stream)) == expected
        group.cancel_scope.cancel()
    for listener in listeners:
        await listener.aclose()


async def pieces(stream: anyio.abc.SocketStream) -> list[bytes]:
    """Return all that comes, also from a connection that is reset."""
    found = []
    with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
        while True:
            found.append(await stream.receive())
    return found


async def named(name: bytes, stream: anyio.abc.SocketStream) -> None:
    """Answer with a name and all that was said."""
    async with stream:
        await stream.send(name + b"".join(await pieces(stream)))


HOSTILE = """#!{python}
# Stands for ssh and for a gateway that says what it likes: its answers are given as JSON, by what is asked for.
import json, os, sys
from koala_adapter.gateway.streams import DATA, END, HEAD, HELLO, OPEN, Streams
from koala_adapter.sites.link import first_words

os.write(1, HELLO)
left = len(first_words())
while left:
    left -= len(os.read(0, left))
streams, asked, answers = Streams(gateway=True), {{}}, json.load(open("{answers}"))
facts = dict(name="h", user="u", uid=0, home="/", variables={{}}, python="3.6", interpreter="/p")
known = {{"facts": facts, "listen": dict(port=4000)}}
while data := os.read(0, 65536):
    for event in streams.receive(data):
        if event.kind == OPEN:
            asked[event.stream] = event.content["do"]
        if event.kind == END:
            what = asked[event.stream]
            streams.end(event.stream, answers.get(what, known.get(what)))
            if what == "listen":
                for number in range(answers.get("agents", 0)):
                    agent = streams.open(dict(do="agent"))
                    if "said" in answers:
                        streams.outgoing += HEAD.pack(DATA, agent, len(answers["said"])) + answers["said"].encode()
    while streams.outgoing:
        del streams.outgoing[: os.write(1, bytes(streams.outgoing))]
"""


def hostile(place: Place, tmp_path: Path, answers: dict[str, object]) -> None:
    """Have a hostile gateway in the place of the real one."""
    (tmp_path / "answers").write_text(json.dumps(answers))
    place.ssh.write_text(HOSTILE.format(python=sys.executable, answers=tmp_path / "answers"))


@pytest.mark.parametrize(
    "answers",
    [
        {"facts": {}},
        {"facts": {"errno": "x"}},
        {"facts": {"name": "a\x1b]0;", "user": "u", "uid": 0, "home": "/", "variables": {}}},
        {"facts": {"name": "h", "user": "u", "uid": 0, "home": "/", "variables": 7}},
        {"listen": {"port": "x"}},
        {"listen": {"port": None}},
        {"listen": {"port": 70_000}},
        {"agents": 1, "said": ""},
    ],
)
async def test_a_site_that_says_what_no_gateway_says_is_away(
    place: Place, tmp_path: Path, answers: dict[str, object]
) -> None:
    """It costs the connection, and is tried again: nothing waits for ever."""
    hostile(place, tmp_path, answers)
    place.site.relay_agents_to("127.0.0.1", 9)
    with suppress(LrmUnavailableError):
        await place.site.facts()
    await place.until_away()
    hostile(place, tmp_path, {})
    await place.until_back()
    assert (await place.site.facts()).name == "h"


async def test_an_answer_without_what_it_must_have_is_an_error_of_the_site(place: Place, tmp_path: Path) -> None:
    directory = {"path": "/x", "mode": "x"}
    hostile(place, tmp_path, {"run": {}, "resolved": {}, "list_directory": {"names": 7}, "make_directory": directory})
    asks: tuple[Callable[[RemoteSite], Awaitable[object]], ...] = (
        lambda site: site.run(["true"]),
        lambda site: site.resolved("/x"),
        lambda site: site.list_directory("/x"),
        lambda site: site.make_directory("x"),
    )
    for ask in asks:
        with pytest.raises(LrmUnavailableError, match="cannot be used"):
            await ask(place.site)


async def test_agents_at_a_site_take_a_bounded_number_of_descriptors(place: Place, tmp_path: Path) -> None:
    """A login node may say that there are any number of agents."""
    hostile(place, tmp_path, {"agents": 3000, "said": "hello"})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 400), hard))
    try:
        async with control_center(place.site):
            await place.site.facts()

            async def relayed() -> int:
                return len(await THIS_HOST.list_directory("/proc/self/fd"))

            await eventually(relayed, lambda number: number > 150, what="agents are relayed", seconds=30)
            assert await relayed() < 300
            assert await place.site.programs(["sh"]) == {}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_connections_that_say_nothing_make_room(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user who reaches the port of the gateway can connect: agents are relayed nevertheless."""
    async with control_center(place.site), AsyncExitStack() as strangers:
        with changed_gateway(monkeypatch, b"MOST_SILENT = 1000", b"MOST_SILENT = 100"):
            await place.site.facts()
        first = await strangers.enter_async_context(await anyio.connect_tcp(*place.site.door))
        for _ in range(120):
            await strangers.enter_async_context(await anyio.connect_tcp(*place.site.door))
        await converse(place.site.door, b"x" * 1000)
        assert await pieces(first) == [], "the oldest one had to go"
        assert (await place.site.run(["true"]))[0] == 0


async def test_a_command_without_end_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koala_adapter.sites.link.MOST_OUTPUT", 1_000_000)
    with pytest.raises(LrmUnavailableError, match="more than 1000000 bytes"):
        await place.site.run(["yes"])
    assert (await place.site.run(["echo", "x"]))[1] == b"x\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
async def test_a_directory_behind_a_link_of_another_user_is_refused(place: Place) -> None:
    """Who has put it there can have it lead anywhere later, also to scripts of its own."""
    open_to_all, private = place.directory / "open", place.directory / "private"
    private.mkdir(parents=True, mode=0o700)
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    (open_to_all / "link").symlink_to(private)
    assert (await place.site.make_directory("open/link/scripts"))[1] == 0o700
    os.lchown(open_to_all / "link", 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to another user"):
        await place.site.make_directory("open/link/scripts")


def test_the_gateway_is_one_file() -> None:
    """It needs nothing of ours at the site. No module changes a name of another one, as all have the same names."""
    assert b"koala_adapter" not in gateway_file()
    made = Counter[str]()
    for node in ast.parse(gateway_file()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            made[node.name] += 1
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            made.update(one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))
    assert [name for name, times in made.items() if times > 1] == ["TYPE_CHECKING"]


async def test_the_way_there_is_measured_with_some_mib_at_most(place: Place) -> None:
    found = await place.site.measure()
    assert FIRST_SIZE <= found.size <= LARGEST_SIZE
    assert found.seconds > 0
    assert found.latency > 0
    assert str(replace(found, size=3 * 1024**2, seconds=0.25, latency=0.04)) == "12 MiB/s, round trip 40.0 ms"
    assert place.site.quiet


async def test_a_site_to_which_something_goes_is_not_quiet(place: Place) -> None:
    assert not place.site.quiet, "it is not connected"
    await place.site.facts()
    assert place.site.quiet
    with pytest.raises(LrmUnreachableError, match="not connected"):  # nothing listens without a control center
        _ = place.site.door
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(place.site.run, ["sleep", "600"])
        await anyio.wait_all_tasks_blocked()
        assert not place.site.quiet
        tasks.cancel_scope.cancel()


# -- A gateway that outlives its connection --------------------------------------------------------------------------


async def all_gone(place: Place) -> None:
    """Return when no process is left at a site, and no file."""

    async def left() -> object:
        return gateway_processes(place.title), [str(one) for one in place.directory.rglob("*") if not one.is_dir()]

    await eventually(left, lambda found: found == (set(), []), what="nothing is left", seconds=30)


@pytest.fixture
async def staying(place: Place) -> AsyncIterator[Place]:
    """Give a place whose gateways stay until the test is over."""
    place.site = place.new_site(stays=True)
    yield place
    await place.site.close()
    for process in gateway_processes(place.title):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)  # so that they remove their sockets


@contextmanager
def changed_gateway(monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes) -> Iterator[None]:
    """Have gateways of another text sent."""
    text = gateway_file()
    assert text.count(old) == 1
    with monkeypatch.context() as patched:
        patched.setattr("koala_adapter.sites.link.gateway_file", lambda: text.replace(old, new))
        yield


async def resident(place: Place) -> int:
    """Return the gateway of a place that is connected now."""
    await place.site.facts()
    (found,) = resident_gateways(place.title)
    return found


async def test_a_gateway_outlives_its_connection(staying: Place, tmp_path: Path) -> None:
    """A command that runs then comes to its end, and an agent that connects meanwhile is served by the next one."""
    go_on, done = tmp_path / "go-on", tmp_path / "done"
    async with control_center(staying.site):
        gateway = await resident(staying)
        door = staying.site.door

        async def run() -> None:
            with pytest.raises(LrmUnavailableError, match="connection to site delft was lost"):
                await staying.site.run(
                    ["sh", "-c", f"touch {done}.; until [ -e {go_on} ]; do sleep 0.1; done; touch {done}"]
                )

        async with anyio.create_task_group() as running:
            running.start_soon(run)
            await eventually(lambda: there(f"{done}."), bool, what="the command runs", seconds=30)
            await staying.break_connection()
        async with anyio.create_task_group() as agents:
            for number in range(5):
                agents.start_soon(converse, door, bytes([number]) * 300_000)
            go_on.touch()
            await eventually(lambda: there(done), bool, what="the command has ended", seconds=30)
            assert await there(f"/proc/{gateway}")
            await staying.restore()
        assert (await resident(staying), staying.site.door) == (gateway, door)
    await staying.site.close()
    await all_gone(staying)


async def test_a_gateway_in_use_stays_until_its_lease_is_over(staying: Place) -> None:
    await staying.site.facts()
    await staying.site.close(in_use=True)
    assert len(gateway_processes(staying.title)) == 1
    staying.site = staying.new_site(stays=True, lease=0.3)
    await staying.site.facts()
    await staying.site.close(in_use=True)
    await all_gone(staying)


async def test_another_connection_takes_over(staying: Place) -> None:
    """The first one is dead for koala, which has not heard of that yet, or another login node's."""
    gateway = await resident(staying)
    second = staying.new_site(stays=True)
    assert (await second.facts()).name
    await staying.until_away()
    assert "another connection has taken over" in staying.site.trouble
    assert await there(f"/proc/{gateway}")
    await second.close(in_use=True)


async def test_a_gateway_of_another_version_makes_room(staying: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = await resident(staying)
    await staying.site.close(in_use=True)
    staying.site = staying.new_site(stays=True)
    with changed_gateway(monkeypatch, b"IDLE = 300.0", b"IDLE = 301.0"):
        assert await resident(staying) != gateway
    await gone(gateway)


async def test_a_gateway_that_is_stopped_is_replaced(staying: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that it was ends when it goes on: its socket is another one's."""
    monkeypatch.setattr("koala_adapter.sites.remotesite.LAST_REQUESTS", 0.1)
    with changed_gateway(monkeypatch, b"PATIENCE = 10.0", b"PATIENCE = 0.5"):
        gateway = await resident(staying)
        os.kill(gateway, signal.SIGSTOP)
        await staying.site.close(in_use=True)
        staying.site = staying.new_site(stays=True)
        await staying.site.facts()
    os.kill(gateway, signal.SIGKILL)
    await staying.site.close()
    await all_gone(staying)


async def test_a_connection_that_is_stopped_is_made_again(staying: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes stop and TCP lives: what waits for an answer ends, and the gateway is taken up by the next connection."""
    staying.lead_through_pipes()
    monkeypatch.setattr("koala_adapter.sites.link.PING_INTERVAL", 0.2)
    monkeypatch.setattr("koala_adapter.sites.link.PING_PATIENCE", 1.0)
    monkeypatch.setattr("koala_adapter.sites.link.ENDING", 0.1)
    gateway = await resident(staying)
    os.killpg(int(staying.pid.read_text()), signal.SIGSTOP)
    with pytest.raises(LrmUnavailableError, match="did not answer for 1 s"):
        await staying.site.run(["true"])
    await staying.until_back()
    assert await resident(staying) == gateway


async def test_a_gateway_that_was_killed_is_followed_by_another(staying: Place) -> None:
    os.kill(await resident(staying), signal.SIGKILL)
    await staying.until_away()
    assert "it has ended" in staying.site.trouble
    await staying.until_back()
    await staying.site.close()
    await all_gone(staying)


async def test_the_socket_of_a_gateway_that_was_killed_goes(staying: Place) -> None:
    """With the next gateway of this host, also that of another state directory; its own removes it at its end."""
    gateway = await resident(staying)
    await staying.site.close(in_use=True)
    os.kill(gateway, signal.SIGKILL)
    await gone(gateway)
    (socket_left,) = await THIS_HOST.list_directory(str(staying.directory / "gateway"))
    other = staying.new_site(stays=True, title=f"of tester@here:{staying.directory}/other")
    await other.facts()
    (socket_there,) = await THIS_HOST.list_directory(str(staying.directory / "gateway"))
    assert socket_there != socket_left
    await other.close()
    await all_gone(staying)


async def test_where_no_socket_can_be_the_gateway_ends_with_its_connection(
    staying: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with changed_gateway(monkeypatch, b"LONGEST_PATH = 99", b"LONGEST_PATH = 5"), capture_logs() as logs:
        await staying.site.facts()
    (reason,) = (one["reason"] for one in logs if "ends with its connection" in one["event"])
    assert reason.startswith(f"{staying.directory}/gateway/")
    assert reason.endswith("File name too long")
    await staying.break_connection()
    await all_gone(staying)


async def test_the_environment_is_that_of_the_latest_login(staying: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("first", "second \udcff"):
        monkeypatch.setenv("AT_THE_SITE", text)
        staying.site = staying.new_site(stays=True)
        assert (await staying.site.facts()).variables["AT_THE_SITE"] == text
        await staying.site.close(in_use=True)
