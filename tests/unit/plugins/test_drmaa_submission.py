# SPDX-License-Identifier: Apache-2.0
"""What is asked for through DRMAA, and what is made of its answers."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import Submission
from koala_adapter.lrm.commands import THIS_HOST, child_environment
from koala_adapter.lrm.contract import Directives
from koala_adapter.lrm.drmaa import complaints, helper, ledger
from koala_adapter.lrm.drmaa.choice import one_text
from koala_adapter.lrm.drmaa.client import HelperLaunch, Loading, command_there, decode_result, parcel
from koala_adapter.lrm.drmaa.complaints import FailureKind, is_ending, kind_of_exception
from koala_adapter.lrm.drmaa.libraries import (
    GRID_ENGINE,
    LIBRARIES,
    OTHER,
    PBS,
    SLURM,
    Library,
    library_of,
)
from koala_adapter.lrm.drmaa.protocol import (
    Failure,
    JobStatus,
    ListedBatch,
    ListedJob,
    OpenSession,
    Refusal,
    encode,
)
from koala_adapter.lrm.drmaa.scripts import KEEP_SECONDS, ScriptDelivery, ScriptStore, script_folder
from koala_adapter.lrm.drmaa.transport import apply_directives, job_template, raise_for, render_template
from koala_adapter.model import BatchKey, EndReason, LrmJobState
from koala_adapter.slots import Slot
from koala_adapter.testing import new_context
from koala_drmaa.lrm import (
    DrmaaSettings,
    end_of,
    index_variable,
    jobs_of_batch,
    native_options,
    site_options,
    unknown_key,
)
from koala_pbs import submission as pbs
from koala_pbs.lrm import PbsLrm
from koala_pbs.settings import PbsSettings
from koala_slurm import submission as slurm
from koala_slurm.lrm import SlurmLrm
from koala_slurm.settings import SlurmSettings

if TYPE_CHECKING:
    from types import ModuleType

# The pure parts of the DRMAA plugin: templates, native options, complaints, states; and the files of scripts.

INVALID_ID = "slurm_terminate_job error: Invalid job id specified,job_id: 999999"
COMPLETING = "slurm_terminate_job error: Job/step already completing or completed,job_id: 9"
NATIVE = ("-b y", "-r n", "-l h_rt=60", "-l h_vmem=5M", "-q all.q")


def submission(*, queue: str | None = None, memory: int | None = None, held: bool = False) -> Submission:
    """Return a submission of two placeholders."""
    return Submission(
        key=BatchKey("k1"), count=2, script="#!/bin/sh\n", walltime=61, queue=queue, memory_mib=memory, held=held,
        output_directory="/scratch/",
    )  # fmt: skip


class TestTemplate:
    """From a submission to a job template."""

    def test_private_script(self) -> None:
        template = job_template(submission(held=True), ScriptStore(Path("/s"), THIS_HOST), ("-a 1", "-b"))
        assert (template.remote_command, template.arguments, template.held) == ("/bin/sh", ("/s/k1.sh",), True)
        assert (template.name, template.output_path) == ("k1", "/scratch/k1.{index}.out")
        assert template.native_specification == "-a 1 -b"
        words = render_template(template, 2, "KOALA_INDEX")
        assert words[0] == "drmaa_run_job"
        assert {"drmaa_v_env=KOALA_INDEX=1", "drmaa_output_path=:/scratch/k1.1.out"} < set(words)

    def test_copied_script(self) -> None:
        """The program is the script itself, which the LRM copies."""
        scripts = ScriptStore(Path("/s"), THIS_HOST, delivery=ScriptDelivery.COPIED)
        template = job_template(submission(), scripts, ())
        assert (template.remote_command, template.arguments) == ("/s/k1.sh", ())
        assert "drmaa_js_state=drmaa_active" in render_template(template, 2)

    def test_a_path_with_a_line_break_is_refused(self) -> None:
        """For good: Grid Engine would fail each time, and be asked again for ever."""
        with pytest.raises(LrmRejectedError, match=r"'/s/a\\nb/k1\.sh', contains a line break"):
            job_template(submission(), ScriptStore(Path("/s/a\nb"), THIS_HOST), ())

    @pytest.mark.parametrize(
        ("directives", "expected"),
        [
            (Directives(), NATIVE),
            (Directives(drop=("-r",)), ("-b y", "-l h_rt=60", "-l h_vmem=5M", "-q all.q")),
            (Directives(drop=("-l",)), ("-b y", "-r n", "-q all.q")),
            (Directives(drop=("-l h_vmem",)), ("-b y", "-r n", "-l h_rt=60", "-q all.q")),
            (Directives(drop=("-l h",)), NATIVE),
            (Directives(rename=(("-l h_rt", "-l s_rt"),)), ("-b y", "-r n", "-l s_rt=60", "-l h_vmem=5M", "-q all.q")),
            (Directives(add=("-P physics",)), (*NATIVE, "-P physics")),
        ],
    )
    def test_directives(self, directives: Directives, expected: tuple[str, ...]) -> None:
        """A site drops, renames and adds options by flag, or by flag and resource, and never by half a name."""
        assert apply_directives(NATIVE, directives, GRID_ENGINE) == expected

    @pytest.mark.parametrize(
        ("library", "directives"),
        [
            (GRID_ENGINE, Directives(add=("-N x",))),
            (GRID_ENGINE, Directives(add=("-P physics -t 1-3",))),
            (GRID_ENGINE, Directives(add=("-sync=y",))),
            (GRID_ENGINE, Directives(rename=(("-q", "-N"),))),
            (GRID_ENGINE, Directives(add=("-P physics\n#$ -N x",))),
            (SLURM, Directives(add=("--job-name=x",))),
            (PBS, Directives(add=("-J 1-3",))),
            (OTHER, Directives(add=("-N x",))),
        ],
    )
    def test_directives_that_would_lose_the_jobs(self, library: Library, directives: Directives) -> None:
        with pytest.raises(LrmRejectedError, match=r"impossible to follow|line break"):
            apply_directives(NATIVE, directives, library)


class TestNativeOptions:
    """Options as the settings spell them."""

    @pytest.mark.parametrize(
        ("library", "expected"),
        [
            (GRID_ENGINE, ("-r n", "-l h_rt=61", "-q x", "-l h_vmem=5M")),
            (SLURM, ("--no-requeue", "--time=0:2", "--partition=x", "--mem=5")),
            (PBS, ("-r n", "-S /bin/sh", "-l walltime=61", "-q x", "-l mem=5mb")),
        ],
        ids=lambda value: value.name if isinstance(value, Library) else None,
    )
    def test_what_the_library_takes(self, library: Library, expected: tuple[str, ...]) -> None:
        """Where the settings say nothing, each library is asked in its own words; slurm-drmaa's time is h:m.

        pbs-drmaa would have a login shell of the user's read profiles that may wait or fail.
        """
        assert native_options(DrmaaSettings(processors=1), submission(queue="x", memory=5), library) == expected

    def test_the_sites_own_options(self) -> None:
        settings = DrmaaSettings(processors=1, native_specification="-x")
        assert native_options(settings, submission(), SLURM) == ("-x", "--time=0:2")
        assert native_options(DrmaaSettings(processors=1), submission(memory=5), OTHER) == ()

    @pytest.mark.parametrize(
        ("library", "slot", "options"),
        [
            (SLURM, Slot(threads=2), ("--nodes=1", "--ntasks=1", "--cpus-per-task=2")),
            (SLURM, Slot(gpus=2), ("--gres=gpu:2",)),
            (SLURM, Slot(gpus=2, gpu_kind="a100", account="x"), ("--gres=gpu:a100:2", "--account=x")),
            (SLURM, Slot(exclusive=True, scratch_mib=9, qos="q"), ("--exclusive", "--tmp=9", "--qos=q")),
            (PBS, Slot(threads=2, account="x"), ("-l ncpus=2", "-A x")),
            (GRID_ENGINE, Slot(features=("ib", "avx"), account="x"), ("-l ib=true", "-l avx=true", "-A x")),
            (GRID_ENGINE, Slot(directives=("-P x",)), ("-P x",)),
        ],
        ids=lambda value: value.name if isinstance(value, Library) else None,
    )
    def test_slots_in_the_words_of_a_library(self, library: Library, slot: Slot, options: tuple[str, ...]) -> None:
        made = site_options(DrmaaSettings(processors=1), replace(submission(), slot=slot), library, Directives())
        assert made[-len(options) :] == options

    def test_what_a_site_must_say(self) -> None:
        asked, settings = replace(submission(), slot=Slot(threads=2)), DrmaaSettings(processors=1)
        with pytest.raises(LrmRejectedError, match="Grid Engine through DRMAA cannot be asked for threads"):
            site_options(settings, asked, GRID_ENGINE, Directives())
        site = Directives(map=(("threads", ("-pe smp {n}",)),))
        assert site_options(settings, asked, GRID_ENGINE, site)[-1] == "-pe smp 2"

    def test_queue_that_cannot_be_expressed(self) -> None:
        with pytest.raises(LrmRejectedError, match=r"queue 'long.q' cannot be asked for"):
            native_options(DrmaaSettings(processors=1), submission(queue="long.q"), OTHER)


class TestLibraries:
    """The table of what libraries can do."""

    @pytest.mark.parametrize(
        ("words", "library"),
        [
            (("SGE 8.1.9", "SGE 8.1.9"), GRID_ENGINE),
            (("/usr/lib/gridengine-drmaa/lib/libdrmaa.so.1.0",), GRID_ENGINE),
            (("SLURM 22.05.8", "DRMAA for SLURM by PSNC"), SLURM),
            (("PBS Pro", "PSNC DRMAA for PBS"), PBS),
            (("Torque", ""), PBS),
            (("/opt/slurm-drmaa/lib/libdrmaa.so.1",), SLURM),
            (("LSF", "FedStage DRMAA for LSF"), OTHER),
            (("",), OTHER),
        ],
    )
    def test_recognized(self, words: tuple[str, ...], library: Library) -> None:
        assert library_of(*words) is library

    @pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
    def test_what_is_not_sure_is_not_stated(self, library: Library) -> None:
        assert library.bulk == (library is GRID_ENGINE)
        assert library.suspend == (library is GRID_ENGINE)
        assert index_variable(DrmaaSettings(processors=1), library) == (
            "SGE_TASK_ID" if library is GRID_ENGINE else None
        )
        assert index_variable(DrmaaSettings(processors=1, submission="single"), library) is None


class TestComplaints:
    """From complaints to the four errors."""

    @pytest.mark.parametrize(
        ("name", "text", "kind"),
        [
            ("DrmCommunicationException", "unable to contact qmaster", FailureKind.UNAVAILABLE),
            ("DeniedByDrmException", "unknown resource", FailureKind.REJECTED),
            ("DeniedByDrmException", "unable to send message to qmaster using port 1", FailureKind.UNAVAILABLE),
            ("DeniedByDrmException", 'queue "x" does not exist', FailureKind.REJECTED),
            ("InvalidJobException", 'denied: job "9" does not exist', FailureKind.NOT_FOUND),
            ("InternalException", "", FailureKind.UNAVAILABLE),
            ("InternalException", INVALID_ID, FailureKind.NOT_FOUND),
            ("InternalException", COMPLETING, FailureKind.NOT_FOUND),
            ("InternalException", "pbs_deljob: Job has finished", FailureKind.NOT_FOUND),
            ("InvalidJobException", "pbs_deljob: Unknown Job Id", FailureKind.NOT_FOUND),
            ("InternalException", "pbs_deljob: Request invalid for state of job", FailureKind.REJECTED),
            ("InternalException", "slurm_terminate_job error: Socket timed out on send/recv", FailureKind.UNAVAILABLE),
            ("SomethingNewException", "job 9 does not exist", FailureKind.NOT_FOUND),
            ("SomethingNewException", "segmentation violation", FailureKind.UNAVAILABLE),
        ],
    )
    def test_exceptions(self, name: str, text: str, kind: FailureKind) -> None:
        assert kind_of_exception(name, text) is kind

    @pytest.mark.parametrize(
        ("text", "ending"),
        [
            (COMPLETING, True),
            ("pbs_deljob: Job has finished", True),
            ("pbs_deljob: Request invalid for state of job", True),
            (INVALID_ID, False),
            ("Access/permission denied", False),
        ],
    )
    def test_what_ends_already(self, text: str, ending: bool) -> None:  # noqa: FBT001 - a parameter of the test
        assert is_ending(text) is ending

    def test_first_grave_refusal_is_raised(self) -> None:
        gone = Refusal(id="1.1", kind=FailureKind.NOT_FOUND, message="gone")
        denied = Refusal(id="1.2", kind=FailureKind.REJECTED, message="not yours")
        raise_for([])
        raise_for([gone], gone_is_fine=True)
        with pytest.raises(LrmRejectedError, match=r"^1\.2: not yours"):
            raise_for([gone, denied], gone_is_fine=True)
        with pytest.raises(LrmNotFoundError, match=r"1\.1, 1\.2") as caught:
            raise_for([gone, denied])
        assert caught.value.hint


class TestStates:
    """From DRMAA's words to ours."""

    @pytest.mark.parametrize("status", list(JobStatus))
    def test_every_status_has_a_state(self, status: JobStatus) -> None:
        batch = ListedBatch(key="k1", count=1, submitted_at=1.0, jobs=(ListedJob(id="7.1", status=status),))
        (job,) = jobs_of_batch(batch, user="me", node="cluster", queue="q")
        assert (job.raw_state, job.array_index, job.name) == (status.value, 1, "k1")
        assert bool(job.nodes) == (job.state in {LrmJobState.RUNNING, LrmJobState.SUSPENDED})

    def test_unknown_outcome(self) -> None:
        """Jobs of a batch that have no id are UNKNOWN, and only those; the ids that they are given lead to its key."""
        known = ListedJob(id="7.1", status=JobStatus.RUNNING)
        batch = ListedBatch(key="k.1", count=3, submitted_at=1.0, jobs=(known,))
        jobs = jobs_of_batch(batch, user="me", node="c", queue="q")
        assert [(job.array_index, job.state, unknown_key(job.id)) for job in jobs] == [
            (1, LrmJobState.RUNNING, None),
            (2, LrmJobState.UNKNOWN, "k.1"),
            (3, LrmJobState.UNKNOWN, "k.1"),
        ]
        assert len(jobs_of_batch(replace(batch, jobs=()), user="me", node="c", queue="q")) == 3

    @pytest.mark.parametrize(
        ("job", "end"),
        [
            (ListedJob(id="1", status=JobStatus.DONE, exit_code=3), EndReason.EXITED),
            (ListedJob(id="1", status=JobStatus.FAILED, signal=11), EndReason.SIGNALLED),
            (ListedJob(id="1", status=JobStatus.FAILED, signal=9), None),
            (ListedJob(id="1", status=JobStatus.FAILED, signal=15, aborted=True), None),
            (ListedJob(id="1", status=JobStatus.DONE), None),
        ],
    )
    def test_ends(self, job: ListedJob, end: EndReason | None) -> None:
        """What DRMAA cannot know is not told: a SIGKILL may be the walltime's, a cancel's or the job's own."""
        assert end_of(job) is end


