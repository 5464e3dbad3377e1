# SPDX-License-Identifier: Apache-2.0
"""Moving jobs to another fake server, and commands that follow them there, as the real ones do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.pbs.options import Refusal, parse, selected
from tests.fakes.pbs.running import schedule
from tests.fakes.pbs.state import MOVED, NO_ELEMENT, WAITING, Job, Store

if TYPE_CHECKING:
    from tests.fakes.pbs.state import State

MOVED_SUBSTATE = 94
NO_ANSWER = 255


def qmove(store: Store, arguments: list[str]) -> None:
    """Move waiting jobs; no arrays: another server refuses them."""
    _, (destination, *ids) = parse(arguments, "")
    with store.locked() as state:
        for text in ids:
            for job in selected(store, state, text):
                if job.element != NO_ELEMENT or job.letter not in WAITING:
                    raise Refusal(f"Job rejected by all possible destinations {text}", 191)
                move(store, state, job, destination)


def move(store: Store, state: State, job: Job, destination: str) -> None:
    """Give a job to another server; our own remembers to which."""
    there = peer(store, destination.rpartition("@")[2])
    with there.locked() as other:
        number = other.next_number
        other.next_number += 1
        other.holds[str(number)] = state.holds[str(job.number)]
        moved = replace(job, number=number, known_as=store.identity(job), queue="")
        other.jobs.append(moved)
        there.script(moved).touch(mode=0o700)
        there.script(moved).write_bytes(store.script(job).read_bytes())
        schedule(there, other)
    job.letter, job.substate, job.queue = MOVED, MOVED_SUBSTATE, destination


def peer(store: Store, server: str) -> Store:
    """Return another server. Raises Refusal when it is not known, or does not answer."""
    there = Store(Path(store.settings["peers"][server])) if server in store.settings["peers"] else None
    if there is None or there.down:
        raise Refusal(f"cannot connect to server {server} (errno=15010)", NO_ANSWER)
    return there


def followed(store: Store, arguments: list[str]) -> tuple[Store, list[str]]:
    """Return the server that a command goes to, and its arguments: of ``ID@SERVER`` that, else where the job is."""
    *options, last = arguments or [""]
    id_, at, server = last.partition("@")
    if at and not any(word in last for word in ",="):
        here = server == store.settings["server"]
        return (store if here else peer(store, server)), [*options, *([id_] if id_ else [])]
    if "-x" in options:
        return store, arguments
    with store.locked() as state:
        left = [job for job in state.jobs if job.letter == MOVED and store.identity(job) == last]
    return (peer(store, left[0].queue.rpartition("@")[2]), arguments) if left else (store, arguments)
