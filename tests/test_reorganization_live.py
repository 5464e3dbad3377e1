# SPDX-License-Identifier: Apache-2.0
"""Reorganization on clusters that run: agents in exchanged placeholders serve the job that has them now."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.local_koala import Koala, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WIDE = """\
walltime = 600
[[components]]
name = "left"
cluster = "alpha"
processors = 2
command = ["sh", "-c", "echo wide $KOALA_RANK on $KOALA_CLUSTER"]
[[components]]
name = "right"
cluster = "beta"
processors = 2
command = ["sh", "-c", "echo wide $KOALA_RANK on $KOALA_CLUSTER"]
"""
NARROW = """\
walltime = 600
[[components]]
cluster = "alpha"
processors = 2
command = ["sh", "-c", "echo narrow $KOALA_RANK on $KOALA_CLUSTER"]
"""


@pytest.fixture
def koala(tmp_path: Path) -> Iterator[Koala]:
    """Give two local clusters of 4 processors where what is held is exchanged after fifteen seconds."""
    with closing(Koala(tmp_path)) as made:
        text = made.site_file.read_text(encoding="utf-8")
        made.site_file.write_text(text.replace("placeholder_life = 30", "placeholder_life = 15"), encoding="utf-8")
        yield made


def test_exchanged_placeholders_run_their_new_jobs(koala: Koala) -> None:
    """A waits for beta; B starts in what A holds on alpha; A starts in B's places, also after a kill of the service."""
    for name, text in (("wide", WIDE), ("narrow", NARROW)):
        (koala.directory / f"{name}.toml").write_text(text, encoding="utf-8")
    # There is room for one of them on alpha, and both are there from the first: whenever the wide one gives back what
    # it holds, the narrow one waits for it.
    on_beta, on_alpha = koala.submit_foreign("local-users", 4, "beta"), koala.submit_foreign("local-users", 2, "alpha")
    service = koala.serve()
    koala.inside("submit", *(str(koala.directory / f"{name}.toml") for name in ("wide", "narrow")))
    eventually(lambda: koala.state_of("2") == "completed")
    assert koala.state_of("1") == "claiming"
    assert "exchanged for places in the queue" in koala.inside("explain", "1").stdout
    os.killpg(service.pid, signal.SIGKILL)
    service.communicate()
    koala.serve()
    for ids, cluster in ((on_alpha, "alpha"), (on_beta, "beta")):
        koala.cancel_foreign(ids, cluster)
    eventually(lambda: koala.state_of("1") == "completed")
    eventually(lambda: not koala.placeholders())
    said = koala.run("logs", "1").stdout + koala.run("logs", "2").stdout
    lines = sorted(line.partition(": ")[2] for line in said.splitlines())
    assert lines == [
        *(f"narrow {rank} on alpha" for rank in (0, 1)),
        *(f"wide {rank} on {'alpha' if rank < 2 else 'beta'}" for rank in range(4)),
    ]
