# SPDX-License-Identifier: Apache-2.0
"""What is asked of Grid Engine, slots in its words, and which jobs its site's hook holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import ClusterContext, Submission
from koala_adapter.lrm.commands import CommandRunner, LocalHost
from koala_adapter.lrm.contract import Directives, ReservationRequest
from koala_adapter.lrm.drmaa.scripts import ScriptDelivery
from koala_adapter.lrm.lrmhost import HostFacts
from koala_adapter.model import BatchKey, ClusterName, LrmJob, LrmJobId, LrmJobState, NodeGpus
from koala_adapter.slots import PLAIN, Slot
from koala_adapter.testing import new_context
from koala_adapter.testing.trial import begin_start
from koala_sge import SgeLrm, SgeSettings
from koala_sge import heldjobs as sge_requests
from koala_sge.checks import check_defaults, groups_arrays, require_whole_listings
from koala_sge.heldjobs import ExplainedJob, list_held, list_jobs, parse_wishes, possibly_hook_holds, without_users
from koala_sge.listing import WRAPPER, GridEngineCommands, parse_jobs, parse_layouts, parse_left, parse_nodes
from koala_sge.submission import (
    Complexes,
    environments_of_queues,
    gpu_complex,
    is_on_one_host,
    keep,
    kept,
    native_options,
    parse_complex_value,
    parse_complexes,
    parse_granted,
    parse_reservations,
    qrsub_command,
    shared,
    slots_granted,
)
from tests.fakes.scriptedrunner import ScriptedRunner

# -- Slots in the words of Grid Engine: options, shares of each processor, and what qconf tells of a cell.

PLACEHOLDERS = Submission(key=BatchKey("koala-1"), count=3, script="#!/bin/sh\n", walltime=60)
SETTINGS = SgeSettings.model_validate({"root": "/sge"})
SAMPLES = Path(__file__).parents[2] / "wire" / "samples" / "sge819"
COMPLEXES = """\
#name               shortcut   type      relop requestable consumable default  urgency
#--------------------------------------------------------------------------------------
exclusive           excl       BOOL      EXCL  YES         YES        0        1000
gpu                 gpu        INT       <=    YES         JOB        0        0
h_vmem              h_vmem     MEMORY    <=    YES         YES        0        0
ib                  ib         BOOL      ==    YES         NO         FALSE    0
matlab              mat        INT       <=    YES         YES        0        0
mem_free            mf         MEMORY    <=    YES         NO         0        0
rerun               re         BOOL      ==    NO          NO         0        0
# >#< starts a comment but comments are not saved across edits --------
"""
"""As `qconf -sc` of 8.1.9 shows a cell."""
CELL = parse_complexes(COMPLEXES, "smp")


def options(slot: Slot, *, memory_mib: int | None = None, cell: Complexes = CELL, **mapped: str) -> list[str]:
    """Return the options of a submission that a plain one does not have."""
    site = Directives(map=tuple((key, (text,)) for key, text in mapped.items()))
    asked = replace(PLACEHOLDERS, slot=slot, memory_mib=memory_mib)
    plain = native_options(SETTINGS, PLACEHOLDERS, cell, site)
    return [option for option in native_options(SETTINGS, asked, cell, site) if option not in plain]


def test_a_cell_is_read() -> None:
    assert (CELL.environment, CELL.exclusive, CELL.booleans) == ("smp", "exclusive", ("ib",))
    assert dict(CELL.consumables) == {"gpu": "JOB", "h_vmem": "YES", "matlab": "YES", "mat": "YES"}
    assert CELL.expressible >= {"threads", "exclusive", "features", "licenses"}
    assert CELL.known
    assert not Complexes().expressible & {"threads", "exclusive", "gpus"}


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        (PLAIN, []),
        (Slot(threads=4), ["-pe smp 4"]),
        (Slot(exclusive=True), ["-l exclusive=true"]),
        (Slot(features=("ib", "avx")), ["-l ib=true", "-l avx=true"]),
        (Slot(licenses=(("matlab", 2),)), ["-l matlab=2"]),
        (Slot(threads=2, licenses=(("matlab", 2),)), ["-pe smp 2", "-l matlab=1"]),
        (Slot(account="physics"), ["-A physics"]),
        (Slot(directives=("-P physics",)), ["-P physics"]),
    ],
)
def test_slots_become_options(slot: Slot, expected: list[str]) -> None:
    assert options(slot) == expected


def test_memory_of_several_processors_is_asked_for_in_shares() -> None:
    assert options(Slot(threads=3), memory_mib=1000) == ["-pe smp 3", "-l h_vmem=334M"]
    assert options(Slot(threads=3), memory_mib=1000, memory="-l mem_free={mib}M") == ["-pe smp 3", "-l mem_free=1000M"]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("-l gpu=1", "-l gpu=1"),
        ("-l gpu=1,matlab=4", "-l gpu=1,matlab=2"),
        ("-l mat=2", "-l mat=1"),
        ("-l h_vmem=3G", "-l h_vmem=2G"),
        ("-l h_data=3M", "-l h_data=2M"),
        ("-l ib=true", "-l ib=true"),
        ("-l ib", "-l ib"),
        ("-P matlab=2", "-P matlab=2"),
    ],
)
def test_shares_of_two_processors(option: str, expected: str) -> None:
    assert shared(option, CELL, threads=2) == expected
    assert shared(option, CELL, threads=1) == option


def test_a_count_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(LrmRejectedError, match="takes matlab for each of 2 processors, and 1 cannot") as caught:
        options(Slot(threads=2, licenses=(("matlab", 1),)))
    assert caught.value.hint == "set consumable of matlab to JOB (qconf -mc)"


def test_mapped_keys() -> None:
    assert options(Slot(threads=2, gpus=1), gpus="-l gpu={n}") == ["-pe smp 2", "-l gpu=1"]
    assert options(Slot(threads=2), memory_mib=10, threads="-pe other {n}") == ["-l h_vmem=5M", "-pe other 2"]
    with pytest.raises(LrmRejectedError, match="gpus, gpu_kind") as caught:
        options(Slot(gpus=1, gpu_kind="a100"))
    assert "[clusters.map]" in caught.value.hint


def test_without_a_parallel_environment_threads_are_refused_with_the_remedy() -> None:
    with pytest.raises(LrmRejectedError, match="cannot be asked for 2 threads, processors of one host") as caught:
        options(Slot(threads=2), cell=replace(CELL, environment=""))
    assert "$pe_slots" in caught.value.hint
    assert "parallel_environment" in caught.value.hint


def test_environments_of_queues() -> None:
    queues = "qname a.q\npe_list make smp,[n1=mpi smp],\\\n [@big=wide]\nslots 4\nqname b.q\npe_list NONE\n"
    assert environments_of_queues(queues, None) == ("make", "smp", "mpi", "wide")
    assert environments_of_queues(queues, "b.q") == ()
    assert is_on_one_host("pe_name smp\nallocation_rule    $pe_slots\n")
    assert not is_on_one_host("pe_name mpi\nallocation_rule    $fill_up\n")


HOST = b"""<?xml version='1.0'?>
<qhost>
 <host name='n1'>
   <hostvalue name='mem_total'>23.5G</hostvalue>
   <resourcevalue name='ib' dominance='hf'>1.000000</resourcevalue>
   <resourcevalue name='avx' dominance='hf'>0.000000</resourcevalue>
   <resourcevalue name='slots' dominance='hc'>4.000000</resourcevalue>
 <queue name='all.q'>
   <queuevalue qname='all.q' name='qtype_string'>BIP</queuevalue>
   <queuevalue qname='all.q' name='slots'>4</queuevalue>
 </queue>
 </host>
