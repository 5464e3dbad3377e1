# SPDX-License-Identifier: Apache-2.0
"""The commands as people type them, in real processes on local clusters: what they print, where, and how they end."""

from __future__ import annotations

import json
import os
import resource
import select
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from koala_adapter.api.client import Client
from koala_adapter.api.statedirectory import ownership, prepare_directory
from koala_adapter.report.values import JobReport
from tests.local_koala import LIVENESS, Koala, Running, eventually, processes_naming

SLOW_START = 4.0
"""Seconds for which a service does not get on; long enough for another one to be tried."""
ORPHAN = "koala-{}-999999"


@dataclass
class UsedKoala(Koala):
    """A site without a service on which a job has run, for tests that leave it as it is."""

    reported: str = ""
    """What ``koala run --json`` printed of it."""


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UsedKoala]:
    """Give such a site."""
    with closing(UsedKoala(tmp_path_factory.mktemp("used"))) as one:
        one.reported = one.run("run", one.job("true"), "--json").stdout
        yield one


def output(process: Running) -> tuple[str, str]:
    """Wait for a process and return what it wrote; never a traceback."""
    written, said = process.communicate(timeout=LIVENESS)
    assert "Traceback" not in said, said
    return written, said


# ---- run ------------------------------------------------------------------------------------------------------------


def test_run_prints_results_apart_from_progress(koala: Koala) -> None:
    """Output, marked, is all that is on standard output; a rank that exits with 3 makes it 3, and is named."""
    done = koala.run("run", koala.job("echo hello from $KOALA_RANK; exit $((KOALA_RANK * 3))"), check=3)
    assert sorted(done.stdout.splitlines()) == ["left/0: hello from 0", "right/0: hello from 1"]
    assert "waited" in done.stderr
    assert "rank 1" in done.stderr
    assert "exit code 3" in done.stderr
    assert koala.placeholders() == []


def test_logs_say_where_something_is(koala: Koala) -> None:
    koala.run("run", koala.job("echo broken >&2; exit 3", processors=1), check=3)
    done = koala.inside("logs", "1")
    assert (done.stdout, "koala logs 1 --stderr prints standard error" in done.stderr) == ("", True)
    # Whichever process fails first ends the other one, which may not have said anything yet.
    assert "/0: broken\n" in koala.inside("logs", "1", "--stderr").stdout


def test_first_line_of_all_is_marked(koala: Koala) -> None:
    """Lines are marked by the size of the job, although only one rank has written anything so far."""
    script = f"[ $KOALA_RANK = 1 ] || until [ -e {koala.directory}/go ]; do sleep 0.1; done; echo of $KOALA_RANK"
    process = koala.start("run", koala.job(script))
    assert process.stdout is not None
    first = process.stdout.readline()
    earlier = koala.inside("logs", "1").stdout
    (koala.directory / "go").touch()
    written, _ = output(process)
    assert (first, earlier, written) == ("right/0: of 1\n", "right/0: of 1\n", "left/0: of 0\n")


def test_a_program_needs_no_job_file(koala: Koala) -> None:
    kept = koala.directory / "kept.toml"
    # Both ranks print before one fails: the job ends with the first that does.
    meet = 'cd "$0"; j=$KOALA_JOB_ID; touch $j-$KOALA_RANK; until [ -e $j-0 ] && [ -e $j-1 ]; do sleep 0.05; done'
    words = ("sh", "-c", f'echo "$KOALA_RANK $PWD"; {meet}; exit 4', str(koala.directory))
    done = koala.run("run", "-n", "2", "--save", str(kept), "--", *words, check=4)
    assert sorted(done.stdout.splitlines()) == [f"c1/{rank}: {rank} {Path.cwd()}" for rank in range(2)]
    again = koala.run("run", str(kept), check=4)
    assert sorted(again.stdout.splitlines()) == sorted(done.stdout.splitlines())
    assert "is there already" in koala.inside("run", "-n", "2", "--save", str(kept), "--", *words, check=245).stderr


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ((), 2, "Missing argument"),
        (("/bin/ls",), 245, "koala run -n PROCESSORS -- /bin/ls"),
        (("-n", "2", "job.toml"), 2, "nothing may stand beside it"),
        (("-n", "2", "-t", "soon", "--", "ls"), 245, "walltime"),
        (("-n", "2", "--", b"\xff"), 245, "not UTF-8"),
    ],
    ids=["nothing", "a program", "a program and a job file", "no walltime", "no text"],
)
def test_what_is_to_run_is_not_guessed(koala: Koala, words: tuple[str | bytes, ...], code: int, complaint: str) -> None:
    assert complaint in koala.inside("run", *map(os.fsdecode, words), check=code).stderr


