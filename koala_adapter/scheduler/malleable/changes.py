# SPDX-License-Identifier: Apache-2.0
"""Changes of size of running jobs, each from its offer to its end.

``Changes`` has all that can happen to the changes of one job: growing, as in KOALA's MRunner (CoreGRID TR-0092), where
the application keeps running until *all* processors that it accepted are held, and only then takes them in; shrinking,
where the application gives processors up, then the LRM gets them; and adapting, where all processes of a component
change together. In order: growing, shrinking, adapting, answers and time-outs, the ends of a change, then what happens
to a job that begins to run, and the handlers of events.

Until all processes stand at the point of a change it can be given up without effect: newcomers are ended again and no
process leaves. From then on it is carried out, and the loss of a process is the loss of the job, as of a rigid one.
When all have said that they are done, newcomers belong to the job, and those that leave may end, each by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.outcome import COMPLETED, JobState, PlaceholderState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import TakeProcessors, WithdrawOffer
from koala_adapter.scheduler.claiming.claims import end_placeholder, launch_in, submit_batch
from koala_adapter.scheduler.claiming.connections import doubts, must_connect
from koala_adapter.scheduler.context import SHORTEST_PAUSE, closed_reason
from koala_adapter.scheduler.malleable import steps
from koala_adapter.scheduler.malleable.policies import Direction
from koala_adapter.scheduler.records import Claim, JobRecord, PlaceholderRecord
from koala_adapter.scheduler.sizechange import Change, ChangePhase, Part
from koala_adapter.scheduler.states import bounds
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from koala_adapter.model import PlaceholderId
    from koala_adapter.scheduler.clusters import ClusterRecord
    from koala_adapter.scheduler.context import Context, Handlers, JobTimers

NEAR_END = "the walltime of the job is near"


class Changes:
    """The changes of size of one running job, while an event is handled."""

    def __init__(self, context: Context, record: JobRecord) -> None:
        self.context = context
        self.record = record

    def claim(self, part: Part) -> Claim:
        """Return the claim of a part."""
        return self.record.claims[part.claim]

    def cluster(self, part: Part) -> ClusterRecord:
        """Return the cluster of a part."""
        return steps.cluster_of(self.context, self.record, part.claim)

    @property
    def time_left(self) -> float:
        """Seconds until the walltime of the job ends."""
        return time_left(self.context, self.record)

    # ---- growing: placeholders are gathered, then become processes of the application -------------------------------

    def gather(self, change: Change, parts: list[Part]) -> bool:
        """Submit placeholders for accepted parts; return False without effect when one has no room.

        What was kept for the change until now counts as room, and what is promised to others, who wait for processors
        that come free.
        """
        for part in parts:
            cluster = self.cluster(part)
            each = self.claim(part).slot_processors
            kept = each * sum(change.kept(one) for one in change.parts if one.claim == part.claim)
            room = cluster.room + kept + steps.promised_on(self.context, cluster)
            if room < part.accepted * each or closed_reason(cluster, self.context.now) is not None:
                return False
        self.move(change, ChangePhase.GATHERING, parts)
        for part in parts:
            part.stubs = self.submit_stubs(part.claim, part.accepted, memory_mib=change.memory_mib)
        steps.abandon_after(self.context, self.record, change, self.context.state.parameters.placeholder_life)
        return True

    def submit_stubs(self, number: int, count: int, *, memory_mib: int = 0) -> list[PlaceholderId]:
        """Submit placeholders for a claim, with the rest of the job's walltime."""
        seconds = self.time_left + self.context.state.parameters.launch_margin
        component, name = self.record.claims[number].component, steps.cluster_of(self.context, self.record, number).name
        return submit_batch(
            self.context, self.record, component, name, count, seconds, stub=True, memory_mib=memory_mib
        )

    def gathering(self, placeholder: PlaceholderRecord) -> tuple[Change, Part] | None:
        """Return the change and part that a placeholder is gathered for; None: there is none."""
        for change in self.record.changes.values():
            for part in change.parts:
                if placeholder.id in part.stubs:
                    return change, part
        return None

    def held(self, placeholder: PlaceholderRecord) -> None:
        """Give the application its new processors once all are held."""
        found = self.gathering(placeholder)
        if found is None:
            return
        change, stubs = found[0], [self.context.state.placeholders[id_] for id_ in found[0].stubs]
        if not all(stub.held for stub in stubs):
            return
        if self.record.state is not JobState.RUNNING or self.record.ends:
            self.give_up(change, "the application is about to end")
        elif any(not stub.lasts(self.context.now, self.time_left) for stub in stubs):
            self.give_up(change, "they would end before the job's walltime does")
        else:
            self.take(change)

    def take(self, change: Change) -> None:
        """Let the application use the placeholders of its growth, all of which are held."""
        for part in change.parts:
            claim = self.claim(part)
            for id_ in part.stubs:
                self.context.state.placeholders[id_].stub = False
            ranks = launch_in(self.context, self.record, claim, part.stubs)
            claim.placeholders += part.stubs
            claim.processors = len(claim.placeholders)
            part.stubs, part.ranks = [], [rank.rank for rank in ranks]
            self.context.effects.add(
                TakeProcessors(
                    job_id=self.record.job.id,
                    component=claim.component,
                    cluster=self.cluster(part).name,
                    number=change.number,
                    ranks=ranks,
                )
            )
        change.due = None
        self.move(change, ChangePhase.TAKING)

    def lost(self, placeholder: PlaceholderRecord) -> None:
        """Give up a growth that has lost a placeholder, unless its submission never arrived.

        koala may have been killed before that was on its way: then it is made once more.
        """
        found = self.gathering(placeholder)
        if found is None:
            return
        change, part = found
        never_arrived = placeholder.id.batch in self.context.never_arrived
        goes_on = self.record.state is JobState.RUNNING and not self.record.ends
        if never_arrived and goes_on and not change.submitted_again and self._has_room_again(part):
            change.submitted_again = True
            part.stubs = self.submit_stubs(part.claim, len(part.stubs), memory_mib=change.memory_mib)
            return
        steps.pause_growth(self.context, self.cluster(part))
        self.give_up(change, why_lost(self.claim(part), placeholder))

    def _has_room_again(self, part: Part) -> bool:
        cluster = self.cluster(part)
        is_open = closed_reason(cluster, self.context.now) is None
        needed = len(part.stubs) * self.claim(part).slot_processors
        return is_open and cluster.room + steps.promised_on(self.context, cluster) >= needed

    def check_taken(self) -> None:
        """End the changes whose new processes have all started."""
        for change in list(self.record.changes.values()):
            if change.phase is ChangePhase.TAKING and self.record.started.issuperset(change.ranks):
                self._over(change)
                for part in change.parts:
                    claim = self.claim(part)
                    if part.ranks:
                        before, waited = claim.processors - len(part.ranks), self._waited(part)
                        self.record.note_size(claim, before, change.reason, self.context.now, waited=waited)
                    seconds = self.context.state.parameters.shrink_pause
                    steps.pause(self.context, self.cluster(part), Direction.SHRINK, seconds)
                steps.wanted_again(self.context, self.record, change.component)

    def _waited(self, part: Part) -> float:
        """Return the seconds since the first placeholders of a growth were submitted; 0 if that is forgotten."""
        came, batches, now = set(part.ranks), self.context.state.batches, self.context.now
        asked = (batches.get(rank.placeholder.batch) for rank in self.record.ranks if rank.rank in came)
        return now - min((batch.submitted_at for batch in asked if batch is not None), default=now)

    # ---- shrinking: the application gives up processors, then the LRM gets them -------------------------------------

    def await_release(self, change: Change, accepted: int) -> None:
        """Wait until the application has given up the processors that it agreed to."""
        (part,) = change.parts
        part.accepted = max(0, min(accepted, self._spare(part.claim)))
        if not part.accepted:
            self._over(change)
            return
        self.move(change, ChangePhase.RELEASING)
        seconds = self.context.state.parameters.release_timeout
        component = self.record.job.component(change.component)
        if self.record.job.adapts(component.name):  # processes that change together have their own time to meet
            seconds = max(seconds, 3.0 * component.point_patience)
        steps.abandon_after(self.context, self.record, change, seconds)

    def _spare(self, number: int) -> int:
        """Return a claim's processors beyond its minimum."""
        claim = self.record.claims[number]
        return claim.processors - bounds(self.record, claim)[0]

    def released(self, placeholders: Collection[PlaceholderId]) -> None:
        """Take back processors that an application no longer uses, down to its minimum."""
        started = {rank.placeholder for rank in self.record.ranks if rank.rank in self.record.started}
        known = self.context.state.placeholders
        launched = {id_ for id_ in started & known.keys() if known[id_].state is PlaceholderState.LAUNCHED}
        for number, claim in enumerate(self.record.claims):
            spare = self._spare(number)
            going = [id_ for id_ in claim.placeholders if id_ in placeholders and id_ in launched][:spare]
            if going:
                self.depart(number, going)
        self.check_done()

    def depart(self, number: int, going: list[PlaceholderId], why: str = "", *, gone: bool = False) -> None:
        """Remove processors of a claim from the job, with their processes.

        ``why``: for people, when they were not asked for. ``gone``: their placeholders end without that.
        """
        record, claim = self.record, self.record.claims[number]
        placeholders = [self.context.state.placeholders[id_] for id_ in going]
        known = (*claim.lrm_ids, *(one.lrm_id for one in placeholders if one.lrm_id))
        claim.lrm_ids = tuple(dict.fromkeys(known))
        self._take_out({rank.rank for rank in record.ranks if rank.placeholder in set(going)})
        record.unclaim(set(going))
        claim.processors -= len(going)
        steps.wanted_again(self.context, record, claim.component)
        for placeholder in () if gone else placeholders:
            end_placeholder(self.context, placeholder)
        self.context.scan_wanted = True
        found = record.part_on(number)
        if found is None or found[0].phase is not ChangePhase.RELEASING:
            before = claim.processors + len(going)
            record.note_size(claim, before, why or "the application gave them back", self.context.now)
        else:
            change, part = found
            part.done += len(going)
            if part.done >= part.accepted or self._spare(number) == 0:
                self._release_over(change)
        self.context.roster.update(record)

    def _take_out(self, ranks: Iterable[int]) -> None:
        """Remove processes from the job's records."""
        for rank in ranks:
            self.record.departed.add(rank)
            self.record.ends.pop(rank, None)

    def _release_over(self, change: Change) -> None:
        """Record what was given up and end the wait for more."""
        (part,) = change.parts
        claim = self.claim(part)
        self.record.note_size(claim, claim.processors + part.done, change.reason, self.context.now)
        self._over(change, -part.done)

    # ---- adapting: all processes change together, at one point of progress ------------------------------------------

    def point_reached(self, change: Change, event: ev.PointReached) -> None:
        """Mark a change as being carried out, after which it cannot be given up."""
        if change.phase is ChangePhase.RELEASING:
            (part,) = change.parts
            claim = self.claim(part)
            mine = {rank.rank for rank in self.record.ranks if rank.placeholder in claim.placeholders}
            if not 0 < len(event.leaving) <= self._spare(part.claim) or not mine.issuperset(event.leaving):
                self.give_up(change, "the processes that were to leave are not its own any more")
                return
            part.ranks, part.accepted = list(event.leaving), part.done + len(event.leaving)
            self.context.roster.update(self.record)
        change.adaptation, change.point, change.due = event.adaptation, event.point, None

    def made(self, change: Change) -> None:
        """Add new processes to the job, and end those that leave."""
        change.made = True
        if change.phase is ChangePhase.TAKING:
            self.record.joined += change.ranks
            self.record.started.update(change.ranks)
            self.check_taken()
            return
        gone = [
            rank for rank in change.ranks if rank in self.record.ends
        ]  # before anybody could tell that all were done
        if gone:
            self.depart(change.parts[0].claim, self._placeholders(gone))
        steps.abandon_after(self.context, self.record, change, self.context.state.parameters.release_timeout)

    def check_done(self) -> None:
        """Complete the running job if all of its other processes, and its launcher, have ended well."""
        if self.record.state is JobState.RUNNING and self.record.ends and self.record.is_done():
            self.context.outcomes.append((self.record, COMPLETED))

    def _placeholders(self, ranks: Sequence[int]) -> list[PlaceholderId]:
        return [self.record.ranks[rank].placeholder for rank in ranks]

    # ---- answers of the application, and changes that take too long -------------------------------------------------

    def answered(self, change: Change, accepted: int) -> None:
        """Start the change that the application has agreed to."""
        if change.processors < 0:
            self.await_release(change, accepted)
            return
        first = self.claim(change.parts[0])
        room = bounds(self.record, first)[1] - first.processors + change.processors - change.parts[0].processors
        agreed = min(accepted, change.processors)
        accepted = max(0, min(agreed, room))
        refused = ""
        if accepted and self.record.ends_soon:
            refused = NEAR_END
        elif agreed > 0 and not accepted:
            refused = "its owner wants no more"
        elif accepted:
            parts = shared_out(change.parts, [part.processors for part in change.parts], accepted)
            if len(change.parts) > len(parts):
                self.context.scan_wanted = True  # others may have what was kept on those clusters
            if self.gather(change, parts):
                steps.settle(self.context, self.record, change, accepted)
                return
            refused = "they are no longer free"
            for part in change.parts:
                steps.pause_growth(self.context, self.cluster(part))
        elif not change.in_step and not change.agreement:  # its owner wants it to grow, and goes on to
            seconds = max(SHORTEST_PAUSE, self.context.state.parameters.scan_interval)
            steps.pause(self.context, self.cluster(change.parts[0]), Direction.GROW, seconds)
        if refused:
            self._announce_withdrawal(change, refused)
        self._over(change)

    def late(self, change: Change) -> None:
        """Give up a change that takes too long."""
        change.due = None
        match change.phase:
            case ChangePhase.ASKED:
                self.answered(change, 0)
            case ChangePhase.PROMISED:
                change.shrunk_others = True  # what is free by now has to do
                self.context.scan_wanted = True
            case ChangePhase.GATHERING:
                for part in change.parts:
                    stubs = [self.context.state.placeholders.get(id_) for id_ in part.stubs]
                    if not all(stub is not None and stub.held for stub in stubs):
                        steps.pause_growth(self.context, self.cluster(part))
                self.give_up(change, "they did not come in time")
            case ChangePhase.RELEASING if change.made:
                left = [rank for rank in change.ranks if rank not in self.record.departed]
                ranks = ", ".join(map(str, left))
                self.record.last_trouble = f"processes that were taken out did not end: {ranks}"
                self.depart(change.parts[0].claim, self._placeholders(left))
                self.check_done()
            case ChangePhase.RELEASING:
                self._release_over(change)

    # ---- the ends of a change ---------------------------------------------------------------------------------------

    def give_up(
        self, change: Change, reason: str, *, on: Part | None = None, gone: PlaceholderId | None = None
    ) -> None:
        """Undo what a change has brought; the application goes on as it is.

        ``on``: the part that failed. ``gone``: a placeholder of it that ends without that.
        """
        match change.phase:
            case ChangePhase.GATHERING:
                self._return_stubs(change)
                self._over(change)
                self._announce_withdrawal(change, reason)
            case ChangePhase.TAKING:
                for part in change.parts:
                    self._send_newcomers_home(part, gone)
                self._over(change)
                steps.pause_growth(self.context, self.cluster(on or change.parts[0]))
                self._announce_withdrawal(change, reason)
                self.check_done()  # the others may have ended meanwhile
            case ChangePhase.RELEASING:
                left, name = change.accepted - change.done, self.cluster(change.parts[0]).name
                self.record.last_trouble = f"{left} processors on {name} were not given back: {reason}"
                self._release_over(change)
            case _:
                self._over(change)

    def _send_newcomers_home(self, part: Part, gone: PlaceholderId | None) -> None:
        claim, going = self.claim(part), self._placeholders(part.ranks)
        self._take_out(part.ranks)
        self.record.unclaim(set(going))
        claim.processors -= len(going)
        for id_ in going:
            placeholder = self.context.state.placeholders.get(id_)
            if placeholder is not None and id_ != gone:
                end_placeholder(self.context, placeholder)

    def _announce_withdrawal(self, change: Change, reason: str) -> None:
        """Tell the application that accepted processors are not available."""
        if not self.record.ends_soon:  # it can have nothing elsewhere, either, and must not be offered that for ever
            steps.wanted_again(self.context, self.record, change.component)
        names = [self.cluster(part).name for part in change.parts]
        count = change.accepted or change.processors
        self.record.last_trouble = f"{count} more processors on {' and '.join(names)}: {reason}"
        self.context.effects.add(
            WithdrawOffer(
                job_id=self.record.job.id,
                component=change.component,
                cluster=names[0],
                number=change.number,
                reason=reason,
            )
        )

    def _return_stubs(self, change: Change) -> None:
        """End gathered placeholders."""
        for part in change.parts:
            for id_ in part.stubs:
                stub = self.context.state.placeholders.get(id_)
                if stub is not None:
                    stub.stub = False
                    if stub.state is not PlaceholderState.ENDING:
                        end_placeholder(self.context, stub)
            part.stubs = []

    def drop(self) -> None:
        """Undo changes under way and give up queued places, as the job has ended."""
        for number in range(len(self.record.claims)):
            self.give_up_places(number, self.record.claims[number].places)
        for change in list(self.record.changes.values()):
            self._return_stubs(change)
            freed = change.done + self.claim(change.parts[0]).processors if change.processors < 0 else 0
            self._over(change, -freed)

    def _over(self, change: Change, settled: int = 0) -> None:
        """Drop a change and report the achieved change of size to its step."""
        if change.phase is ChangePhase.PROMISED:
            self.end_promise(change)
        self.move(change, ChangePhase.OVER)
        if change.processors > 0:  # others may have what was kept for it
            self.context.scan_wanted = True
        steps.settle(self.context, self.record, change, settled)

    def end_promise(self, change: Change) -> None:
        """Stop waiting for processors that others were to give up for a change."""
        cluster = self.cluster(change.parts[0])
        cluster.promises = [one for one in cluster.promises if one.change != change.number]
        self.context.scan_wanted = True

    def move(self, change: Change, phase: ChangePhase, parts: list[Part] | None = None) -> None:
        """Move a change to another phase."""
        self.context.ledger.move_change(self.record, change, phase, parts)
        self.context.roster.update(self.record)

    def give_up_places(self, number: int, going: Sequence[PlaceholderId]) -> None:
        """Give up some of a claim's queued places and end their placeholders."""
        if going:
            self.context.ledger.remove_places(self.record.claims[number], going)
            for id_ in going:
                placeholder = self.context.state.placeholders[id_]
                placeholder.stub = False
                end_placeholder(self.context, placeholder)
            self.context.scan_wanted = True


