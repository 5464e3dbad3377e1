# SPDX-License-Identifier: Apache-2.0
"""Do the steps of a plan on a stage, and note to which jobs what happened."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from koala_adapter.api.statedirectory import JOURNAL_NAME, socket_path
from koala_adapter.errors import JournalBlockedError
from koala_adapter.outcome import LAUNCHED_STATES
from koala_adapter.service.journal import Journal
from tests.real.chaos.checks import Consequence
from tests.real.chaos.plan import Deed
from tests.real.chaos.stage import agents, ranks
from tests.real.lrms import LOCAL, submit_array
from tests.real.systems import CommandError
from tests.real.systems.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.real.chaos.plan import Plan, Step
    from tests.real.chaos.stage import Agent, Stage

T = TypeVar("T")

LOOKS = 0.5
"""Most seconds between two looks at the jobs."""
YOUNG = 15.0
"""Seconds for which a Slurm controller may forget, when it is killed, that a job was submitted or started."""
LONGEST_SUBMISSION = 0.05
"""Seconds within which a submission is under way."""
EXIT_CONFIGURATION = 245
NONSENSE = (
    b"\n",
    b"{}\n",
    b'{"operation": "submit", "job": {"components": 7}}\n',
    b'{"operation": "resize", "job_id": "1", "processors": -9}\n',
    b'{"operation": "watch", "job_id": "none"}\n',
    b"[" * 100_000 + b"\n",
    b"\xff\xfe" * 1000,
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)
"""What no peer of ours says."""


def act(plan: Plan, stage: Stage, *, mpi_program: Path, tell: Callable[[str], None]) -> None:
    """Do all steps of a plan, each at its time or as soon after it as the one before is done."""
    actors = Actors(stage, mpi_program)
    for step in plan.steps:
        while (left := step.at - stage.now()) > 0:
            stage.look()
            time.sleep(min(LOOKS, max(0.0, left)))
        stage.look()
        done = actors.do(step)
        tell(f"{stage.now():6.1f} s  {'end of: ' if step.undo else ''}{step.deed}: {done}")


def chosen(candidates: Sequence[T], choice: float) -> T | None:
    """Return the candidate to which a number from 0 to 1 points; None when there is none."""
    return candidates[min(int(choice * len(candidates)), len(candidates) - 1)] if candidates else None


class Actors:
    """Does single steps."""

    def __init__(self, stage: Stage, mpi_program: Path) -> None:
        """``mpi_program``: what ranks under MPI run."""
        self._stage = stage
        self._mpi_program = mpi_program
        self._stopped: dict[int, int] = {}
        """Process (or, negative, group) that a fault has stopped, by its number."""
        self._starved: dict[int, tuple[Agent, int]] = {}
        """Agent that can open nothing, and how many files it may have open otherwise, by the number of the fault."""
        self._deeds: dict[Deed, Callable[[Step], str]] = {
            Deed.SUBMIT: self._submit,
            Deed.CANCEL: self._cancel,
            Deed.CANCEL_BEHIND: self._cancel_behind,
            Deed.CANCEL_BATCH_BEHIND: self._cancel_behind,
            Deed.LOCAL_JOB: self._local_job,
            Deed.KILL_SERVICE: self._kill_service,
            Deed.STOP_SERVICE: self._stop_service,
            Deed.END_SERVICE: self._end_service,
            Deed.NONSENSE: self._nonsense,
            Deed.RELOAD: self._reload,
            Deed.KILL_WHILE_SUBMITTING: self._kill_while_submitting,
            Deed.FULL_DISK: self._fill_disk,
            Deed.EMPTY_JOURNAL: self._empty_journal,
            Deed.KILL_CONTROLLER: self._kill_controller,
            Deed.STOP_CONTROLLER: self._stop_controller,
            Deed.KILL_NODE_DAEMON: self._kill_node,
            Deed.STOP_NODE_DAEMON: self._stop_node_daemon,
            Deed.KILL_NODE: self._kill_node,
            Deed.KILL_AGENT: self._hit_agent,
            Deed.STOP_AGENT: self._hit_agent,
            Deed.STARVE_AGENT: self._starve_agent,
            Deed.KILL_RANK: self._hit_rank,
            Deed.STOP_RANK: self._hit_rank,
        }

    def do(self, step: Step) -> str:
        """Do a step and say what was done."""
        return self._deeds[step.deed](step)

    # -- users -------------------------------------------------------------------------------------------------------

    def _submit(self, step: Step) -> str:
        if step.job is None:
            raise AssertionError("nothing to be submitted")
        return f"{step.job.name} ({step.job.end}): {self._stage.submit(step.job, self._mpi_program)}"

    def _cancel(self, step: Step) -> str:
        target = chosen(self._stage.unfinished(), step.choice)
        if target is None:
            return "there is no job"
        self._stage.histories[target.id].hit("koala cancel", Consequence.CANCELLED)
        self._stage.user.client.cancel(target.id)
        return f"job {target.id}, {target.state}"

    def _cancel_behind(self, step: Step) -> str:
        ids = sorted(
            lrm_id
            for report in self._stage.unfinished()
            for component in report.components
            if component.cluster == step.cluster
            for lrm_id in component.lrm_ids
        )
        target = chosen(ids, step.choice)
        if target is None:
            return f"there is no placeholder on {step.cluster}"
        slurm = step.cluster in self._stage.slurm
        whole = step.deed is Deed.CANCEL_BATCH_BEHIND
        if whole:
            target = target.partition("_" if slurm else ".")[0]
        hit = [one for one in ids if one == target or (whole and one.startswith((f"{target}_", f"{target}.")))]
        self._command(step.cluster, "scancel" if slurm else "qdel", target)
        self._happened(
            self._jobs_of((step.cluster, one) for one in hit), "placeholder cancelled", Consequence.CANCELLED
        )
        return f"{target} on {step.cluster}"

    def _local_job(self, step: Step) -> str:
        script = f"#!/bin/sh\nexec sleep {step.seconds:g}\n"
        try:
            submit_array(self._stage.system(step.cluster), LOCAL, step.processors, script=script)
        except (CommandError, subprocess.TimeoutExpired) as error:
            return f"not taken: {error}"
        return f"{step.processors} processors of {step.cluster} for {step.seconds:g} s"

    def _command(self, cluster: str, *argv: str) -> None:
        # A controller that has just come back may not know the job yet: then nothing happens to it.
        with suppress(subprocess.TimeoutExpired):
            self._stage.system(cluster).run(*argv, check=False)

    # -- the service -------------------------------------------------------------------------------------------------

    def _kill_service(self, step: Step) -> str:
        if step.undo:
            self._stage.user.serve()
            return "started"
        # A command that finds no service is the service itself: that is not what is to be tried here.
        self._stage.wait_submitted()
        self._stage.user.kill()
        return "killed"

    def _stop_service(self, step: Step) -> str:
        if step.undo:
            self._stage.let_service_go_on()
            return "goes on"
        self._stage.stop_service()
        return "stopped"

    def _end_service(self, step: Step) -> str:
        """Law: it ends with code 0, whatever it is at, and nothing in its log is an error of its own."""
        if step.undo:
            self._stage.user.serve()
            return "started"
        self._stage.wait_submitted()
        self._stage.user.stop()
        return "ended"

    def _nonsense(self, step: Step) -> str:
        """Law: what a peer says costs that connection, and the same service answers afterwards."""
        client = self._stage.user.client
        before = client.pid()
        said = NONSENSE[int(step.choice * len(NONSENSE)) % len(NONSENSE)]
        with Journal(client.directory / JOURNAL_NAME, read_only=True) as journal:
            port = int(journal.value("port") or "0")
        own: tuple[int, str] = (socket.AF_UNIX, str(socket_path(client.directory)))
        center: tuple[int, tuple[str, int]] = (socket.AF_INET, ("127.0.0.1", port))
        for family, address in (own, center):
            with socket.socket(family, socket.SOCK_STREAM) as peer, suppress(OSError):
                peer.settimeout(LOOKS)
                peer.connect(address)
                peer.sendall(said)
                peer.recv(65_536)
        if before is None or client.pid() != before:
            self._stage.troubles.append(f"after {said[:60]!r} service {before} does not answer any more")
        return f"{said[:60]!r}"

    def _reload(self, step: Step) -> str:
        """Law: a valid file is taken up, another one refused, and the service goes on in either case."""
        user = self._stage.user
        before, good = user.site.read_text(), step.choice < 0.5
        if good:
            user.site.write_text(f"{before}\n# changed by step {step.number}\n")
        else:
            user.site.write_text(f"{before}\n[[clusters]]\nname = 3\n")
        result = user.run_apart("serve", "--reload")
        if not good:
            user.site.write_text(before)
        if result.code != (0 if good else EXIT_CONFIGURATION):
            self._stage.troubles.append(f"a {'good' if good else 'bad'} site file: {result.code}, {result.stderr}")
        return "taken up" if good else "refused"

    def _kill_while_submitting(self, step: Step) -> str:
        """Law: the client sends again what was not answered, and there is one job of that name."""
        stage = self._stage
        planned = step.job
        if planned is None:
            raise AssertionError("nothing to be submitted")
        stage.wait_submitted()
        told: list[str] = []
        submitting = threading.Thread(target=lambda: told.append(stage.submit(planned, self._mpi_program)))
        submitting.start()
        submitting.join(step.choice * LONGEST_SUBMISSION)
        stage.user.kill()
        stage.user.serve()
        submitting.join(PATIENCE)
        stage.look()
        named = [id_ for id_, history in stage.histories.items() if history.planned.name == planned.name]
        if len(told) != 1 or len(named) != 1:
            stage.troubles.append(f"{planned.name} was submitted once, and is {named or 'no job'}; told: {told}")
        return f"{planned.name}: {told}"

    def _fill_disk(self, step: Step) -> str:
        """Law: the service goes on, decides nothing meanwhile, and loses nothing that it was told."""
        service = self._stage.user.service
        if service is None:
            return "there is no service"
        if not step.undo:
            self._stage.wait_submitted()
        # A limit on the size of its files stands for a full disk; what it has started before has room.
        _, hard = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY if step.undo else 0, hard))
        if not step.undo:
            return "full"
        wait_until(self._takes_changes, seconds=PATIENCE, what="the journal is written again")
        return "there is room again"

    def _takes_changes(self) -> bool:
        client = self._stage.user.client
        for report in client.jobs(limit=1):
            if report.outcome is None:
                return "journal" not in report.trouble
            try:
                client.cancel(report.id)  # it has ended, and is left as it is
            except JournalBlockedError:
                return False
        return True

    def _empty_journal(self, step: Step) -> str:
        """Law: a new service has other numbers, changes no file of a job of before, and all placeholders end."""
        stage = self._stage
        stage.wait_submitted()
        stage.look()
        stage.user.kill()
        journal = stage.user.state / JOURNAL_NAME
        emptied = step.choice < 0.5
        for path in journal.parent.glob(f"{JOURNAL_NAME}*"):
            path.unlink()
        if emptied:
            journal.touch(mode=0o600)
        forgotten = stage.forget()
        stage.user.serve()
        return f"{'emptied' if emptied else 'lost'}; jobs {', '.join(forgotten) or 'none'} are forgotten"

    # -- batch systems -----------------------------------------------------------------------------------------------

    def _kill_controller(self, step: Step) -> str:
        stage = self._stage
        slurm = stage.slurm.get(step.cluster)
        if step.undo:
            start = stage.cell.start_qmaster if slurm is None else slurm.start_controller
            start()
            stage.away.discard(step.cluster)
            return f"that of {step.cluster} started"
        stage.away.add(step.cluster)
        if slurm is None:
            stage.execd_is_late = True
            stage.cell.stop_qmaster(how=signal.SIGKILL)
            return f"that of {step.cluster} killed"
        slurm.stop_controller(how=signal.SIGKILL)
        young = [
            report.id
            for report in stage.unfinished()
            if any(component.cluster in {step.cluster, None} for component in report.components)
            and (report.launched_at is None or time.time() - report.launched_at < YOUNG)
        ]
        for id_ in young:
            stage.histories[id_].hit("controller killed", Consequence.LOST, Consequence.CANCELLED)
        return f"that of {step.cluster} killed; placeholders of jobs {young} may be forgotten"

    def _stop_controller(self, step: Step) -> str:
        how = signal.SIGCONT if step.undo else signal.SIGSTOP
        (self._stage.away.discard if step.undo else self._stage.away.add)(step.cluster)
        slurm = self._stage.slurm.get(step.cluster)
        (self._stage.cell.signal_qmaster if slurm is None else slurm.signal_controller)(how)
        return f"that of {step.cluster}"

    def _kill_node(self, step: Step) -> str:
        stage = self._stage
        slurm = stage.slurm.get(step.cluster)
        with_jobs = step.deed is Deed.KILL_NODE
        if step.undo:
            if slurm is None:
                stage.cell.start_execd()
            else:
                slurm.start_node(step.node)
            return f"{step.cluster}/{step.node} started"
        there = [agent for agent in agents(stage.systems) if (agent.cluster, agent.node) == (step.cluster, step.node)]
        if slurm is None:
            stage.cell.kill_execd(with_jobs=with_jobs)
        else:
            slurm.kill_node(step.node, with_jobs=with_jobs)
        if with_jobs:
            stage.clear_temporary(step.cluster, step.node)
            self._happened(self._jobs_of_agents(there), "node killed", Consequence.LOST)
        return f"{step.cluster}/{step.node}, {len(there)} agents"

    def _stop_node_daemon(self, step: Step) -> str:
        how = signal.SIGCONT if step.undo else signal.SIGSTOP
        slurm = self._stage.slurm.get(step.cluster)
        if slurm is None:
            self._stage.cell.signal_execd(how)
        else:
            slurm.signal_node(step.node, how)
        return f"{step.cluster}/{step.node}"

    # -- agents and ranks --------------------------------------------------------------------------------------------

    def _hit_agent(self, step: Step) -> str:
        if step.undo:
            return self._go_on(step)
        agent = chosen(agents(self._stage.systems), step.choice)
        if agent is None:
            return "there is no agent"
        job = self._jobs_of_agents([agent])
        if step.deed is Deed.KILL_AGENT:
            with suppress(ProcessLookupError):
                os.kill(agent.pid, signal.SIGKILL)
            self._happened(job, "agent killed", Consequence.LOST)
        else:
            self._stop(step, agent.pid)
        return f"{agent.lrm_id} on {agent.cluster}, of job {', '.join(job) or 'none'}"

    def _starve_agent(self, step: Step) -> str:
        """Law: a process that it cannot start ends its job, with the reason; what runs goes on."""
        if step.undo:
            agent, limit = self._starved.pop(step.number, (None, 0))
        else:
            agent, limit = chosen(agents(self._stage.systems), step.choice), 0
        if agent is None:
            return "there is no agent"
        with suppress(ProcessLookupError, FileNotFoundError):
            soft, hard = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
            if not step.undo:
                self._starved[step.number] = agent, soft
                limit = 1 + max(int(path.name) for path in Path(f"/proc/{agent.pid}/fd").iterdir())
            resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (limit, hard))
        # Its placeholder may have gone from one job to the next meanwhile.
        jobs = [
            report.id
            for report in self._stage.reports.values()
            for component in report.components
            if component.cluster == agent.cluster and agent.lrm_id in component.lrm_ids
        ]
        for job in jobs:
            self._stage.histories[job].hit("its agent could start no process", Consequence.NOT_STARTED)
        return f"{agent.lrm_id} on {agent.cluster}, of job {', '.join(jobs) or 'none'}"

    def _hit_rank(self, step: Step) -> str:
        if step.undo:
            return self._go_on(step)
        rank = chosen(ranks(self._stage.traces.mark), step.choice)
        if rank is None:
            return "there is no rank"
        if step.deed is Deed.KILL_RANK:
            if rank.job in self._stage.histories:  # else it is of a job that was forgotten
                self._stage.histories[rank.job].hit(f"rank {rank.rank} killed", Consequence.RANK_KILLED)
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGKILL)
        else:
            self._stop(step, -rank.pid if rank.leads_its_group else rank.pid)
        return f"rank {rank.rank} of job {rank.job}"

    def _stop(self, step: Step, pid: int) -> None:
        self._stopped[step.number] = pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

    def _go_on(self, step: Step) -> str:
        pid = self._stopped.pop(step.number, None)
        if pid is None:
            return "none was stopped"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        return "goes on"

    # -- consequences ------------------------------------------------------------------------------------------------

    def _jobs_of_agents(self, hit: Iterable[Agent]) -> list[str]:
        return self._jobs_of((agent.cluster, agent.lrm_id) for agent in hit)

    def _jobs_of(self, placeholders: Iterable[tuple[str, str]]) -> list[str]:
        jobs = {self._stage.job_of(cluster, lrm_id) for cluster, lrm_id in placeholders}
        return sorted(job for job in jobs if job is not None)

    def _happened(self, jobs: Iterable[str], what: str, consequence: Consequence) -> None:
        """Note what was done to placeholders of jobs: it is the end of those alone whose ranks are started."""
        before = {job: self._stage.reports[job] for job in jobs}
        # A service that cannot be asked may have started more than was seen of it last.
        unseen = self._stage.service_hangs or self._stage.user.service is None
        self._stage.look()
        for job, report in before.items():
            if unseen or {report.state, self._stage.reports[job].state} & LAUNCHED_STATES:
                self._stage.histories[job].hit(what, consequence)
