# SPDX-License-Identifier: Apache-2.0
"""Experiment negotiation: applications that negotiate their sizes on live clusters (Ghafoor 2005).

Evolving and malleable applications play scenarios on eight processors. First what came of the scenarios,
then the experiment that has them played.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import koala_experiments
from koala_adapter.report.figures import Figure, Series
from koala_adapter.report.page import Finding, Listing, Result, Table
from koala_experiments.framework import (
    ALL,
    COUNTERED,
    DECLINING,
    EVOLVING,
    MALLEABLE,
    SCENARIOS,
    Experiment,
    Options,
    Pace,
    Setting,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from koala_experiments.framework import Played


# -- Findings, figures and tables ----------------------------------------------------------------------------
# What came of scenarios of negotiation, the templates themselves included. This part does no I/O.

NEAR = 0.25
"""So far from the ratio of the sizes may that of the rates be."""
APPLICATION, KOALA = "application", "koala"
OFFER = "NT_NEGOTIATION"


CLAIMS = {
    EVOLVING.name: "An evolving application on 2 processors asks for 2 more after a third of its steps, gets them, and "
    "runs on 4.",
    COUNTERED.name: "It asks for 14 more, is counter-offered the 6 that are idle, accepts, and runs on 8.",
    MALLEABLE.name: "A malleable application on 4 beside a rigid one on 4 is offered the 4 when that ends, accepts, "
    "and runs on 8.",
    DECLINING.name: "It takes offers only while its total is a power of two: those that would make it 5, 6 or 7 are "
    "declined.",
}
_DIALOGUES = {
    EVOLVING.name: ([], [2], []),
    COUNTERED.name: ([6], [6], []),
    MALLEABLE.name: ([4], [4], []),
    DECLINING.name: ([1, 2, 3, 4], [4], [0, 0, 0]),
}
"""What koala offered, what was accepted, and what the application rejected."""


def as_published(one: Played) -> bool:
    """Return whether a scenario's sizes and messages are those of the paper.

    A batch system may give the processors of a rigid job back one after the other; the offer of a part of them, which
    the application cannot use, is then no part of the scenario.
    """
    offers, accepted, declined = _DIALOGUES[one.scenario.name]
    if one.scenario.name == MALLEABLE.name:
        one = _without_offers_of_a_part(one)
    return (
        one.course == [one.scenario.initial, one.scenario.goal]
        and one.said(OFFER, KOALA) == offers
        and one.said("NT_ACCEPTED", KOALA) + one.said("NT_ACCEPTED", APPLICATION) == accepted
        and one.said("NT_REJECTED", APPLICATION) == declined
    )


def _without_offers_of_a_part(one: Played) -> Played:
    offers = {
        said.negotiation: said.processors for said in one.messages if (said.status, said.sender) == (OFFER, KOALA)
    }
    declined = {
        said.negotiation for said in one.messages if said.status == "NT_REJECTED" and said.sender == APPLICATION
    }
    parts = {number for number in declined if offers.get(number, 0) < max(one.scenario.beside)}
    return replace(one, messages=[said for said in one.messages if said.negotiation not in parts])


def findings(played: Sequence[Played]) -> list[Finding]:
    """Return the paper's claims with their results."""
    told = [Finding(claim=CLAIMS[one.scenario.name], outcome=course_of(one), holds=as_published(one)) for one in played]
    return [*told, _faster(played)]


def course_of(one: Played) -> str:
    """Return an application's sizes and messages in words."""
    sizes = " → ".join(str(size) for size in one.course)
    said = "; ".join(
        f"{message.sender} {message.status.removeprefix('NT_').lower()} {message.processors or ''}".strip()
        for message in one.messages
    )
    return f"sizes {sizes}; {said}"


def _faster(played: Sequence[Played]) -> Finding:
    ratios = [(one, _ratio(one)) for one in played]
    told = [
        f"{one.scenario.initial} to {one.scenario.goal}: {ratio:.2f} times as many"
        for one, ratio in ratios
        if ratio is not None
    ]
    off = [abs(ratio / (one.scenario.goal / one.scenario.initial) - 1) for one, ratio in ratios if ratio is not None]
    return Finding(
        claim="It does more steps per second with more processors: as many times more as it has processors.",
        outcome="; ".join(told),
        holds=max(off) <= NEAR if len(off) == len(played) else None,
        margin=f"at most {100 * max(off):.0f} % off" if off else "",
    )


def _ratio(one: Played) -> float | None:
    before, after = one.rate(one.scenario.initial), one.rate(one.scenario.goal)
    return None if before is None or after is None else after / before


def timeline(one: Played) -> Figure:
    """Return bars of processors by owner; which processors belong to whom is assumed in order."""
    parts = {
        "the application": list(_own_bars(one)),
        "agreed on, and being brought to it": list(_coming_bars(one)),
        "rigid jobs": list(_other_bars(one)),
    }
    end = max(at for bars in parts.values() for _, _, at in bars)
    return Figure(
        name=f"timeline-{one.scenario.name}",
        title=one.scenario.title,
        x_label="time (s)",
        y_label="processor",
        kind="timeline",
        categories=[str(number) for number in range(1, ALL + 1)],
        series=[_bars(label, bars) for label, bars in parts.items() if bars],
        x_range=(0.0, end),
        caption=f"{one.scenario.title}. The application has a processor from when it computes on it; until then its "
        "placeholder is gathered, its process is started, and all processes come to one point.",
    )


