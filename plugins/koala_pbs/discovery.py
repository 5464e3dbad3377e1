# SPDX-License-Identifier: Apache-2.0
"""Which PBS server this host can reach: by ``PBS_CONF_FILE`` or ``/etc/pbs.conf``, or by Torque's ``server_name``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.plugin import Discovery, FoundCluster, LeftOut, readable_text
from koala_pbs.dialects import OPENPBS, TORQUE, TORQUE_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from koala_adapter.plugin import Surroundings

CONF_VARIABLE = "PBS_CONF_FILE"
USUAL_CONF = "/etc/pbs.conf"
TORQUE_SERVER_NAMES = ("/var/spool/torque/server_name", "/var/lib/torque/server_name", "/etc/torque/server_name")

_PAIR = re.compile(r"^\s*(?:export\s+)?(\w+)\s*=\s*(\S*)\s*$", re.MULTILINE)


def discover(around: Surroundings) -> Discovery:
    """Return the server that pbs.conf names, else Torque's."""
    named = around.environment.get(CONF_VARIABLE, "")
    conf = around.path(named or USUAL_CONF)
    if conf.is_file():
        by = f"${CONF_VARIABLE}" if named else USUAL_CONF
        return Discovery(clusters=(_openpbs(around, conf, by),))
    if named:
        why = f"${CONF_VARIABLE} is {named}, and there is no such file"
        return Discovery(left_out=(LeftOut(what="PBS", why=why, remedy=f"correct or unset {CONF_VARIABLE}"),))
    return Discovery(clusters=_torque(around))


def parse_conf(text: str) -> Mapping[str, str]:
    """Return the values of a pbs.conf (pbs.conf(8B))."""
    return dict(_PAIR.findall(text))


def _openpbs(around: Surroundings, conf: Path, by: str) -> FoundCluster:
    values = parse_conf(readable_text(conf))
    settings: dict[str, str | int | bool] = {"conf": str(conf)}
    server = around.environment.get(OPENPBS.server_variable, "")
    if server:
        settings["server"] = server
    programs = around.path(values["PBS_EXEC"]) / "bin" if "PBS_EXEC" in values else None
    if programs is not None and (programs / "qstat").is_file():
        settings["bin_directory"] = str(programs)
    name = (server or values.get("PBS_SERVER", "")).partition(".")[0]
    return FoundCluster(name=name or "pbs", described=f"PBS, by {by}", settings=settings)


def _torque(around: Surroundings) -> tuple[FoundCluster, ...]:
    server = around.environment.get(TORQUE.server_variable, "")
    names = [(f"${TORQUE.server_variable}", server)]
    names += [(path, readable_text(around.path(path)).strip()) for path in TORQUE_SERVER_NAMES]
    by, name = next(((by, name) for by, name in names if name), ("", ""))
    if not name or around.program("qstat") is None:
        return ()
    settings = {"dialect": TORQUE_NAME, "server": name}
    return (FoundCluster(name=name.partition(".")[0], described=f"Torque, by {by}", settings=settings),)
