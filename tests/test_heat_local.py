# SPDX-License-Identifier: Apache-2.0
"""The manual's example of a program of one's own, on local clusters, with its job file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local_koala import Koala, eventually
from tests.unit.application.test_library import HEAT, HEAT_ALONE

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(400)]


def test_the_rod_is_the_same_after_growing_and_shrinking(koala: Koala) -> None:
    """The job file as it is shipped, but for its length: it grows, makes room for a rigid job, and is right."""
    job = HEAT.with_suffix(".toml").read_text(encoding="utf-8")
    assert '"2000", "0.05"' in job
    (koala.directory / "heat.toml").write_text(job.replace('"2000", "0.05"', '"100", "0.2"'), encoding="utf-8")
    (koala.directory / "heat.py").write_bytes(HEAT.read_bytes())
    (koala.directory / "authkey").write_bytes(b"of this test")
    koala.serve()
    koala.inside("submit", str(koala.directory / "heat.toml"))
    eventually(lambda: sum(one.processors for one in koala.report("1").components) == 8)
    koala.inside("submit", koala.job("sleep 1", name="rigid", processors=3))
    eventually(lambda: koala.json("status", "1")["outcome"] is not None)
    assert koala.json("status", "1")["outcome"]["exit_code"] == 0, koala.inside("explain", "1").stdout
    printed = Path(koala.state / "jobs" / "1" / "rod" / "0.out").read_text(encoding="utf-8").splitlines()
    assert printed[-1] == f"result {HEAT_ALONE}"
    sizes = [int(one) for one in printed[-2].split()[1:]]
    assert max(sizes) == 8
    assert min(sizes[sizes.index(8) :]) < 8, sizes
    eventually(lambda: koala.placeholders() == [])
