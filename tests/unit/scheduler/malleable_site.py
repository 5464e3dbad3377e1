# SPDX-License-Identifier: Apache-2.0
"""A site for tests of malleable jobs: applications that answer, placeholders that come and go at once when told so."""

from __future__ import annotations

from dataclasses import replace

from koala_adapter.model import Component, Job, JobId, JobKind, PlaceholderId, RunnerName
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import Action, GrantProcessors, OfferProcessors, RequestProcessors, TakeProcessors
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.parameters import Approach, ClusterParameters, Parameters
from koala_adapter.scheduler.sizechange import Change
from tests.unit.scheduler.scheduler_site import A, B, Site, component, job, of_kind


def malleable(id_: str, *components: Component, initial: int | None = None, walltime: int = 600) -> Job:
    """Return a malleable job whose components start on ``initial`` processors (None: their minimum)."""
    made = job(id_, *(replace(one, initial=initial) for one in components), walltime=walltime)
    return replace(made, kind=JobKind.MALLEABLE)


def part(minimum: int, maximum: int, cluster: str = "a", name: str = "m") -> Component:
    """Return a component that stays on one cluster."""
    return component(name, minimum, maximum, cluster=cluster)


class MalleableSite(Site):
    """A site with one approach and one malleability policy."""

    def __init__(
        self,
        processors: dict[str, int],
        approach: Approach = Approach.PWA,
        policy: str = "egs-repeated",
        clusters: tuple[ClusterParameters, ...] = (),
        policies: Policies = OWN,
        *,
        grow_pause: float = 0.0,
        shrink_pause: float = 0.0,
        largest_change: int | None = None,
    ) -> None:
        parameters = Parameters(
            approach=approach,
            malleability_policy=policy,
            grow_pause=grow_pause,
            shrink_pause=shrink_pause,
            largest_change=largest_change,
        )
        super().__init__(processors, parameters, *clusters, policies=policies)

    def sizes(self, id_: str) -> list[int]:
        return [claim.processors for claim in self.record(id_).claims]

    def answer(self, message: OfferProcessors | RequestProcessors, accepted: int | None = None) -> list[Action]:
        """Answer a message of the scheduler, by all it asks for unless told otherwise."""
        accepted = message.processors if accepted is None else accepted
        return self.post(
            ev.OfferAnswered(time=self.now, job_id=message.job_id, number=message.number, accepted=accepted)
        )

    def release(self, id_: str, count: int, component_name: str | None = None) -> list[Action]:
        """Have an application give up the last processors of its (first) component."""
        claims = self.record(id_).claims
        claim = next(one for one in claims if component_name in {None, one.component})
        return self.release_these(id_, *claim.placeholders[-count:])

    def release_these(self, id_: str, *placeholders: PlaceholderId) -> list[Action]:
        """Have an application give up some processors."""
        return self.post(ev.ProcessorsReleased(time=self.now, job_id=JobId(id_), placeholders=placeholders))

    def ask(
        self, id_: str, processors: int, *, mandatory: bool = False, number: int = 1, component_name: str = "m"
    ) -> list[Action]:
        return self.post(
            ev.MoreRequested(
                time=self.now,
                job_id=JobId(id_),
                component=component_name,
                number=number,
                processors=processors,
                mandatory=mandatory,
            )
        )

    def want(self, processors: int, name: str = "m", id_: str = "1") -> list[Action]:
        """Have the owner of a job want a size."""
        return self.post(ev.SizeWanted(time=self.now, job_id=JobId(id_), component=name, processors=processors))

    def stubs(self) -> list[PlaceholderId]:
        """Return all placeholders that are gathered for applications."""
        return [p.id for p in self.state.placeholders.values() if p.stub]

    def hold_stubs(self) -> list[Action]:
        """Have the LRMs take, and the agents hold, all that is gathered."""
        self.take_all()
        return [action for stub in self.stubs() for action in self.hold(stub)]

    def take(self, message: TakeProcessors) -> list[Action]:
        done: list[Action] = []
        for rank in message.ranks:
            done += self.post(ev.RankStarted(time=self.now, job_id=message.job_id, rank=rank.rank))
        return done

    def grow_by(self, message: OfferProcessors, accepted: int | None = None) -> list[Action]:
        """Carry a growth through, from the answer to the last process."""
        self.answer(message, accepted)
        done: list[Action] = []
        for taking in of_kind(TakeProcessors, self.hold_stubs()):
            done += self.take(taking)
        return done

    def shrink_by(self, message: RequestProcessors, accepted: int | None = None) -> list[Action]:
        """Carry a release through, up to the end of the placeholders in their LRM."""
        self.answer(message, accepted)
        before = len(self.actions)
        self.release(message.job_id, message.processors if accepted is None else accepted, message.component)
        self.end_ending()
        return self.actions[before:]


def offers(actions: list[Action]) -> list[tuple[str, int]]:
    """Return who is offered how much."""
    return [(one.job_id, one.processors) for one in of_kind(OfferProcessors, actions)]


def requests(actions: list[Action]) -> list[tuple[str, int]]:
    """Return who is asked to give up how much."""
    return [(one.job_id, one.processors) for one in of_kind(RequestProcessors, actions)]


def granted(actions: list[Action]) -> list[tuple[str, int, str]]:
    """Return what applications that asked for more get, and why not more."""
    return [(one.job_id, one.processors, one.reason) for one in of_kind(GrantProcessors, actions)]


def is_running(site: Site, id_: str) -> bool:
    return site.record(id_).state is JobState.RUNNING