</qhost>
"""
"""Of `qhost -xml -q -F slots,avx,ib` of 8.1.9."""


@pytest.mark.parametrize("by_queue", [False, True])
def test_features_of_a_host(*, by_queue: bool) -> None:
    (node,) = parse_nodes(HOST, by_queue=by_queue, features=("avx", "ib"))
    assert (node.features, node.untold) == (("ib",), ("gpus", "gpu_kind"))


def test_gpus_of_a_host() -> None:
    """What is left is in the listing, and how many there are in the settings of the host; a job has one of two."""
    listing = (SAMPLES / "qhost_q_F_gpu.xml").read_bytes()
    left = parse_left(listing, beside=("ib",))
    assert left == {"localhost": ("gpu", 1)}
    settings = (SAMPLES / "qconf_se.txt").read_text()
    assert [parse_complex_value(settings, name) for name in ("gpu", "pu", "load_avg", "ib")] == [2, None, None, None]
    gpus = {"localhost": NodeGpus(kind="", count=2, used=1)}
    (node,) = parse_nodes(listing, features=("ib",), gpus=gpus)
    assert (node.gpus, node.untold, node.features) == ((gpus["localhost"],), ("gpu_kind",), ("ib",))
    (unknown,) = parse_nodes(listing, gpus={"localhost": None}, untold=("features",))
    assert (unknown.gpus, unknown.untold) == ((), ("gpus", "gpu_kind", "features"))
    (without,) = parse_nodes(listing, by_queue=True, gpus={"other": gpus["localhost"]})
    assert (without.name, without.gpus, without.untold) == ("all.q@localhost", (), ("gpu_kind",))


def test_gpus_that_waiting_jobs_ask_for() -> None:
    listing = (SAMPLES / "qstat_r_gpu.xml").read_bytes()
    asked = {job.id: job.gpus_per_node for job in parse_jobs(listing, gpu="gpu")}
    assert asked == {"1": 0, "2.1": 1, "2.2": 1}
    assert {job.gpus_per_node for job in parse_jobs(listing)} == {0}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("-l gpu={n}",), "gpu"),
        (("-l cuda=TRUE,g={n}",), "g"),
        (("-l h=n1", "-l gpu={n}"), "gpu"),
        (("-l nosuch={n}",), ""),
        (("-l gpu=1",), ""),
    ],
)
def test_the_complex_of_gpus_is_that_of_the_map(arguments: tuple[str, ...], found: str) -> None:
    cell = replace(CELL, consumables={"gpu": "JOB", "g": "JOB"})
    assert gpu_complex(Directives(map=(("gpus", arguments),)), cell) == found
    assert gpu_complex(Directives(), cell) == ""


def test_a_cell_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "complexes.json"
    assert kept(path, SETTINGS) == Complexes()
    keep(path, CELL)
    assert kept(path, SETTINGS) == CELL
    own = SETTINGS.model_copy(update={"parallel_environment": "own"})
    assert kept(path, own) == replace(CELL, environment="own")


# -- Reservations


def test_reservations_are_asked_for_and_read() -> None:
    slot = Slot(threads=2, memory_mib=100)
    placeholders = replace(PLACEHOLDERS, slot=slot, queue="all.q", memory_mib=100, walltime=3700)
    request = ReservationRequest(placeholders=placeholders, starts_in=0.0)
    native = native_options(SETTINGS, placeholders, CELL, Directives())
    command = qrsub_command(request, "spread", native, 1_800_000_000.0)
    assert command == (
        *("qrsub", "-a", "202701150800.00", "-d", "1:1:40", "-pe", "spread", "6"),
        *("-N", placeholders.key, "-l", "h_vmem=50M", "-q", "all.q"),
    )
    granted = "id   3\ngranted_slots_list             all.q@n1=4,all.q@n2=1,all.q@n3=3\n"
    assert slots_granted(granted, 2) == 3
    assert slots_granted("", 2) == 0
    assert parse_granted("Your advance reservation 12 has been granted\n") == "12"
    assert parse_granted("advance_reservation: no suitable queues\n") == ""
    shown = "<ar_summary><id>12</id><name>koala-x-r-1-1</name><owner>ann</owner></ar_summary>"
    assert parse_reservations(shown, "ann") == {"koala-x-r-1-1": "12"}
    assert parse_reservations(shown, "bob") == {}


# What is asked of Grid Engine, and the settings that choose the cell.

QHOST_DOWN = 'error: unable to send message to qmaster using port 1 on host "localhost": got send error\n'
HELD = (
    "<job_info><job_list><JB_job_number>{number}</JB_job_number><JB_name>k</JB_name><JB_owner>me</JB_owner>"
    "<state>{letters}</state><slots>1</slots><tasks>{tasks}</tasks></job_list>{more}</job_info>"
)

QUEUES = {"qconf": (0, "qname all.q\nh_rt INFINITY\n", ""), "qselect": (0, "all.q@n1\nall.q@n2\n", "")}


def lrm_of(tmp_path: Path, *, answers: Mapping[str, tuple[int, str, str]] | None = None, **settings: object) -> SgeLrm:
    """Return a plugin object that has not been started."""
    context = ClusterContext(
        cluster=ClusterName("c"),
        commands=ScriptedRunner(answers or {}),
        state_directory=tmp_path,
        directives=Directives(drop=("-r",), add=("-P physics",)),
        user="me",
    )
    return SgeLrm(context, SgeSettings.model_validate({"root": "/sge", **settings}))


def submission(*, held: bool = False, queue: str | None = None) -> Submission:
    """Return a submission of three placeholders."""
    return Submission(
        key=BatchKey("k1"), count=3, script="#!/bin/sh\n", walltime=90, memory_mib=512, held=held, queue=queue
    )


class TestSettings:
    """The settings of a cell."""

    def test_variables(self) -> None:
        """Root, cell and ports choose the cell; times are printed in UTC; nothing else is set."""
        settings = SgeSettings(root=Path("/sge"), cell="c", qmaster_port=1, execd_port=2, environment={"X": "y"})
        assert settings.variables() == {
            "SGE_ROOT": "/sge",
            "SGE_CELL": "c",
            "SGE_QMASTER_PORT": "1",
            "SGE_EXECD_PORT": "2",
            "SGE_SINGLE_LINE": "1",
            "TZ": "UTC",
            "X": "y",
        }

    @pytest.mark.parametrize("wrong", [{"cell": ""}, {"qmaster_port": 0}, {"qmaster_port": 70_000}, {"ports": 1}])
    def test_wrong_values(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ValidationError):
            SgeSettings.model_validate({"root": "/sge", **wrong})


class TestRender:
    """The exact submission."""

    def test_equivalent_command(self, tmp_path: Path) -> None:
        rendered = lrm_of(tmp_path, queue="all.q").render(submission(held=True))
        assert " ".join(rendered.command) == (
            "qsub -terse -N k1 -t 1-3 -wd /tmp -o /dev/null -j y -h -b y -shell n -l h_rt=90 -l h_vmem=512M "
            f"-q all.q -P physics /bin/sh {tmp_path}/scripts/k1.sh"
        )

    def test_copied_script(self, tmp_path: Path) -> None:
        lrm = lrm_of(tmp_path, queue="all.q", script_delivery=ScriptDelivery.COPIED)
        words = " ".join(lrm.render(submission(queue="fast.q")).command)
        assert "-b n -S /bin/sh" in words
        assert "-q fast.q" in words
        assert words.endswith(f" {tmp_path}/scripts/k1.sh")

    def test_key_that_is_no_name(self, tmp_path: Path) -> None:
        wrong = Submission(key=BatchKey("1/2"), count=1, script="", walltime=1)
        with pytest.raises(LrmRejectedError):
            lrm_of(tmp_path).render(wrong)


class TestAnswers:
    """What is made of what commands print."""

    async def test_empty_output_is_no_empty_cell(self, tmp_path: Path) -> None:
        lrm = lrm_of(tmp_path, answers={"qhost": (0, "", QHOST_DOWN), "qstat": (1, "", "")})
        with pytest.raises(LrmUnavailableError, match="got send error"):
            await lrm.nodes()
        with pytest.raises(LrmUnavailableError, match="exit code 1"):
            await lrm.jobs()

    @pytest.mark.parametrize(
        ("stdout", "stderr"),
        [
            ("", "error: job id 7 not found\n"),
            ("no jobs running since startup\n", "/sge/default/common/accounting: No such file or directory\n"),
        ],
        ids=["unknown", "no job has ended"],
    )
    async def test_history_of_the_unknown_is_empty(self, tmp_path: Path, stdout: str, stderr: str) -> None:
        lrm = lrm_of(tmp_path, answers={"qacct": (1, stdout, stderr)})
        assert await lrm.history([LrmJobId("7.1"), LrmJobId("7.2")]) == ()
        runner = lrm._context.commands
        assert isinstance(runner, ScriptedRunner)
        assert runner.asked == [("qacct", "-j", "7")]

    async def test_unreadable_accounting_is_unavailable(self, tmp_path: Path) -> None:
        """Accounting that cannot be read is not taken for a job that never was."""
        lrm = lrm_of(tmp_path, answers={"qacct": (1, "", "can't open accounting file: Permission denied\n")})
        with pytest.raises(LrmUnavailableError, match="Permission denied"):
            await lrm.history([LrmJobId("7.1")])

    async def test_start_on_refuses_to_move_siblings(self, tmp_path: Path) -> None:
        """While a task of the same array is released and has not started, pinning would move that one too."""
        more = (
            "<job_list><JB_job_number>7</JB_job_number><JB_name>k</JB_name><JB_owner>me</JB_owner>"
            "<state>qw</state><slots>1</slots><tasks>2</tasks></job_list>"
        )
        listing = HELD.format(number=7, letters="hqw", tasks="1", more=more)
        lrm = lrm_of(tmp_path, answers={"qstat": (0, listing, ""), **QUEUES})
        with pytest.raises(LrmRejectedError, match=r"7\.2 of the same array"):
            await begin_start(lrm, LrmJobId("7.1"), ["n1"])

    @pytest.mark.parametrize(
        ("nodes", "letters", "words"), [(["a", "b"], "hqw", "one node"), (["a"], "r", "running, not held")]
    )
    async def test_start_on_refusals(self, tmp_path: Path, nodes: list[str], letters: str, words: str) -> None:
        listing = HELD.format(number=7, letters=letters, tasks="1", more="")
        lrm = lrm_of(tmp_path, answers={"qstat": (0, listing, ""), **QUEUES})
        with pytest.raises(LrmRejectedError, match=words):
            await begin_start(lrm, LrmJobId("7.1"), nodes)

    async def test_start_on_refused_by_grid_engine(self, tmp_path: Path) -> None:
        listing = HELD.format(number=7, letters="hqw", tasks="1", more="")
        denied = 'denied: "me" must be at least owner of job 7 to change job attributes\n'
        lrm = lrm_of(tmp_path, answers={"qstat": (0, listing, ""), "qalter": (1, "", denied), **QUEUES})
        with pytest.raises(LrmRejectedError, match="at least owner"):
            await begin_start(lrm, LrmJobId("7.1"), ["n1"])


@pytest.mark.parametrize("id_", ["", "x.1", "-u", "*"])
def test_what_is_no_job_number(id_: str) -> None:
    with pytest.raises(LrmNotFoundError):
        sge_requests.job_number(LrmJobId(id_))


NEVER = "verification: no suitable queues\n"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("verification: found suitable queue(s)\n", ""),
        ('denied: job "999" does not exist\n', ""),
        ("", ""),
        (NEVER, "no suitable queues"),
        (
            f'Job 2 (-l h_rt=7200) cannot run in queue "all.q" because of cluster queue\n{NEVER}',
            'cannot run in queue "all.q" because of cluster queue',
        ),
        (
            f'Job 3 (-l arch=no,h_rt=600) cannot run at host "h" because it offers only hl:arch=lx-amd64\n{NEVER}',
            'cannot run at host "h" because it offers only hl:arch=lx-amd64',
        ),
    ],
)
def test_why_a_job_never_runs(said: str, why: str) -> None:
    """As qalter -w v of 8.1.9 says it."""
    assert sge_requests.why_never(said) == why


# Which jobs of Grid Engine the site's hook holds.


def job(id_: str, state: LrmJobState, letters: str) -> LrmJob:
    return LrmJob(id=LrmJobId(id_), name="x", state=state, user="u", processors=1, raw_state=letters)


JOBS = (
    job("1", LrmJobState.HELD, "hqw"),
    job("2", LrmJobState.HELD, "hqw"),
    job("3", LrmJobState.RUNNING, "hr"),
    job("4", LrmJobState.RUNNING, "r"),
    job("5.1", LrmJobState.HELD, "hqw"),
)


def test_operators_holds_are_not_ours() -> None:
    """What is not in user hold waits for somebody else; what runs with a hold would come back in it."""
    assert [one.id for one in possibly_hook_holds(JOBS, {"1", "5.1"})] == ["1", "3", "5.1"]


def test_what_users_hold_is_left_to_them() -> None:
    """By the word that conf/sge_jsv.sh leaves in the context of the job, or of the array."""
    explained = {"1": ExplainedJob(), "2": ExplainedJob(), "5": ExplainedJob(user_hold=True)}
    assert [one.id for one in without_users(JOBS, explained)] == ["1", "2"], "what is not known is not released"


QSTAT = """#!/bin/sh
case "$*" in
*-j*) echo 'unable to contact qmaster using port 6444 on host "h"' >&2; exit 1 ;;
*) echo "<job_info><job_info><job_list state='pending'><JB_job_number>7</JB_job_number><JB_name>x</JB_name>\
<JB_owner>ann</JB_owner><state>hqw</state><slots>1</slots></job_list></job_info></job_info>" ;;
esac
"""


@pytest.mark.parametrize("words", ["unable to contact qmaster", "<comunication_error/>"])
async def test_nothing_is_given_back_while_contexts_are_not_told(tmp_path: Path, words: str) -> None:
    """A qmaster that answers the listing, and not what is asked of the jobs: their users' holds stay."""
    qstat = tmp_path / "qstat"
    answer = "echo '<comunication_error/>'; exit 0" if words.startswith("<") else f"echo '{words}' >&2; exit 1"
    qstat.write_text(QSTAT.replace(QSTAT.splitlines()[2], f"*-j*) {answer} ;;"))
    qstat.chmod(0o755)
    settings = SgeSettings(root=tmp_path, bin_directory=tmp_path)
    lrm = SgeLrm(new_context(tmp_path / "state"), settings)
    with pytest.raises(LrmUnavailableError):
        await lrm.held_by_hook()