def shared_out(parts: Iterable[Part], most: Iterable[int], wanted: int) -> list[Part]:
    """Divide ``wanted`` processors over parts, filling the first ones first."""
    shares = []
    for part, able in zip(parts, most, strict=True):
        count = min(able, wanted)
        if count > 0:
            shares.append(replace(part, accepted=count))
            wanted -= count
    return shares


def why_lost(claim: Claim, placeholder: PlaceholderRecord) -> str:
    """Return why a placeholder for a growth will not come."""
    refused = claim.growth_refused
    return f"{claim.cluster} refused it: {refused}" if refused else f"placeholder {placeholder.id} was lost"


def time_left(context: Context, record: JobRecord) -> float:
    """Return the seconds until the walltime of a running job ends."""
    launched_at = context.now if record.launched_at is None else record.launched_at
    return max(0.0, launched_at + record.job.walltime - context.now)


def stub_lost(context: Context, placeholder: PlaceholderRecord) -> None:
    """Handle the loss of a placeholder that was submitted for a running job."""
    record = context.state.jobs.get(placeholder.job_id)
    if record is not None:
        Changes(context, record).lost(placeholder)


# -- What happens to malleable jobs that begin to run, and near their end ------------------------------------


def check_running(context: Context, record: JobRecord) -> None:
    """Take a job for running once all of its processes have started; a malleable one may change from then on."""
    if record.state is not JobState.LAUNCHING or len(record.started) < len(record.ranks):
        return
    context.ledger.move_job(record, JobState.RUNNING)
    if not record.job.kind.varies:
        return
    context.state.starts += 1
    record.start_number = context.state.starts
    _open_clusters(context, record)
    _watch_walltime(context, record)
    context.roster.update(record)
    for number in range(len(record.claims)):
        steps.cluster_of(context, record, number).unwanted = None
    context.scan_wanted = True


