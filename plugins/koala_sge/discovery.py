# SPDX-License-Identifier: Apache-2.0
"""Which Grid Engine cells this host can reach: by ``SGE_ROOT``, and where installations usually are."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from koala_adapter.plugin import Discovery, FoundCluster, LeftOut, readable_text

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.plugin import Surroundings

ROOT_VARIABLE = "SGE_ROOT"
CELL_VARIABLE = "SGE_CELL"
USUAL_ROOTS = ("/var/lib/gridengine", "/opt/sge", "/opt/gridengine", "/opt/uge", "/usr/local/sge", "/gridware/sge")
PORTS = {"qmaster_port": "SGE_QMASTER_PORT", "execd_port": "SGE_EXECD_PORT"}

_SMALLEST_USER = re.compile(r"^min_uid\s+([0-9]+)", re.MULTILINE)


def discover(around: Surroundings) -> Discovery:
    """Return the cells of all installations."""
    named = around.environment.get(ROOT_VARIABLE, "")
    roots = {around.path(named): True} if named else {}
    for usual in USUAL_ROOTS:
        roots.setdefault(around.path(usual), False)
    clusters, left_out = [], []
    for root, by_variable in roots.items():
        cells = _cells(around, root, by_variable=by_variable)
        if by_variable and not cells:
            why = f"${ROOT_VARIABLE} is {named}, and no cell below it has a common/act_qmaster"
            left_out.append(LeftOut(what="Grid Engine", why=why, remedy=f"correct or unset {ROOT_VARIABLE}"))
        for cell in cells:
            found = _found(around, root, cell, by_variable=by_variable)
            refusal = _refuses_us(around, found)
            if refusal is None:
                clusters.append(found)
            else:
                left_out.append(refusal)
    return Discovery(clusters=tuple(clusters), left_out=tuple(left_out))


def smallest_user(configuration: str) -> int:
    """Return the smallest user id that Grid Engine takes jobs of, by what ``qconf -sconf`` prints."""
    found = _SMALLEST_USER.search(configuration)
    return int(found[1]) if found else 0


def _cells(around: Surroundings, root: Path, *, by_variable: bool) -> list[str]:
    """Return the cells of an installation, first the one that the variable names."""
    try:
        cells = sorted(path.parents[1].name for path in root.glob("*/common/act_qmaster"))
    except OSError:
        return []
    named = around.environment.get(CELL_VARIABLE, "default") if by_variable else ""
    return sorted(cells, key=lambda cell: cell != named)


def _found(around: Surroundings, root: Path, cell: str, *, by_variable: bool) -> FoundCluster:
    settings: dict[str, str | int | bool] = {"root": str(root), "cell": cell}
    # The variables are of the cell that they name; every other one says its ports in the file that its users source.
    ours = by_variable and cell == around.environment.get(CELL_VARIABLE, "default")
    sourced = readable_text(root / cell / "common" / "settings.sh")
    for key, variable in PORTS.items():
        told = re.search(rf"^\s*{variable}=([0-9]+)", sourced, re.MULTILINE)
        port = around.environment.get(variable, "") if ours else (told[1] if told else "")
        if port.isdecimal():
            settings[key] = int(port)
    programs = _programs(around, root)
    if programs is not None:
        settings["bin_directory"] = str(programs)
    by = f"${ROOT_VARIABLE}" if by_variable else str(root)
    name = "gridengine" if cell == "default" else cell
    return FoundCluster(name=name, described=f"Grid Engine cell {cell}, by {by}", settings=settings)


def _programs(around: Surroundings, root: Path) -> Path | None:
    """Return the directory of the commands of an installation; None where they are on the PATH."""
    if around.program("qconf") is not None:
        return None
    machine = (around.output((str(root / "util" / "arch"),), {ROOT_VARIABLE: str(root)}) or "").strip()
    programs = root / "bin" / machine
    return programs if machine and (programs / "qconf").is_file() else None


def _refuses_us(around: Surroundings, found: FoundCluster) -> LeftOut | None:
    """Return why this user can submit nothing there: Debian's Grid Engine takes no jobs of root."""
    program = f"{found.settings['bin_directory']}/qconf" if "bin_directory" in found.settings else "qconf"
    variables = {"SGE_ROOT": str(found.settings["root"]), "SGE_CELL": str(found.settings["cell"])}
    for key, variable in PORTS.items():
        if key in found.settings:
            variables[variable] = str(found.settings[key])
    least = smallest_user(around.output((program, "-sconf"), variables) or "")
    if os.geteuid() >= least:
        return None
    why = f"it takes no jobs of users with so small an id as yours, {os.geteuid()} (min_uid {least} in qconf -sconf)"
    return LeftOut(what=found.described, why=why, remedy="use koala as an ordinary user")