def test_run_as_json_keeps_what_placeholders_were(used: UsedKoala) -> None:
    """The report of a finished job still tells waiting time, hosts and LRM ids of each component."""
    report = json.loads(used.reported)
    assert report["state"] == "completed"
    for component in report["components"]:
        assert component["waited"] >= 0
        assert component["hosts"]
        assert len(component["lrm_ids"]) == 1


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.nightly) for one in (signal.SIGTERM, signal.SIGHUP))],
)
def test_interrupted_run_cancels_and_leaves_nothing(koala: Koala, number: signal.Signals) -> None:
    """Ctrl-C, or the end of the terminal, cancels the job; the exit code says so, and the clusters are empty."""
    process = koala.start_said("started", "run", koala.job("echo started; sleep 300"))
    process.send_signal(number)
    written, _ = output(process)
    assert process.returncode == 243
    assert written.count("started") <= 1, "what was printed before is not printed again"
    assert koala.placeholders() == []


def read_until(descriptor: int, text: bytes) -> bytes:
    """Read from a terminal until a text has come."""
    seen = b""
    while text not in seen:
        assert select.select([descriptor], [], [], LIVENESS)[0], seen
        seen += os.read(descriptor, 65536)
    return seen


@pytest.mark.parametrize(
    ("controlling", "served"),
    [
        pytest.param(True, False, id="hangup-own-service"),
        pytest.param(False, True, id="write-error-other-service", marks=pytest.mark.nightly),
        pytest.param(True, True, id="hangup-other-service", marks=pytest.mark.nightly),
        pytest.param(False, False, id="write-error-own-service", marks=pytest.mark.nightly),
    ],
)
def test_terminal_that_goes_away_cancels_the_job(koala: Koala, *, controlling: bool, served: bool) -> None:
    if served:
        koala.serve()
    # What the ranks go on writing is printed, too.
    ticking = "echo started; while sleep 0.05; do echo tick; done"
    process, terminal = koala.start_on_terminal("run", koala.job(ticking), controlling=controlling)
    read_until(terminal, b"started")
    os.close(terminal)
    assert process.wait(LIVENESS) == 243
    assert koala.placeholders() == []
    assert koala.state_of("1") == "cancelled"


def test_hangup_of_a_shell_in_tmux_cancels_the_job(koala: Koala) -> None:
    """`tmux kill-session` takes shell and terminal away at one moment: the job is cancelled, nothing is left."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")

    def tmux(*arguments: str) -> None:
        command = ["tmux", "-S", str(koala.directory / "tmux"), "-f", "/dev/null", *arguments]
        subprocess.run(command, env=koala.environment, check=True, timeout=LIVENESS)

    tmux("new-session", "-d", "-x", "100", "-y", "30", "bash", "--norc")
    try:
        ticking = f"touch {koala.directory}/started; while sleep 0.05; do echo tick; done"
        tmux("send-keys", "-l", shlex.join(koala.command("run", koala.job(ticking))))
        tmux("send-keys", "Enter")
        eventually((koala.directory / "started").exists)
    finally:
        tmux("kill-session")
    eventually(lambda: koala.state_of("1") == "cancelled")
    eventually(lambda: koala.placeholders() == [])


def test_interrupt_at_the_beginning_is_quiet(koala: Koala) -> None:
    lock = koala.state / "service.lock"
    for delay in (0.0, 0.3):
        process = koala.start("run", koala.job("sleep 300"))
        eventually(lambda: lock.exists() and f"pid {process.pid})" in lock.read_text())  # noqa: B023 - called at once
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(delay)
        process.send_signal(signal.SIGINT)
        output(process)
        assert process.returncode in {130, 243}
    eventually(lambda: koala.placeholders() == [])


def test_run_goes_on_when_nobody_reads(koala: Koala) -> None:
    """A reader of the output that goes away does not end the job: it is somebody's work."""
    reading, writing = os.pipe()
    until = f"until [ -e {koala.directory}/go ]; do sleep 0.1; done"
    process = koala.start("run", koala.job(f"echo one; {until}; echo two"), stdout=writing)
    os.close(writing)
    os.close(reading)
    eventually(lambda: koala.has("1"))
    (koala.directory / "go").touch()
    output(process)
    assert process.returncode == 0
    assert "two" in koala.inside("logs", "1").stdout


