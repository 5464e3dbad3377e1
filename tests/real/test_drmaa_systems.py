# SPDX-License-Identifier: Apache-2.0
"""DRMAA libraries of Grid Engine, Slurm and PBS: the conformance kit, and plugins that submit by them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from koala_adapter.errors import EXIT_REFUSED, LrmRejectedError
from koala_adapter.lrm import ClusterContext, Submission
from koala_adapter.model import BatchKey, EndReason, LrmJobId, LrmJobState
from koala_adapter.testing import LrmConformance, LrmUnderTest, Trial, eventually, new_context
from koala_adapter.testing.trial import begin_start
from koala_drmaa import PLUGIN
from koala_drmaa.lrm import DrmaaSettings
from koala_pbs import PLUGIN as PBS_PLUGIN
from koala_pbs import PbsSettings
from koala_slurm import PLUGIN as CHOSEN_PLUGIN
from koala_slurm import PLUGIN as SLURM_PLUGIN
from koala_slurm import SlurmSettings
from koala_slurm.listing import release_number
from koala_slurm.lrm import SlurmLrm
from koala_slurm.releases import NEWEST
from tests.real.lrms import namesake_job
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.pbs import PbsServer
from tests.real.systems.processes import OTHER_SLURM, USERS_PATH
from tests.real.systems.requirements import drmaa_library, require
from tests.real.test_sites import koala, look_often
from tests.real.test_slurm_plugin import outages
from tests.undertest import started_plugin

# -- The plugin ``drmaa`` with Grid Engine's real library: the conformance kit, without any command of Grid Engine.

LIBRARY = Path("/usr/lib/gridengine-drmaa/lib/libdrmaa.so.1.0")
SLOTS = 4


def grid_engine_settings(cell: GridEngineCell) -> DrmaaSettings:
    """Return settings for Grid Engine's library and a private cell."""
    return DrmaaSettings(
        library=LIBRARY,
        processors=SLOTS,
        environment=cell.variables(),
        native_specification="-shell n -r n",
    )


