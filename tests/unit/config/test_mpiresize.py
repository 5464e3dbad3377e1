# SPDX-License-Identifier: Apache-2.0
"""How an MPI program changes its size: what the job file says, what the site file says, and the weakest decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.config.jobfile import explained, load_job
from koala_adapter.config.sitefile import load_site_text
from koala_adapter.errors import ConfigurationError
from koala_adapter.lrm import load_plugins
from koala_adapter.model import Job, JobId, MpiResize

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.config.sitefile import SiteConfig

HEAD = 'kind = "malleable"\nrunner = "adaptive"\nlauncher = "mpi"\nwalltime = 60\n'
COMPONENT = '[[components]]\ncommand = ["a"]\nminimum = 1\nmaximum = 4\n'
SHARED = 'working_directory = "/scratch"\n'


def site(**methods: str) -> SiteConfig:
    """Return a site of local clusters, each with what its file says of its MPI."""
    tables = (
        f'[[clusters]]\nname = "{name}"\nplugin = "local"\nsettings = {{ processors = 2 }}\n'
        + (f'mpi_resize = "{method}"\n' if method else "")
        for name, method in methods.items()
    )
    return load_site_text("".join(tables), source="site.toml", plugins=load_plugins())


def job(tmp_path: Path, text: str, where: SiteConfig | None) -> Job:
    """Return the job of a file."""
    path = tmp_path / "j.toml"
    path.write_text(text, encoding="utf-8")
    return load_job(path, job_id=JobId("1"), user="u", submitted_at=0, site=where)


@pytest.mark.parametrize(
    ("wanted", "pinned", "method"),
    [
        ("", "", MpiResize.RESTART),
        ('mpi_resize = "any"\n', "", MpiResize.RESTART),
        ("", 'cluster = "able"\n', MpiResize.SPAWN),
        ("", 'cluster = "silent"\n', MpiResize.RESTART),
        ('mpi_resize = "spawn"\n', 'cluster = "able"\n', MpiResize.SPAWN),
        ('mpi_resize = "restart"\n', 'cluster = "able"\n', MpiResize.RESTART),
    ],
)
def test_the_weakest_cluster_decides(tmp_path: Path, wanted: str, pinned: str, method: MpiResize) -> None:
    """Of those on which it may run; one of which the site file says nothing cannot spawn."""
    where = site(able="spawn", silent="")
    found = job(tmp_path, HEAD + SHARED + wanted + COMPONENT + pinned, where)
    assert found.mpi_resize is method
    said = explained(found, where)
    assert ("spawned" in said) == (method is MpiResize.SPAWN)
    assert ("silent cannot spawn" in said) == (method is MpiResize.RESTART and "able" not in pinned)


def test_all_clusters_can_spawn(tmp_path: Path) -> None:
    """Then no directory is needed."""
    assert job(tmp_path, HEAD + COMPONENT, site(a="spawn", b="spawn")).mpi_resize is MpiResize.SPAWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            HEAD + 'mpi_resize = "spawn"\n' + COMPONENT,
            r"j.toml:5: mpi_resize: found \"spawn\", which the MPI of silent",
        ),
        (HEAD + COMPONENT, r"working_directory: missing: .* \(by the site file, the MPI of silent cannot spawn\)"),
        (HEAD + 'mpi_resize = "restart"\n' + COMPONENT, "working_directory: missing"),
        (HEAD + SHARED + COMPONENT + COMPONENT, "components: allowed .* is one component"),
        (
            HEAD.replace('launcher = "mpi"', 'mpi_resize = "restart"') + COMPONENT,
            "mpi_resize: allowed with .* launcher = .mpi. only",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    """With the place and the way out."""
    with pytest.raises(ConfigurationError, match=expected):
        job(tmp_path, text, site(able="spawn", silent="restart"))