class TestEnvironment:
    """How the helper is started."""

    def test_environment_is_built(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing of ours goes in but what is needed; the locale is one that Python reads bytes in safely."""
        monkeypatch.setenv("SGE_ROOT", "/wrong")
        monkeypatch.setenv("SECRET", "s")
        launch = HelperLaunch(library=Path("/l/libdrmaa.so"), variables={"SGE_CELL": "c"})
        environment = child_environment(launch.variables_added())
        assert environment["DRMAA_LIBRARY_PATH"] == "/l/libdrmaa.so"
        assert environment["LC_ALL"] == "C.UTF-8"
        assert environment["SGE_CELL"] == "c"
        assert not {"SGE_ROOT", "SECRET"} & set(environment)

    def test_cures_for_static_tls(self) -> None:
        first = HelperLaunch(library=None)
        assert first.loading is Loading.TUNABLES
        assert "optional_static_tls" in first.variables_added()["GLIBC_TUNABLES"]
        second = first.after("/lib/x/libjemalloc.so.2: cannot allocate memory in static TLS block")
        assert second is not None
        assert second.variables_added()["LD_PRELOAD"] == "/lib/x/libjemalloc.so.2"
        assert second.after("/lib/x/libjemalloc.so.2: cannot allocate memory in static TLS block") is None
        assert first.after("No such file or directory") is None


class TestParcel:
    """What a site gets of the helper."""

    def test_nothing_else_of_ours_is_needed(self) -> None:
        """It runs without the packages of this Python, in which it finds no libdrmaa to load."""
        request = encode(1, OpenSession())
        environment = {"DRMAA_LIBRARY_PATH": "/nowhere/libdrmaa.so"}
        command = command_there(sys.executable)
        done = subprocess.run(command, input=parcel() + request, capture_output=True, check=False, env=environment)
        answer = decode_result(done.stdout).result
        assert isinstance(answer, Failure), done.stderr
        assert (answer.kind, "/nowhere/libdrmaa.so" in answer.message) == (FailureKind.LIBRARY, True)

    def test_half_of_it_is_not_run(self) -> None:
        half = parcel()[:1000]
        done = subprocess.run(command_there(sys.executable), input=half, capture_output=True, check=False)
        assert b"did not arrive whole" in done.stderr

    @pytest.mark.parametrize("module", [complaints, helper, ledger])
    def test_python_36(self, module: ModuleType) -> None:
        tree = ast.parse(inspect.getsource(module), feature_version=(3, 6))
        newer = ast.NamedExpr | ast.Match | ast.AsyncFunctionDef
        assert not [node for node in ast.walk(tree) if isinstance(node, newer)]


class TestScripts:
    """Scripts on disk."""

    async def test_no_cluster_deletes_the_scripts_of_another(self, tmp_path: Path) -> None:
        contexts = [
            new_context(tmp_path / state, cluster=cluster) for state, cluster in (("s", "a"), ("s", "b"), ("t", "a"))
        ]
        stores = [ScriptStore(script_folder(tmp_path / "home", context), THIS_HOST) for context in contexts]
        scripts = [await store.write(BatchKey("k1"), "x") for store in stores]
        assert len(set(scripts)) == len(contexts)
        for now in (0.0, KEEP_SECONDS + 1):
            await stores[0].sweep((), now)
        assert [script.exists() for script in scripts] == [False, True, True]
        again = new_context(tmp_path / "t", cluster="a")
        assert script_folder(tmp_path / "home", again) == scripts[2].parent, "the folder of a restarted service"

    async def test_private_and_whole(self, tmp_path: Path) -> None:
        """File 0600, directory 0700, the text byte for byte; written again, it is the new text in a new file."""
        store = ScriptStore(tmp_path / "scripts", THIS_HOST)
        path = await store.write(BatchKey("k1"), "#!/bin/sh\n: é \udcff\n")
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert path.read_bytes() == "#!/bin/sh\n: é ".encode() + b"\xff\n"
        other = tmp_path / "other"
        path.unlink()
        path.symlink_to(other)
        await store.write(BatchKey("k1"), "new")
        assert (path.read_text(), path.is_symlink(), other.exists()) == ("new", False, False)

    @pytest.mark.parametrize("key", ["", "../x", "a/b", "1a", "a b", "a\n", ".x", "a" * 129])
    def test_keys_that_are_no_file_names(self, tmp_path: Path, key: str) -> None:
        with pytest.raises(LrmRejectedError):
            ScriptStore(tmp_path, THIS_HOST).path(BatchKey(key))

    async def test_sweep(self, tmp_path: Path) -> None:
        store = ScriptStore(tmp_path, THIS_HOST)
        for key in ("live", "old"):
            await store.write(BatchKey(key), "x")
        (tmp_path / "note.txt").touch()
        await store.sweep({"live"}, 1000.0)
        await store.write(BatchKey("fresh"), "x")
        await store.sweep({"live"}, 1000.0 + KEEP_SECONDS)
        assert set(await THIS_HOST.list_directory(str(tmp_path))) == {"live.sh", "old.sh", "fresh.sh", "note.txt"}
        await store.sweep({"live"}, 1001.0 + KEEP_SECONDS)
        for _ in range(2):
            store.remove(BatchKey("live"))
        assert set(await THIS_HOST.list_directory(str(tmp_path))) == {"fresh.sh", "note.txt"}

    async def test_sweep_does_not_believe_the_times_of_files(self, tmp_path: Path) -> None:
        """A clock that is set forward by hours must not take the script of a submission that is on its way."""
        store = ScriptStore(tmp_path, THIS_HOST)
        os.utime(await store.write(BatchKey("new"), "x"), (time.time() - 2 * KEEP_SECONDS,) * 2)
        await store.sweep((), time.monotonic())
        assert (tmp_path / "new.sh").exists()

    async def test_full_disk_is_said(self, tmp_path: Path) -> None:
        """A script that cannot be written is unavailable, with where and why."""
        (tmp_path / "file").touch()
        with pytest.raises(LrmUnavailableError, match=r"cannot write the script .*/file/k1\.sh"):
            await ScriptStore(tmp_path / "file", THIS_HOST).write(BatchKey("k1"), "x")


# What Slurm and PBS are asked for through DRMAA, with ``submit_by = "drmaa"``.

SUBMISSION = Submission(
    key=BatchKey("koala-1"), count=3, script="#!/bin/sh\n: secret\n", walltime=5401, queue="short", memory_mib=512
)
NONE = Directives()


def test_slurm() -> None:
    settings = SlurmSettings(submit_by="drmaa", account="physics")
    assert slurm.native_specification(SUBMISSION, settings, NONE).split() == [
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=1",
        "--time=0:91",
        "--no-requeue",
        "--partition=short",
        "--mem=512",
        "--account=physics",
    ]


def test_pbs() -> None:
    """What a job template says of every system is left out: name, hold, output, and the number of a placeholder."""
    settings = PbsSettings(submit_by="drmaa", account="physics")
    assert pbs.native_specification(SUBMISSION, settings, NONE) == (
        "-l select=1:ncpus=1:mem=512mb -l walltime=5401 -r n -S /bin/sh -m n -q short -A physics"
    )


def test_directives_hold_here_too() -> None:
    directives = Directives(add=("--comment=x",), drop=("--mem",), rename=(("--partition", "--qos"),))
    text = slurm.native_specification(SUBMISSION, SlurmSettings(), directives)
    assert text.endswith("--no-requeue --qos=short --comment=x")
    with pytest.raises(LrmRejectedError, match="two words"):
        slurm.native_specification(SUBMISSION, SlurmSettings(), Directives(add=("--comment='two words'",)))
    with pytest.raises(LrmRejectedError, match="impossible to follow"):
        pbs.native_specification(SUBMISSION, PbsSettings(), Directives(add=("-v A=1",)))


@pytest.mark.parametrize("word", ["", "a b", "a\tb", "a\nb"])
def test_what_a_native_specification_cannot_hold(word: str) -> None:
    with pytest.raises(LrmRejectedError, match="cannot go through DRMAA"):
        one_text(["-q", word])


def test_settings_that_cannot_be_had() -> None:
    with pytest.raises(ValidationError, match="environment = 'login' cannot be had"):
        SlurmSettings(submit_by="drmaa", environment="login")
    with pytest.raises(ValidationError, match="project cannot be had"):
        PbsSettings(submit_by="drmaa", project="p")


def test_what_would_be_sent_is_shown(tmp_path: Path) -> None:
    """Slurm's placeholders are one bulk; PBS's are jobs of their own, told their number where an element finds it."""
    context = new_context(tmp_path)
    shown = SlurmLrm(context, SlurmSettings(submit_by="drmaa")).render(SUBMISSION)
    assert shown.call[:4] == ("drmaa_run_bulk_jobs", "1", "3", "1")
    assert shown.command[0].endswith("sbatch")
    assert shown.script == SUBMISSION.script
    shown = PbsLrm(context, PbsSettings(submit_by="drmaa")).render(SUBMISSION)
    assert shown.call[0] == "drmaa_run_job"
    assert "drmaa_v_env=PBS_ARRAY_INDEX=1" in shown.call
    assert shown.command[0].endswith("qsub")
    assert "3 calls" in shown.note
    assert not [word for word in (*shown.call, *shown.command) if "secret" in word]
