# SPDX-License-Identifier: Apache-2.0
"""Runners of launcher ``mpi`` under MPICH: one MPI_COMM_WORLD for all components, or spawned processes.

``mpiexec.hydra -launcher manual`` (MPICH's Hydra, "Using the Hydra Process Manager") prints, for each host, the command
of the proxy to be started there, and waits for the proxies to dial in: the placeholders play the part of the remote
shell. mpiexec itself runs in the placeholder of rank 0. Each rank has a made-up host of its own, so that proxy and rank
correspond one to one, also where several ranks share a placeholder.

Measured with MPICH 4.0.2: mpiexec does not notice a rank that exits without MPI_Finalize, and the others hang; so each
rank's shell reports how its program ended, on mpiexec's stdout. Of a shell that is killed itself mpiexec reports the
signal before it exits. ``-genvnone`` lets each rank have its own proxy's environment; ``-wdir /`` is given because
mpiexec would impose its own directory, which other nodes need not have. The program and its arguments go by each
proxy's environment: mpiexec takes a lone ":" among them for the next program.

Programs that spawn processes (MPICH of PyPI 4.3.2 and 5.0.2; Debian's 4.0.2 cannot): for each MPI_Comm_spawn mpiexec
prints the command of one more proxy, with a process group of its own and the proxy's number 0, but not the host that
the program has asked for. So the program also prints that on mpiexec's output, and the k-th printed host is that of
process group k, however the two kinds of lines are mixed. mpiexec ends with the status of process group 0 only: when a
process of another one is killed it says so, gives all others up, and ends with 0. That includes the shell of a rank
between its last line and its exit. So the placeholder of a rank that leaves must not be ended before its proxy ends.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, TaskEnd
from koala_adapter.runners.adaptive import AdaptiveRunner
from koala_adapter.runners.runner import LAUNCHER_TASK, AddressedLaunch, Application, ProcessRunner, Reaction, task_id
from koala_adapter.scheduler.events import Event, RankEnded
from koala_adapter.vjm.channel import Launch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from koala_adapter.scheduler.actions import Rank


# -- MPI programs of fixed size ------------------------------------------------------------------------------

LONGEST_LINE = 64 * 1024
SIGNAL_BASE = 128
"""A POSIX shell shows a death by signal n as status 128 + n."""
LARGEST_SIGNAL = 64

SPAWN_DESCRIPTOR = 3
"""Of a program that spawns: what it writes there goes to mpiexec's output."""

PROGRAM_SHELL = """\
cd "${KOALA_DIRECTORY:-${KOALA_STDOUT%/*}/work}" || exit 126
eval "set -- $KOALA_COMMAND"
unset KOALA_COMMAND KOALA_DIRECTORY
"$@" >"$KOALA_STDOUT" 2>"$KOALA_STDERR"
status=$?
"""
"""How a rank's program is run, in its directory and with its output to its agent."""
RANK_SHELL = f"""\
{PROGRAM_SHELL}echo "koala: rank $KOALA_RANK ended with $status"
exit $status
"""
SPAWNING_RANK_SHELL = RANK_SHELL.replace('"$@" >', f'"$@" {SPAWN_DESCRIPTOR}>&1 >')

_PROXY = re.compile(r"^HYDRA_LAUNCH: (?P<command>.+ --pgid (?P<group>\d+) .*--proxy-id (?P<proxy>\d+))\s*$")
_SPAWN = re.compile(r"koala: spawn koala(?P<rank>\d+)\s*$")
_BAD_TERMINATION = re.compile(r"^=\s+EXIT CODE: (?P<status>\d+)\s*$")
"""A line of what mpiexec says when it gives all processes up: wait status (wait(2)) of one that a signal has killed."""
_EXIT_STRING = re.compile(r"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*\(signal (?P<signal>\d+)\)\s*$")
"""mpiexec's last words on a process of the application that a signal killed: it exits with the signal's number then, as
with that of a process that exited with such a status."""
_RANK_END = re.compile(r"koala: rank (?P<rank>\d+) ended with (?P<status>\d+)\s*$")


