# SPDX-License-Identifier: Apache-2.0
"""Another user of the same machine learns no secret, reads no output, and cannot speak for the first.

koala runs as the ordinary user `daemon`, where Debian's Python can read this program as that user, and else as root;
the thief is `nobody`. Slurm knows its users by munge. What the thief is to find is first read out by root, so that the
search is known to be able to find it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from koala_adapter.api.statedirectory import SOCKET_NAME
from koala_adapter.outcome import JobState
from koala_adapter.vjm import channel
from tests.real import thief
from tests.real.lrms import Traces, local_job
from tests.real.systems import CommandError, GridEngineCell, SlurmCluster
from tests.real.systems.processes import PATIENCE, SystemDirectory, base_environment, run_command, wait_until
from tests.real.user import KoalaUser, part, runs_with_known_ids

OWNER = "daemon"
THIEF = "nobody"
PYTHON = "/usr/bin/python3"
SAYING = "tr -dc a-z0-9 </dev/urandom | head -c 40; echo; cp in fifth; sleep 600"
"""What the ranks do: say something that nobody knows beforehand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """What the script of a placeholder tells its agent."""

    batch: str
    token: str
    host: str
    port: int

    @classmethod
    def of(cls, script: str) -> Secret:
        """Return what is in the text of a job script."""
        found = re.search(r"^CONFIGURATION = (.+)$", script, re.MULTILINE)
        assert found is not None
        told = json.loads(found[1].strip("'"))
        return cls(batch=told["batch"], token=told["token"], host=told["host"], port=told["port"])


