# SPDX-License-Identifier: Apache-2.0
"""Files of jobs: what goes to nodes, what comes back, and directories that stay behind."""

from __future__ import annotations

import hashlib
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from koala_adapter.errors import EXIT_CANCELLED, EXIT_CONFIGURATION
from koala_adapter.host.regularfile import paths_matching
from koala_adapter.model import LARGEST_SENT
from koala_adapter.outcome import JobState
from tests.real.conftest import NewUser
from tests.real.lrms import System, Traces, placeholders
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.processes import (
    PATIENCE,
    SeenProcess,
    SystemDirectory,
    find_processes,
    kill_processes,
    wait_until,
)
from tests.real.user import KoalaUser, part, runs_with_known_ids
from tests.vanishing import size_below

# -- What ranks are given and what they write.


MODULE = """\
module() {
    [ "$2" != gcc/99 ] || { echo "gcc/99 is unknown" >&2; return 1; }
    export LOADED="${LOADED:+$LOADED:}$2"
}
"""


@pytest.mark.parametrize("launcher", ["process", "mpi"])
def test_ranks_are_set_up_on_their_nodes(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, tmp_path: Path, launcher: str
) -> None:
    """By a module function, in one shell with the lines of each cluster; a line that fails is told by its words."""
    (tmp_path / "modules.sh").write_text(MODULE)
    clusters = {
        name: {"software": {"solver": [f"module load {one}"]}, "setup": [f"export SITE={name}"]}
        for name, one in (("a", "slurm/1"), ("c", "ge/2"))
    }
    user = new_user(slurm_a, sge_cell, clusters=clusters)
    traces = Traces(user)
    environment = {**traces.mark, "BASH_ENV": str(tmp_path / "modules.sh")}
    script = 'echo "$LOADED $SITE $KOALA_CLUSTER <$1>"; env | grep -E "^(SLURM|SGE_|JOB_ID|KOALA_SETUP)" || true'
    parts = [part(name, 2, "sh", "-c", script, "sh", "a  b", environment=environment) for name in ("a", "c")]
    header: dict[str, Any] = {"launcher": launcher, "software": ["solver"]}
    job, outcome = user.end_of(*parts, **header, setup=["module load own"])
    assert outcome.exit_code == 0, user.details()
    expected = ["slurm/1:own a a <a  b>"] * 2 + ["ge/2:own c c <a  b>"] * 2
    said = [line.partition(": ")[2] for line in user.run("logs", job).text.splitlines()]
    assert sorted(said) == sorted(expected)
    failing = '[ "$KOALA_CLUSTER" != c ] || module load gcc/99'
    job, outcome = user.end_of(*parts, **header, setup=[failing])
    assert (outcome.state, outcome.exit_code) == (JobState.FAILED, 1)
    assert f"launch failed: setup line 3 ({failing}) ended with status 1 on " in outcome.detail
    assert outcome.detail.endswith(": gcc/99 is unknown")
    refused = user.run("run", str(user.job_file(*parts, software=["other"])))
    assert refused.code == EXIT_CONFIGURATION
    assert "software: found other, allowed is what one cluster has all of" in refused.stderr
    traces.expect_none()


