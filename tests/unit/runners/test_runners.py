# SPDX-License-Identifier: Apache-2.0
"""Runners: what each agent is told to start, and when, and what the ends of tasks mean for the ranks of a job."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace

import pytest

from koala_adapter.errors import ConfigurationError
from koala_adapter.model import (
    BatchKey,
    ClusterName,
    Component,
    EndReason,
    Job,
    JobId,
    JobKind,
    Launcher,
    PlaceholderId,
    TaskEnd,
)
from koala_adapter.runners.mpi import MpiRunner
from koala_adapter.runners.nodes import HOST, MOST_RANKS, RelayPlan
from koala_adapter.runners.restartedmpi import KEEPER, RestartedMpiRunner
from koala_adapter.runners.runner import (
    IN_FLIGHT,
    AddressedLaunch,
    Application,
    ProcessRunner,
    Reaction,
    Runner,
    Sending,
)
from koala_adapter.scheduler.actions import Rank
from koala_adapter.scheduler.events import Event, RankEnded
from koala_adapter.slots import Slot
from koala_adapter.vjm.channel import Launch, LaunchFile

NOW = 1000.0
CLUSTERS = {"a": ClusterName("east"), "b": ClusterName("west")}
WELL = TaskEnd(reason=EndReason.EXITED, exit_code=0)
FILE = LaunchFile(target="data", mode=0o600, content=b"data")


def placeholder(number: int) -> PlaceholderId:
    return PlaceholderId(batch=BatchKey("koala-k-1"), index=number + 1)


def application(launcher: Launcher, *, working_directory: str | None = None) -> Application:
    """Return a job of two components, of two ranks and one, as it was placed."""
    components = tuple(
        Component(
            name=name,
            command=("program", name, "an argument; with $things"),
            minimum=size,
            maximum=size,
            cluster=ClusterName(name),
            launcher=launcher,
            environment=(("OWN", name), ("SHARED", name)),
            output_files=("result",) if name == "a" else (),
        )
        for name, size in (("a", 2), ("b", 1))
    )
    job = Job(
        id=JobId("7"),
        name="seven",
        kind=JobKind.RIGID,
        components=components,
        walltime=60,
        user="alice",
        submitted_at=0.0,
        environment=(("SHARED", "job"), ("ONLY", "job"), ("KOALA_RANK", "forged")),
        working_directory=working_directory,
    )
    ranks = tuple(
        Rank(
            rank=number,
            component=component,
            component_rank=component_rank,
            placeholder=placeholder(number),
            host=f"n{number}",
            address=f"10.0.0.{number + 1}",
            cluster=CLUSTERS[component],
        )
        for number, (component, component_rank) in enumerate((("a", 0), ("a", 1), ("b", 0)))
    )
    return Application(job=job, ranks=ranks, files={"a": (FILE,)})


def test_each_rank_is_the_command_of_its_component() -> None:
    """In its own placeholder, with the component's files and the job's walltime, as a list that no shell reads."""
    launches = list(ProcessRunner(application(Launcher.PROCESS, working_directory="/data")).launches())
    assert [one.placeholder for one in launches] == [placeholder(0), placeholder(1), placeholder(2)]
    assert [one.launch.task for one in launches] == ["7:0", "7:1", "7:2"]
    assert launches[1].launch.argv == ("program", "a", "an argument; with $things")
    assert [one.launch.files for one in launches] == [(FILE,), (FILE,), ()]
    assert {(one.launch.working_directory, one.launch.time_limit) for one in launches} == {("/data", 60.0)}
    assert [one.launch.output_files for one in launches] == [("result",), ("result",), ()]


def test_ranks_find_themselves_and_the_others_in_their_environment() -> None:
    """What we say of a rank wins over the component's variables, and these over the job's."""
    environment = dict(list(ProcessRunner(application(Launcher.PROCESS)).launches())[2].launch.environment)
    assert environment == {
        "SHARED": "b",
        "ONLY": "job",
        "OWN": "b",
        "KOALA_JOB_ID": "7",
        "KOALA_JOB_NAME": "seven",
        "KOALA_RANK": "2",
        "KOALA_SIZE": "3",
        "KOALA_COMPONENT": "b",
        "KOALA_COMPONENT_RANK": "0",
        "KOALA_COMPONENT_SIZE": "1",
        "KOALA_CLUSTER": "west",
        "KOALA_THREADS": "1",
        "KOALA_ATTEMPT": "1",
        "OMP_NUM_THREADS": "1",
        "KOALA_ADDRESSES": "10.0.0.1,10.0.0.2,10.0.0.3",
    }


def test_ranks_find_relayed_addresses_of_those_that_they_cannot_reach() -> None:
    """Of the others they find the real ones; koala's host is reached from where it can be, else by an address here."""
    one = application(Launcher.PROCESS)
    plan = RelayPlan(
        job_id=one.job.id,
        instance="koala-k-",
        direct=(("east", "east"),),
        host_addresses={"east": "10.9.9.9"},
        ranks=True,
    )
    job = replace(one.job, relay=True, host_ports=(4711,))
    launches = list(ProcessRunner(replace(one, job=job, relay=plan)).launches())
    first, last = (dict(launches[rank].launch.environment) for rank in (0, 2))
    assert first["KOALA_ADDRESSES"] == f"10.0.0.1,10.0.0.2,{plan.address(2)}"
    assert last["KOALA_ADDRESSES"] == f"{plan.address(0)},{plan.address(1)},10.0.0.3"
    assert (first["KOALA_RELAY_ADDRESS"], last["KOALA_RELAY_ADDRESS"]) == (plan.address(0), plan.address(2))
    assert (first["KOALA_HOST_ADDRESS"], last["KOALA_HOST_ADDRESS"]) == ("10.9.9.9", plan.address(HOST))
    assert [one.launch.relayed for one in launches] == [True] * 3
    assert [one.launch.forwards for one in launches[:2]] == [(), ()]
    (forward,) = launches[2].launch.forwards
    assert (forward.peer, forward.address, forward.ports) == (HOST, plan.address(HOST), (4711,))