COUNTING = """#!/bin/sh
echo "$(basename "$0") $*" >> "$(dirname "$0")/asked"
case "$(basename "$0") $*" in
*-j*) echo "<detailed_job_info><djob_info><element><JB_job_number>7</JB_job_number><JB_group>staff</JB_group>\
<JB_account>bio</JB_account><JB_submission_time>100</JB_submission_time></element></djob_info></detailed_job_info>" ;;
qstat*) cat "$(dirname "$0")/jobs.xml" ;;
qconf*) echo "qname a.q" ;;
qselect*) echo "a.q@n1" ;;
esac
"""
ONE = (
    "<job_list><JB_job_number>{0}</JB_job_number><JB_name>x</JB_name><JB_owner>ann</JB_owner><state>{1}</state>"
    "<slots>1</slots>{2}</job_list>"
)


def counting(directory: Path, *jobs: str) -> SgeLrm:
    """Return the plugin with commands that list these jobs and note what was asked."""
    for name in ("qstat", "qconf", "qselect"):
        (directory / name).write_text(COUNTING)
        (directory / name).chmod(0o755)
    (directory / "jobs.xml").write_text(f"<job_info><queue_info/><job_info>{''.join(jobs)}</job_info></job_info>")
    return SgeLrm(new_context(directory / "state"), SgeSettings(root=directory, bin_directory=directory))


