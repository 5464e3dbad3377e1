# SPDX-License-Identifier: Apache-2.0
"""``koala init`` among real batch systems: what it writes passes ``koala check``, and jobs run."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

from koala_adapter.errors import EXIT_CONFIGURATION
from tests.real.systems.processes import USERS_PATH

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.real.systems import GridEngineCell, SlurmCluster

PATIENCE = 180.0


def koala(home: Path, variables: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``koala`` as a new user does, who has nothing in the home directory."""
    environment = {
        "PATH": USERS_PATH,
        "LC_ALL": "C.UTF-8",
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-m", "koala_adapter.cli", *arguments],
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_from_nothing_to_the_first_job(slurm_a: SlurmCluster, sge_cell: GridEngineCell, tmp_path: Path) -> None:
    """A job is refused with what is here; `koala init` writes a site file of it that works."""
    variables = {"SLURM_CONF": str(slurm_a.conf), **sge_cell.variables()}
    job = ("run", "-n", "2", "--", "echo", "hello")
    done = koala(tmp_path, variables, *job)
    assert done.returncode == EXIT_CONFIGURATION
    said = " ".join(done.stderr.split())
    assert "no site file found" in said
    assert "a (Slurm, by $SLURM_CONF)" in said
    assert "Grid Engine cell" in said
    assert "`koala init`" in said

    done = koala(tmp_path, variables, "init", "--yes")
    assert done.returncode == 0, done.stderr
    file = tmp_path / ".config" / "koala" / "site.toml"
    clusters = {one["plugin"]: one for one in tomllib.loads(file.read_text())["clusters"]}
    assert clusters["slurm"]["settings"]["conf"] == str(slurm_a.conf)
    assert clusters["sge"]["settings"]["qmaster_port"] == sge_cell.qmaster_port

    # The file says all: nothing is left to the variables by which it was made.
    done = koala(tmp_path, {}, "check", "--timeout", "120")
    assert done.returncode == 0, done.stdout + done.stderr

    done = koala(tmp_path, {}, *job)
    assert (done.returncode, done.stdout.count("hello")) == (0, 2), done.stderr

    done = koala(tmp_path, variables, "init", "--yes")
    assert done.returncode != 0
    assert "--replace" in done.stderr


def test_a_controller_that_does_not_answer_is_left_out(tmp_path: Path) -> None:
    """With the reason, and nothing is written."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "ClusterName=dead\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=9\nAuthType=auth/none\nCredType=cred/none\n"
        "SlurmUser=root\nMessageTimeout=2\nNodeName=n1\nPartitionName=p Nodes=n1 Default=YES\n"
    )
    done = koala(tmp_path, {"SLURM_CONF": str(conf)}, "init", "--yes")
    assert done.returncode != 0
    assert "Slurm, by $SLURM_CONF: " in done.stderr
    assert not (tmp_path / ".config").exists()