def test_relayed_addresses_are_those_of_one_job_and_of_no_other() -> None:
    """They are on the loopback, beside 127.0.0.1, and end where the block of a job ends."""
    plans = [
        RelayPlan(job_id=JobId(str(number)), instance="koala-k-", direct=(), host_addresses={}, ranks=True)
        for number in range(1, 4096)
    ]
    addresses = {address for plan in plans[:-1] for address in (plan.address(HOST), plan.address(0), plan.address(99))}
    assert len(addresses) == 3 * 4094
    assert plans[-1].address(0) == plans[0].address(0)  # there are no others
    assert all(address.startswith("127.") and not address.startswith("127.0.0.") for address in addresses)
    assert plans[0].address(MOST_RANKS - 1)
    assert plans[0].address(MOST_RANKS) == ""


@pytest.mark.parametrize(
    ("of_job", "of_component", "found"),
    [({}, {}, "4"), ({"OMP_NUM_THREADS": "2"}, {}, "2"), ({"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "3"}, "3")],
)
def test_ranks_find_the_threads_of_their_slot(of_job: dict[str, str], of_component: dict[str, str], found: str) -> None:
    """Ranks that share one find each their own part of it."""
    one = application(Launcher.PROCESS)
    slot = Slot(threads=8, ranks=2)
    component = replace(one.job.components[1], slot=slot, environment=tuple(of_component.items()))
    job = replace(one.job, environment=tuple(of_job.items()), components=(one.job.components[0], component))
    environment = dict(list(ProcessRunner(replace(one, job=job)).launches())[2].launch.environment)
    assert (environment["KOALA_THREADS"], environment["OMP_NUM_THREADS"]) == ("4", found)


# ---- MPI ------------------------------------------------------------------------------------------------------------

PROXY = "HYDRA_LAUNCH: /usr/bin/hydra_pmi_proxy --control-port 10.0.0.1:4711 --pgid 0 --retries 10 --proxy-id {}\n"
PROXIES = "".join(map(PROXY.format, range(3))).encode() + b"HYDRA_LAUNCH_END\n"


def mpi(*, working_directory: str | None = None) -> MpiRunner:
    return MpiRunner(application(Launcher.MPI, working_directory=working_directory))


def printed(runner: Runner, data: bytes, offset: int = 0) -> Reaction:
    return runner.output_of("7:launcher", "out", offset, data, NOW)


def test_mpiexec_starts_in_the_placeholder_of_rank_0() -> None:
    """It tells the proxies that node's address, and makes one host for each rank."""
    (launcher,) = mpi().launches()
    assert (launcher.placeholder, launcher.launch.task) == (placeholder(0), "7:launcher")
    argv = launcher.launch.argv
    assert argv[argv.index("-localhost") + 1] == "10.0.0.1"
    assert argv[argv.index("-hosts") + 1].count(",") == 2
    assert [argv[index + 1] for index, word in enumerate(argv) if word == "-n"] == ["2", "1"]
    assert argv.count(":") == 1, "one section for each component"
    assert launcher.launch.time_limit == 60.0


def test_each_proxy_goes_to_its_placeholder() -> None:
    """With the command of its rank as one text that its shell takes apart again, and the files of its component."""
    runner = mpi(working_directory="/data")
    launches = printed(runner, PROXIES).launches
    assert [(one.placeholder, one.launch.task) for one in launches] == [(placeholder(n), f"7:{n}") for n in range(3)]
    assert launches[2].launch.argv[-2:] == ("--proxy-id", "2")
    environment = dict(launches[2].launch.environment)
    assert shlex.split(environment["KOALA_COMMAND"]) == ["program", "b", "an argument; with $things"]
    assert (environment["KOALA_DIRECTORY"], environment["KOALA_RANK"]) == ("/data", "2")
    assert [one.launch.files for one in launches] == [(FILE,), (FILE,), ()]
    told_again = [one.launch.task for one in runner.launches()]
    assert told_again == ["7:launcher", "7:0", "7:1", "7:2"]
    assert list(runner.launches_in(runner.application.ranks[1])) == [launches[1]]


@pytest.mark.parametrize("size", [1, 7, 50])
def test_output_in_pieces_is_read_as_a_whole(size: int) -> None:
    """Wherever it was cut, and though each piece comes twice, every proxy is started once."""
    runner = mpi()
    launches: list[AddressedLaunch] = []
    for offset in range(0, len(PROXIES), size):
        for begin in (offset, max(0, offset - 3)):
            launches += printed(runner, PROXIES[begin : offset + size], begin).launches
    assert [one.launch.task for one in launches] == ["7:0", "7:1", "7:2"]
    assert printed(runner, b"lost before this", len(PROXIES) + 10).launches == (), "what is missing comes first"


@pytest.mark.parametrize(
    ("status", "end"),
    [
        (3, TaskEnd(reason=EndReason.EXITED, exit_code=3)),
        (137, TaskEnd(reason=EndReason.SIGNALLED, signal=9)),
        (192, TaskEnd(reason=EndReason.SIGNALLED, signal=64)),
        (200, TaskEnd(reason=EndReason.EXITED, exit_code=200)),
        (255, TaskEnd(reason=EndReason.EXITED, exit_code=255)),
    ],
)
def test_the_shell_of_a_rank_tells_how_it_ended(status: int, end: TaskEnd) -> None:
    """Also behind output that mpiexec merged into the line; there are no signals beyond 64."""
    reaction = printed(mpi(), b"noise koala: rank 2 ended with %d\n" % status)
    assert reaction.events == (RankEnded(time=NOW, job_id=JobId("7"), rank=2, end=end),)


SPAWNED = "HYDRA_LAUNCH: /opt/hydra_pmi_proxy --control-port 10.0.0.1:4711 --pgid {} --retries 10 --proxy-id 0 \n"
ORDERS = {
    "host first": ["koala: spawn koala2\n", SPAWNED.format(1), "koala: spawn koala1\n", SPAWNED.format(2)],
    "launch first": [SPAWNED.format(1), "koala: spawn koala2\n", SPAWNED.format(2), "koala: spawn koala1\n"],
    "two at a time": [SPAWNED.format(1), SPAWNED.format(2), "koala: spawn koala2\n", "koala: spawn koala1\n"],
}


@pytest.mark.parametrize("order", list(ORDERS))
def test_spawned_proxies_go_where_the_program_wants_them(order: str) -> None:
    """Each has the number 0 in a process group of its own; how the lines are mixed does not matter."""
    runner = MpiRunner(application(Launcher.MPI), spawns=True)
    (launcher,) = runner.launches()
    argv = launcher.launch.argv
    assert argv[argv.index("-hosts") + 1] == "koala0", "the others are spawned"
    first = printed(runner, (text := PROXY.format(0).encode())).launches
    assert [one.launch.task for one in first] == ["7:0"]
    launches: list[AddressedLaunch] = []
    for line in ORDERS[order]:
        launches += printed(runner, line.encode(), len(text)).launches
        text += line.encode()
    assert [(one.placeholder, one.launch.task) for one in launches] == [(placeholder(n), f"7:{n}") for n in (2, 1)]
    assert [one.launch.argv[one.launch.argv.index("--pgid") + 1] for one in launches] == ["1", "2"]
    again = MpiRunner(application(Launcher.MPI), spawns=True)
    assert printed(again, text).launches == (*first, *launches), "also for a runner that is made anew"
    assert [one.launch.task for one in again.launches()] == ["7:launcher", "7:0", "7:1", "7:2"]


def test_spawned_processes_without_a_rank_are_not_started() -> None:
    """Hosts that are none of the job's, and further proxies of a group; a job that cannot spawn hears of no host."""
    runner = MpiRunner(application(Launcher.MPI), spawns=True)
    noise = "koala: spawn koala9\n" + SPAWNED.format(1) + SPAWNED.format(2) + SPAWNED.format(1).replace("id 0", "id 1")
    assert printed(runner, noise.encode()).launches == ()
    assert printed(mpi(), ("koala: spawn koala1\n" + SPAWNED.format(1)).encode()).launches == ()


def test_what_is_no_word_of_hydra_is_passed_over() -> None:
    noise = b"\xff\xfe\nkoala: rank 9 ended with 1\n" + PROXY.format(9).encode() + b"x" * 100_000 + b"\n"
    assert printed(mpi(), noise) == replace(printed(mpi(), b""))
    assert mpi().output_of("7:launcher", "err", 0, PROXIES, NOW).launches == ()
    assert mpi().output_of("7:0", "out", 0, PROXIES, NOW).launches == ()


KILLED = b"""
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 3774 RUNNING AT vm
=   EXIT CODE: 9
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
"""
"""What mpiexec of MPICH 4.0.2 prints when the shell of a rank is killed; it then exits with status 9."""


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (KILLED, TaskEnd(reason=EndReason.SIGNALLED, signal=9)),
        (KILLED.replace(b"YOUR APPLICATION", b"SOMETHING"), TaskEnd(reason=EndReason.EXITED, exit_code=9)),
    ],
    ids=["signal", "status"],
)
def test_mpiexec_tells_a_signal_from_a_status(text: bytes, end: TaskEnd) -> None:
    """Its own status is 9 in both cases."""
    runner = mpi()
    assert printed(runner, text).events == ()
    told = runner.ended("7:launcher", TaskEnd(reason=EndReason.EXITED, exit_code=9), NOW)
    assert told == (RankEnded(time=NOW, job_id=JobId("7"), rank=None, end=end),)


def spawning() -> tuple[MpiRunner, bytes]:
    """Return the runner of a job whose ranks are spawned, and what mpiexec has printed: all three of them run."""
    runner = MpiRunner(application(Launcher.MPI), spawns=True)
    text = (PROXY.format(0) + "".join(ORDERS["host first"])).encode()
    printed(runner, text)
    return runner, text


def said(runner: MpiRunner, text: bytes, *lines: str) -> tuple[bytes, tuple[Event, ...]]:
    """Let mpiexec print more; return all of it, and what follows from the lines."""
    more = "".join(f"{line}\n" for line in lines).encode()
    return text + more, printed(runner, more, len(text)).events


def ended(rank: int | None, end: TaskEnd = WELL) -> RankEnded:
    return RankEnded(time=NOW, job_id=JobId("7"), rank=rank, end=end)


@pytest.mark.parametrize("proxy_first", [False, True])
def test_a_spawned_rank_has_ended_when_its_proxy_has(*, proxy_first: bool) -> None:
    """Its shell runs on after its last line: if it were killed then, mpiexec would give up all the others."""
    runner, text = spawning()
    if proxy_first:
        assert runner.ended("7:2", WELL, NOW) == ()
        assert said(runner, text, "koala: rank 2 ended with 0")[1] == (ended(2),)
    else:
        assert said(runner, text, "koala: rank 2 ended with 0")[1] == ()
        assert runner.ended("7:2", WELL, NOW) == [ended(2)]


def test_bad_ends_are_believed_at_once() -> None:
    runner, text = spawning()
    assert said(runner, text, "koala: rank 2 ended with 3")[1] == (
        ended(2, TaskEnd(reason=EndReason.EXITED, exit_code=3)),
    )
    failed = TaskEnd(reason=EndReason.EXITED, exit_code=255)
    runner, text = spawning()
    said(runner, text, "koala: rank 2 ended with 0")
    assert list(runner.ended("7:launcher", failed, NOW)) == [ended(None, failed)]


def test_mpiexec_has_ended_when_the_output_of_ranks_is_kept() -> None:
    """A rank that has ended well is over with its proxy: an agent that is killed before still has its output."""
    runner, text = mpi(), PROXIES
    printed(runner, PROXIES)
    text, events = said(runner, text, "koala: rank 0 ended with 0", "koala: rank 1 ended with 0")
    assert events == ()
    assert runner.ended("7:0", WELL, NOW) == [ended(0)]
    assert runner.ended("7:launcher", WELL, NOW) == ()
    assert runner.ended("7:2", WELL, NOW) == ()  # nothing is known of its program
    assert runner.ended("7:1", WELL, NOW) == [ended(1), ended(None)]


@pytest.mark.parametrize(("code", "signal"), [("15", 15), ("139", 11)])
def test_mpiexec_gives_all_up_and_ends_with_0(code: str, signal: int) -> None:
    """When a signal has killed a spawned rank: its status is that of the first process group. 128 is of a core dump."""
    runner, text = spawning()
    assert (
        said(runner, text, "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", f"=   EXIT CODE: {code}")[1]
        == ()
    )
    told = runner.ended("7:launcher", WELL, NOW)
    assert told == (ended(None, TaskEnd(reason=EndReason.SIGNALLED, signal=signal)),)


def test_the_end_of_mpiexec_is_that_of_the_job() -> None:
    """A proxy that exits says nothing of its rank; one that could not be started does."""
    runner = mpi()
    failed = TaskEnd(reason=EndReason.LAUNCH_FAILED, exit_code=127, detail="hydra_pmi_proxy: command not found")
    assert runner.ended("7:launcher", WELL, NOW) == (RankEnded(time=NOW, job_id=JobId("7"), rank=None, end=WELL),)
    assert runner.ended("7:1", TaskEnd(reason=EndReason.EXITED, exit_code=7), NOW) == ()
    assert runner.ended("7:1", failed, NOW) == (RankEnded(time=NOW, job_id=JobId("7"), rank=1, end=failed),)
    assert (runner.started("7:launcher", NOW), len(runner.started("7:1", NOW))) == ((), 1)


# -- MPI programs that are started anew with each change: what their ranks are told, and what their ends mean.


BADLY = TaskEnd(reason=EndReason.EXITED, exit_code=3)


def restarted() -> RestartedMpiRunner:
    """Return one of three ranks."""
    return RestartedMpiRunner(application(Launcher.MPI, working_directory="/scratch"))


def test_each_rank_has_a_keeper() -> None:
    """They share a directory that no other job has, and know the members and the address of the first."""
    launches = list(restarted().launches())
    assert [one.launch.task for one in launches] == ["7:0", "7:1", "7:2"]
    told = [dict(one.launch.environment) for one in launches]
    assert {one["RESIZE_DIRECTORY"] for one in told} == {"/scratch/koala-7-koala-k-1"}
    assert {(one["KOALA_MEMBERS"], one["KOALA_FIRST"]) for one in told} == {("0 1 2", "10.0.0.1")}
    assert told[0]["KOALA_COMMAND"].startswith("program")
    one = restarted()
    fewer = replace(one.application, ranks=one.application.ranks[::2])
    (launch,) = one.grow(fewer, [2])
    assert dict(launch.launch.environment)["RESIZE_DIRECTORY"] == "/scratch/koala-7-koala-k-1"


def test_the_end_of_the_first_is_that_of_the_application() -> None:
    one, job = restarted(), JobId("7")
    first = RankEnded(time=NOW, job_id=job, rank=0, end=WELL)
    assert list(one.ended("7:0", WELL, NOW)) == [first, RankEnded(time=NOW, job_id=job, rank=None, end=WELL)]
    assert list(one.ended("7:1", WELL, NOW)) == [RankEnded(time=NOW, job_id=job, rank=1, end=WELL)]
    assert list(one.ended("7:0", BADLY, NOW)) == [RankEnded(time=NOW, job_id=job, rank=0, end=BADLY)]


def test_a_directory_is_needed() -> None:
    """The job file sees to that; a job of another version is refused here."""
    with pytest.raises(ConfigurationError, match="working_directory"):
        RestartedMpiRunner(application(Launcher.MPI))


def test_the_keeper_is_shell() -> None:
    assert subprocess.run(["sh", "-n", "-c", KEEPER], check=False, capture_output=True, timeout=60).stderr == b""


# -- Launches with large files go out a few at a time, and none is forgotten.


QUARTER = LaunchFile(target="data", mode=0o600, content=bytes(IN_FLIGHT // 4))


def launch(number: int, *files: LaunchFile, job: str = "1") -> AddressedLaunch:
    return AddressedLaunch(
        placeholder=placeholder(number), launch=Launch(task=f"{job}:{number}", argv=("true",), files=files)
    )


class Sent:
    """What was sent, by task; agents that are not connected get nothing."""

    def __init__(self) -> None:
        self.tasks: list[str] = []
        self.away: set[PlaceholderId] = set()
        self.sending = Sending(self._order)

    def _order(self, one: AddressedLaunch) -> bool:
        if one.placeholder in self.away:
            return False
        self.tasks.append(one.launch.task)
        return True


def test_small_launches_go_at_once_and_too_large_ones_alone() -> None:
    sent = Sent()
    sent.sending.add(launch(number) for number in range(1000))
    assert len(sent.tasks) == 1000
    sent = Sent()
    sent.sending.add([launch(1, *[QUARTER] * 5), launch(2)])
    assert sent.tasks == ["1:1"]
    sent.sending.arrived("1:1")
    assert sent.tasks == ["1:1", "1:2"]


def test_large_launches_wait_for_room() -> None:
    """One more goes when one has arrived; an arrival that is told twice makes room once."""
    sent = Sent()
    sent.sending.add(launch(number, QUARTER) for number in range(8))
    assert sent.tasks == ["1:0", "1:1", "1:2", "1:3"]
    sent.sending.arrived("1:2")
    sent.sending.arrived("1:2")
    assert sent.tasks[4:] == ["1:4"]
    for task in ("1:0", "1:1", "1:3", "1:4"):
        sent.sending.arrived(task)
    assert sent.tasks[5:] == ["1:5", "1:6", "1:7"]


def test_an_agent_that_went_away_makes_room() -> None:
    """What was on its way is gone; it is sent again when the agent registers, by whoever hears of that."""
    sent = Sent()
    sent.sending.add(launch(number, QUARTER) for number in range(5))
    sent.sending.lost(placeholder(0))
    assert sent.tasks[4:] == ["1:4"]
    sent.sending.add([launch(0, QUARTER)])
    sent.sending.arrived("1:1")
    assert sent.tasks[5:] == ["1:0"]


def test_agents_that_are_away_take_no_room() -> None:
    sent = Sent()
    sent.away = {placeholder(number) for number in range(4)}
    sent.sending.add(launch(number, QUARTER) for number in range(6))
    assert sent.tasks == ["1:4", "1:5"]


def test_a_launch_sent_again_counts_once() -> None:
    """An agent that lost and found the center gets it twice at most, and frees its room all the same."""
    sent = Sent()
    sent.sending.add([launch(0, QUARTER), launch(0, QUARTER)])
    sent.sending.arrived("1:0")
    sent.sending.add(launch(number, QUARTER) for number in range(1, 5))
    assert sent.tasks == ["1:0", "1:0", "1:1", "1:2", "1:3", "1:4"]


def test_nothing_is_sent_for_a_job_that_is_over() -> None:
    sent = Sent()
    sent.sending.add(launch(number, QUARTER) for number in range(8))
    sent.sending.add([launch(1, QUARTER, job="12")])
    sent.sending.forget(JobId("1"))
    assert sent.tasks[4:] == ["12:1"]