async def test_a_running_job_was_submitted_before_it_started(tmp_path: Path) -> None:
    started = "<JAT_start_time>2026-11-21T11:04:38</JAT_start_time><queue_name>a.q@n1</queue_name>"
    lrm = counting(tmp_path, ONE.format(7, "r", started))
    (first,), (again,) = await lrm.jobs_to_schedule(), await lrm.jobs_to_schedule()
    assert first == again
    assert (first.group, first.account, first.submitted_at) == ("staff", "bio", 100.0)
    assert (tmp_path / "asked").read_text().count("-j 7") == 1


async def test_requests_of_a_listing_are_bounded_whatever_waits(tmp_path: Path) -> None:
    wishes = '<hard_request name="arch">a{0}</hard_request><master_hard_req_queue>q{0}</master_hard_req_queue>'
    lrm = counting(tmp_path, *(ONE.format(number, "hqw", wishes.format(number)) for number in range(1, 60)))
    await lrm.jobs_to_schedule()
    asked = (tmp_path / "asked").read_text().splitlines()
    # The hosts are asked for beside.
    assert len(asked) + 1 <= lrm.requests_per_listing
    assert any(line.startswith("qselect") for line in asked)


# Files of defaults of Grid Engine's commands, which come in front of koala's own options.


def settings_with(directory: Path, name: str, text: str) -> SgeSettings:
    """Return the settings of a cell with one file of defaults."""
    common = directory / "default" / "common"
    common.mkdir(parents=True)
    (common / name).write_text(text)
    return SgeSettings(root=directory)


