# SPDX-License-Identifier: Apache-2.0
"""Sites: made by `koala init`, others who wait there, placeholders that are kept."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from koala_adapter.config.sitefile import ClusterConfig
from koala_adapter.errors import EXIT_CONFIGURATION
from koala_adapter.lrm import Lrm, Submission
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import BatchKey
from koala_adapter.scheduler.claiming.claims import KEPT_PATIENCE
from koala_adapter.service.clusters import ClusterReading, read_cluster
from koala_adapter.testing import eventually, new_context
from koala_sge import PLUGIN as SGE
from koala_sge import SgeSettings
from koala_slurm import PLUGIN as SLURM
from koala_slurm import SlurmSettings
from tests.real.conftest import NewUser
from tests.real.lrms import Traces, local_job, placeholders
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.processes import GRID_ENGINE_PROGRAMS, PATIENCE, USERS_PATH, wait_until
from tests.real.user import part

# -- ``koala init`` among real batch systems: what it writes passes ``koala check``, and jobs run.


INIT_PATIENCE = 180.0
QUICK = "poll_interval = 1\nrequests_per_minute = 600\nthreshold = 0"
"""What `koala init` writes, and before it how often a test may ask a cluster."""


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
        timeout=INIT_PATIENCE,
        check=False,
    )


def look_often(home: Path) -> None:
    """Have koala look at the clusters of the site file that it has written once a second: a test may ask so often."""
    site = home / ".config" / "koala" / "site.toml"
    site.write_text(site.read_text().replace("threshold = 0", QUICK))


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
    look_often(tmp_path)

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


# -- The information service on real batch systems: which jobs of others wait there, and for how many processors.


SLEEP = "#!/bin/sh\nexec sleep 600\n"
QUIET = ("--output=/dev/null",)
OURS = Submission(key=BatchKey("koala-k-1"), count=2, script=SLEEP, walltime=60)


async def reading_of(lrm: Lrm, *, others: bool = True) -> ClusterReading:
    """Return a poll of a cluster where our jobs have the prefix of an instance ``k``."""
    config = ClusterConfig.model_validate({"name": "a", "plugin": "any"})
    return await read_cluster(config, lrm, name_prefix="koala-k-", user=login_name(), read_at=0.0, others=others)


async def await_others(lrm: Lrm, *wanted: int) -> None:
    """Return when a poll shows that others wait for so many processors each, and for nothing else."""

    async def look() -> list[int]:
        return sorted((await reading_of(lrm)).others_waiting)

    await eventually(look, lambda seen: seen == sorted(wanted), what=f"others wait for {wanted}", seconds=90)


async def test_slurm(slurm_a: SlurmCluster, tmp_path: Path) -> None:
    """A job and an array of another user wait; what is in hold, depends on others or is too early does not count."""
    lrm = SLURM.factory(new_context(tmp_path), SlurmSettings.model_validate(slurm_a.plugin_settings))
    await lrm.start()
    try:
        size = (await reading_of(lrm)).processors
        full = slurm_a.submit(SLEEP, f"--ntasks={size}", *QUIET, user="nobody")
        for options in (
            ("--ntasks=2",),
            ("--ntasks=1", "--array=1-3"),
            ("--ntasks=1", "--hold"),
            ("--ntasks=1", f"--dependency=afterok:{full}"),
            ("--ntasks=1", "--begin=now+1hour"),
        ):
            slurm_a.submit(SLEEP, *options, *QUIET, user="nobody")
        await lrm.submit(OURS)
        await await_others(lrm, 2, 1, 1, 1)
        seen = await reading_of(lrm, others=False)
        assert (seen.others_waiting, len(seen.jobs), seen.idle) == ((), OURS.count, 0)
        slurm_a.run("scancel", full)
        await await_others(lrm)
    finally:
        await lrm.close()


async def test_grid_engine(sge_cell: GridEngineCell, tmp_path: Path) -> None:
    """Three tasks of an array of another user wait; what is in hold or depends on others does not count."""
    settings = SgeSettings(
        bin_directory=GRID_ENGINE_PROGRAMS,
        root=sge_cell.root,
        cell=sge_cell.cell,
        qmaster_port=sge_cell.qmaster_port,
        execd_port=sge_cell.execd_port,
        trigger_scheduler=True,
    )
    lrm = SGE.factory(new_context(tmp_path), settings)
    await lrm.start()
    try:
        size = (await reading_of(lrm)).processors
        quiet = ("-wd", "/tmp", "-o", "/dev/null", "-j", "y")
        full = sge_cell.submit(SLEEP, "-t", f"1-{size + 3}", *quiet, user="nobody")
        sge_cell.submit(SLEEP, "-h", *quiet, user="nobody")
        sge_cell.submit(SLEEP, "-hold_jid", full, *quiet, user="nobody")
        await lrm.submit(OURS)
        await await_others(lrm, 1, 1, 1)
        seen = await reading_of(lrm, others=False)
        assert (seen.others_waiting, len(seen.jobs), seen.idle) == ((), OURS.count, 0)
        sge_cell.run("qdel", full)
        await await_others(lrm)
    finally:
        await lrm.close()


# -- Placeholders that only the site lets start: their job says why it waits, and runs elsewhere.


@pytest.mark.nightly
def test_a_job_leaves_a_partition_that_is_closed(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster
) -> None:
    """A limit keeps its placeholders in the queue; then the partition is closed, and after a minute they move."""
    user = new_user(slurm_a, slurm_b)
    traces = Traces(user)
    slurm_a.run("scontrol", "update", "PartitionName=main", "MaxTime=1")
    try:
        with local_job(slurm_b, 2):
            command = ("sh", "-c", "echo rank $KOALA_RANK")
            job = user.submit(user.job_file(part(None, 2, *command, environment=traces.mark)))
            user.wait(job, lambda report: report.components[0].cluster == "a", what="placed where most is idle")
            wait_until(
                lambda: "PartitionTimeLimit" in user.run("explain", job).text,
                seconds=PATIENCE,
                what="the limit is quoted",
                details=user.details,
            )
            slurm_a.run("scontrol", "update", "PartitionName=main", "State=DOWN", "MaxTime=INFINITE")
            report = user.wait_over(job, seconds=KEPT_PATIENCE + 2 * PATIENCE)
        assert report.components[0].cluster == "b"
        assert report.outcome is not None
        assert report.outcome.exit_code == 0
        assert placeholders(slurm_a) == []
    finally:
        slurm_a.run("scontrol", "update", "PartitionName=main", "State=UP", "MaxTime=INFINITE")
    traces.expect_none()
