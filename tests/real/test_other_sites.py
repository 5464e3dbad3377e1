# SPDX-License-Identifier: Apache-2.0
"""Clusters that are reached by ssh alone, no packet goes between their nodes and koala's host: jobs and files."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from koala_adapter.api.client import Client
from koala_adapter.api.offline import end_daemons
from koala_adapter.host.regularfile import paths_below
from tests.examplejobs import ALONE, BODIES, REST, STEPS, sizes_and_digest, write_nbody
from tests.gateways import resident_gateways
from tests.real.systems.othersite import OtherSite
from tests.real.systems.processes import (
    PATIENCE,
    CommandError,
    base_environment,
    find_processes,
    run_command,
    wait_until,
)

pytestmark = pytest.mark.real("slurmctld", "slurmd", "sshd")

CENTER = """
[control_center]
listen = "127.0.0.1"
heartbeat = 1
"""
NEAR = """
[[clusters]]
name = "near"
plugin = "local"
settings.processors = 2
"""


DOWN = 12.0
"""Seconds for which a site cannot be reached."""


class Home:
    """A user of koala here, with a site file of a text, if there is any, that names another site."""

    def __init__(self, directory: Path, there: OtherSite, text: str) -> None:
        self.directory, self.there = directory, there
        self.site, self.state, self.log = directory / "site.toml", directory / "state", directory / "log"
        if text:
            self.site.write_text(CENTER + text)
        where = ("--site", str(self.site), "--state", str(self.state))
        self.koala = (str(Path(sys.executable).with_name("koala")), *where)
        self.client = Client(self.state)

    def run(self, *arguments: str) -> str:
        """Return what a command prints. Raises CommandError."""
        return run_command([*self.koala, *arguments], environment=base_environment(), timeout=PATIENCE * 3)

    def sizes_and_digest(self, job: str) -> tuple[list[int], str]:
        """Run an n-body program; return on how many processes it was, and what it ended with."""
        return sizes_and_digest(re.sub(r"^\S+: ", "", self.run("run", job), flags=re.MULTILINE))

    @contextmanager
    def service(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run a service, and end it."""
        with (
            self.log.open("ab") as log,
            subprocess.Popen([*self.koala, "serve"], env=base_environment(), stderr=log) as service,
        ):
            try:
                assert self.client.wait_until_running(PATIENCE), "the service does not answer"
                yield service
            finally:
                service.terminate()

    def refused(self, *arguments: str) -> str:
        """Return what a command says that fails."""
        with pytest.raises(CommandError) as error:
            self.run(*arguments)
        return str(error.value)

    def log_in(self, code: str) -> str:
        """Log in to the site in a terminal, and type a code whenever one is asked for; return what was shown."""
        process, terminal = pty.fork()
        if not process:
            os.execve(self.koala[0], [*self.koala, "login", "delft"], base_environment())  # noqa: S606 - a child of ours
        shown, asked = b"", 0
        while os.waitpid(process, os.WNOHANG) == (0, 0):
            while select.select([terminal], [], [], 0.1)[0]:
                try:
                    shown += os.read(terminal, 4096)
                except OSError:  # all have closed it
                    break
            if shown.count(b"assword:") > asked:
                asked += 1
                os.write(terminal, f"{code}\n".encode())
        os.close(terminal)
        return shown.decode()

    def json(self, *arguments: str) -> Any:  # noqa: ANN401 - JSON of many shapes
        """Return the document that a command prints."""
        return json.loads(self.run(arguments[0], "--json", *arguments[1:]))

    def submit(self, *arguments: str) -> str:
        """Submit a job, and return its number."""
        return str(self.json("submit", *arguments)["id"])

    def submit_shell(self, command: str) -> str:
        """Submit a job of one rank to the other site, and return its number."""
        return self.submit("-n", "1", "--cluster", "far", "--", "sh", "-c", command)

    def submit_text(self, job: str) -> str:
        """Submit a job file of a text, and return the number of the job."""
        path = self.directory / "job.toml"
        path.write_text(job)
        return self.submit(str(path))

    def connected(self) -> int:
        """Return how often services have connected to the site."""
        return self.log.read_text().count("site is connected")

    def at_ease(self, job: str) -> bool:
        """Tell whether the agents of a job are in contact."""
        return "no contact" not in self.run("explain", job)

    def gateways(self) -> set[int]:
        """Return the gateways at the other site."""
        return resident_gateways(f"@{socket.gethostname()}:{self.directory}/state")

    def expect_no_way_in_for(self, user: str) -> None:
        """Insist that another user of the login node can neither see nor use what serves the first."""
        directory = self.directory / "there" / "gateway"
        (path,) = directory.iterdir()
        self.directory.chmod(0o711)
        (self.directory / "there").chmod(0o711)
        connect = f"import socket; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
        for command in (["ls", str(directory)], ["/usr/bin/python3", "-c", connect]):
            with pytest.raises(CommandError, match="Permission denied"):
                run_command(command, environment=base_environment(), user=user)

    def expect_nothing_there(self) -> None:
        """Insist that the site has neither processes nor files of ours."""

        def left() -> list[str]:
            files = [str(path) for path in paths_below(self.directory / "there") if not path.is_dir()]
            return [*map(str, self.gateways()), *files]

        wait_until(lambda: not left(), seconds=PATIENCE, what="nothing is left there", details=lambda: str(left()))

    def state_of(self, job: str) -> str:
        return self.client.job(job).state.value

    def wait_completed(self, job: str) -> str:
        """Wait until a job has ended well, with all of its output; return what it has printed."""
        wait_until(
            lambda: self.client.job(job).over,
            seconds=3 * PATIENCE,
            what="the job has ended",
            details=lambda: str(self.client.job(job)),
        )
        assert self.state_of(job) == "completed", self.client.job(job)
        return self.run("logs", job)

    def network(self) -> str:
        """Return what is known of the network and of files."""
        return self.run("clusters", "--network")

    def planned(self, job: Path) -> dict[str, Any]:
        """Return where the only component of a job would go."""
        (found,) = self.json("plan", str(job))["components"]
        return dict(found)

    def trouble(self) -> str:
        """Return what is said of the clusters."""
        return self.run("clusters")