class HomeAt(LocalHost):
    """This host, where the user's home is a directory of the test."""

    def __init__(self, home: Path) -> None:
        self._home = str(home)

    async def facts(self) -> HostFacts:
        return replace(await super().facts(), home=self._home)


@pytest.mark.parametrize("name", ["sge_qstat", "sge_qselect"])
@pytest.mark.parametrize("text", ["-q x", "# ours\n-ext -pe x", "-l arch=lx", "-U ann", "-j 1", "-qs d"])
async def test_what_hides_jobs_is_refused(tmp_path: Path, name: str, text: str) -> None:
    settings, host = settings_with(tmp_path, name, text), HomeAt(tmp_path)
    with pytest.raises(LrmRejectedError, match=rf"{name} has -\w+, which hides"):
        await require_whole_listings(settings, host)
    checked = await check_defaults(settings, host)
    assert not checked.ok
    assert name in checked.found


@pytest.mark.parametrize("text", ["", "-s r", "-f -F -ext", "-u ann", "# -q x", "-g c"])
async def test_what_is_overridden_or_read_is_not_refused(tmp_path: Path, text: str) -> None:
    settings, host = settings_with(tmp_path, "sge_qstat", text), HomeAt(tmp_path)
    await require_whole_listings(settings, host)
    assert (await check_defaults(settings, host)).ok