def _watch_walltime(context: Context, record: JobRecord) -> None:
    """Set a timer for the time when too little walltime is left to grow."""
    least = context.state.parameters.least_time_to_grow
    if record.job.has_workers:  # they would be asked to end at once
        least = max(least, float(record.job.warn_before))
    if not least:
        return
    grows_for = time_left(context, record) - least
    if grows_for > 0:
        context.timetable.for_job(record, TimerKind.NEAR_END, context.now + grows_for)
    else:
        record.ends_soon = True


def near_end_timer(context: Context, record: JobRecord) -> None:
    """Stop a job's growth and hand back gathered placeholders."""
    record.ends_soon = True
    for change in list(record.changes.values()):
        if change.phase is ChangePhase.GATHERING:
            Changes(context, record).give_up(change, NEAR_END)
    context.roster.update(record)
    context.scan_wanted = True


def open_added_clusters(context: Context) -> None:
    """Let the flexible components of jobs that run grow on clusters that the site has got since they started, too."""
    for record in context.state.jobs.values():
        if record.job.kind.varies and record.state is JobState.RUNNING:
            _open_clusters(context, record, added=True)
            context.roster.update(record)


def _open_clusters(context: Context, record: JobRecord, *, added: bool = False) -> None:
    """Let the flexible components of a job grow on every cluster of the site.

    ``added``: it runs already, so that changes know its claims by their numbers, which stay.
    """
    configured = {name: one for name, one in context.state.clusters.items() if one.configured}
    for component in record.job.components:
        if not component.flexible or component.cluster is not None or not record.job.changes_size(component.name):
            continue
        own = [number for number, claim in enumerate(record.claims) if claim.component == component.name]
        there = {record.claims[number].cluster for number in own}
        refused = {name: said for number in own for name, said in record.claims[number].excluded.items()}
        if must_connect(record.job):
            for name in configured:
                if doubts(context.state, [one for one in (*there, name) if one is not None], context.now).all:
                    refused.setdefault(name, "its nodes are not known to connect to those where its processes run")
        more = [
            Claim(
                component=component.name,
                cluster=name,
                slot_processors=context.slot_processors(record, component.name, name),
                excluded={name: refused[name]} if name in refused else {},
            )
            for name, cluster in configured.items()
            if name not in there and cluster.lacks(component) is None
        ]
        place = len(record.claims) if added else own[-1] + 1
        record.claims[place:place] = more


