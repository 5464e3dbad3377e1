# SPDX-License-Identifier: Apache-2.0
"""What the MPI of a cluster's nodes can do, found out in a placeholder: a small program is built there and spawns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import MpiResize
from koala_adapter.plugin import CheckResult

if TYPE_CHECKING:
    from koala_adapter.model import TaskEnd

SUBJECT = "MPI"
PROBE_TIME = 60.0
"""Seconds that building and running it may take."""

_PROGRAM = r"""
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    MPI_Comm parent, children;
    int sum, one = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_get_parent(&parent);
    if (parent == MPI_COMM_NULL)
        MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &children, MPI_ERRCODES_IGNORE);
    else
        children = parent;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, children);
    if (parent == MPI_COMM_NULL && sum == 1) puts("it spawns");
    MPI_Comm_disconnect(&children);
    MPI_Finalize();
    return 0;
}
"""
_SCRIPT = r"""
command -v mpiexec.hydra >/dev/null || { echo "no mpiexec.hydra"; exit 0; }
command -v mpicc >/dev/null || { echo "no mpicc"; exit 0; }
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
printf '%s' "$1" >"$directory/probe.c"
mpicc -o "$directory/probe" "$directory/probe.c" >/dev/null 2>&1 || { echo "mpicc failed"; exit 0; }
timeout 30 mpiexec.hydra -launcher fork -n 1 "$directory/probe" 2>/dev/null </dev/null
exit 0
"""
PROBE = ("/bin/sh", "-c", _SCRIPT, "koala-mpi-probe", _PROGRAM)
"""Command of the placeholder."""
_UNTRIED = {
    "no mpiexec.hydra": "no mpiexec.hydra on the node's PATH: jobs of launcher mpi must name one in their environment",
    "no mpicc": "whether it can spawn was not tried: no mpicc on the node's PATH",
    "mpicc failed": "whether it can spawn was not tried: mpicc does not compile there",
}


def judged(end: TaskEnd | None, printed: str, said: MpiResize) -> CheckResult:
    """Return what is to be told of a probe. ``said``: what the site file says of the cluster."""
    if end is None or not end.ok:
        return _result("not tried: the probe did not come to its end", said)
    for words, found in _UNTRIED.items():
        if words in printed:
            return _result(found, said)
    if "it spawns" not in printed:
        found = "cannot spawn: malleable MPI programs are started anew with each change"
        if said is MpiResize.RESTART:
            return _result(found, said)
        remedy = 'set mpi_resize = "restart" for this cluster'
        return CheckResult(subject=SUBJECT, ok=False, found=f"{found}; the site file says that it can", remedy=remedy)
    advice = '; say mpi_resize = "spawn" in the site file, so that koala knows it'
    return _result(f"can spawn{advice if said is MpiResize.RESTART else ''}", said)


def _result(found: str, said: MpiResize) -> CheckResult:
    return CheckResult(subject=SUBJECT, ok=True, found=f'{found} (mpi_resize = "{said}")')