async def test_files_of_the_user_and_of_submissions_count(tmp_path: Path) -> None:
    assert not (await check_defaults(settings_with(tmp_path, "sge_request", "-now y"), HomeAt(tmp_path))).ok
    (tmp_path / ".sge_qstat").write_text("-q all.q\n")
    with pytest.raises(LrmRejectedError, match=r"\.sge_qstat has -q"):
        await require_whole_listings(SgeSettings(root=tmp_path), HomeAt(tmp_path))


async def test_states_and_groupings_are_given(tmp_path: Path) -> None:
    settings, host = settings_with(tmp_path, "sge_qstat", "-g c"), HomeAt(tmp_path)
    assert await groups_arrays(settings, host)
    assert not await groups_arrays(SgeSettings(root=tmp_path / "other"), host)
    assert list_jobs()[1:] == ("-xml", "-r", "-s", "prs", "-u", "*")
    assert list_jobs(singly=True)[1:] == ("-xml", "-r", "-s", "prs", "-g", "d", "-u", "*")
    assert list_held("ann", "o", singly=True)[1:] == ("-xml", "-g", "d", "-u", "ann", "-s", "ho")


@pytest.mark.parametrize("name", ["qstat_g_c.xml", "qstat_g_c_two.xml"])
def test_a_listing_of_queues_is_not_no_jobs(name: str) -> None:
    for parse in (parse_jobs, parse_layouts, parse_wishes):
        with pytest.raises(LrmUnavailableError, match="lists no jobs"):
            parse((SAMPLES / name).read_bytes())
    assert parse_jobs((SAMPLES / "qstat_empty.xml").read_bytes()) == ()


