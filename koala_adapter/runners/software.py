# SPDX-License-Identifier: Apache-2.0
"""Software on the nodes: what a site file says of it, and how the program of a rank comes by it.

Before a rank, a shell runs the lines of its cluster, of the software that its component names, and of the component
itself (:mod:`koala_adapter.vjm.agent.setup`). A container is a command in front of that of the rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.model import Component

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