class Looted(NamedTuple):
    """What a user found and was told; see tests/real/thief.py."""

    read: int
    found: dict[str, list[str]]
    said: dict[str, str]
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A user with a job that runs on both systems, and one that waits in a queue."""

    user: KoalaUser
    slurm: SlurmCluster
    cell: GridEngineCell
    running: str
    secrets: dict[str, Secret]
    """What the placeholders were told, by name of the cluster, or ``waiting``."""
    words: dict[str, str]
    """What the ranks read and wrote."""

    def search(self, account: str | None) -> Looted:
        """Have a user (None: root) look at all files, processes and listings, and ask the service."""
        roots = [self.slurm.directory, self.cell.directory, self.user.directory]
        roots += Path("/tmp").glob("koala-[0-9a-f]*")
        number = self.user.report(self.running).components[0].lrm_ids[0]
        commands = [
            ["scontrol", "show", "job", "-d"],
            ["scontrol", "write", "batch_script", number, "-"],
            ["squeue", "-o", "%all"],
            ["qstat", "-j", "*"],
            ["qstat", "-xml", "-r", "-u", "*"],
            ["ps", "auxwwe"],
        ]
        needles = {name: secret.token for name, secret in self.secrets.items()} | self.words
        return self._sent(account, {"needles": needles, "roots": list(map(str, roots)), "commands": commands})

    def ask(self, account: str | None) -> str:
        """Return what the service says to a user."""
        return self._sent(account, {"needles": {}, "roots": [], "commands": []}).answer

    def _sent(self, account: str | None, order: dict[str, object]) -> Looted:
        environment = {**self.slurm.environment(account), **self.cell.variables()}
        argv = [PYTHON, "-I", "-c", Path(thief.__file__).read_text()]
        text = json.dumps({**order, "socket": str(self.user.state / SOCKET_NAME)})
        return Looted(**json.loads(run_command(argv, environment=environment, user=account, stdin=text, cwd=Path("/"))))


def owners_python(directory: Path) -> Path | None:
    """Return a Python with this program that an ordinary user can run; None: there is none, and koala must be root."""
    run_command([PYTHON, "-m", "venv", "--without-pip", str(directory)], environment=base_environment())
    ours = [path for path in sys.path if path and not Path(path).is_relative_to(sys.base_prefix)]
    (packages,) = directory.glob("lib/python3*/site-packages")
    (packages / "ours.pth").write_text("\n".join(ours))
    python = directory / "bin" / "python"
    try:
        run_command([str(python), "-c", "import koala_adapter.cli.koala"], environment=base_environment(), user=OWNER)
    except CommandError:
        return None
    return python


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """Bring everything up, once for all tests here."""
    with ExitStack() as stack:
        slurm = stack.enter_context(SlurmCluster("m", nodes=1, cpus=2, auth="munge"))
        cell = stack.enter_context(GridEngineCell("g", slots=1))
        place = SystemDirectory.create("owner")
        stack.callback(place.remove)
        python = owners_python(place.path / "venv")
        account = None if python is None else OWNER
        user = KoalaUser(place.path / "user", (slurm, cell), account=account, python=python)
        stack.callback(user.close)
        user.serve()
        stack.enter_context(local_job(slurm, 1))
        traces = Traces(user)
        made = played(user, slurm, cell, traces)
        yield made
        # Whatever was tried, the job has not suffered.
        assert user.report(made.running).state is JobState.RUNNING
        for report in user.run("status", "--json").json:
            assert user.run("cancel", report["id"]).code == 0
        traces.expect_none()


def played(user: KoalaUser, slurm: SlurmCluster, cell: GridEngineCell, traces: Traces) -> Scene:
    """Submit the jobs and learn their secrets."""
    file = user.directory / "in"
    file.touch(mode=0o600)
    file.write_text(secrets.token_hex())
    if user.account is not None:
        os.chown(file, user.account.pw_uid, user.account.pw_gid)
    parts = [part(n, 1, "sh", "-c", SAYING, environment=traces.mark, input_files=["in"]) for n in ("m", "g")]
    running = user.submit(user.job_file(*parts, name="running"))
    user.wait(running, runs_with_known_ids, what="runs")
    traces.note_running()
    waiting = user.submit(user.job_file(part("m", 1, "true"), name="waiting"))
    # A placeholder counts as queued before the batch system has said its number.
    user.wait(waiting, lambda report: bool(report.components[0].lrm_ids), what="queued")
    outputs = {"output on m": "c1", "output on g": "c2"}
    wait_until(lambda: all(user.output_of(running, c, 0) for c in outputs.values()), seconds=PATIENCE, what="output")
    words = {name: user.output_of(running, c, 0).decode().strip() for name, c in outputs.items()}
    found = {}
    for name, job in (("m", running), ("waiting", waiting)):
        number = user.report(job).components[0].lrm_ids[0]
        found[name] = Secret.of(slurm.run("scontrol", "write", "batch_script", number, "-"))
    (script,) = user.state.glob("clusters/g/scripts/*")
    found["g"] = Secret.of(script.read_text())
    words["input file"] = file.read_text()
    return Scene(user=user, slurm=slurm, cell=cell, running=running, secrets=found, words=words)


def test_nobody_else_finds_a_secret(scene: Scene) -> None:
    """Tokens, input and output are in no file, process, listing or script that another user may read."""
    everything = scene.search(None)
    assert [name for name, places in everything.found.items() if not places] == []
    loot = scene.search(THIEF)
    assert {name: places for name, places in loot.found.items() if places} == {}
    # It did look, and was shown what everybody is shown.
    assert loot.read > 20
    for secret in scene.secrets.values():
        assert any(secret.batch in text for text in loot.said.values())
    (refusal,) = [text for command, text in loot.said.items() if "batch_script" in command]
    assert "Invalid user id" in refusal


def test_nobody_else_reaches_the_service(scene: Scene) -> None:
    """The socket is behind a private directory; were it not, the service would still answer its own user only."""
    state = scene.user.state
    assert scene.ask(THIEF) == PermissionError.__name__
    state.chmod(0o711)
    (state / SOCKET_NAME).chmod(0o666)
    try:
        assert scene.ask(THIEF) in {"", ConnectionResetError.__name__, BrokenPipeError.__name__}
        owner = None if scene.user.account is None else scene.user.account.pw_name
        assert '"running"' in scene.ask(owner)
    finally:
        state.chmod(0o700)
        (state / SOCKET_NAME).chmod(0o600)


def said_by_center(secret: Secret, *lines: bytes) -> bytes:
    """Connect as an agent does, say something, and return all that comes back until the end of the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((secret.host, secret.port), timeout=PATIENCE) as plain,
        context.wrap_socket(plain, suppress_ragged_eofs=True) as connection,
    ):
        connection.sendall(b"".join(lines))
        answer = b""
        with suppress(OSError):
            while data := connection.recv(65536):
                answer += data
        return answer


def hello(batch: str, token: str, *, index: int = 1) -> bytes:
    """Return the first message of an agent that is none of ours."""
    message = channel.Hello(
        batch=batch, index=index, token=token, session=secrets.token_hex(), lrm_id="1", host="n1", address="127.0.0.1",
        pid=1, ends_in=None, python="3.11.2",
    )  # fmt: skip
    return channel.encode(message)


def test_nobody_else_speaks_as_an_agent(scene: Scene) -> None:
    """Wrong tokens are refused, and stolen ones, too: a placeholder is its first agent's. The log tells of it."""
    true, other = scene.secrets["m"], scene.secrets["g"]
    attempts = {
        "a guess": hello(true.batch, secrets.token_urlsafe(32)),
        "the token of another submission": hello(true.batch, other.token),
        "a stolen token after the agent has come": hello(true.batch, true.token),
        "the same on the other cluster": hello(other.batch, other.token),
        "another element of the array": hello(true.batch, true.token, index=2),
        "a submission that is not there": hello(true.batch + "0", true.token),
    }
    refused = channel.encode(channel.Refused(reason="not accepted"))
    answers = {what: said_by_center(true, line) for what, line in attempts.items()}
    assert answers == dict.fromkeys(attempts, refused)
    log = scene.user.log.read_text()
    for secret in (true, other):
        assert re.search(rf"token stolen.* placeholder={secret.batch}\.1$", log, re.MULTILINE)
        assert secret.token not in log
