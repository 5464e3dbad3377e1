# SPDX-License-Identifier: Apache-2.0
"""Scenarios of negotiation played on live clusters, for ``koala experiment``.

First the jobs of a scenario and what the program of one has printed, then the stage on which scenarios are played.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koala_adapter.cli.innerservice import inner_service
from koala_adapter.errors import KoalaError, SimulationError
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import ClusterName, Component, InputFile, Job, JobId, JobKind, RunnerName
from koala_adapter.outcome import JobState
from koala_adapter.simulation.platform import ClusterModel
from koala_experiments.framework import ALL, Played, Said, Scenario
from koala_experiments.liveruns import SEEN, live_session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from koala_adapter.api.client import Client
    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.report.sitevalues import ClusterReport, NegotiationReport
    from koala_adapter.report.values import JobReport
    from koala_experiments.framework import Pace


# -- Jobs of a scenario --------------------------------------------------------------------------------------
# And what the program of one has printed.

STEPPER = Path(__file__).with_name("stepper.py")
COMPONENT = "steps"
WALLTIME = 3600
LONGEST = 100.0
"""Seconds, but for delays, that the application computes where it never comes to its goal."""


def application(scenario: Scenario, pace: Pace, *, user: str, anywhere: bool, gate: Path | None = None) -> Job:
    """Return the job of a scenario's application.

    ``anywhere``: it may grow on other clusters than that of its beginning. ``gate``: a file, which its processes see,
    too; it asks for nothing before that is there.
    """
    most = max(pace.steps, round(LONGEST * scenario.initial / pace.work))
    gates = () if gate is None else (gate,)
    arguments = (pace.steps, pace.work, scenario.sizes, scenario.wish, scenario.goal, most, *gates)
    component = Component(
        name=COMPONENT,
        command=("python3", STEPPER.name, *(str(one) for one in arguments)),
        minimum=scenario.initial,
        maximum=scenario.maximum,
        initial=scenario.initial,
        flexible=anywhere,
        input_files=(InputFile(source=str(STEPPER), target=STEPPER.name),),
    )
    return _job(scenario.name, component, user, RunnerName.ADAPTIVE)


def rigid(processors: int, seconds: float, *, user: str, cluster: str) -> Job:
    """Return a rigid job that sleeps for ``seconds`` seconds."""
    component = Component(
        name="rigid",
        command=("sleep", f"{seconds:g}"),
        minimum=processors,
        maximum=processors,
        cluster=ClusterName(cluster),
    )
    return _job(f"rigid-{processors}", component, user, RunnerName.RANKS)


def _job(name: str, component: Component, user: str, runner: RunnerName) -> Job:
    return Job(
        id=JobId("0"),
        name=name,
        kind=JobKind.MALLEABLE if runner is RunnerName.ADAPTIVE else JobKind.RIGID,
        components=(component,),
        walltime=WALLTIME,
        user=user,
        submitted_at=0.0,
        runner=runner,
    )


def printed(output: bytes) -> list[list[Any]]:
    """Return the program's complete output lines."""
    return [json.loads(line) for line in output.decode().splitlines(keepends=True) if line.endswith("\n")]


def steps_done(output: bytes) -> int:
    """Return the program's number of steps so far."""
    return max((one[2] for one in printed(output) if one[1] == "step"), default=0)


def played(
    scenario: Scenario,
    output: bytes,
    *,
    begin: float,
    end: float,
    beside: Sequence[tuple[int, float, float]],
    messages: Sequence[Said],
) -> Played:
    """Return the record of a scenario. Times are since the epoch, except those of ``messages``."""
    lines = printed(output)
    sizes = [(at - begin, size) for at, what, *_, size in lines if what in {"begins", "resized"}]
    return Played(
        scenario=scenario,
        sizes=[*sizes, (end - begin, 0)],
        beside=[(processors, since - begin, until - begin) for processors, since, until in beside],
        steps=[(one[0] - begin, one[3]) for one in lines if one[1] == "step"],
        resized=[one[0] - begin for one in lines if one[1] == "resized"],
        messages=messages,
    )


