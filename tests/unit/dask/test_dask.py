# SPDX-License-Identifier: Apache-2.0
"""Dask clusters whose workers are a job: access, the running job, its description."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Security
from distributed.core import Status
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.api import protocol
from koala_adapter.api.statedirectory import SOCKET_NAME
from koala_adapter.config.jobfile import job_of_values
from koala_adapter.config.sitefile import ControlCenterConfig
from koala_adapter.dask import leave
from koala_adapter.dask.cluster import (
    CREDENTIALS,
    LEAVE,
    WorkersJob,
    as_nodes_reach_it,
    credentials_of_workers,
    files_of,
    job_of_workers,
    listening_address,
    source_of,
)
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import ClusterName, Job, JobKind, Retirement, RunnerName
from koala_adapter.outcome import JobState
from koala_adapter.python.description import Component, SlotKeys
from koala_adapter.python.description import Job as Description
from koala_adapter.python.site import Site
from koala_adapter.slots import Slot
from tests.unit.api.test_api import report
from tests.unit.scheduler.scheduler_site import job

# -- How workers get to the scheduler: which addresses, which keys, and who may read them meanwhile.


@pytest.mark.parametrize(
    ("host", "address"),
    [("login", "tls://login:4711"), ("10.0.0.1", "tls://10.0.0.1:4711"), ("fd00::1", "tls://[fd00::1]:4711")],
)
def test_nodes_get_the_name_that_they_know(host: str, address: str) -> None:
    assert as_nodes_reach_it("tls://127.0.0.1:4711", host) == address


@pytest.mark.parametrize(
    ("host", "listens"),
    [(None, "127.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("login.outside.example", "0.0.0.0")],
)
def test_the_scheduler_listens_where_it_is_reached(host: str | None, listens: str) -> None:
    """As the control center does, unless told otherwise; a name may be one of a gateway that passes connections on."""
    center = ControlCenterConfig.model_validate({"listen": "127.0.0.1"})
    assert listening_address(center, host) == listens


def test_a_key_goes_to_the_workers(tmp_path: Path) -> None:
    """A temporary one in all three parts; certificate and key may be in one file, which is named if it is not there."""
    temporary = Security.temporary()
    parts = (temporary.tls_ca_file, temporary.tls_worker_cert, temporary.tls_worker_key)
    names = ("ca_file", "cert", "key")
    assert credentials_of_workers(temporary) == {
        CREDENTIALS[name]: part for name, part in zip(names, parts, strict=True)
    }
    both = tmp_path / "both.pem"
    both.write_text("-----\nkey and certificate\n")
    security = Security(tls_ca_file=str(both), tls_worker_cert=str(both), require_encryption=True)
    assert set(credentials_of_workers(security).values()) == {"-----\nkey and certificate\n"}
    assert credentials_of_workers(Security()) == {}
    both.unlink()
    with pytest.raises(ConfigurationError, match=r"both\.pem: No such file"):
        credentials_of_workers(security)


def test_files_are_private_and_go(tmp_path: Path) -> None:
    """Nobody else can read a key, and it is not left anywhere."""
    with files_of({"key.pem": "secret"}, tmp_path / "private") as files:
        path = Path(files["key.pem"])
        assert path.read_text() == "secret"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


def test_without_distributed_the_way_out_is_told() -> None:
    """The error says what is to be installed; nothing else of koala-adapter wants it."""
    program = (
        "import sys\nsys.modules['distributed'] = None\nimport koala_adapter.cli.run, koala_adapter.service.service\n"
        "try:\n    import koala_adapter.dask\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert "pip install 'koala-adapter[dask]'" in done.stdout


# -- The workers' job as it is followed: nothing of it is left once it is over, whatever the service does then.


LIVENESS = 60.0
OUTCOME = {"state": "completed", "reason": "exited", "exit_code": 0, "detail": "", "warnings": []}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Owner:
    """Whose job it is; hears what is said of it."""

    def __init__(self) -> None:
        self.over: list[str] = []

    @contextmanager
    def described(self, scheduler: str, size: int) -> Iterator[Job]:
        del scheduler
        yield job("0", size)

    def say(self, text: str, *, trouble: bool = False) -> None:
        """See runningjob.Owner."""

    def job_over(self, text: str, *, bad: bool) -> None:
        del bad
        self.over.append(text)


@asynccontextmanager
async def service(directory: Path) -> AsyncIterator[asyncio.Event]:
    """Have a service whose job ends at once, while something of it is still left in a batch system.

    Yields what is set when nobody watches it any more.
    """
    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = protocol.decode_request(await reader.readline())
        if request.operation == "submit":
            writer.write(protocol.encode(protocol.Reply(result={"job_id": "7"})))
        elif request.operation == "watch":
            ended = {**report(JobState.COMPLETED), "outcome": OUTCOME, "placeholders_left": 1}
            writer.write(protocol.encode(protocol.Reply(result=ended, last=False)))
            await reader.read()  # until the connection is closed
            left.set()
        else:
            writer.write(protocol.encode(protocol.Reply(result={**report(JobState.RUNNING), "pid": 1})))
        writer.close()

    server = await asyncio.start_unix_server(answer, str(directory / SOCKET_NAME))
    async with server:
        yield left


async def test_a_job_that_has_ended_is_watched_no_more(tmp_path: Path) -> None:
    owner = Owner()
    one = WorkersJob("tls://127.0.0.1:1", name="job", owner=owner, site=Site(tmp_path / "site", state=tmp_path), size=1)
    async with service(tmp_path) as left:
        await one.start()
        await asyncio.wait_for(left.wait(), LIVENESS)
        assert one.over
        assert one.status is Status.closed
        assert len(owner.over) == 1
        await one.close()


# -- The job of a Dask cluster's workers: what it asks of koala, and what is refused before anything is begun.


OF_THE_JOB = frozenset({"walltime", "placement", "priority"})
"""Keys of the job; all others are those of its workers."""


def settings(*options: str, python: str = "/usr/bin/python3", **keys: Any) -> Description:  # noqa: ANN401 - of many
    """Return what a user says of a cluster: options of Dask's, and keys of a job file."""
    of_workers = {name: value for name, value in keys.items() if name not in OF_THE_JOB}
    defaults = {"minimum": 2, "maximum": 8, "retire_grace": 30, "flexible": "cluster" not in keys}
    worker = Component([python, *options], name="workers", **{**defaults, **of_workers})
    header = {name: value for name, value in keys.items() if name in OF_THE_JOB}
    return Description(components=[worker], name="dask", kind="malleable", runner="workers", **header)