def change_of_rank(record: JobRecord, rank: int) -> tuple[Change, Part] | None:
    """Return the change in which a process may end alone: not told of it yet, or let go by it."""
    if record.state is not JobState.RUNNING or not record.job.adapts(record.ranks[rank].component):
        return None
    for change in record.changes.values():
        new = change.phase is ChangePhase.TAKING and not change.adaptation
        let_go = change.phase is ChangePhase.RELEASING and change.made
        for part in change.parts if (new or let_go) and rank not in record.departed else ():
            if rank in part.ranks:
                return change, part
    return None


def newcomer(record: JobRecord, rank: int) -> bool:
    """Return whether a process was started for a growth that is not complete."""
    taking = (change for change in record.changes.values() if change.phase is ChangePhase.TAKING)
    return record.job.adapts(record.ranks[rank].component) and any(rank in change.ranks for change in taking)


# -- Events --------------------------------------------------------------------------------------------------

_MOVING = frozenset({ChangePhase.TAKING, ChangePhase.RELEASING})
_UNTIL_MADE = _MOVING | {ChangePhase.PROMISED, ChangePhase.GATHERING}

if TYPE_CHECKING:
    OfChange = ev.OfferAnswered | ev.PointReached | ev.ChangeMade | ev.ChangeGivenUp