# -- Stage ---------------------------------------------------------------------------------------------------

LOOK = 0.1
"""Seconds between two looks at the jobs."""
PATIENCE = 240.0
"""Seconds in which whatever is waited for must have happened."""
GATE = "may-ask"
"""Name of the file in the service's directory that lets the application ask."""
MALLEABILITY = "egs-repeated"
"""Policy that makes the offers of the scenarios."""
LONG = 3600.0
"""Seconds that a rigid job would run which is ended by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Clusters of a scenario: where the application starts, and where it grows (may be the same)."""

    home: str
    other: str

    @property
    def apart(self) -> bool:
        """Whether the two clusters differ."""
        return self.home != self.other


def play_scenario(scenario: Scenario, pace: Pace, site: str) -> Played:
    """Play a scenario on live clusters; ``site``: path of the site file, empty for local ones. Raises KoalaError."""
    local = ClusterModel(name="local", nodes=ALL)
    with live_session(site, [local], scenario.approach, MALLEABILITY) as (session, interrupts):
        places = Places(home=local.name, other=local.name)
        if site:
            with inner_service(session, interrupts):
                session.client.wait_until_seen(SEEN)
                found = session.client.clusters()
            session.here.config, places = fitted(session.site, found, scenario.initial)
        with inner_service(session, interrupts):
            session.client.wait_until_seen(SEEN)
            gate = None if site else session.directory / GATE
            return Stage(session.client, session.directory, places, gate=gate).play(scenario, pace)


def fitted(site: SiteConfig, found: Sequence[ClusterReport], initial: int) -> tuple[SiteConfig, Places]:
    """Return a site restricted to eight idle processors on one or two clusters, and the places for scenarios.

    ``initial``: of those, as many as the application begins with. Raises SimulationError when there are not so many.
    """
    idle = sorted(((one.available, one.name) for one in found if one.closed is None), reverse=True)
    rest = ALL - initial
    if idle and idle[0][0] >= ALL:
        wanted, places = {idle[0][1]: ALL}, Places(home=idle[0][1], other=idle[0][1])
    elif len(idle) > 1 and idle[0][0] >= rest and idle[1][0] >= initial:
        (_, other), (_, home) = idle[:2]
        wanted, places = {home: initial, other: rest}, Places(home=home, other=other)
    else:
        free = ", ".join(f"{many} on {name}" for many, name in idle) or "none"
        hint = f"{ALL} on one cluster will do, or {rest} and {initial} on two: see `koala clusters`"
        raise SimulationError(f"too few processors can be had: {free}", hint=hint)
    available = {name: many for many, name in idle}
    clusters = tuple(
        one.model_copy(update={"threshold": one.parameters.threshold + available[one.name] - wanted[one.name]})
        for one in site.clusters
        if one.name in wanted
    )
    return site.model_copy(update={"clusters": clusters}), places


