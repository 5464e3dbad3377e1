# SPDX-License-Identifier: Apache-2.0
"""What the plugins find by variables and files; the commands that they ask are small scripts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from koala_adapter.lrm import Surroundings
from koala_pbs.settings import discover as discover_pbs
from koala_sge.settings import discover as discover_sge
from koala_sge.settings import smallest_user
from koala_slurm.settings import discover as discover_slurm
from koala_slurm.settings import parse_clusters

if TYPE_CHECKING:
    from pathlib import Path


def written(path: Path, text: str, *, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def around(root: Path, **environment: str) -> Surroundings:
    """Return surroundings without any program but those in ``root/bin``."""
    return Surroundings(environment={"PATH": str(root / "bin"), **environment}, root=root)


def program(root: Path, name: str, output: str) -> None:
    written(root / "bin" / name, f"#!/bin/sh\n/bin/cat <<'END'\n{output}\nEND\n", mode=0o755)


# -- Slurm -----------------------------------------------------------------------------------------------------------


def test_slurm_by_its_variable_and_below_etc(tmp_path: Path) -> None:
    """The named one first, each once, with the name that its file says."""
    first = written(tmp_path / "mine" / "slurm.conf", "# x\nclustername = physics\nSlurmctldHost=a\n")
    second = written(tmp_path / "etc" / "slurm-old" / "slurm.conf", "ClusterName=old\n")
    (tmp_path / "etc" / "slurm").symlink_to(tmp_path / "mine")
    found = discover_slurm(around(tmp_path, SLURM_CONF="/mine/slurm.conf"))
    assert [(one.name, one.settings) for one in found.clusters] == [
        ("physics", {"conf": str(first)}),
        ("old", {"conf": str(second)}),
    ]
    assert found.left_out == ()


def test_a_slurm_conf_that_is_not_there_is_told(tmp_path: Path) -> None:
    written(tmp_path / "etc" / "slurm" / "slurm.conf", "ClusterName=main\n")
    found = discover_slurm(around(tmp_path, SLURM_CONF="/nowhere/slurm.conf"))
    assert [one.name for one in found.clusters] == ["main"]
    assert "/nowhere/slurm.conf" in found.left_out[0].why
    assert "SLURM_CONF" in found.left_out[0].remedy


def test_a_slurm_without_files_is_asked_for_its_name(tmp_path: Path) -> None:
    """The commands get their configuration from the controller."""
    program(tmp_path, "scontrol", "Configuration data\nClusterName             = remote\n")
    (found,) = discover_slurm(around(tmp_path)).clusters
    assert (found.name, found.settings) == ("remote", {})
    assert "scontrol" in found.described


def test_a_slurm_whose_commands_fail_is_none(tmp_path: Path) -> None:
    """Installed commands without a cluster say nothing of use."""
    written(tmp_path / "bin" / "scontrol", "#!/bin/sh\nexit 1\n", mode=0o755)
    assert discover_slurm(around(tmp_path)).clusters == ()


def test_clusters_that_only_slurmdbd_knows_are_left_out(tmp_path: Path) -> None:
    """Each with its host, and what would be needed to use it."""
    accounting = "AccountingStorageType=accounting_storage/slurmdbd\n"
    written(tmp_path / "etc" / "slurm" / "slurm.conf", f"ClusterName=main\n{accounting}")
    program(tmp_path, "sacctmgr", "main|ctl1\nother|ctl2\nasleep|\n")
    left = discover_slurm(around(tmp_path)).left_out
    assert [one.what for one in left] == ["Slurm cluster other", "Slurm cluster asleep"]
    assert "ctl2" in left[0].why
    assert "conf" in left[0].remedy


def test_what_slurmdbd_says_is_read_strictly() -> None:
    """Banners and empty lines are no clusters."""
    assert parse_clusters("welcome\n\na|h\n|x\nb|h|more\n") == {"a": "h"}


# -- Grid Engine -----------------------------------------------------------------------------------------------------


def cell(root: Path, name: str, *, settings: str = "") -> None:
    written(root / name / "common" / "act_qmaster", "host\n")
    if settings:
        written(root / name / "common" / "settings.sh", settings)


def test_all_cells_of_grid_engine(tmp_path: Path) -> None:
    """The one of the variables first, with their ports; the ports of others by their settings.sh."""
    program(tmp_path, "qconf", "min_uid 0")
    sge = tmp_path / "sge"
    cell(sge, "default", settings="SGE_QMASTER_PORT=7000; export SGE_QMASTER_PORT\n")
    cell(sge, "test")
    cell(tmp_path / "opt" / "sge", "default")
    variables = {"SGE_ROOT": "/sge", "SGE_CELL": "test", "SGE_QMASTER_PORT": "6000", "SGE_EXECD_PORT": "6001"}
    found = discover_sge(around(tmp_path, **variables)).clusters
    assert [(one.name, one.settings) for one in found] == [
        ("test", {"root": str(sge), "cell": "test", "qmaster_port": 6000, "execd_port": 6001}),
        ("gridengine", {"root": str(sge), "cell": "default", "qmaster_port": 7000}),
        ("gridengine", {"root": str(tmp_path / "opt" / "sge"), "cell": "default"}),
    ]


def test_commands_of_grid_engine_that_are_not_on_the_path(tmp_path: Path) -> None:
    """They are in the installation, in a directory for this kind of machine."""
    root = tmp_path / "opt" / "sge"
    cell(root, "default")
    written(root / "util" / "arch", "#!/bin/sh\necho lx-test\n", mode=0o755)
    written(root / "bin" / "lx-test" / "qconf", "#!/bin/sh\necho min_uid 0\n", mode=0o755)
    (found,) = discover_sge(around(tmp_path)).clusters
    assert found.settings["bin_directory"] == str(root / "bin" / "lx-test")


def test_a_root_without_cells_is_told(tmp_path: Path) -> None:
    found = discover_sge(around(tmp_path, SGE_ROOT="/nowhere"))
    assert found.clusters == ()
    assert "/nowhere" in found.left_out[0].why


def test_a_grid_engine_that_takes_no_jobs_of_this_user(tmp_path: Path) -> None:
    """As Debian's takes none of root; said with the number that it asks for."""
    program(tmp_path, "qconf", f"#global:\nmin_uid      {os.geteuid() + 1}\nmin_gid  0\n")
    cell(tmp_path / "opt" / "sge", "default")
    found = discover_sge(around(tmp_path))
    assert found.clusters == ()
    assert f"min_uid {os.geteuid() + 1}" in found.left_out[0].why
    assert "ordinary user" in found.left_out[0].remedy


