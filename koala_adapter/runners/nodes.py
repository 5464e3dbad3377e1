# SPDX-License-Identifier: Apache-2.0
"""What ranks find on their nodes: software, and addresses by which they reach each other and koala's host. Pure."""

from __future__ import annotations

import ipaddress
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from koala_adapter.model import Component, JobId
    from koala_adapter.scheduler.actions import Rank


# -- Software ------------------------------------------------------------------------------------------------
# Before a rank, a shell runs the lines of its cluster, of the software that its component names, and of the component
# itself (koala_adapter/vjm/agent/setup.py). A container is a command in front of that of the rank.

_APPTAINER = """\
image=$1
shift
exec {runtime} exec{gpus} --bind "${{KOALA_STDOUT%/*}}" --bind "$PWD" --pwd "$PWD" "$image" "$@"
"""
"""Apptainer and Singularity hand the environment on, but for PATH and the like. ``KOALA_STDOUT`` is in the private
directory of the rank, in which its input files, pipes and libraries are."""

_PODMAN = """\
image=$1 out=$KOALA_STDOUT directory=${{KOALA_STDOUT%/*}}
shift
unset KOALA_STDOUT
exec podman run --rm --network=host --security-opt=label=disable{names} --env=KOALA_STDOUT="$out" \\
    --volume="$directory:$directory" --volume="$PWD:$PWD" --workdir="$PWD" "$image" "$@"
"""
"""Podman hands on only the variables that are named, here without their values: no other user can see these. The agent
ends processes that have ``KOALA_STDOUT``: those in the container, and not podman's own, which remove it then."""

_ALWAYS = ("KOALA_*", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONPATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSoftware:
    """Software of a cluster by its site file: names, setup lines, containers."""

    setup: tuple[str, ...] = ()
    """Lines that run before each rank."""
    software: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Lines that make software available, by its name."""
    container_runtime: str = ""
    """Program that runs containers; empty: none does."""

    def setup_of(self, component: Component) -> tuple[str, ...]:
        """Return the shell lines that run before a component's ranks."""
        named = [line for name in component.software for line in self.software[name]]
        return (*self.setup, *named, *component.setup)

    def container_of(self, component: Component, variables: tuple[str, ...]) -> tuple[str, ...]:
        """Return the words before a command that run it in the component's container; empty without one.

        ``variables``: names of those that are set for it.
        """
        if not component.container:
            return ()
        names = "".join(f" --env='{name}'" for name in (*_ALWAYS, *variables))
        gpus = " --nv" if component.slot.gpus else ""
        text = _PODMAN if self.container_runtime == "podman" else _APPTAINER
        script = text.format(runtime=self.container_runtime, gpus=gpus, names=names)
        return ("sh", "-c", script, "koala-container", component.container)


# -- Relayed addresses ---------------------------------------------------------------------------------------

HOST = -1
"""Stands for koala's host where a rank has its number."""
RANK_BITS = 12
"""Of an address in 127.0.0.0/8: the lower bits tell the rank, those above them the job."""
MOST_RANKS = 2**RANK_BITS - 2
"""Ranks of a job that have such an address: the first of its block is that of koala's host."""
_LOOPBACK = int(ipaddress.IPv4Address("127.0.0.0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPlan:
    """How the ranks of one job reach each other, and koala's host.

    Each has one address of 127.0.0.0/8, the same on all nodes and on koala's host. Jobs of one service have different
    ones; those of two services may by chance have the same.
    """

    job_id: JobId
    instance: str
    """Name of the service."""
    direct: Collection[tuple[str, str]]
    """Pairs of clusters of which the nodes of the first can connect to those of the second."""
    host_addresses: Mapping[str, str]
    """Address of koala's host as the nodes of a cluster reach it; clusters that cannot are left out."""
    ranks: bool
    """Some ranks may have to be relayed; all of them have an address that is the same everywhere then."""

    def address(self, rank: int) -> str:
        """Return the relayed address of a rank, or of HOST; empty for a rank that has none."""
        if rank >= MOST_RANKS:
            return ""
        blocks = 2 ** (24 - RANK_BITS) - 2  # the first one has 127.0.0.1, the last one 127.255.255.255
        block = 1 + (zlib.crc32(self.instance.encode()) + int(self.job_id)) % blocks
        return str(ipaddress.IPv4Address(_LOOPBACK + (block << RANK_BITS) + rank + 1))

    def reaches(self, cluster: str, other: str) -> bool:
        """Tell whether nodes of a cluster can connect to those of another one."""
        return cluster == other or (cluster, other) in self.direct

    def address_for(self, cluster: str, rank: int, its_cluster: str, own: str) -> str:
        """Return the address by which processes on a cluster reach a rank, whose own address is known."""
        if not self.ranks or self.reaches(cluster, its_cluster):
            return own
        return self.address(rank) or own

    def common_address(self, rank: Rank) -> str:
        """Return the address of a rank that is right on all nodes and on koala's host."""
        return (self.address(rank.rank) if self.ranks else "") or rank.address or rank.host

    def host_address(self, cluster: str) -> str:
        """Return the address by which processes on a cluster reach koala's host."""
        return self.host_addresses.get(cluster) or self.address(HOST)