@pytest.fixture(scope="module")
def there() -> Iterator[OtherSite]:
    with OtherSite() as site:
        yield site


@pytest.fixture
def home(there: OtherSite) -> Iterator[Home]:
    with TemporaryDirectory(prefix="koala-") as directory:  # the path of a socket must be short
        yield Home(Path(directory), there, there.tables(Path(directory), site="delft") + NEAR)
        end_daemons(Path(directory) / "state")


def test_a_program_computes_over_sites_without_a_route(home: Home) -> None:
    """Its processes, of which half are here and half are there, reach each other by TCP through koala."""
    apart = (
        'processors = 2\ncluster = "far"\ninput_files = {files}\n\n[[components]]\nname = "here"\ncluster = "near"\n'
    )
    files = '["rigid.py", "simulation.py", "bodies.py", "mail.py", "authkey"]'
    command = f'command = ["python3", "rigid.py", "{BODIES}", "{STEPS}", "{REST}", "28790"]\nprocessors = 2\n'
    relay = ("walltime =", "relay = true\nwalltime =")
    rigid = write_nbody(home.directory, "rigid", relay, ("processors = 4\n", apart.format(files=files) + command))
    assert home.sizes_and_digest(rigid) == ([4], ALONE)


def test_a_login_with_a_one_time_code_is_used(home: Home) -> None:
    """A person types a code in a terminal; when the site has ended the login, it is said, and another code is wanted.

    A job that runs there meanwhile goes on, and ends well.
    """
    begun, go_on = home.directory / "begun", home.directory / "go-on"
    again = "log in again with `koala login delft`"
    with home.there.asking() as new_code:
        assert "Permission denied" in home.log_in("wrong")
        assert again.replace("again ", "") in home.refused("check", "--cluster", "far")
        code = new_code()
        assert "koala uses this login" in home.log_in(code)
        with home.service():
            number = home.submit_shell(f"echo >> {begun}; until [ -e {go_on} ]; do sleep 0.1; done; echo done")
            wait_until(begun.exists, seconds=PATIENCE, what="the job runs")
            home.there.end_connections()
            wait_until(lambda: again in home.trouble(), seconds=PATIENCE, what="it is said", details=home.trouble)
            status = run_command(["sh", "-c", '"$@" status 2>&1', "", *home.koala], environment=base_environment())
            for told in (status, home.run("top", "--once"), home.run("explain", number), home.log.read_text()):
                assert again in " ".join(told.split())
            assert "Permission denied" in home.log_in(code)  # it was good once
            assert "koala uses this login" in home.log_in(new_code())
            go_on.touch()
            assert home.wait_completed(number).endswith("done\n")
            assert begun.read_text() == "\n"
        home.run("login", "delft", "--end")
    home.expect_nothing_there()