@pytest.mark.parametrize(("text", "least"), [("min_uid  1000\n", 1000), ("x\nmin_uid 0", 0), ("no_min_uid 7", 0)])
def test_the_smallest_user(text: str, least: int) -> None:
    """Of a configuration that says none, everybody."""
    assert smallest_user(text) == least


# -- PBS -------------------------------------------------------------------------------------------------------------


def test_pbs_by_its_configuration(tmp_path: Path) -> None:
    conf = written(tmp_path / "etc" / "pbs.conf", "PBS_EXEC=/opt/pbs\nPBS_SERVER=head.example.org\n#X=1\n")
    written(tmp_path / "opt" / "pbs" / "bin" / "qstat", "")
    (found,) = discover_pbs(around(tmp_path)).clusters
    assert found.name == "head"
    assert found.settings == {"conf": str(conf), "bin_directory": str(tmp_path / "opt" / "pbs" / "bin")}


def test_pbs_by_its_variables(tmp_path: Path) -> None:
    """PBS_CONF_FILE goes before /etc/pbs.conf, PBS_SERVER before what it says."""
    written(tmp_path / "etc" / "pbs.conf", "PBS_SERVER=a\n")
    conf = written(tmp_path / "b.conf", "PBS_SERVER=b\n")
    (found,) = discover_pbs(around(tmp_path, PBS_CONF_FILE="/b.conf", PBS_SERVER="c")).clusters
    assert (found.name, found.settings) == ("c", {"conf": str(conf), "server": "c"})


def test_a_pbs_conf_that_is_not_there_is_told(tmp_path: Path) -> None:
    """And no other is taken in its place, as PBS itself would not."""
    written(tmp_path / "etc" / "pbs.conf", "PBS_SERVER=a\n")
    found = discover_pbs(around(tmp_path, PBS_CONF_FILE="/nowhere.conf"))
    assert found.clusters == ()
    assert "/nowhere.conf" in found.left_out[0].why


def test_torque_by_the_name_of_its_server(tmp_path: Path) -> None:
    written(tmp_path / "var" / "spool" / "torque" / "server_name", "batch.example.org\n")
    assert discover_pbs(around(tmp_path)).clusters == ()
    program(tmp_path, "qstat", "")
    (found,) = discover_pbs(around(tmp_path)).clusters
    assert (found.name, found.settings) == ("batch", {"dialect": "torque", "server": "batch.example.org"})


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    for discover in (discover_slurm, discover_sge, discover_pbs):
        found = discover(around(tmp_path))
        assert (found.clusters, found.left_out) == ((), ())