SCHEDULER = "tls://login:4711"


def made(described: Description, *, size: int = 2, tls: bool = False, relay: bool = False) -> Job:
    names = [LEAVE, *(CREDENTIALS.values() if tls else ())]
    files = dict.fromkeys(names, leave.__file__)
    job = job_of_workers(described, death_timeout=9, scheduler=SCHEDULER, size=size, files=files, relay=relay)
    return job_of_values(job.values(), source="KoalaCluster", user="me", directory=Path("/"))


def test_the_job_is_one_of_workers_alone() -> None:
    """It may use every cluster, and has no head."""
    job = made(settings(), size=5)
    (worker,) = job.components
    assert (job.kind, job.runner, job.walltime) == (JobKind.MALLEABLE, RunnerName.WORKERS, 3600)
    assert (worker.minimum, worker.initial, worker.maximum, worker.flexible) == (2, 5, 8, True)
    assert not job.is_head(worker.name)
    assert worker.retirement == Retirement(grace=30)


def test_workers_that_may_be_elsewhere_find_the_scheduler_through_koala() -> None:
    """Where that is, each finds in its environment; its own address is the one that is the same for all."""
    job = made(settings(), relay=True)
    assert (job.relay, job.host_ports) == (True, (4711,))
    command = [*job.components[0].command]
    command[4:7] = ["echo"]
    for address, shown in (("127.9.0.0", "127.9.0.0"), ("fe80::1", "[fe80::1]")):
        environment = {"KOALA_HOST_ADDRESS": address, "KOALA_CLUSTER": "far", "KOALA_JOB_ID": "7", "KOALA_RANK": "2"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.split()[-3:] == ["--name", "far-7.2", f"tls://{shown}:4711"]


def test_what_the_user_says_of_the_job_is_in_it() -> None:
    """Keys of a job file go into the job, options of Dask's into the command; the environment may replace ours."""
    environment = {"DASK_LEAVE_SECONDS": "3", "PYTHONPATH": "/lib/mine"}
    described = settings(
        *("--resources", "GPU=1"),
        cluster="alpha",
        placement="close-to-files",
        priority=7,
        environment=environment,
        setup="module load python",
        software=("conda",),
        container="dask.sif",
    )
    job = made(described)
    (worker,) = job.components
    assert (worker.cluster, worker.flexible, job.placement, job.priority) == ("alpha", False, "close-to-files", 7)
    assert dict(worker.environment).items() >= environment.items()
    assert (worker.setup, worker.software, worker.container) == (("module load python",), ("conda",), "dask.sif")
    assert worker.command[-2:] == ("--resources", "GPU=1")
    assert worker.command[worker.command.index("--death-timeout") + 1] == "9"


def test_workers_have_the_threads_and_the_memory_of_their_slot() -> None:
    """What the user says of Dask's own options comes behind, and counts."""
    slot: SlotKeys = {"threads": 2, "memory": "2GiB", "gpus": "a100:1", "queue": {"alpha": "long"}, "features": "ib"}
    (worker,) = made(settings("--nthreads", "1", **slot)).components
    assert worker.slot == Slot(threads=2, memory_mib=2048, gpus=1, gpu_kind="a100", features=("ib",))
    assert worker.slot_on(ClusterName("alpha")).queue == "long"
    options = worker.command[worker.command.index("--nthreads") :]
    assert options[:4] == ("--nthreads", "2", "--memory-limit", "2048MiB")
    assert options[-2:] == ("--nthreads", "1")


def test_input_files_may_have_logical_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.py").touch()
    monkeypatch.chdir(tmp_path)
    files = tuple(source_of(file) for file in ("lfn:genome/hg38.fa", Path("model.py")))
    (worker,) = made(settings(input_files=files)).components
    found = {file.source: file.target for file in worker.input_files if file.target != LEAVE}
    assert found == {"lfn:genome/hg38.fa": "hg38.fa", str(tmp_path / "model.py"): "model.py"}


@pytest.mark.parametrize("tls", [False, True])
def test_keys_travel_in_files_alone(*, tls: bool) -> None:
    """A command line, which everybody sees, has the names of the files of a key, and only where there is one."""
    (worker,) = made(settings(), tls=tls).components
    options = [word for word in worker.command if word.startswith("--tls")]
    assert options == (["--tls-ca-file", "--tls-cert", "--tls-key"] if tls else [])
    assert {file.target for file in worker.input_files} == {LEAVE, *(CREDENTIALS.values() if tls else ())}


@given(
    words=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), max_size=4)
)
def test_the_shell_reads_nothing_of_what_the_user_says(words: list[str]) -> None:
    """Options arrive at the worker as they were given, and after them the name that only the worker knows."""
    command = made(settings(*words, python="/usr/bin/printf")).components[0].command
    shown = [*command[:4], "/usr/bin/printf", "%s\\0", *command[5:]]
    environment = {"KOALA_CLUSTER": "alpha", "KOALA_JOB_ID": "7", "KOALA_RANK": "3", "PATH": os.defpath}
    done = subprocess.run(shown, env=environment, stdout=subprocess.PIPE, check=True)
    arrived = done.stdout.decode().split("\0")[:-1]
    assert arrived[-2:] == ["--name", "alpha-7.3"]
    assert arrived[:-2] == list(command[5:])


@pytest.mark.parametrize(
    ("described", "said"),
    [
        (settings(memory="much"), 'memory: found "much", allowed is MiB'),
        (settings(minimum=0), "minimum"),
        (settings(input_files=("/nowhere/to/be/found.py",)), "existing file"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(described: Description, said: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^KoalaCluster: ") as refused:
        made(described)
    assert said in refused.value.message


def test_the_example_has_the_same_leave() -> None:
    """What is shown in examples/malleable is what KoalaCluster sends along."""
    example = Path(__file__).parents[3] / "examples" / "malleable" / LEAVE
    assert example.read_bytes() == Path(leave.__file__).read_bytes()