def _bars(label: str, bars: Sequence[tuple[int, float, float]]) -> Series:
    return Series(
        label=label, y=[row for row, _, _ in bars], x=[since for _, since, _ in bars], high=[end for _, _, end in bars]
    )


def _own_bars(one: Played) -> Iterator[tuple[int, float, float]]:
    held: dict[int, float] = {}
    for at, size in one.sizes:
        for row in [row for row in held if row >= size]:
            yield row, held.pop(row), at
        for row in range(size):
            held.setdefault(row, at)


def _coming_bars(one: Played) -> Iterator[tuple[int, float, float]]:
    """Yield the bars between an agreement and the application's continuation."""
    agreed = [message.at for message in one.messages if message.status == "NT_COMMITTED"]
    for (_, before), (at, after) in pairwise(one.sizes):
        begun = max((time for time in agreed if time < at), default=at)
        yield from ((row, begun, at) for row in range(before, after))


def _other_bars(one: Played) -> Iterator[tuple[int, float, float]]:
    row = one.scenario.initial
    for processors, since, until in one.beside:
        for number in range(row, row + processors):
            yield number, since, until
        row += processors


def rates(played: Sequence[Played]) -> Figure:
    """Return the steps per second before and after each scenario's change."""
    return Figure(
        name="steps-per-second",
        title="Steps per second before and after",
        x_label="",
        y_label="steps per second",
        kind="bars",
        categories=[f"{one.scenario.name} ({one.scenario.initial} → {one.scenario.goal})" for one in played],
        series=[
            Series(label="before", y=[one.rate(one.scenario.initial) or 0.0 for one in played]),
            Series(label="after", y=[one.rate(one.scenario.goal) or 0.0 for one in played]),
        ],
        caption="Steps during which the size changed are left out.",
    )


def messages_table(played: Sequence[Played]) -> Table:
    """Return the table of messages with their times."""
    return Table(
        name="messages",
        title="Who said what when",
        columns=("scenario", "negotiation", "time (s)", "who", "status", "processors", "reason"),
        rows=[
            (
                one.scenario.name,
                message.negotiation,
                round(message.at, 3),
                message.sender,
                message.status,
                message.processors,
                message.reason,
            )
            for one in played
            for message in one.messages
        ],
        caption="NT_NEGOTIATION is an offer or a counter-offer. Times are those at the service.",
    )


def templates(played: Sequence[Played]) -> list[Listing]:
    """Return the exchanged templates as XML text."""
    return [
        Listing(
            name=f"templates-{one.scenario.name}",
            title=f"Templates exchanged: {one.scenario.title}",
            text="\n".join(
                f"{message.at:.3f} s, {message.sender} says:\n{message.template.rstrip()}\n" for message in one.messages
            ),
        )
        for one in played
    ]


# -- The experiment ------------------------------------------------------------------------------------------

PAPER = (
    "S. Ghafoor, T. Haupt, I. Banicescu, R. Cariño, N. Ammari: A resource management system for adaptive parallel "
    "applications in cluster environments, Mississippi State University, 2005"
)
SETTINGS = (
    Setting(
        name="steps",
        default="30",
        meaning="steps of the application, 6 to 10000; it asks after a third",
        least=6,
        most=10_000,
        whole=True,
    ),
    Setting(
        name="work",
        default="0.8",
        meaning="seconds that a step takes on one processor, 0.05 to 100",
        least=0.05,
        most=100,
    ),
    Setting(
        name="site",
        default="",
        meaning="Path of a site file whose clusters are used: eight processors of one, or of two of them. Default: a "
        "local cluster, started for it.",
    ),
)
NOTES = (
    (
        "Every run is real: a service, its journal, agents in placeholders, processes with the application library, "
        "and negotiation templates between them. What a process does in a step is to sleep its share of the work, so "
        "that eight processors fit on any machine, and steps per second say how many processes there are and what "
        "the library costs; the paper computes n bodies."
    ),
    (
        "The evolving application asks after a third of its steps and goes on computing on what it has until the "
        "processors are there, where that of the paper waits. It ends when its steps are done, and a third of them was "
        "done on the processors that it ended with."
    ),
    (
        "The paper's third experiment has one rigid job on four processors. That the application takes offers only "
        "while its total is a power of two shows when less comes free than four: so it is done once more with four "
        "rigid jobs of one processor, which are cancelled one after the other."
    ),
    "Live runs differ from each other in their times; seeds change nothing.",
)


def run(options: Options) -> Result:
    """Run the experiment."""
    pace = Pace(steps=int(options.settings["steps"]), work=float(options.settings["work"]))
    played = []
    for number, scenario in enumerate(SCENARIOS):
        options.progress(number, len(SCENARIOS), "scenarios")
        played.append(koala_experiments.play_scenario(scenario, pace, options.settings["site"]))
    options.progress(len(SCENARIOS), len(SCENARIOS), "scenarios")
    return Result(
        findings=findings(played),
        figures=[*(timeline(one) for one in played), rates(played)],
        tables=[messages_table(played)],
        notes=NOTES,
        listings=templates(played),
    )


EXPERIMENT = Experiment(
    name="negotiation",
    summary="Applications that ask for processors, and that are offered some, settle by negotiation how many; live.",
    paper=PAPER,
    run=run,
    settings=SETTINGS,
)