def test_the_enclosing_queue_instance_is_the_place_of_a_job() -> None:
    listed = {str(job.id): job for job in parse_jobs((SAMPLES / "qstat_mixed_f.xml").read_bytes())}
    plain = {str(job.id): job for job in parse_jobs((SAMPLES / "qstat_mixed.xml").read_bytes())}
    assert (listed["3.1"].queue, listed["3.1"].nodes) == ("all.q", ("localhost",))
    assert {id_: (job.queue, job.nodes, job.layout) for id_, job in listed.items() if job.nodes} == {
        id_: (job.queue, job.nodes, job.layout) for id_, job in plain.items() if job.nodes
    }


# Which program is called where the commands of Grid Engine are Debian's wrapper.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give a directory in which qstat is a link to the wrapper, beside one with the program itself."""
    for name in ("bin", "lib", "share"):
        (tmp_path / name).mkdir()
    for program in (tmp_path / "share" / WRAPPER, tmp_path / "lib" / "qstat"):
        program.touch(mode=0o755)
    (tmp_path / "bin" / "qstat").symlink_to(tmp_path / "share" / WRAPPER)
    return tmp_path


async def called(path: Path, search: Path, **settings: Path) -> str:
    """Return the program that is called for qstat; ``search``: PATH. The programs are in ``path / "lib"``."""

    class SearchedIn(LocalHost):
        async def programs(self, names: Sequence[str], directory: str = "") -> Mapping[str, str]:
            return await super().programs(names, directory or str(search))

    runner = CommandRunner(host=SearchedIn())
    commands = GridEngineCommands(runner, SgeSettings.model_validate({"root": "/sge", **settings}))
    await commands.pass_by_wrapper(str(path / "lib"))
    return commands.argv(("qstat",))[0]


@pytest.mark.parametrize(
    ("lacking", "search", "program"),
    [
        (None, "bin", "lib/qstat"),
        ("bin/qstat", "bin", "qstat"),
        ("lib/qstat", "bin", "qstat"),
        (None, "lib", "qstat"),
    ],
    ids=["the wrapper is in PATH", "nothing is in PATH", "the program is missing", "the program is in PATH"],
)
async def test_the_program_itself_is_called(path: Path, lacking: str | None, search: str, program: str) -> None:
    """The wrapper would cost ten times as much as what it calls; what is none is called as it is."""
    if lacking is not None:
        (path / lacking).unlink()
    expected = str(path / program) if "/" in program else program
    assert await called(path, path / search) == expected


async def test_what_the_site_says_holds(path: Path) -> None:
    """A directory in the site file is not second-guessed."""
    assert await called(path, path / "bin", bin_directory=path / "bin") == str(path / "bin" / "qstat")