class TestDrmaa(LrmConformance):
    """The conformance kit; its tests of an unreachable LRM run with the plugin `sge`, which uses the same helper.

    By day, what the plugin does in a way of its own: the other tests run there with `sge`, through the same library.
    """

    BY_DAY = frozenset(
        {
            "test_array_elements_end_apart",
            "test_cancel_all_kinds_at_once",
            "test_check_is_content",
            "test_ends_survive_a_restart",
            "test_exit_code",
            "test_found_again_by_name",
            "test_found_by_a_second_session",
            "test_hold_and_release",
            "test_more_jobs_than_processors",
            "test_placeholders_know_who_they_are",
            "test_rejected_submission_leaves_nothing",
            "test_suspend_and_resume",
            "test_unsupported_is_said",
            "test_walltime_is_requested",
            "test_what_is_rendered_is_sent",
        }
    )

    @pytest.fixture
    async def under_test(self, sge_cell: GridEngineCell, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on the shared cell."""
        settings = grid_engine_settings(sge_cell)
        async with started_plugin(
            PLUGIN,
            settings,
            tmp_path,
            processors=SLOTS,
            unknown_id=LrmJobId("999999.1"),
            namesake_job=namesake_job(sge_cell),
            patience=90,
            walltime_precision=15,
        ) as under:
            yield under

    async def test_ends_survive_a_restart(self, live_trial: Trial) -> None:
        """What was seen of a job's end is still told by the next session, from the ledger."""
        under = live_trial.under_test
        batch = await live_trial.submit(wait=False, exit_code=7)
        await live_trial.wait_ended(batch)
        (before,) = (await live_trial.jobs(batch)).values()
        second = PLUGIN.factory(under.context, under.settings)
        await second.start()
        (after,) = await second.jobs(name_prefix=batch.key)
        await second.close()
        assert (before.state, before.end, before.exit_code) == (LrmJobState.ENDED, EndReason.EXITED, 7)
        assert after == before


# -- Slurm through slurm-drmaa, where a machine has it: the plugin ``drmaa``, and ``slurm`` with that transport.


def library() -> Path:
    """Return where slurm-drmaa is; skip the test when it is nowhere."""
    found = drmaa_library("slurm")
    require([] if found else ["slurm-drmaa (KOALA_TEST_SLURM_DRMAA, its libdrmaa.so)"])
    assert found is not None
    return found


def slurm_drmaa_settings(cluster: SlurmCluster) -> DrmaaSettings:
    """Return settings of the plugin ``drmaa`` for a cluster: the rest is known of the library."""
    return DrmaaSettings(library=library(), processors=8, environment={"SLURM_CONF": str(cluster.conf)})


@pytest.mark.never_required
@pytest.mark.nightly
class TestDrmaaOnSlurm(LrmConformance):
    """The conformance kit; nothing is read by commands."""

    @pytest.fixture
    async def under_test(self, slurm_a: SlurmCluster, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on the shared cluster."""
        async with started_plugin(
            PLUGIN,
            slurm_drmaa_settings(slurm_a),
            tmp_path,
            processors=8,
            unknown_id=LrmJobId("999999"),
            namesake_job=namesake_job(slurm_a),
            **outages(slurm_a),
        ) as under:
            yield under


@pytest.mark.never_required
@pytest.mark.nightly
class TestSlurmThroughDrmaa(LrmConformance):
    """The conformance kit on the plugin ``slurm`` that submits through DRMAA and does all else by commands."""

    @pytest.fixture
    async def under_test(self, slurm_a: SlurmCluster, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on the shared cluster."""
        settings = SlurmSettings.model_validate(
            {**slurm_a.plugin_settings, "submit_by": "drmaa", "drmaa_library": library()}
        )
        async with started_plugin(
            SLURM_PLUGIN,
            settings,
            tmp_path,
            processors=8,
            unknown_id=LrmJobId("999999_1"),
            namesake_job=namesake_job(slurm_a),
        ) as under:
            yield under

    async def test_requeue(self, live_trial: Trial) -> None:
        """A requeued job is stopped and queued under the same id; Slurm starts it again after two minutes."""
        batch = await live_trial.submit()
        await live_trial.wait_running(batch)
        await live_trial.lrm.requeue(batch.ids)
        await live_trial.wait_states(batch, LrmJobState.QUEUED)


# -- PBS through pbs-drmaa, where a machine has both: the plugin ``drmaa``, and ``pbs`` with that transport.


def pbs_library() -> Path:
    """Return where pbs-drmaa is; skip the test when it is nowhere."""
    found = drmaa_library("pbs")
    require([] if found else ["pbs-drmaa (KOALA_TEST_PBS_DRMAA, its libdrmaa.so)"])
    assert found is not None
    return found


@pytest.mark.never_required
@pytest.mark.nightly
class TestPbsThroughDrmaa(LrmConformance):
    """The conformance kit on the plugin ``pbs`` that submits through DRMAA and does all else by commands."""

    @pytest.fixture
    async def under_test(self, server: PbsServer, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on that server."""
        settings = PbsSettings(
            conf=server.conf,
            bin_directory=server.bin_directory,
            operator=True,
            submit_by="drmaa",
            drmaa_library=pbs_library(),
        )
        async with started_plugin(
            PBS_PLUGIN,
            settings,
            tmp_path,
            unknown_id=LrmJobId(f"999999.{server.name}"),
            foreign_job=server.foreign_job,
            namesake_job=server.namesake_job,
            patience=60,
            walltime_precision=40,
        ) as under:
            yield under

    async def test_start_on_a_busy_node_is_accepted(self, live_trial: Trial) -> None:
        """As by commands, an operator's start is refused where there is no room."""
        full = await live_trial.submit(count=live_trial.under_test.processors)
        await live_trial.wait_running(full)
        node = (await live_trial.jobs(full))[full.ids[0]].nodes[0]
        batch = await live_trial.submit(held=True)
        with pytest.raises(LrmRejectedError):
            await begin_start(live_trial.lrm, batch.ids[0], [node])


@pytest.mark.never_required
@pytest.mark.nightly
class TestDrmaaOnPbs(LrmConformance):
    """The conformance kit; nothing is read by commands."""

    @pytest.fixture
    async def under_test(self, server: PbsServer, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on that server."""
        processors = server.processors()
        settings = DrmaaSettings(
            library=pbs_library(), processors=processors, environment={"PBS_CONF_FILE": str(server.conf)}
        )
        async with started_plugin(
            PLUGIN,
            settings,
            tmp_path,
            processors=processors,
            unknown_id=LrmJobId(f"999999.{server.name}"),
            namesake_job=server.namesake_job,
            patience=60,
            walltime_precision=40,
        ) as under:
            yield under


# -- Submitting through DRMAA by default: a library for Slurm that is compiled here, and what is wrong with others.
# The library stands for slurm-drmaa, which is in no package registry. Grid Engine's own library is Debian's.


SOURCE = Path(__file__).parents[1] / "fakes" / "slurmlibrary.c"


def compile_library(directory: Path, **defined: str) -> Path:
    """Compile the library with these definitions; skip the test where there is no compiler."""
    require([] if shutil.which("gcc", path=USERS_PATH) else ["gcc"])
    path = directory / "libdrmaa.so"
    if OTHER_SLURM is not None:
        defined["SBATCH"] = f'"{OTHER_SLURM}/bin/sbatch"'
    definitions = [f"-D{name}={text}" if text else f"-D{name}" for name, text in defined.items()]
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", *definitions, "-o", path, SOURCE], check=True)
    return path


def lrm_of(cluster: SlurmCluster, context: ClusterContext, library: Path) -> SlurmLrm:
    """Return the plugin on a cluster, with a library in place of those that are found by themselves."""
    settings = SlurmSettings.model_validate({**cluster.plugin_settings, "submit_by": "auto", "drmaa_library": library})
    lrm = CHOSEN_PLUGIN.factory(context, settings)
    assert isinstance(lrm, SlurmLrm)
    return lrm


async def submit_three(lrm: SlurmLrm, key: str) -> None:
    """Submit three placeholders that end by themselves, and see all of them end."""
    script = "#!/bin/sh\nexec sleep 1\n"
    ids = await lrm.submit(Submission(key=BatchKey(key), count=3, script=script, walltime=60))
    assert len(ids) == len(set(ids)) == 3

    async def ended() -> bool:
        jobs = {job.id: job.state for job in await lrm.jobs(name_prefix=key)}
        return all(jobs.get(id_, LrmJobState.ENDED) is LrmJobState.ENDED for id_ in ids)

    await eventually(ended, bool, what="all have ended", seconds=120, interval=0.2)


async def test_a_library_that_is_there_is_used(slurm_a: SlurmCluster, tmp_path: Path) -> None:
    """All placeholders of a submission are one array through it; the reason is told by ``check``, too."""
    log = tmp_path / "submitted"
    library = compile_library(tmp_path, LOG=f'"{log}"')
    lrm = lrm_of(slurm_a, new_context(tmp_path), library)
    await lrm.start()
    await submit_three(lrm, "koala-lib-1")
    assert [line.split()[1] for line in log.read_text().splitlines()] == ["3"]
    assert lrm.submission_way == f"through DRMAA, {library}: found by drmaa_library"
    results = {result.subject: result for result in await lrm.check()}
    assert results["placeholders"].found == f"submitted {lrm.submission_way}"
    assert all(result.ok for result in results.values()), results
    await lrm.close()


@pytest.mark.parametrize(
    ("defined", "reason"),
    [
        ({"ABORT": ""}, "the DRMAA helper died"),
        ({"SYSTEM": '"OpenPBS 23.06"'}, "is one for OpenPBS 23.06, not for Slurm"),
        ({"VERSION": '"1.1.5"'}, "is trusted from 1.1.6 on"),
        (None, "No such file or directory"),
        ({}, "file too short"),
    ],
    ids=["aborts", "another system", "too old", "missing", "no library"],
)
async def test_a_library_that_will_not_do(
    slurm_a: SlurmCluster, tmp_path: Path, defined: Mapping[str, str] | None, reason: str
) -> None:
    """Placeholders go by sbatch, with the reason, and those of an earlier service are still found."""
    context = new_context(tmp_path)
    good = lrm_of(slurm_a, context, compile_library(tmp_path))
    await good.start()
    script, key = "#!/bin/sh\nexec sleep 300\n", f"koala-{tmp_path.name[-8:]}"
    earlier = await good.submit(Submission(key=BatchKey(key), count=2, script=script, walltime=600))
    await good.close()

    directory = tmp_path / "other"
    directory.mkdir()
    library = directory / "libdrmaa.so"
    if defined:
        compile_library(directory, **defined)
    elif defined is not None:
        library.write_text("no library\n")
    lrm = lrm_of(slurm_a, context, library)
    await lrm.start()
    assert lrm.submission_way.startswith(f"by commands: {library} cannot be used: ")
    assert reason in lrm.submission_way
    assert {job.id for job in await lrm.jobs(name_prefix=key)} == set(earlier)
    await lrm.cancel(earlier)
    await submit_three(lrm, f"{key}-2")
    await lrm.close()


def test_without_a_word_in_a_site_file(slurm_a: SlurmCluster, sge_cell: GridEngineCell, tmp_path: Path) -> None:
    """``koala init`` finds both libraries, and says so; job, sweep and script go through them."""
    log = tmp_path / "submitted"
    library = compile_library(tmp_path, LOG=f'"{log}"')
    variables = {"SLURM_CONF": str(slurm_a.conf), **sge_cell.variables(), "DRMAA_LIBRARY_PATH": str(library)}
    done = koala(tmp_path, variables, "init", "--yes")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / ".config" / "koala" / "site.toml").read_text()
    assert f"# Placeholders are submitted through DRMAA, {library}: found by $DRMAA_LIBRARY_PATH." in text
    assert "gridengine-drmaa/lib/libdrmaa.so.1.0: found by its usual place." in text
    look_often(tmp_path)

    done = koala(tmp_path, variables, "run", "-n", "6", "--", "hostname")
    assert done.returncode == 0, done.stderr
    done = koala(tmp_path, variables, "sweep", "-n", "2", "--", "echo", "{x}", ":::", "x=1..6")
    assert done.returncode == 0, done.stderr
    assert log.read_text().splitlines(), "nothing went through the library"

    done = koala(tmp_path, variables, "check", "--no-submit")
    assert done.returncode == 0, done.stdout
    assert f"OK   placeholders: submitted through DRMAA, {library}" in done.stdout
    assert "[info" not in done.stdout + done.stderr, "a person is shown what is for the log of a service"

    shown = koala(tmp_path, variables, "clusters").stdout
    assert f"through DRMAA, {library}" in shown.replace("\n", " ")
    job = tmp_path / "job.toml"
    job.write_text('walltime = 60\n[[components]]\ncommand = ["true"]\nprocessors = 2\n')
    shown = koala(tmp_path, variables, "script", str(job), "--cluster", "a").stdout
    assert "# drmaa_run_bulk_jobs 1 2 1 " in shown
    assert "sbatch --parsable" in shown


def test_wrong_library_on_which_a_site_insists(slurm_a: SlurmCluster, tmp_path: Path) -> None:
    """A job is refused at once, with reason and remedy, and runs once the library was replaced by one that fits."""
    release = release_number(slurm_a.run("scontrol", "--version").split()[-1])
    uses = "libslurm.so.36" if release == NEWEST else "libslurm.so.45"
    library = compile_library(tmp_path, USES=f'"{uses}"')
    variables = {"SLURM_CONF": str(slurm_a.conf)}
    assert koala(tmp_path, variables, "init", "--yes").returncode == 0
    look_often(tmp_path)
    site = tmp_path / ".config" / "koala" / "site.toml"
    insisting = f'[clusters.settings]\nsubmit_by = "drmaa"\ndrmaa_library = "{library}"'
    site.write_text(site.read_text().replace("[clusters.settings]", insisting))

    done = koala(tmp_path, variables, "run", "-n", "1", "--", "true")
    assert done.returncode == EXIT_REFUSED, done.stderr
    said = " ".join(done.stderr.split())
    assert f"{library} cannot be used: it uses libslurm of Slurm " in said
    assert "set submit_by = 'auto'" in said
    done = koala(tmp_path, variables, "check", "--no-submit")
    assert done.returncode != 0
    assert f"FAIL placeholders: {library} cannot be used: it uses libslurm" in done.stdout
    assert "no jobs" in koala(tmp_path, variables, "status").stdout
    (cluster,) = json.loads(koala(tmp_path, variables, "clusters", "--json").stdout)
    assert cluster["closed"].startswith(f"takes no placeholders: {library} cannot be used: ")

    compile_library(tmp_path)
    done = koala(tmp_path, variables, "run", "-n", "1", "--", "true")
    assert done.returncode == 0, done.stderr