def test_input_files_and_environment_reach_the_ranks(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """As they were when the job was submitted, at their paths, with their modes; nothing of the LRM's steps leaks.

    What one rank writes comes out of `koala logs` byte for byte, with or without an end of line; several are marked.
    """
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    data = bytes(range(256)) * 1000
    (user.directory / "data.bin").write_bytes(data)
    (user.directory / "run.sh").write_text('#!/bin/sh\nsha256sum <in/data.bin; echo "$GREETING $KOALA_RANK"; env\n')
    (user.directory / "run.sh").chmod(0o755)
    files = ["run.sh", {"source": "data.bin", "target": "in/data.bin"}]
    environment = {**traces.mark, "GREETING": "grüß dich"}
    parts = [part(name, 1, "./run.sh", input_files=files, environment=environment) for name in "ac"]
    raw = ("sh", "-c", "cat data.bin; echo word >&2")
    job, outcome = user.end_of(*parts, part("a", 2, *raw, input_files=["data.bin"], environment=traces.mark))
    assert outcome.exit_code == 0, user.output_of(job, outcome.component or "c1", 0, "err")
    assert user.run("logs", job, "--component", "c3", "--rank", "1").stdout == data
    assert user.run("logs", job, "--stderr").stdout == b"c3/0: word\nc3/1: word\n"
    expected = hashlib.sha256(data).hexdigest()
    for rank, component in enumerate(("c1", "c2")):
        first, second, *rest = user.output_of(job, component, 0).decode().splitlines()
        assert (first.split()[0], second) == (expected, f"grüß dich {rank}")
        assert [line for line in rest if line.startswith(("SLURM", "SGE_", "PMI", "JOB_ID", "PE_HOSTFILE"))] == []
    traces.expect_none()


def test_input_files_of_any_size(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """As much as goes with a launch arrives, and so do a byte more, and a directory."""
    user = new_user(slurm_a)
    traces = Traces(user)
    (user.directory / "d" / "below").mkdir(parents=True)
    sizes = {"large": LARGEST_SENT, "d/below/larger": LARGEST_SENT + 1}
    for name, size in sizes.items():
        with (user.directory / name).open("wb") as file:
            file.truncate(size)
    for source, (name, size) in zip(("large", "d"), sizes.items(), strict=True):
        job, outcome = user.end_of(part("a", 2, "wc", "-c", name, input_files=[source], environment=traces.mark))
        assert outcome.exit_code == 0
        assert user.output_of(job, "c1", 1) == f"{size} {name}\n".encode()
    traces.expect_none()


def test_a_token_can_travel_in_a_file(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """With a shared directory the job script holds no secret; the file does, for its owner alone, until all is over."""
    place = SystemDirectory.create("tokens")
    try:
        tokens = place.path / "tokens"
        user = new_user(slurm_a, clusters={"a": {"token_directory": str(tokens)}})
        traces = Traces(user)
        job = user.submit(user.job_file(part("a", 2, "sleep", "600", environment=traces.mark)))
        report = user.wait(job, runs_with_known_ids, what="runs")
        (file,) = tokens.iterdir()
        assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(tokens.stat().st_mode)) == (0o600, 0o700)
        script = slurm_a.run("scontrol", "write", "batch_script", report.components[0].lrm_ids[0], "-")
        assert str(file) in script
        assert file.read_text() not in script
        assert user.run("cancel", job).code == 0
        wait_until(lambda: not list(tokens.iterdir()), seconds=PATIENCE, what="no token left")
        traces.expect_none()
    finally:
        place.remove()


# -- What ranks write into files reaches the user, however they end and whatever becomes of the service meanwhile.


MIB = 1024 * 1024
LARGE = 3 * MIB
LONG_UNDER_WAY = 15 * MIB
"""Of each of four ranks: enough for the service to be killed twice before all is there."""


def writing(large: int = LARGE) -> str:
    """Return the piece of shell with which a rank leaves four files, one of them large."""
    return f"""\
mkdir -p logs; echo "rank $KOALA_RANK" >result-$KOALA_RANK; echo log >logs/$KOALA_RANK.txt; echo x >scratch
python3 -c 'import hashlib, os
block = hashlib.sha512(os.environ["KOALA_RANK"].encode()).digest() * 1024
open("large.bin", "wb").writelines(block for _ in range({large} // len(block)))'
"""


def all_four(user: KoalaUser) -> str:
    """Return the piece of shell with which a rank waits until all four ranks have come so far."""
    there = user.directory / "written"
    there.mkdir()
    return f"touch {there}/$KOALA_RANK; while [ $(ls {there} | wc -l) -lt 4 ]; do sleep 0.2; done"


WANTED = ["result-*", "logs", "*.bin"]


def results(user: KoalaUser, job: str, component: str, rank: int) -> dict[str, str]:
    """Return the files of a rank that are there: their texts, and the digest of the large one."""
    directory = user.state / "jobs" / job / component / str(rank)
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): shown(path) for path in files}


