# SPDX-License-Identifier: Apache-2.0
"""``koala report`` of a job that has run."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.local_koala import Koala

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_day_and_a_job_are_drawn(koala: Koala) -> None:
    """From the journal: a page, figures that are PNG and SVG, and the jobs as data."""
    pytest.importorskip("matplotlib")
    koala.run("run", koala.job("true", name="drawn", processors=2))
    for what in (["--since", "1d"], ["1"]):
        out = koala.directory / what[-1]
        assert str(out / "index.html") in koala.inside("report", *what, "--out", str(out)).stdout
        assert (out / "figures" / "placeholders.png").read_bytes().startswith(b"\x89PNG\r\n")
        assert b"<svg" in (out / "figures" / "in-use.svg").read_bytes()
        (job,) = csv.DictReader((out / "data" / "jobs.csv").read_text(encoding="utf-8").splitlines())
        assert (job["job"], job["name"], job["state"], job["processors"]) == ("1", "drawn", "completed", "4")
        told = (out / "data" / "clusters.csv").read_text(encoding="utf-8").splitlines()
        assert [row["cluster"] for row in csv.DictReader(told)] == ["alpha", "beta"]
    assert "found 'yesterday', allowed is" in koala.inside("report", "--since", "yesterday", check=2).stderr
    assert "Either JOB or --since" in koala.inside("report", check=2).stderr