def test_a_job_outlives_connection_service_and_gateway(home: Home) -> None:
    """Its rank runs once and all that it prints arrives, whatever of the way to it is killed or stands still.

    Another user of the login node has no way in meanwhile, and nothing is left there.
    """
    alive = f'ssh_options = ["-F", "{home.there.ssh_config}", "-o", "ServerAliveInterval=2"]'
    home.site.write_text(re.sub("ssh_options = .*", alive, home.site.read_text()))
    begun, go_on, count = (home.directory / name for name in ("begun", "go-on", "count"))
    begin = (
        f"echo >> {begun}; i=0; until [ -e {go_on} ]; do i=$((i+1)); echo line $i; echo $i > {count}; sleep 0.02; done"
    )

    def printed() -> int:
        return int(count.read_text() or 0)

    def on() -> None:
        """Return when the rank has printed more."""
        before = printed()
        wait_until(lambda: printed() > before + 20, seconds=PATIENCE, what="the rank prints")

    with home.service() as service:
        number = home.submit_shell(begin)
        wait_until(begun.exists, seconds=PATIENCE, what="the job runs")
        (gateway,) = home.gateways()
        home.expect_no_way_in_for("nobody")
        connection = home.there.connection(service.pid)
        stalled = home.there.sshd(connection)
        os.kill(stalled, signal.SIGSTOP)  # no byte comes any more, and nothing is closed
        wait_until(lambda: home.connected() > 1, seconds=PATIENCE, what="there is another connection")
        wait_until(lambda: home.at_ease(number), seconds=PATIENCE, what="its agent is back")
        os.kill(stalled, signal.SIGKILL)
        on()
        connection = home.there.connection(service.pid)
        with home.there.down():
            os.kill(home.there.sshd(connection), signal.SIGKILL)
            since = time.monotonic()
            wait_until(lambda: "is away" in home.trouble(), seconds=PATIENCE, what="the site is away")
            told = home.run("explain", number)
            assert "no contact with 1 of its placeholders" in told
            on()
            service.kill()
            service.wait()
            wait_until(lambda: time.monotonic() > since + DOWN, seconds=PATIENCE, what="it has been down for long")
    with home.service() as service:
        wait_until(lambda: home.at_ease(number), seconds=PATIENCE, what="its agent is back")
        assert home.gateways() == {gateway}
        os.kill(gateway, signal.SIGKILL)
        wait_until(lambda: home.gateways() not in (set(), {gateway}), seconds=PATIENCE, what="there is another gateway")
        wait_until(lambda: home.at_ease(number), seconds=PATIENCE, what="its agent is back")
        on()
        go_on.touch()
        lines = home.wait_completed(number).splitlines()
    assert lines == [f"line {one}" for one in range(1, len(lines) + 1)]
    assert (len(lines), begun.read_text()) == (printed(), "\n")
    home.expect_nothing_there()


def test_a_connection_that_is_away_for_longer_than_the_lease(home: Home) -> None:
    """The rank is ended there and the job is lost; when the site is back, nothing of it is left."""
    home.site.write_text(home.site.read_text().replace('name = "delft"', 'name = "delft"\nlease = 6', 1))
    pid = home.directory / "pid"
    with home.service() as service:
        number = home.submit_shell(f"echo $$ > {pid}.; mv {pid}. {pid}; exec sleep 600")
        wait_until(pid.exists, seconds=PATIENCE, what="the job runs")
        with home.there.down():
            os.kill(home.there.connection(service.pid), signal.SIGKILL)
            wait_until(lambda: home.state_of(number) == "lost", seconds=PATIENCE, what="the job is lost")
            assert "it has ended itself by its lease" in home.run("status", number)
            rank = Path(f"/proc/{pid.read_text().strip()}")
            wait_until(lambda: not rank.exists(), seconds=PATIENCE, what="its rank has ended")
            wait_until(lambda: not home.gateways(), seconds=PATIENCE, what="the gateway has ended")
        wait_until(lambda: "is away" not in home.trouble(), seconds=PATIENCE, what="the site is back")
        wait_until(lambda: not home.there.jobs(), seconds=PATIENCE, what="its queue is empty")
    home.expect_nothing_there()


FILES = """
walltime = "5m"
placement = "close-to-files"
[[components]]
command = ["sh", "-c", "cat set; echo $KOALA_CLUSTER; wc -c < mine"]
processors = 1
input_files = [{{ source = "lfn:{name}", target = "set" }}, "mine"]
"""


