# SPDX-License-Identifier: Apache-2.0
"""What of a job's request, as scontrol shows it, restricts where or when it may run beyond numbers and names. Pure.

What an outside scheduler cannot respect, because nothing tells it enough, is an obstacle: Slurm would refuse the start,
and others would wait for that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = (
    "Features",
    "OverSubscribe",
    "Contiguous",
    "Licenses",
    "TresPerNode",
    "TresPerJob",
    "TresPerTask",
    "TresPerSocket",
    "ArrayTaskThrottle",
    "HetJobId",
    "CoreSpec",
    "ThreadSpec",
    "Reservation",
    "ReqB:S:C:T",
    "NtasksPerN:B:S:C",
    "ReqSwitch",
    "MinTmpDiskNode",
    "QOS",
)
"""What is read here of ``scontrol show job``."""

LICENSES_COMMAND = ("scontrol", "--oneliner", "show", "licenses")
GRES_COMMAND = ("sinfo", "--noheader", "--Node", "--Format=NodeList:\x1f,Gres:\x1f,GresUsed:\x1f,CPUsState:\x1f")

_WORD = r"[A-Za-z0-9_.-]+"
_EVERY = re.compile(rf"{_WORD}(?:&{_WORD})*")
_SOME = re.compile(rf"{_WORD}(?:\|{_WORD})+")
_LICENSE = re.compile(r"LicenseName=(?P<name>\S+)\s+Total=[0-9]+\s+Used=[0-9]+\s+Free=(?P<free>[0-9]+)")
_NOTHING = frozenset({"", "(null)", "*", "N/A", "0", "None"})
OURS = "koala_start_"
HETEROGENEOUS = "the components of a heterogeneous job start together, which cannot be asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """What a job asks for beside processors, memory and nodes by name."""

    exclusive: bool = False
    gres: tuple[tuple[str, int], ...] = ()
    """On each node: name, with its type if one is asked for, and number."""
    licenses: tuple[tuple[str, int], ...] = ()
    disk_mib: int | None = None
    throttle: int = 0
    """Elements of its array that may run at the same time; 0: any number."""
    qos: str = ""
    obstacle: str = ""


def parse_features(text: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return the features that all nodes must have, those of which each must have one, and what cannot be respected."""
    if not text:
        return (), (), ""
    if _EVERY.fullmatch(text):
        return tuple(text.split("&")), (), ""
    if _SOME.fullmatch(text):
        return (), tuple(text.split("|")), ""
    return (), (), f"its features {text} are more than a list of which a node must have all, or one"


def restrictions(values: Mapping[str, str]) -> Restrictions:
    """Return what the values of a job say."""
    given = {name: values.get(name, "") for name in NAMES}
    asked = {name: value for name, value in given.items() if value not in _NOTHING}
    gres = _numbers(asked.get("TresPerNode", "").replace("gres:", "").replace("gres/", ""), separator=":")
    disk = asked.get("MinTmpDiskNode", "")
    throttle = asked.get("ArrayTaskThrottle", "")
    return Restrictions(
        exclusive=asked.get("OverSubscribe", "OK").split("(")[0] in {"NO", "USER", "MCS"},
        gres=gres,
        licenses=_numbers(asked.get("Licenses", ""), separator=":"),
        disk_mib=_mebibytes(disk),
        throttle=int(throttle) if throttle.isdecimal() else 0,
        qos=asked.get("QOS", ""),
        obstacle=_obstacle(asked),
    )


def _obstacle(asked: Mapping[str, str]) -> str:
    reservation = asked.get("Reservation", "")
    tasks = asked.get("NtasksPerN:B:S:C", "").split(":")[1:]
    layout = asked.get("ReqB:S:C:T", "").split(":")
    trackable = [name for name in ("TresPerJob", "TresPerTask", "TresPerSocket") if name in asked]
    problems = (
        ("HetJobId" in asked, HETEROGENEOUS),
        (bool(trackable), f"it asks for {' and '.join(asked[name] for name in trackable)}, not by node"),
        (reservation and not reservation.startswith(OURS), f"it runs in reservation {reservation} only"),
        (asked.get("Contiguous") == "1", "it wants nodes that are next to each other (--contiguous)"),
        ("ReqSwitch" in asked, "it wants nodes on few switches (--switches)"),
        ("CoreSpec" in asked or "ThreadSpec" in asked, "it leaves cores to the system (--core-spec, --thread-spec)"),
        (any(part not in _NOTHING for part in (*tasks, *layout)), "it asks for sockets, cores or threads of its nodes"),
        ("|" in asked.get("Licenses", ""), f"it asks for any of the licences {asked.get('Licenses', '')}"),
    )
    return next((text for so, text in problems if so), "")


def _numbers(text: str, *, separator: str) -> tuple[tuple[str, int], ...]:
    """Return ``gpu:a100:2,fpga`` as names with numbers."""
    found = []
    for part in filter(None, re.split(r"[,;]", text)):
        name, mark, number = part.partition("(")[0].rpartition(separator)
        found.append((name, int(number)) if mark and number.isdecimal() else (part, 1))
    return tuple(found)


def _mebibytes(text: str) -> int | None:
    match = re.fullmatch(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>[MGT]?)", text)
    units = {"": 1, "M": 1, "G": 1024, "T": 1024 * 1024}
    return round(float(match["number"]) * units[match["unit"]]) if match else None


def parse_licenses(output: str) -> dict[str, int]:
    """Return how many of each licence are free."""
    return {match["name"]: int(match["free"]) for match in _LICENSE.finditer(output)}


def missing_license(wanted: Restrictions, free: Mapping[str, int]) -> str:
    """Return which licence there is none of now; empty when there are enough."""
    lacking = [name for name, number in wanted.licenses if free.get(name, 0) < number]
    return f"there are too few free licences {lacking[0]}" if lacking else ""


def parse_gres(output: str) -> dict[str, dict[str, int]]:
    """Return how many of each generic resource are free on each node, by name, and by name and type."""
    free: dict[str, dict[str, int]] = {}
    for node, has, used, _ in gres_rows(output):
        counts = free[node] = {}
        for text, sign in ((has, 1), (used, -1)):
            for name, number in _numbers(_without_places(text), separator=":"):
                for shown in {name, name.partition(":")[0]}:
                    counts[shown] = counts.get(shown, 0) + sign * number
    return free


def gres_rows(output: str) -> list[tuple[str, str, str, str]]:
    """Return node, resources, used ones, and states of processors (``ALLOCATED/IDLE/OTHER/TOTAL``) of each line."""
    values = [value.strip() for value in output.split("\x1f")]
    starts = range(0, len(values) - 4 + 1, 4)
    return [(values[at], values[at + 1], values[at + 2], values[at + 3]) for at in starts]


def _without_places(text: str) -> str:
    return "" if text in _NOTHING else re.sub(r"\([^)]*\)", "", text)


def nodes_with_gres(wanted: Restrictions, free: Mapping[str, Mapping[str, int]]) -> tuple[str, ...]:
    """Return the nodes that have what a job asks for on each of its nodes free."""
    return tuple(
        node for node, counts in free.items() if all(counts.get(name, 0) >= number for name, number in wanted.gres)
    )