class MpiRunner(ProcessRunner):
    """Runner that starts mpiexec in the first placeholder, and in all of them the proxies that mpiexec asks for."""

    def __init__(self, application: Application, *, spawns: bool = False) -> None:
        """Make the runner of a job. ``spawns``: the first rank is started alone, and spawns the others."""
        super().__init__(application)
        self._spawns = spawns
        self._read = 0
        self._rest = b""
        self._commands: dict[tuple[int, int], tuple[str, ...]] = {}
        """What mpiexec has asked for, by process group and number of the proxy in it."""
        self._spawned: list[int] = []
        """Rank that the program has spawned as process group 1, 2 and so on."""
        self._killed_by: int | None = None
        """Signal that mpiexec says has killed a rank, its shell included."""
        self._given_up_for: int | None = None
        """Signal for which mpiexec says that it gives all processes up, whatever its own status is then."""
        self._said: dict[int, TaskEnd] = {}
        """How ranks have ended well, as their shells say, whose agents have not told of the ends of their proxies."""
        self._proxies_over: set[int] = set()
        """Ranks of whose proxies the agents have told that they ended, and all of their output is kept."""
        self._launcher_end: TaskEnd | None = None
        """How mpiexec has ended well, while such proxies are awaited."""

    def launches_in(self, rank: Rank) -> Sequence[AddressedLaunch]:
        """Return the proxy of a rank once mpiexec has asked for it; for rank 0 also mpiexec."""
        command = self._commands.get(self._proxy_of(rank.rank))
        proxies = [] if command is None else [self._proxy(rank, command)]
        return [self._launcher(rank), *proxies] if rank.rank == 0 else proxies

    def _proxy_of(self, rank: int) -> tuple[int, int]:
        return (self._spawned.index(rank) + 1, 0) if rank in self._spawned else (0, rank)

    def _rank_at(self, proxy: tuple[int, int]) -> Rank | None:
        group, number = proxy
        if group:
            number = self._spawned[group - 1] if number == 0 and group <= len(self._spawned) else -1
        return self.application.ranks_numbered.get(number)

    def _launcher(self, first: Rank) -> AddressedLaunch:
        ranks = (first,) if self._spawns else self.application.ranks
        setup = self.application.setup(first)
        launch = Launch(
            task=task_id(self.application.job.id, LAUNCHER_TASK),
            argv=mpiexec_command(ranks, SPAWNING_RANK_SHELL if self._spawns else RANK_SHELL),
            setup=setup,
            # The lines do the same here as before the first rank. mpiexec hands nothing of it on (-genvnone).
            environment=self.application.environment(first) if setup else self.application.job.environment,
            time_limit=float(self.application.job.walltime),
        )
        return AddressedLaunch(placeholder=first.placeholder, launch=launch)

    def output_of(self, task: str, stream: str, offset: int, data: bytes, now: float) -> Reaction:
        """Parse mpiexec's output: requests for proxies, and ends of ranks."""
        if not task.endswith(f":{LAUNCHER_TASK}") or stream != "out" or offset > self._read:
            return Reaction()
        fresh = data[self._read - offset :]
        self._read += len(fresh)
        *lines, rest = (self._rest + fresh).split(b"\n")
        self._rest = rest[-LONGEST_LINE:]
        launches: list[AddressedLaunch] = []
        events: list[Event] = []
        for line in lines:
            text = line.decode("utf-8", "replace")
            if (found := _PROXY.match(text)) is not None:
                proxy = (int(found["group"]), int(found["proxy"]))
                self._commands.setdefault(proxy, tuple(shlex.split(found["command"])))
                launches += self._asked_for(proxy)
            elif (found := _SPAWN.search(text)) is not None and self._spawns:
                self._spawned.append(int(found["rank"]))
                launches += self._asked_for((len(self._spawned), 0))
            elif (found := _EXIT_STRING.match(text)) is not None and int(found["signal"]) <= LARGEST_SIGNAL:
                self._killed_by = int(found["signal"])
            elif (found := _BAD_TERMINATION.match(text)) is not None:
                self._given_up_for = int(found["status"]) % SIGNAL_BASE or None
            elif (found := _RANK_END.search(text)) is not None:
                events += self._shell_ended(int(found["rank"]), _shell_end(int(found["status"])), now)
        return Reaction(launches=tuple(launches), events=tuple(events))

    def _shell_ended(self, rank: int, end: TaskEnd, now: float) -> Sequence[Event]:
        if rank not in self.application.ranks_numbered:
            return ()
        if end.ok and rank not in self._proxies_over:
            self._said[rank] = end  # its agent has output of it yet, which would be lost with the agent
            return ()
        return (self._rank_ended(rank, end, now),)

    def _rank_ended(self, rank: int | None, end: TaskEnd, now: float) -> Event:
        return RankEnded(time=now, job_id=self.application.job.id, rank=rank, end=end)

    def _asked_for(self, proxy: tuple[int, int]) -> Sequence[AddressedLaunch]:
        """Return a proxy that can be started: mpiexec has asked for it, and its rank is known."""
        rank, command = self._rank_at(proxy), self._commands.get(proxy)
        return [] if rank is None or command is None else [self._proxy(rank, command)]

    def ended(self, task: str, end: TaskEnd, now: float) -> Sequence[Event]:
        """Handle the end of mpiexec or of a proxy.

        A rank that has ended well, and mpiexec, have ended when the agents of such ranks have told of their proxies'
        ends, which they do after their output. The end of a proxy means nothing by itself, unless it never ran.
        """
        rank = self.rank_of(task)
        if rank is None:
            end = self._true_end(end)
            if end.ok and self._said:
                self._launcher_end = end
                return ()
            return super().ended(task, end, now)
        if end.reason is not EndReason.EXITED:
            return super().ended(task, end, now)
        self._proxies_over.add(rank)
        if rank not in self._said:
            return ()
        events = [self._rank_ended(rank, self._said.pop(rank), now)]
        if self._launcher_end is not None and not self._said:
            events.append(self._rank_ended(None, self._launcher_end, now))
        return events

    def _true_end(self, end: TaskEnd) -> TaskEnd:
        """Return the end of mpiexec with the signal that its output tells."""
        signal = self._killed_by if end.exit_code else self._given_up_for
        if end.reason is not EndReason.EXITED or signal is None:
            return end
        return TaskEnd(reason=EndReason.SIGNALLED, signal=signal, detail=end.detail)

    def _proxy(self, rank: Rank, command: tuple[str, ...]) -> AddressedLaunch:
        (process,) = super().launches_in(rank)
        environment = dict(process.launch.environment)
        environment["KOALA_COMMAND"] = shlex.join(process.launch.argv)
        if process.launch.working_directory is not None:
            environment["KOALA_DIRECTORY"] = process.launch.working_directory
        if self._spawns:
            environment["KOALA_MPI_RESIZE"] = "spawn"
            environment["KOALA_RANK_SHELL"] = SPAWNING_RANK_SHELL
            environment["KOALA_SPAWN_FD"] = str(SPAWN_DESCRIPTOR)
        # mpiexec has the time limit, and processes of MPI jobs are not relayed.
        bare = replace(process.launch, time_limit=None, relayed=False, forwards=())
        return replace(process, launch=replace(bare, argv=command, environment=tuple(environment.items())))