class Stage:
    """Service on which scenarios are played one after the other."""

    def __init__(self, client: Client, state: Path, places: Places, *, gate: Path | None = None) -> None:
        """``state``: state directory. ``gate``: a file that nodes can see; None: there is none.

        With it, the application asks only when the service knows what is idle beside it: it may have looked just while
        the application began, and count its processors twice until it looks again.
        """
        self._gate = gate
        self._client = client
        self._state = state
        self._places = places
        self._user = login_name()

    def play(self, scenario: Scenario, pace: Pace) -> Played:
        """Play a scenario and clean up after it, also after an error. Raises KoalaError."""
        submitted: list[str] = []
        begin = time.time()
        try:
            self._begin(scenario, pace, submitted)
            job, *beside = submitted
            self._end_one_by_one(job, beside if len(beside) > 1 else [])
            ended = self._wait(job, lambda one: one.over, "is over")
            for one in beside:
                self._wait(one, lambda report: report.over, "is over")
        finally:
            for one in submitted:
                self._client.cancel(one)
            for one in submitted:
                self._wait(one, lambda report: report.over, "is over")
        if ended.state is not JobState.COMPLETED:
            raise KoalaError(f"{scenario.name} did not complete: {ended.explanation}")
        return played(
            scenario,
            self._output(job),
            begin=begin,
            end=ended.finished_at or begin,
            beside=[_span(self._client.job(one)) for one in beside],
            messages=_messages(self._client.negotiations(job_id=job), begin),
        )

    def _begin(self, scenario: Scenario, pace: Pace, submitted: list[str]) -> None:
        """Submit the application and the other jobs; the application begins when all others run."""
        apart, wait = self._places.apart, "runs"
        seconds = pace.rest if len(scenario.beside) == 1 else LONG
        rest, filler = ALL - scenario.initial, list[str]()
        for many in scenario.beside:
            job = rigid(many, seconds, user=self._user, cluster=self._places.other)
            submitted.append(self._client.submit(job))  # known at once: whatever comes, it is cancelled
        if apart and not scenario.beside:
            # So that it begins where it is to: on the cluster on which most is idle.
            filler.append(self._client.submit(rigid(rest, LONG, user=self._user, cluster=self._places.other)))
            submitted.extend(filler)
        for one in submitted:
            self._wait(one, lambda report: report.state is JobState.RUNNING, wait)
        if self._gate is not None:
            self._gate.unlink(missing_ok=True)
        told = application(scenario, pace, user=self._user, anywhere=apart, gate=self._gate)
        submitted.insert(0, self._client.submit(told))
        self._wait(submitted[0], lambda report: report.state is JobState.RUNNING, wait)
        for one in filler:
            self._client.cancel(one)
            submitted.remove(one)
        if self._gate is not None:
            if scenario.wish:
                self._until(lambda: self._idle() == rest, f"{rest} processors are seen to be idle")
            self._gate.touch()

    def _idle(self) -> int:
        """Return the number of idle processors."""
        here = {self._places.home, self._places.other}
        return sum(one.available for one in self._client.clusters() if one.name in here)

    def _end_one_by_one(self, job: str, beside: list[str]) -> None:
        """End the rigid jobs singly, each after the application has declined the last freed processors."""
        for number, one in enumerate(beside):
            self._until(lambda: steps_done(self._output(job)) > 1, f"job {job} computes")
            self._until(lambda number=number: self._declined(job) >= number, f"job {job} declines")  # type: ignore[misc]
            self._client.cancel(one)
            self._wait(one, lambda report: report.over, "is over")

    def _declined(self, job: str) -> int:
        reports = self._client.negotiations(job_id=job)
        return max((one.asked for one in reports if one.state == "rejected"), default=0)

    def _output(self, job: str) -> bytes:
        path = self._state / "jobs" / job / COMPONENT / "0.out"
        return path.read_bytes() if path.exists() else b""

    def _wait(self, job: str, true: Callable[[JobReport], bool], what: str) -> JobReport:
        found: list[JobReport] = []

        def met() -> bool:
            found[:] = [self._client.job(JobId(job))]
            if found[0].over and not true(found[0]):
                raise KoalaError(f"job {job} ended too early: {found[0].explanation}")
            return true(found[0])

        self._until(met, f"job {job} {what}")
        return found[0]

    @staticmethod
    def _until(true: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > until:
                raise KoalaError(f"gave up waiting until {what}", hint="is the machine very busy?")
            time.sleep(LOOK)


def _span(report: JobReport) -> tuple[int, float, float]:
    processors = sum(one.processors for one in report.components)
    return processors, report.launched_at or report.submitted_at, report.finished_at or report.reported_at


def _messages(reports: list[NegotiationReport], begin: float) -> list[Said]:
    return [
        Said(
            negotiation=report.number,
            at=one.at - begin,
            sender=one.sender,
            status=one.status,
            processors=one.processors,
            reason=one.reason,
            template=one.template,
        )
        for report in reports
        for one in report.messages
    ]