def shown(path: Path) -> str:
    """Return a text, or the digest of what is too large for one."""
    data = path.read_bytes()
    return data.decode() if len(data) < MIB else hashlib.sha256(data).hexdigest()


def expected(rank: int, large: int = LARGE) -> dict[str, str]:
    """Return what a rank must have left that wrote as ``writing`` says."""
    block = hashlib.sha512(str(rank).encode()).digest() * 1024
    digest = hashlib.sha256(block * (large // len(block))).hexdigest()
    return {"large.bin": digest, f"logs/{rank}.txt": "log\n", f"result-{rank}": f"rank {rank}\n"}


def two_of_each(traces: Traces, text: str) -> list[str]:
    """Return two ranks on the Slurm cluster and two on the Grid Engine cell that run a piece of shell."""
    return [part(name, 2, "sh", "-c", text, output_files=WANTED, environment=traces.mark) for name in "ac"]


def test_files_of_ranks_that_are_ended(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """After a cancellation and after a signal all files are there."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    job = user.submit(user.job_file(*two_of_each(traces, writing() + "exec sleep 600")))
    user.wait_running(job)

    def all_written() -> bool:
        traces.note_running()
        written = [path / "work" / "large.bin" for path in traces.directories]
        return len(written) == 4 and all(path.exists() and path.stat().st_size == LARGE for path in written)

    wait_until(all_written, seconds=PATIENCE, what="all has been written")
    assert user.run("cancel", job).code == 0
    end = f"{all_four(user)}; kill -9 $$"
    done = user.run("run", "--json", str(user.job_file(*two_of_each(traces, writing() + end))))
    for name, code in ((job, EXIT_CANCELLED), (done.json["id"], 128 + signal.SIGKILL)):
        report = user.wait_over(name)
        assert report.outcome is not None
        assert report.outcome.exit_code == code
        assert (report.files.arrived, report.files.awaited) == (12, 0)
        assert results(user, name, "c2", 1) == expected(3)
    traces.expect_none()


@pytest.mark.parametrize("launcher", ["process", pytest.param("mpi", marks=pytest.mark.real("mpiexec.hydra"))])
def test_files_of_all_ranks_arrive(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, launcher: str
) -> None:
    """All are there, whole, when `koala run` returns, and it says where; nothing else is."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    done = user.run("run", str(user.job_file(*two_of_each(traces, writing()), launcher=launcher)))
    assert done.code == 0, done.stderr
    for rank in range(4):
        assert results(user, "1", f"c{1 + rank // 2}", rank % 2) == expected(rank)
    assert f"12 files of the ranks (12 MiB) in {user.state}/jobs/1/COMPONENT/RANK" in done.stderr
    assert "left in the ranks' directories" not in done.stderr
    files = user.run("status", "--json", "1").json["files"]
    assert (files["arrived"], files["refused"], files["left"], files["awaited"]) == (12, 0, 0, 0)
    traces.expect_none()


def test_files_of_failing_ranks_survive_a_killed_service(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """One rank fails, the others are ended for it, the service is killed while their files are on their way."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    end = f'{all_four(user)}; [ "$KOALA_RANK" = 0 ] || exec sleep 600; exit 7'
    job = user.submit(user.job_file(*two_of_each(traces, writing(LONG_UNDER_WAY) + end)))
    directory = user.state / "jobs" / job

    def size() -> int:
        return sum(size_below(rank) for rank in paths_matching(directory, "*/*") if rank.is_dir())

    def wait_for_size(least: int) -> None:
        wait_until(lambda: size() > least, seconds=PATIENCE, what="files arrive", details=user.details)

    for least in (MIB, 20 * MIB):  # long before all is there, unless this process hears of it late
        wait_for_size(least)
        user.kill()
        user.serve()
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code) == (JobState.FAILED, 7)
    assert (report.files.awaited, report.files.refused) == (0, 0), report.files
    for rank in range(4):
        assert results(user, job, f"c{1 + rank // 2}", rank % 2) == expected(rank, LONG_UNDER_WAY)
    assert not list(directory.glob("*/*.partial"))
    traces.expect_none()


def test_what_was_left_is_named(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """Without output_files a user is told what is gone; what is too large is named with its size and the bound."""
    user = new_user(slurm_a, sge_cell, center={"output_files_per_rank_mib": 1})
    traces = Traces(user)
    (user.directory / "in.txt").write_text("in\n")
    text = "cat in.txt >result.txt"
    parts = [part(name, 1, "sh", "-c", text, input_files=["in.txt"], environment=traces.mark) for name in "ac"]
    done = user.run("run", str(user.job_file(*parts)))
    assert done.code == 0
    told = (
        "2 files were left in the ranks' directories and are gone: c1/0: result.txt, c2/0: result.txt; see output_files"
    )
    assert told in done.stderr
    assert told in user.run("status", "1").text
    text = "head -c 2000000 /dev/zero >large; echo small >small"
    done = user.run("run", str(user.job_file(part("a", 1, "sh", "-c", text, output_files=["*"]))))
    assert "1 file of the ranks did not come: c1/0: large: it has 1.907 MiB: a rank may leave 1 MiB" in done.stderr
    assert results(user, "2", "c1", 0) == {"small": "small\n"}
    traces.expect_none()


# -- The private directories of agents that end without koala, or without any chance: none of them stays on a node.


def running_directories(user: KoalaUser, traces: Traces, systems: str) -> tuple[str, set[Path]]:
    """Run a job that never ends by itself, two ranks on each system; return its id and the agents' directories."""
    parts = [part(name, 2, "sh", "-c", "touch result; exec sleep 600", environment=traces.mark) for name in systems]
    job = user.submit(user.job_file(*parts))
    user.wait_running(job)
    count = 2 * len(systems)

    def all_seen() -> bool:
        traces.note_running()
        return len(traces.directories) == count

    wait_until(all_seen, seconds=PATIENCE, what="all ranks seen")
    directories = {path.parent for path in traces.directories}
    assert len(directories) == count
    return job, directories


def cancel_behind(system: System) -> None:
    """Cancel all placeholders of a system through itself."""
    if isinstance(system, SlurmCluster):
        system.run("scancel", "--user=root")
    else:
        system.run("qdel", "-u", "*")
    wait_until(lambda: not placeholders(system), seconds=PATIENCE, what="no placeholders in the batch system")


def test_cancelled_while_the_service_is_down(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """Nobody is there to whom the agents could report; they, or their guards, remove what is theirs nevertheless."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    job, directories = running_directories(user, traces, "ac")
    user.kill()
    for system in (slurm_a, sge_cell):
        cancel_behind(system)
    wait_until(
        lambda: not any(path.exists() for path in directories),
        seconds=PATIENCE,
        what="no private directory left",
        details=lambda: str([path for path in directories if path.exists()]),
    )
    user.serve()
    user.wait_over(job)
    traces.expect_none(but_words=True)


def test_what_killed_agents_left_goes_with_the_next(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """Agent and guard killed at once, as with a control group: the next agent on the node removes what they left.

    What is in use is left alone, and the rank, which nobody watches any more, is ended.
    """
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    job, directories = running_directories(user, traces, "ac")
    kill_processes(lambda: agents(user))
    user.wait_over(job)
    # Another test's agents may have removed them by now: they are next ones on this node, too.
    again, others = running_directories(user, Traces(user), "ac")
    wait_until(
        lambda: not any(path.exists() for path in directories),
        seconds=PATIENCE,
        what="no stale directory left",
        details=lambda: str([path for path in directories if path.exists()]),
    )
    assert all(path.exists() for path in others)
    assert user.run("cancel", again).code == 0
    traces.expect_none(but_words=True)


def agents(user: KoalaUser) -> list[int]:
    """Return the agents of a user and their guards."""

    def is_agent(process: SeenProcess | None) -> bool:
        if process is None or not process.command.startswith("python"):
            return False
        ours = user.service is None or process.parent != user.service.pid
        return ours and any(process.uses(system.directory) for system in user.systems.values())

    # Not the ranks, which are among the descendants.
    return [pid for pid in find_processes(is_agent) if is_agent(SeenProcess.read(pid))]
