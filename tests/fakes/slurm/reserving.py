# SPDX-License-Identifier: Apache-2.0
"""Reservations of the fake: a number of cores for each node until 23.02, one for all nodes afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes.slurm.allocation import free_processors
from tests.fakes.slurm.options import Refusal, say
from tests.fakes.slurm.state import Reservation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.fakes.slurm.state import State, Store

ONE_NUMBER_SINCE = (23, 11)
UNKNOWN = "Requested reservation is invalid"


def create_reservation(store: Store, words: Sequence[str]) -> None:
    """Create a reservation from words such as ``Nodes=n1,n2``."""
    values = dict(word.split("=", 1) for word in words)
    one_number = store.release >= ONE_NUMBER_SINCE
    if one_number and "," in values["CoreCnt"]:
        raise Refusal("scontrol: error: Using a comma separated array for CoreCnt is no longer valid.")
    failed = "Error creating the reservation:"
    if one_number and values["Users"] == "nobody":
        raise Refusal(f"{failed} Unspecified error")
    # As slurm.conf orders them, whatever the request says.
    nodes = [name for name in store.settings["nodes"] if name in values["Nodes"].split(",")]
    numbers = [int(number) for number in values["CoreCnt"].split(",")]
    if not one_number and len(numbers) != len(nodes):
        raise Refusal(f"{failed} Core count for reservation node list is not consistent!")
    with store.locked() as state:
        free = {name: free_processors(store, state, name) for name in nodes}
        cores = _spread(free, sum(numbers)) if one_number else dict(zip(nodes, numbers, strict=True))
        if sum(cores.values()) < sum(numbers) or any(cores[name] > free[name] for name in nodes):
            raise Refusal(f"{failed} Requested nodes are busy")
        state.reservations.append(Reservation(name=values["ReservationName"], cores=cores))
    say(f"Reservation created: {values['ReservationName']}")


def _spread(free: Mapping[str, int], number: int) -> dict[str, int]:
    """Return a number spread over nodes as evenly as their free processors allow."""
    cores = dict.fromkeys(free, 0)
    for _ in range(number):
        open_ = [name for name in free if cores[name] < free[name]]
        if not open_:
            break
        cores[min(open_, key=lambda name: cores[name])] += 1
    return cores


def delete_reservation(store: Store, name: str) -> None:
    """Delete a reservation that no waiting job is in."""
    with store.locked() as state:
        state.reservations.remove(_found(state, name))


def show_reservations(store: Store, names: Sequence[str]) -> None:
    """Show the named reservations, or all, each on one line."""
    with store.locked() as state:
        shown = [_found(state, name) for name in names] or state.reservations
    if not shown:
        say("No reservations in the system")
    for one in shown:
        total, number = sum(one.cores.values()), len(one.cores)
        chosen = "".join(f"   NodeName={node} CoreIDs=0-{count - 1}" for node, count in one.cores.items())
        nodes = ",".join(one.cores)
        say(f"ReservationName={one.name} Nodes={nodes} NodeCnt={number} CoreCnt={total}{chosen} TRES=cpu={total}")


def _found(state: State, name: str) -> Reservation:
    for reservation in state.reservations:
        if reservation.name == name:
            return reservation
    raise Refusal(f"{UNKNOWN}: {name}")
