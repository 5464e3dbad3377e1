# SPDX-License-Identifier: Apache-2.0
"""Sizes that the owners of running malleable jobs want, which bound what the policies may do.

What a component has beyond the wanted size is asked back from it, whatever the approach of the site. What it lacks is
offered by the policies; where the approach changes no sizes, it gets what is free, and is asked first if there are
sizes that it cannot use, and what is not free is queued for (``places.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.jitter import SHORTEST_PAUSE
from koala_adapter.scheduler.malleable.approaches import Approach
from koala_adapter.scheduler.malleable.growing import gather, withdraw
from koala_adapter.scheduler.malleable.hysteresis import growth_paused
from koala_adapter.scheduler.malleable.jointgrowth import parts_of
from koala_adapter.scheduler.malleable.places import keep_places, take_places
from koala_adapter.scheduler.malleable.steps import ask, cluster_of, free_on, new_change, wanted_again
from koala_adapter.scheduler.outcome import JobState

if TYPE_CHECKING:
    from koala_adapter.model import Component
    from koala_adapter.scheduler import events as ev
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import JobRecord


def size_wanted(context: Context, event: ev.SizeWanted) -> None:
    """Note what size a component is to have, and see to it."""
    record = context.state.jobs.get(event.job_id)
    if record is None or record.state.final or event.component not in {one.name for one in record.job.components}:
        return
    component = record.job.component(event.component)
    record.sizes_wanted[component.name] = max(component.minimum, min(component.maximum, event.processors))
    record.sizes_asked_at = None
    wanted_again(context, record, component.name)
    context.roster.update(record)
    context.scan_wanted = True


def keep_to_wanted_sizes(context: Context) -> None:
    """Ask back what components have beyond the sizes that are wanted, and, with approach none, give them what lacks."""
    limited = [context.state.jobs[job_id] for job_id in context.roster.limited]
    for record in sorted(limited, key=lambda one: one.start_number):  # after a restart the roster has another order
        for name, wanted in record.sizes_wanted.items():
            if record.job.changes_size(name) and record.state is JobState.RUNNING:
                _keep_to(context, record, record.job.component(name), wanted)


def _keep_to(context: Context, record: JobRecord, component: Component, wanted: int) -> None:
    claims = [claim for claim in record.claims if claim.component == component.name]
    lacking = wanted - sum(claim.processors + claim.coming for claim in claims)
    surplus = -lacking - sum(claim.leaving for claim in claims)
    if surplus > 0 and not record.ends:
        _ask_back(context, record, component, surplus)
    if context.state.parameters.approach is not Approach.NONE or record.ends or record.ends_soon:
        lacking = 0
    if lacking > 0 and not record.growth_rests:
        lacking -= take_places(context, record, component, lacking)
        lacking -= _give(context, record, component, lacking)
    keep_places(context, record, component, lacking)


def _ask_back(context: Context, record: JobRecord, component: Component, surplus: int) -> None:
    pause = max(SHORTEST_PAUSE, context.state.parameters.scan_interval)
    if record.sizes_asked_at is not None and context.now < record.sizes_asked_at + pause:
        return  # an application that cannot give so much would be asked for ever
    for number in reversed(range(len(record.claims))):
        claim = record.claims[number]
        if claim.component != component.name or surplus <= 0:
            continue
        change = claim.change
        if change is not None and change.phase is ChangePhase.GATHERING:
            surplus -= sum(part.change.accepted for part in parts_of(record, change))
            withdraw(context, record, number, "its owner wants it smaller")
        if claim.change is None and claim.processors > 0 and surplus > 0:
            asked = min(surplus, claim.processors)
            surplus -= asked
            record.sizes_asked_at = context.now  # not where a change is under way: it is asked when that is over
            _request(context, record, number, asked)


def _request(context: Context, record: JobRecord, number: int, processors: int) -> None:
    change = new_change(context, -processors, ChangePhase.ASKED)
    change.reason = f"its owner wants {record.sizes_wanted[record.claims[number].component]}"
    ask(context, record, number, change)


def _give(context: Context, record: JobRecord, component: Component, lacking: int) -> int:
    """Offer, or gather, what is free; return how many processors may come of it.

    A place that waits on a cluster stands for a processor that is free there.
    """
    given = 0
    asks = record.job.adapts(component.name) or component.sizes != "any"
    for number, claim in enumerate(record.claims):
        if claim.component != component.name or claim.change is not None:
            continue
        cluster = cluster_of(context, record, number)
        count = min(lacking - given - len(claim.places), free_on(context, cluster))
        if growth_paused(context, cluster):
            continue
        if count > 0:
            change = new_change(context, count, ChangePhase.ASKED)
            change.reason = f"its owner wants {record.sizes_wanted[component.name]}"
            if asks:
                ask(context, record, number, change)
                return given + count  # the answer to more depends on this one
            if gather(context, record, number, change, count):
                given += count
    return given