class AdaptiveSite(MalleableSite):
    """A site with adaptive jobs."""

    def begin(self, id_: str = "1", *, initial: int = 2, most: int = 6, warn_before: int = 0) -> list[Action]:
        job_ = malleable(id_, part(1, most), initial=initial)
        return self.start(replace(job_, runner=RunnerName.ADAPTIVE, warn_before=warn_before))

    def change(self, id_: str = "1") -> Change:
        """Return the change that is under way."""
        (found,) = self.record(id_).changes.values()
        return found

    def reach(self, *leaving: int, id_: str = "1", number: int | None = None) -> list[Action]:
        """Have all processes stand at the point."""
        return self.post(
            ev.PointReached(
                time=self.now,
                job_id=JobId(id_),
                number=self.change(id_).number if number is None else number,
                adaptation=1,
                point=17,
                leaving=leaving,
            )
        )

    def answer_number(self, number: int, accepted: int, id_: str = "1") -> list[Action]:
        return self.post(ev.OfferAnswered(time=self.now, job_id=JobId(id_), number=number, accepted=accepted))

    def made(self, id_: str = "1", number: int | None = None) -> list[Action]:
        """Have all processes be done."""
        number = self.change(id_).number if number is None else number
        return self.post(ev.ChangeMade(time=self.now, job_id=JobId(id_), number=number))

    def give_up(self, id_: str = "1") -> list[Action]:
        """Have the processes not be brought to it."""
        event = ev.ChangeGivenUp(time=self.now, job_id=JobId(id_), number=self.change(id_).number, reason="too late")
        return self.post(event)

    def wish(
        self, processors: int, *, mandatory: bool = False, id_: str = "1", number: int = 1
    ) -> list[tuple[str, int, str]]:
        """Have a process ask for more; return the answers."""
        actions = self.post(
            ev.MoreRequested(
                time=self.now,
                job_id=JobId(id_),
                component="m",
                number=number,
                processors=processors,
                mandatory=mandatory,
                agreement=f"0-{number}",
                rank=0,
            )
        )
        return granted(actions)

    def give_back(self, processors: int, id_: str = "1") -> list[GrantProcessors]:
        """Have a process give processors back; return the answers."""
        event = ev.LessRequested(
            time=self.now, job_id=JobId(id_), component="m", processors=processors, agreement="0-9", rank=0
        )
        return of_kind(GrantProcessors, self.post(event))


BOTH = {"a": 5, "b": 3}


class JointSite(AdaptiveSite):
    """A flexible adaptive job of two processes on cluster a, with three idle processors there and on b."""

    def __init__(self, processors: dict[str, int] | None = None, *, most: int = 20, **memory: int) -> None:
        """``memory``: limits of the clusters."""
        own = [ClusterParameters(name=name, memory_limit=memory.get(name)) for name in (A, B)]
        self.sizes_of = BOTH if processors is None else processors
        super().__init__(self.sizes_of, Approach.NONE, clusters=tuple(own))
        flexible = replace(component("m", 1, most), flexible=True)
        made = malleable("1", flexible, initial=2, walltime=90_000)
        self.poll("b", self.sizes_of["b"], idle=0)  # so that it begins on a
        self.start(replace(made, runner=RunnerName.ADAPTIVE, placement="worst-fit"))
        self.poll("b", self.sizes_of["b"])
        assert self.held == {"a": 2, "b": 0}

    @property
    def held(self) -> dict[str | None, int]:
        return {one.cluster: one.processors for one in self.record("1").claims}

    @property
    def changes(self) -> list[Change]:
        return list(self.record("1").changes.values())

    @property
    def parts(self) -> dict[str | None, int]:
        """Return the processors that were accepted of what is under way, by cluster."""
        parts = (part for change in self.changes for part in change.parts)
        return {self.record("1").claims[part.claim].cluster: part.accepted for part in parts}

    def demand(self, processors: int, number: int = 1, **more: object) -> GrantProcessors:
        """Have the application ask for more, and return the answer."""
        event = ev.MoreRequested(
            time=self.now, job_id=JobId("1"), component="m", number=number, processors=processors,
            agreement=f"0-{number}", rank=0, **more,  # type: ignore[arg-type]
        )  # fmt: skip
        (answer,) = of_kind(GrantProcessors, self.post(event))
        return answer

    def all_started(self, actions: list[Action]) -> list[TakeProcessors]:
        """Start the newcomers; return what they were started for."""
        taken = of_kind(TakeProcessors, actions)
        for one in taken:
            self.take(one)
        return taken

    def stub_on(self, cluster: str) -> PlaceholderId:
        """Return a placeholder that is gathered on a cluster."""
        return next(one for one in self.stubs() if self.state.placeholders[one].cluster == cluster)

    def fails(self, cluster: str, *, rejected: bool = False) -> list[Action]:
        """Have the latest submission to a cluster not arrive, or be refused."""
        batch = max(one.key for one in self.state.batches.values() if one.cluster == cluster)
        kind = ev.BatchRejected if rejected else ev.BatchAbsent
        return self.post(kind(time=self.now, batch=batch, reason="no answer"))

    def idle_again(self) -> None:
        """Expect the job as it was, and nothing kept, gathered or left over for it."""
        assert self.changes == []
        assert self.held == {"a": 2, "b": 0}
        self.end_ending()
        for cluster in self.state.clusters.values():
            assert (cluster.offered, cluster.gathering) == (0, 0)
        assert len(self.state.placeholders) == 2