def test_jobs_go_where_their_files_are_or_get_soonest(home: Home) -> None:
    """By a catalogue that is read there, and by the bandwidth to the site as it is measured."""
    catalogue, mine, job = (home.directory / name for name in ("catalogue", "mine", "job.toml"))
    (home.directory / "one").write_text("a genome\n")
    catalogue.write_text(f"genome {home.directory}/one\n")
    mine.write_bytes(bytes(5 * 1024**2))
    near = home.site.read_text() + "\n"
    home.site.write_text(near.replace('name = "far"', f'name = "far"\ncatalogue = "{catalogue}"'))
    with home.service():
        wait_until(lambda: "measured" in home.network(), seconds=PATIENCE, what="the site is measured")
        assert "1 by its catalogue" in home.network()
        job.write_text(FILES.format(name="genome"))
        assert home.run("run", "-q", str(job)).split() == ["a", "genome", "far", str(5 * 1024**2)]
        job.write_text(FILES.format(name="genome") + 'cluster = "near"\n')
        assert home.run("run", "-q", str(job)).split() == ["a", "genome", "near", str(5 * 1024**2)]
        job.write_text(FILES.format(name="gen"))
        with pytest.raises(CommandError, match=r"lfn:gen: no catalogue has that name"):
            home.run("run", str(job))
        job.write_text(FILES.format(name="genome").replace('{ source = "lfn:genome", target = "set" }, ', ""))
        assert home.planned(job)["cluster"] == "near", "the file is on this host"
    home.site.write_text(home.site.read_text().replace('name = "near"', 'name = "near"\nbandwidth = 0.01'))
    planned = home.planned(job)
    assert planned["cluster"] == "far", "what the service has measured is known without it"
    assert 0 < planned["transfer_seconds"] < 500
    assert planned["missing"] == [str(mine)]


# -- Large files to sites, and back.

MIB = 1024 * 1024
LARGE = 100 * MIB
"""More than goes with a launch, than may be on its way, and than what rsync and ssh have in their buffers."""
CACHE_MIB = 170
"""Room for one such file at each site."""
STAGED = """
walltime = 300
placement = "close-to-files"
[[components]]
command = ["sh", "-c", "{command}"]
processors = 1
input_files = [{{ source = "{source}", target = "input" }}]
{more}
"""


class Staging(Home):
    """A user with a service and two sites, of whose caches one is asked for by most jobs."""

    def __init__(self, directory: Path, there: OtherSite) -> None:
        tables = there.tables(directory / "leiden", site="leiden", cluster="other")
        text = there.tables(directory, site="delft", cluster="far") + tables
        text = text.replace("[[clusters]]", f"cache_mib = {CACHE_MIB}\n[[clusters]]")
        # By this a file needs minutes, so that processors are claimed only when it is known that it needs less.
        super().__init__(directory, there, text.replace('name = "far"', 'name = "far"\nbandwidth = 1'))
        (directory / "leiden").mkdir()
        self.cache = directory / "there" / "cache"
        self.go = directory / "go"

    def submit_with(self, source: Path, command: str, more: str = 'cluster = "far"') -> str:
        """Submit a job with an input file."""
        return self.submit_text(STAGED.format(source=source, command=command, more=more))

    def told(self, job: str, what: str) -> None:
        """Wait until the explanation of a job says something."""
        wait_until(
            lambda: what in self.client.job(job).explanation,
            seconds=PATIENCE,
            what=f"it is said: {what}",
            details=lambda: str(self.client.job(job)),
        )


def new_file(path: Path, size: int) -> str:
    """Write a file of any content and return the digest of that."""
    data = os.urandom(size)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def staging(there: OtherSite) -> Iterator[Staging]:
    with TemporaryDirectory(prefix="koala-") as directory:
        yield Staging(Path(directory), there)


