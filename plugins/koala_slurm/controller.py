# SPDX-License-Identifier: Apache-2.0
"""What ``scontrol show config`` says about a controller, and the version that the commands print."""

from __future__ import annotations

import re
from dataclasses import dataclass

CONFIG_COMMAND = ("scontrol", "show", "config")
VERSION_COMMAND = ("sinfo", "--version")

DEFAULT_MAX_ARRAY_SIZE = 1001
"""slurm.conf(5), MaxArraySize."""

CORES_SPREAD_SINCE = (23, 11)
"""From this release on a reservation takes one number of cores, which Slurm spreads over its nodes."""

_LINE = re.compile(r"^(?P<name>\w[\w()]*)\s*=\s?(?P<value>.*?)\s*$", re.MULTILINE)
_VERSION = re.compile(r"\b(?P<version>[0-9]{2}\.[0-9]{2}(?:\.[0-9]+)?(?:[.-][0-9a-z]+)*)")
_LIMITS = frozenset({"limits", "safe", "all"})
"""Of AccountingStorageEnforce (slurm.conf(5)): with any of them limits hold."""
_NO_ACCOUNTING = frozenset({"", "(null)", "accounting_storage/none"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """The few settings of a cluster that decide what can be asked of it."""

    cluster: str
    version: str
    max_array_size: int
    """One more than the largest index of an array element."""
    accounting: bool
    """A storage for accounting is configured; that it answers is another matter."""
    slurm_user: str
    limits_enforced: bool = False
    """Jobs are kept within the limits of their associations and QOS."""

    @property
    def takes_cores_by_node(self) -> bool:
        """A reservation may be given a number of cores for each node: until 23.02."""
        return release_number(self.version) < CORES_SPREAD_SINCE

    def may_suspend(self, *, user: str, uid: int) -> bool:
        """Tell whether a user may suspend jobs: operators only, be the jobs their own (scontrol(1)).

        root and SlurmUser are operators. Of those named in slurmdbd we learn nothing.
        """
        return uid == 0 or user == self.slurm_user


def parse_config(output: str) -> ControllerConfig:
    """Return the settings; what is missing has Slurm's default."""
    values = {match["name"]: match["value"] for match in _LINE.finditer(output)}
    size = values.get("MaxArraySize", "")
    return ControllerConfig(
        cluster=values.get("ClusterName", ""),
        version=values.get("SLURM_VERSION", ""),
        max_array_size=int(size) if size.isdecimal() else DEFAULT_MAX_ARRAY_SIZE,
        accounting=values.get("AccountingStorageType", "") not in _NO_ACCOUNTING,
        slurm_user=values.get("SlurmUser", "").partition("(")[0],
        limits_enforced=bool(_LIMITS & set(values.get("AccountingStorageEnforce", "").split(","))),
    )


def parse_version(output: str) -> str | None:
    """Return the version in ``slurm 22.05.8`` or ``slurm-wlm 22.05.8``; None when there is none."""
    match = _VERSION.search(output)
    return match["version"] if match else None


def release_of(version: str) -> str:
    """Return major and minor number of a version: the release, within which Slurm's libraries fit together."""
    return ".".join(version.split(".")[:2])


def release_number(version: str) -> tuple[int, ...]:
    """Return the release of a version as numbers that can be compared; an empty one, before all, for no version."""
    found = parse_version(version)
    return tuple(int(part) for part in release_of(found).split(".")) if found else ()