def _found(context: Context, event: OfChange, *phases: ChangePhase) -> tuple[Changes, Change] | None:
    """Return the change of an event; None when it is over or in another phase."""
    record = context.state.jobs.get(event.job_id)
    change = None if record is None else record.changes.get(event.number)
    return (
        None if record is None or change is None or change.phase not in phases else (Changes(context, record), change)
    )


def offer_answered(context: Context, event: ev.OfferAnswered) -> None:
    """Handle the answer to a message; a late one is ignored."""
    found = _found(context, event, ChangePhase.ASKED)
    if found is None:
        return
    changes, change = found
    if event.trouble:
        changes.record.last_trouble = event.trouble
    if event.memory_declined:
        change.memory_mib = 0
    step = changes.cluster(change.parts[0]).step
    if event.lapsed and change.in_step and step is not None:
        step.lapsed = True
    changes.answered(change, event.accepted)


def processors_released(context: Context, event: ev.ProcessorsReleased) -> None:
    """Take back processors that an application no longer uses."""
    record = context.state.jobs.get(event.job_id)
    if record is not None and record.state is JobState.RUNNING:
        Changes(context, record).released(event.placeholders)


def point_reached(context: Context, event: ev.PointReached) -> None:
    """Have a change carried out whose processes stand at its point."""
    found = _found(context, event, *_MOVING)
    if found is not None and not found[1].adaptation:
        found[0].point_reached(found[1], event)


def change_made(context: Context, event: ev.ChangeMade) -> None:
    """End a change that all processes have carried out."""
    found = _found(context, event, *_MOVING)
    if found is not None and found[1].adaptation and not found[1].made:
        found[0].made(found[1])


def change_given_up(context: Context, event: ev.ChangeGivenUp) -> None:
    """Undo a change that the processes could not be brought to; one that is being carried out goes on."""
    found = _found(context, event, *_UNTIL_MADE)
    if found is not None and not found[1].adaptation:
        found[0].give_up(found[1], event.reason)


HANDLERS: Handlers = {
    ev.OfferAnswered: offer_answered,
    ev.ProcessorsReleased: processors_released,
    ev.PointReached: point_reached,
    ev.ChangeMade: change_made,
    ev.ChangeGivenUp: change_given_up,
}
JOB_TIMERS: JobTimers = {TimerKind.NEAR_END: near_end_timer}