def mpiexec_command(ranks: Sequence[Rank], shell: str = RANK_SHELL) -> tuple[str, ...]:
    """Return the mpiexec command for an application: a made-up host for each rank, a section for each component.

    The sections differ in nothing but their size; they give each component its own MPI_APPNUM (MPI standard, 11.10.3).
    """
    hosts = ",".join(f"koala{rank.rank}" for rank in ranks)
    command = ["mpiexec.hydra", "-launcher", "manual", "-disable-hostname-propagation", "-genvnone"]
    command += ["-localhost", ranks[0].address or ranks[0].host, "-hosts", hosts]
    for number, (_, of_component) in enumerate(groupby(ranks, key=lambda rank: rank.component)):
        separator = [":"] if number else []
        count = str(sum(1 for _ in of_component))
        command += [*separator, "-wdir", "/", "-n", count, "sh", "-c", shell, "koala-rank"]
    return tuple(command)


def _shell_end(status: int) -> TaskEnd:
    if SIGNAL_BASE < status <= SIGNAL_BASE + LARGEST_SIGNAL:
        return TaskEnd(reason=EndReason.SIGNALLED, signal=status - SIGNAL_BASE)
    return TaskEnd(reason=EndReason.EXITED, exit_code=status)


# -- MPI programs whose processes are spawned one at a time --------------------------------------------------
# Runner ``adaptive`` of launcher ``mpi``. mpiexec starts the first process alone. That one speaks with koala for all of
# them and spawns the others, so that each has an MPI_COMM_WORLD of its own: processes that share one cannot leave
# alone, as MPI_Finalize waits for all of them. So the change comes before the newcomers: their placeholders are held,
# and get mpiexec's proxies when the program spawns.


class AdaptiveMpiRunner(AdaptiveRunner):
    """Runner that starts mpiexec and the first process; others are spawned by the program."""

    def __init__(self, application: Application) -> None:
        super().__init__(application)
        self._mpi = MpiRunner(application, spawns=True)

    def launches_in(self, rank: Rank) -> Sequence[AddressedLaunch]:
        return [self._speaking(one) for one in self._mpi.launches_in(rank)]

    def grow(self, application: Application, ranks: Collection[int]) -> Sequence[AddressedLaunch]:
        """Add new ranks; their processes are started when the program spawns them."""
        del ranks
        self.application = self._mpi.application = application
        return ()

    def output_of(self, task: str, stream: str, offset: int, data: bytes, now: float) -> Reaction:
        reaction = self._mpi.output_of(task, stream, offset, data, now)
        return replace(reaction, launches=tuple(self._speaking(one) for one in reaction.launches))

    def ended(self, task: str, end: TaskEnd, now: float) -> Sequence[Event]:
        return self._mpi.ended(task, end, now)

    def _speaking(self, one: AddressedLaunch) -> AddressedLaunch:
        """Give processes a link to koala, although only the first one uses it."""
        if one.launch.task.endswith(f":{LAUNCHER_TASK}"):
            return one
        return replace(one, launch=replace(one.launch, application=True, library=self.application.library))