def test_large_files_there_and_back(staging: Staging) -> None:
    """A service killed in the middle goes on, and a job without a cluster goes to the site that has its file.

    A job whose file has no room holds no processors, until the job that keeps another file there has ended.
    """
    first, second = staging.directory / "first", staging.directory / "second"
    digest, other = new_file(first, LARGE), new_file(second, LARGE)
    part = staging.cache / f"{digest}.part"
    command = f"while [ ! -e {staging.go} ]; do sleep 0.2; done; mkdir out; cp input out/copy"
    with staging.service() as service:
        keeping = staging.submit_with(first, command, 'cluster = "far"\noutput_files = ["out"]')
        wait_until(lambda: part.exists() and part.stat().st_size > 0, seconds=PATIENCE, what="something has come")
        service.kill()
        service.wait()
    assert not (staging.cache / digest).exists()
    with staging.service():
        wait_until(lambda: staging.state_of(keeping) == "running", seconds=PATIENCE, what="the job runs")
        inode = (staging.cache / digest).stat().st_ino
        again = staging.directory / "another name"
        again.hardlink_to(first)
        printed = staging.wait_completed(staging.submit_with(again, "echo $KOALA_CLUSTER; sha256sum input", ""))
        assert printed.split()[-3:] == ["far", digest, "input"]
        assert (staging.cache / digest).stat().st_ino == inode
        waiting = staging.submit_with(second, "sha256sum input")
        staging.told(waiting, "is full of files of other jobs")
        assert len(staging.there.jobs()) == 1, "the processor of the job that runs"
        staging.go.touch()
        staging.wait_completed(keeping)
        back = staging.directory / "state" / "jobs" / keeping / "c1" / "0" / "out" / "copy"
        assert hashlib.sha256(back.read_bytes()).hexdigest() == digest
        assert staging.wait_completed(waiting).split()[-2:] == [other, "input"]
        assert [path.name for path in staging.cache.iterdir()] == [other]


# -- Files that one site has, for a job at another one: directly where a route leads there, else through here.

SIZE = 60 * MIB
CATALOGUED = """
walltime = 300
[[components]]
command = ["sha256sum", "input"]
processors = 1
cluster = "far"
input_files = [{{ source = "lfn:{name}", target = "input" }}]
"""


class Files(Home):
    """A user of two sites, with files that are known to one of them."""

    def __init__(self, directory: Path, one: OtherSite, other: OtherSite) -> None:
        self.files = directory / "files"
        self.files.mkdir()
        text = one.tables(directory / "one", site="leiden", cluster="near")
        text += f'bandwidth = 100\ncatalogue = "{self.files}"\n'
        text += other.tables(directory / "other", site="delft", cluster="far") + "bandwidth = 100\n"
        super().__init__(directory, one, text)
        self.cache = directory / "other" / "there" / "cache"

    def submit_with(self, name: str) -> str:
        """Submit a job to the other site with a file of the first one."""
        return self.submit_text(CATALOGUED.format(name=name))

    def ends_with(self, job: str, digest: str) -> None:
        """Wait until a job has ended, and insist that its rank has seen the file."""
        assert self.wait_completed(job).split()[-2:] == [digest, "input"]

    def said(self) -> str:
        """Return the log of the service."""
        return self.log.read_text()


def carried(service: int) -> int:
    """Return the bytes that the connections of a service have taken in."""
    connections = find_processes(lambda process: process.command == "ssh" and process.parent == service)
    lines = [line for pid in connections for line in Path(f"/proc/{pid}/io").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("rchar"))


@pytest.fixture
def files() -> Iterator[Files]:
    with ExitStack() as stack:
        one, other = (stack.enter_context(OtherSite(name)) for name in ("one", "other"))
        one.connect(other)
        yield Files(Path(stack.enter_context(TemporaryDirectory(prefix="koala-"))), one, other)


def test_files_go_from_site_to_site(files: Files) -> None:
    """Directly while there is a route, also when koala's connection is killed in the middle; then through here."""
    digests = {name: new_file(files.files / name, SIZE) for name in ("first", "second", "third")}
    with files.service() as service:
        before = carried(service.pid)
        files.ends_with(files.submit_with("first"), digests["first"])
        assert files.said().count("a file has come directly") == 1
        assert carried(service.pid) - before < SIZE / 10
        files.there.slow_route("100mbit")
        job, part = files.submit_with("second"), files.cache / f"{digests['second']}.part"
        wait_until(lambda: part.exists() and part.stat().st_size > 0, seconds=PATIENCE, what="something has come")
        for connection in find_processes(lambda one: one.command == "ssh" and one.parent == service.pid):
            os.kill(connection, signal.SIGKILL)
        files.ends_with(job, digests["second"])
        assert files.said().count("a file has come directly") == 2
        files.there.end_route()
        before = carried(service.pid)
        files.ends_with(files.submit_with("third"), digests["third"])
        assert carried(service.pid) - before > SIZE
        (network,) = (one["network"] for one in files.json("clusters") if one["name"] == "far")
        (route,) = network["routes"]
        assert (route["site"], route["bandwidth"]) == ("leiden", None)
        assert "cannot be reached" in route["trouble"]