def test_two_runs_share_one_service(koala: Koala) -> None:
    until = "until [ -e {}/{} ]; do sleep 0.1; done"
    first = koala.start("run", koala.job(until.format(koala.directory, "one"), name="first"))
    eventually(lambda: koala.has("1"))
    second = koala.start("run", koala.job(f"{until.format(koala.directory, 'two')}; echo second", name="second"))
    eventually(lambda: koala.has("2"))
    (koala.directory / "one").touch()
    _, said = output(first)
    assert first.returncode == 0
    assert "in the background" in said
    (koala.directory / "two").touch()
    written, _ = output(second)
    assert second.returncode == 0
    assert written.count("second") == 2
    koala.inside("serve", "--stop")


def test_second_interrupt_does_not_wait(koala: Koala) -> None:
    process = koala.start_said("started", "run", koala.job("trap '' TERM; echo started; sleep 300"))
    process.send_signal(signal.SIGINT)
    eventually(lambda: koala.state_of("1") == "cancelled")
    process.send_signal(signal.SIGINT)
    output(process)
    assert process.returncode in {130, 243}
    eventually(lambda: koala.placeholders() == [])


# ---- the service ----------------------------------------------------------------------------------------------------


def test_submit_starts_a_service_and_says_so(koala: Koala) -> None:
    done = koala.run("submit", koala.job("echo begin; sleep 1; echo end"))
    assert done.stdout.startswith("job 1 submitted")
    assert "started one in the background" in done.stderr
    followed = koala.inside("logs", "1", "-f")
    assert followed.stdout.count("begin") == followed.stdout.count("end") == 2
    assert koala.inside("logs", "1", "-c", "left", "-r", "0").stdout == "begin\nend\n"
    again = koala.inside("submit", koala.job("true"))
    assert "background" not in again.stderr
    koala.inside("serve", "--stop")


HANGING = """
[[clusters]]
name = "gamma"
plugin = "slurm"
{more}
[clusters.settings]
bin_directory = "{directory}"
"""


def add_hanging_cluster(koala: Koala, more: str = "") -> Path:
    """Add a Slurm cluster to the site none of whose commands ever returns; return the file that tells of the first."""
    asked = koala.directory / "asked"
    for name in ("sinfo", "squeue", "scontrol", "sbatch", "scancel", "sacct"):
        program = koala.directory / name
        program.write_text(f"#!/bin/sh\ntouch {asked}\nexec sleep 600\n", encoding="utf-8")
        program.chmod(0o755)
    text = koala.site_file.read_text(encoding="utf-8") + HANGING.format(more=more, directory=koala.directory)
    koala.site_file.write_text(text, encoding="utf-8")
    return asked


def test_cluster_that_hangs_does_not_delay_the_others(koala: Koala) -> None:
    """A job of the others starts and ends, although this one never answers anything."""
    asked = add_hanging_cluster(koala)
    assert "job 1 completed" in koala.run("run", koala.job("true")).stderr
    assert asked.exists()


def test_cluster_that_is_not_enabled_is_not_asked(koala: Koala) -> None:
    """Neither when a job runs nor otherwise."""
    asked = add_hanging_cluster(koala, "enabled = false")
    koala.serve()
    koala.inside("submit", koala.job("true"))
    eventually(lambda: koala.state_of("1") == "completed")
    closed = {one.name: one.closed for one in koala.client.clusters()}
    assert closed["gamma"] == "not enabled in the site file"
    assert not asked.exists()


