# SPDX-License-Identifier: Apache-2.0
"""What koala check says of a cluster's MPI."""

from __future__ import annotations

import pytest

from koala_adapter.model import EndReason, MpiResize, TaskEnd
from koala_adapter.sitesetup.trial import judged

WELL = TaskEnd(reason=EndReason.EXITED, exit_code=0)


@pytest.mark.parametrize(
    ("printed", "said", "ok", "expected"),
    [
        ("it spawns\n", MpiResize.RESTART, True, 'say mpi_resize = "spawn" in the site file'),
        ("it spawns\n", MpiResize.SPAWN, True, "can spawn ("),
        ("", MpiResize.RESTART, True, "cannot spawn"),
        ("Abort(1)\n", MpiResize.SPAWN, False, "the site file says that it can"),
        ("no mpicc\n", MpiResize.SPAWN, True, "not tried"),
        ("no mpiexec.hydra\n", MpiResize.RESTART, True, "must name one in their environment"),
    ],
)
def test_what_was_found_is_told(*, printed: str, said: MpiResize, ok: bool, expected: str) -> None:
    found = judged(WELL, printed, said)
    assert found.ok is ok
    assert expected in found.found
    assert bool(found.remedy) is not ok


def test_a_probe_that_does_not_end_says_nothing_of_mpi() -> None:
    """It may be the node."""
    assert "not tried" in judged(None, "it spawns", MpiResize.SPAWN).found
