# SPDX-License-Identifier: Apache-2.0
"""What `koala plan` says of the sizes that a job will have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.cli.run import size_notes
from koala_adapter.config.jobfile import load_job_text
from koala_adapter.config.sitefile import load_site_text
from koala_adapter.lrm import load_plugins
from koala_adapter.model import JobId

if TYPE_CHECKING:
    from pathlib import Path

SITE = '[scheduler]\napproach = "{approach}"\n[[clusters]]\nname = "a"\nplugin = "local"\n'
HEAD = (
    'kind = "malleable"\nrunner = "workers"\nwalltime = 60\n'
    '[[components]]\nname = "head"\ncommand = ["a"]\nprocessors = 1\n'
)
WORKER = '[[components]]\nname = "worker"\ncommand = ["a"]\nminimum = 1\nmaximum = 4\n{more}'


def notes(text: str, approach: str, tmp_path: Path) -> list[str]:
    """Return what is said of the job of a file."""
    site = load_site_text(SITE.format(approach=approach), source="site.toml", plugins=load_plugins())
    job = load_job_text(text, directory=tmp_path, job_id=JobId("1"), user="u", submitted_at=0.0)
    return size_notes(job, site)


@pytest.mark.parametrize(
    ("approach", "more", "where", "when"),
    [
        ("pwa", "flexible = true\n", "on all clusters together", "gives them back when other jobs wait"),
        ("none", 'cluster = "a"\n', "on a", "changes only when it asks for it itself, or its owner does"),
        ("pra", "", "on the cluster where it starts", "before jobs that wait"),
    ],
)
def test_sizes_of_workers(approach: str, more: str, where: str, when: str, tmp_path: Path) -> None:
    """Bounds, clusters, and when they change; nothing of the head, which does not."""
    (said,) = notes(HEAD + WORKER.format(more=more), approach, tmp_path)
    assert said.startswith(f"worker can have 1 to 4 processors {where} while it runs: ")
    assert when in said


def test_a_rigid_job_has_one_size(tmp_path: Path) -> None:
    """Nothing is to be said of it."""
    assert not notes('walltime = 60\n[[components]]\ncommand = ["a"]\nprocessors = 2\n', "pwa", tmp_path)