def test_submit_takes_many_job_files(koala: Koala) -> None:
    koala.serve()
    files = [koala.job("true", name=f"many{number}") for number in range(3)]
    told = koala.json("submit", *files)["jobs"]
    assert [one["file"] for one in told] == files
    assert [koala.report(one["id"]).name for one in told] == ["many0", "many1", "many2"]
    last = int(told[-1]["id"])
    koala.inside("submit", files[0], str(koala.directory / "missing.toml"), check=245)
    done = koala.inside("submit", *files[:2])
    assert done.stdout.splitlines() == [
        f"job {last + 1} submitted: {files[0]}",
        f"job {last + 2} submitted: {files[1]}",
    ]


def test_submit_waits_for_a_service_that_is_starting(koala: Koala) -> None:
    service = koala.start_anew("serve")
    lock = koala.state / "service.lock"
    eventually(lambda: lock.exists() and f"pid {service.pid})" in lock.read_text())
    service.send_signal(signal.SIGSTOP)
    process = koala.start("submit", koala.job("true"))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(SLOW_START)
    service.send_signal(signal.SIGCONT)
    written, said = output(process)
    assert "job 1 submitted" in written
    assert "in the background" not in said
    eventually(lambda: koala.state_of("1") == "completed")


def test_submit_starts_a_service_when_the_other_fails_to(koala: Koala) -> None:
    with ownership(koala.state, "koala serve"):
        process = koala.start("submit", koala.job("true"))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(SLOW_START)
    written, said = output(process)
    assert "job 1 submitted" in written
    assert "started one in the background" in said


def test_what_an_earlier_service_said_is_not_quoted(koala: Koala) -> None:
    prepare_directory(koala.state)
    (koala.state / "service.log").write_text("from long ago\n", encoding="utf-8")
    text = koala.site_file.read_text(encoding="utf-8").replace('listen = "127.0.0.1"', 'listen = "192.0.2.1"')
    koala.site_file.write_text(text, encoding="utf-8")
    done = koala.run("submit", koala.job("true"), check=246)
    assert "192.0.2.1" in done.stderr
    assert "long ago" not in done.stderr


def test_second_service_is_refused(koala: Koala) -> None:
    first = koala.serve()
    done = koala.run("serve", check=246)
    assert f"koala serve (pid {first.pid}) already owns {koala.state}" in done.stderr
    assert "--state" in done.stderr
    stopped = koala.inside("serve", "--stop")
    assert "stopped the service" in stopped.stdout
    assert first.wait(LIVENESS) == 0


def test_status_without_a_service_reads_the_journal(koala: Koala) -> None:
    """A service that was killed leaves its journal: what is unfinished is shown, and how to go on."""
    service = koala.serve()
    koala.inside("submit", koala.job("sleep 300"))
    eventually(lambda: koala.state_of("1") == "running")
    service.kill()
    service.wait()
    done = koala.run("status")
    assert "no service runs" in done.stderr
    assert "unfinished: 1" in done.stderr
    assert "running" in done.stdout
    assert koala.json("status", "1")["components"][0]["lrm_ids"]
    assert "no service runs" in koala.inside("explain", "1").stderr
    assert "nobody follows job 1" in koala.inside("logs", "1", "-f", check=246).stderr
    assert "koala serve" in koala.inside("cancel", "1", check=246).stderr
    koala.serve()
    assert koala.inside("cancel", "1").stdout == "job 1: cancelled\n"
    assert koala.placeholders() == []


def test_run_survives_the_death_of_the_service(koala: Koala) -> None:
    service = koala.serve()
    script = f"echo started; until [ -e {koala.directory}/go ]; do sleep 0.1; done; exit 5"
    process = koala.start_said("started", "run", koala.job(script))
    service.kill()
    service.wait()
    koala.serve()
    (koala.directory / "go").touch()
    _, said = output(process)
    assert "the service went away" in said
    assert process.returncode == 5


def test_cancel_ends_a_run_of_somebody_else(koala: Koala, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be gone, its service with it, before the command comes to watch: the journal says it all."""
    process = koala.start_said("started", "run", koala.job("echo started; sleep 300"))
    watch = Client.watch

    def come_late(client: Client, job_id: str) -> Iterator[JobReport]:
        output(process)
        return watch(client, job_id)

    monkeypatch.setattr(Client, "watch", come_late)
    done = koala.inside("cancel", "1")
    assert (done.stdout, done.stderr) == ("job 1: cancelled\n", "")
    assert process.returncode == 243
    assert koala.placeholders() == []


def test_several_jobs_are_chosen(koala: Koala) -> None:
    """By id, by a range of ids and by name; what is not cancelled is told, with the reason."""
    koala.serve()
    koala.inside("submit", koala.job("sleep 300", processors=4))
    for name in ("x-1", "x-2", "y"):
        koala.inside("submit", koala.job("sleep 300", name=name, processors=4))
    eventually(lambda: koala.state_of("1") == "running")
    done = koala.inside("cancel", "1", "2-4", "99", "--name", "x-*", check=240)
    assert done.stdout.splitlines() == [
        "job 2: cancelled",
        "job 3: cancelled",
        "job 1: not cancelled: its name is job",
        "job 99: not cancelled: no job '99'",
    ]
    assert [one["id"] for one in koala.json("history", "--state", "running")] == ["1"]
    assert [one["id"] for one in koala.json("history", "--state", "cancelled", "--since", "1h")] == ["2", "3"]
    assert koala.inside("cancel", "--name", "y").stdout == "job 4: cancelled\n"
    assert "is meant by 2-4 x-*" in koala.inside("cancel", "2-4", "--name", "x-*", check=240).stderr
    assert koala.json("cancel", "1", "2")["left"] == {"2": "it had ended already: cancelled"}
    assert koala.placeholders() == []


def test_stopping_the_service_inside_a_run(koala: Koala) -> None:
    process = koala.start_said("started", "run", koala.job("echo started; sleep 300"))
    assert "unfinished jobs: 1" in koala.inside("serve", "--stop").stdout
    _, said = output(process)
    assert process.returncode == 246
    assert "job 1 is not lost" in said
    assert "no service runs" in koala.inside("status").stderr


# ---- trouble --------------------------------------------------------------------------------------------------------


def test_full_disk_is_said(used: UsedKoala) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    # Python would leave the first bytes of bytecode where all other commands look for it.
    environment = {"PYTHONDONTWRITEBYTECODE": "1"}
    done = used.run("run", used.job("true"), check=None, preexec_fn=limit, environment=environment)
    assert done.returncode != 0
    assert "journal" in done.stderr or "File too large" in done.stderr


def test_full_output_is_said(used: UsedKoala) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = used.run("status", check=1, stdout=full)
    assert "No space left on device" in done.stderr


def test_reader_that_goes_away_ends_a_listing_quietly(used: UsedKoala) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = used.run("status", "--json", check=141, stdout=writing)
    os.close(writing)
    assert "koala:" not in done.stderr


# ---- plan, script, clusters -----------------------------------------------------------------------------------------


def test_plan_and_script_without_a_service_submit_nothing(koala: Koala) -> None:
    job = koala.job("true", processors=3)
    report = koala.json("plan", job)
    assert report["result"] == "placed"
    assert {one["cluster"]: one["idle"] for one in report["components"]} == {"alpha": 4, "beta": 4}
    shown = koala.json("script", job, "--cluster", "beta")
    assert [one["component"] for one in shown["submissions"]] == ["right"]
    assert "THE-ONE-TIME-TOKEN-GOES-HERE" in shown["submissions"][0]["script"]
    Path(job).write_text(Path(job).read_text().replace('"beta"', '"alpha"'))
    refused = koala.inside("script", job, "--cluster", "beta", check=245)
    assert "nothing of this job is ever submitted to beta: component 'left': the component asks for" in refused.stderr
    assert koala.json("clusters")[0]["idle"] == 4
    too_large = koala.inside("plan", koala.job("true", processors=5), check=240).stdout
    assert "can never run here" in too_large
    assert "at most 4" in too_large
    assert koala.placeholders() == []


def test_plan_script_and_reap_with_a_service(koala: Koala) -> None:
    """The service knows what it holds: what is taken is not idle, and owned; a script has its own control center."""
    koala.serve()
    koala.inside("submit", koala.job("sleep 300", processors=3))
    eventually(lambda: koala.state_of("1") == "running")
    eventually(lambda: koala.client.clusters()[0].idle == 1)
    done = koala.inside("plan", koala.job("true", processors=1, name="small"))
    assert "would start at once" in done.stdout
    done = koala.inside("plan", "-n", "9", "--", "true", check=240)
    assert "at most 4" in done.stdout
    shown = koala.json("script", koala.job("true"), "-c", "alpha")
    assert '"port": ' in shown["submissions"][0]["script"]
    assert koala.inside("reap").stdout == "no placeholder is without an owner\n"
    assert koala.state_of("1") == "running"
    koala.inside("cancel", "1")


# ---- check ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("served", [False, True])
def test_check_proves_that_nodes_reach_us(koala: Koala, served: bool) -> None:  # noqa: FBT001 - a parameter of the test
    if served:
        koala.serve()
    found = koala.json("check") if served else json.loads(koala.run("check", "--json").stdout)
    assert found["ok"], found
    reports = [one for one in found["checks"] if one["subject"] == "placeholder"]
    assert [one["cluster"] for one in reports] == ["alpha", "beta"]
    assert all("Python 3." in one["found"] for one in reports)
    numbers = [one["found"] for one in found["checks"] if one["subject"] == "numbers"]
    assert len(numbers) == 2
    assert all("told them apart" in text for text in numbers)
    assert [one["subject"] for one in found["checks"]].count("released") == 2
    tried = [one["found"] for one in found["checks"] if one["subject"] == "MPI"]
    assert len(tried) == 2
    assert all("spawn" in one or "no mpiexec.hydra" in one for one in tried), tried
    assert koala.placeholders() == []
    text = koala.inside("check", "--no-submit").stdout
    assert "FAIL" not in text
    assert "released" not in text


def test_check_tells_which_address_is_out_of_reach(koala: Koala) -> None:
    """A control center that nodes cannot reach is a FAIL that names address and port; nothing stays behind."""
    koala.change_site("lease = 120", 'lease = 120\naddress = "127.0.0.9"')
    done = koala.run("check", "--timeout", "4", check=1)
    assert done.stdout.count("FAIL") == 2 + 1
    assert "it was told to go to 127.0.0.9:" in done.stdout
    assert "remedy: let the nodes connect to 127.0.0.9:" in done.stdout
    eventually(lambda: koala.placeholders() == [])


def test_files_are_found_by_a_catalogue(koala: Koala) -> None:
    """It is checked, and jobs go where it has their files and find them, with a service and without."""
    catalogue, data = koala.directory / "catalogue", koala.directory / "data"
    data.write_text("a genome\n")
    koala.change_site('name = "beta"', f'name = "beta"\ncatalogue = "{catalogue}"')
    assert f"FAIL catalogue: catalogue {catalogue}: " in koala.run("check", "--no-submit", check=1).stdout
    catalogue.write_text(f"genome {data}\n{data}\n")
    job = koala.directory / "files.toml"
    job.write_text(
        'walltime = "5m"\nplacement = "close-to-files"\n[[components]]\ncommand = ["sh", "-c", "cat genome; echo '
        f'$KOALA_CLUSTER"]\nprocessors = 1\ninput_files = ["lfn:genome", "{data}"]\n'
    )
    done = koala.run("run", "-q", str(job))  # waits until the catalogue is two seconds old
    assert done.stdout == "a genome\nbeta\n"
    assert "OK   catalogue: " in koala.run("check", "--no-submit").stdout
    assert "c1 on beta: all of its input files are there" in koala.run("plan", str(job)).stdout
    elsewhere = koala.directory / "elsewhere.toml"
    elsewhere.write_text(job.read_text().replace(f', "{data}"]', ']\ncluster = "alpha"'))
    travels = "1 of 1 input files travel for a time that is not known, 0.0 MiB: lfn:genome"
    assert travels in koala.run("plan", str(elsewhere)).stdout
    assert koala.run("run", "-q", str(elsewhere)).stdout == "a genome\nalpha\n"
    koala.serve()
    eventually(lambda: "1 by its catalogue" in koala.run("clusters", "--network").stdout)
    assert "c1 on beta: all of its input files are there" in koala.run("plan", str(job)).stdout
    job.write_text(job.read_text().replace("lfn:genome", "lfn:genom"))
    refused = koala.run("submit", str(job), check=240).stderr
    assert "input file lfn:genom: no catalogue has that name (those of beta)" in refused


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.nightly)])
def test_interrupted_check_leaves_no_placeholder(koala: Koala, number: signal.Signals) -> None:
    """Ctrl-C, or the end of the terminal, while a placeholder is awaited takes it away, and temporary files, too."""
    koala.change_site("lease = 120", 'lease = 120\naddress = "127.0.0.9"')
    process = koala.start("check", "--timeout", "600")
    eventually(lambda: len(koala.placeholders()) == 2 * 2)
    process.send_signal(number)
    output(process)
    assert process.returncode == 130
    assert koala.placeholders() == []
    assert list(koala.directory.glob("koala-check-*")) == []


def test_check_says_what_is_wrong_with_the_site(koala: Koala) -> None:
    """A site file that is refused is a FAIL with the reason; the clusters are not asked."""
    koala.site_file.write_text("[[clusters]]\nname = 'x'\nplugin = 'slurn'\n")
    done = koala.inside("check", check=1)
    assert "FAIL site file" in done.stdout
    assert "slurm" in done.stdout


# ---- reap -----------------------------------------------------------------------------------------------------------


def instance(koala: Koala) -> str:
    """Return the instance in the names of the placeholders that are there."""
    return koala.placeholders()[0].name.split("-")[1]


def test_reap_takes_only_what_nobody_owns(koala: Koala) -> None:
    """Without a service the journal says what is owned: the orphan goes, the job's placeholders stay and run on."""
    service = koala.serve()
    koala.inside("submit", koala.job(f"until [ -e {koala.directory}/go ]; do sleep 0.1; done; echo done"))
    eventually(lambda: koala.state_of("1") == "running")
    ours = instance(koala)
    service.kill()
    service.wait()
    koala.submit_orphan(ORPHAN.format(ours))
    koala.submit_orphan(ORPHAN.format("deadbeef"))
    listed = koala.json("reap", "--dry-run")
    assert [one["name"] for one in listed["found"]] == [ORPHAN.format(ours)]
    assert len(koala.placeholders()) == 4
    assert "1 of 1 cancelled and gone" in koala.inside("reap").stdout
    assert "--yes" in koala.inside("reap", "--all", check=2).stderr
    assert "1 of 1 cancelled and gone" in koala.inside("reap", "--all", "--yes").stdout
    assert len(koala.placeholders()) == 2
    koala.serve()
    (koala.directory / "go").touch()
    assert koala.inside("logs", "1", "-f").stdout.count("done") == 2
    assert koala.state_of("1") == "completed"


# ---- demo -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "which", [pytest.param([], id="here"), pytest.param(["--sites"], id="sites", marks=pytest.mark.nightly)]
)
def test_demo_shows_the_main_job_and_leaves_nothing(koala: Koala, which: list[str]) -> None:
    done = koala.run("demo", *which)
    assert "pi = 3.14159" in done.stdout
    assert "all 8 are held" in done.stdout
    assert "completed" in done.stdout
    assert [path.name for path in koala.directory.iterdir()] == ["site.toml"]
    assert processes_naming(str(koala.directory)) == []


@pytest.mark.nightly  # it goes by the clock, as it is for people to watch
def test_the_malleable_demo_breathes_and_leaves_nothing(koala: Koala) -> None:
    done = koala.run("demo", "--malleable")
    assert "pi = 3.14159" in done.stdout
    grew, _, later = done.stdout.partition("a local user wants 3 of gamma")
    assert "grew from" in grew
    assert "on gamma: 3 processors" in later
    assert "grew from 1 to" in later
    assert "completed" in later
    assert [path.name for path in koala.directory.iterdir()] == ["site.toml"]
    assert processes_naming(str(koala.directory)) == []


@pytest.mark.parametrize(
    "which",
    [
        pytest.param([], id="rigid", marks=pytest.mark.nightly),
        pytest.param(["--sites"], id="sites", marks=pytest.mark.nightly),
        pytest.param(["--malleable"], id="malleable"),
    ],
)
def test_interrupted_demo_leaves_nothing(koala: Koala, which: list[str]) -> None:
    process = koala.start("demo", *which)
    assert process.stdout is not None
    assert any(line.startswith("3") for line in process.stdout)
    process.send_signal(signal.SIGINT)
    output(process)
    assert process.returncode == 130
    assert [path.name for path in koala.directory.iterdir()] == ["site.toml"]
    assert processes_naming(str(koala.directory)) == []
