# SPDX-License-Identifier: Apache-2.0
"""The environment of programs on local clusters: variables, lines of a shell, software and containers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.local_koala import LIVENESS, SITE, Koala, eventually, processes_naming

MODULE = """\
module() {
    [ "$2" != gcc/99 ] || { echo "gcc/99 is unknown" >&2; return 1; }
    export LOADED="${LOADED:+$LOADED:}$2"
}
"""
APPTAINER = """\
#!/bin/sh
# A stand-in: says how it was called, and runs the command on the node.
printf '%s\\n' "$*" >>"$SAID"
while [ "$1" != image.sif ]; do shift; done
shift
export INSIDE=yes
exec "$@"
"""
TRICKY = ("a b", "it's", '"$HOME"', "", "*", "--help")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Koala]:
    """Give two clusters, of which one has software and containers, and a service."""
    with closing(Koala(tmp_path_factory.mktemp("site"))) as one:
        (one.directory / "bin").mkdir()
        (one.directory / "bin" / "apptainer").write_text(APPTAINER)
        (one.directory / "bin" / "apptainer").chmod(0o755)
        (one.directory / "modules.sh").write_text(MODULE)
        keys = (
            'name = "alpha"\ncontainer_runtime = "apptainer"\n'
            f"setup = ['export BASH_ENV={one.directory}/modules.sh SAID={one.directory}/said', '. \"$BASH_ENV\"']\n"
            f"software = {{ gromacs = ['module load gromacs'], bin = ['PATH={one.directory}/bin:$PATH'] }}\n"
        )
        one.site_file.write_text(SITE.format(directory=one.directory).replace('name = "alpha"\n', keys, 1))
        one.serve()
        yield one


def job_file(site: Koala, text: str, name: str = "job") -> str:
    path = site.directory / f"{name}.toml"
    path.write_text(text)
    return str(path)


def newest_job(site: Koala) -> Path:
    """Return the directory of the last job."""
    return max((site.state / "jobs").iterdir(), key=lambda path: int(path.name))


def test_a_module_function_and_arguments_untouched(site: Koala) -> None:
    """The function is defined in the file that BASH_ENV names; arguments arrive whatever is in them."""
    process = site.start_anew(
        *("run", "-q", "-C", "beta", "--export", "BASH_ENV", "--export", "CONDA_*"),
        *("--setup", "module load gcc/12", "--setup", 'module load mpi; export OWN="it\'s"'),
        *("--", "/bin/sh", "-c", 'printf "<%s>" "$@" "$LOADED" "$OWN" "$CONDA_X" "$SSH_X"', "sh", *TRICKY),
        environment={"BASH_ENV": str(site.directory / "modules.sh"), "CONDA_X": "a  b", "SSH_X": "stays behind"},
    )
    written, said = process.communicate(timeout=LIVENESS)
    assert written == "".join(f"<{one}>" for one in (*TRICKY, "gcc/12:mpi", "it's", "a  b", "")), said


def test_a_failing_line_is_the_failure_of_its_rank(site: Koala) -> None:
    done = site.run(
        *("run", "-n", "2", "-C", "alpha", "--setup", "true", "--setup", "module load gcc/99", "--", "echo", "ran"),
        check=1,
    )
    assert "launch failed: setup line 4 (module load gcc/99) ended with status 1 on" in done.stderr
    assert ": gcc/99 is unknown" in done.stderr
    assert "ran" not in done.stdout.split()


def test_lines_belong_to_the_job_that_is_cancelled(site: Koala) -> None:
    """A line that takes long ends as the program would: by a cancellation, and by the walltime."""
    sleeps = f"1000.{os.getpid()}"
    process = site.start("run", "-t", "10m", "-C", "beta", "--setup", f"sleep {sleeps}", "--", "true")
    eventually(lambda: bool(processes_naming(f"\0{sleeps}\0")))
    (job,) = [one["id"] for one in site.json("status") if one["outcome"] is None]
    site.run("cancel", job)
    process.communicate(timeout=LIVENESS)
    assert process.returncode == 243
    eventually(lambda: not processes_naming(f"\0{sleeps}\0"))
    done = site.run("run", "-t", "2s", "-C", "beta", "--setup", f"sleep {sleeps}", "--", "true", check=244)
    assert "setup line" not in done.stderr


def test_software_is_made_available_where_it_is(site: Koala) -> None:
    """The job goes to the cluster that has it, though more is idle elsewhere; what no cluster has is refused."""
    done = site.run("run", "-q", "--software", "gromacs", "--", "sh", "-c", "echo $LOADED on $KOALA_CLUSTER")
    assert done.stdout == "gromacs on alpha\n"
    for options in (("--software", "vasp"), ("--software", "gromacs", "-C", "beta")):
        refused = site.run("run", *options, "--", "true", check=245)
        assert f"software: found {options[1]}, allowed is what one cluster has all of" in refused.stderr


def test_check_runs_the_lines_of_the_site_file(site: Koala) -> None:
    """In a placeholder: what a typo in the site file breaks is seen before the first job."""
    checked = site.run("check", check=1).stdout
    lines = [line.strip() for line in checked.splitlines()]
    assert "OK   setup: its lines ran" in lines
    assert "OK   software gromacs: its lines ran" in lines
    (runtime,) = (line for line in lines if "container_runtime:" in line)
    assert runtime.startswith("FAIL container_runtime: launch failed: apptainer cannot be run after setup on ")


def test_a_container_has_directory_files_and_variables(site: Koala) -> None:
    """Of the rank: what it finds there came as input file, and what it leaves is fetched."""
    (site.directory / "in.txt").write_text("of the input file")
    script = 'cat in.txt >out.txt; printf "%s" "$INSIDE$KOALA_RANK$OWN" "$@" >>out.txt; echo "$PWD $KOALA_STDOUT"'
    text = f"""
        walltime = 600
        software = ["bin"]
        [[components]]
        container = "image.sif"
        setup = ["export OWN=own"]
        environment = {{ SECRET_WORD = "sesame" }}
        command = ["sh", "-c", '{script}', "sh", "a b"]
        processors = 1
        input_files = ["in.txt"]
        output_files = ["out.txt"]
    """
    reported = json.loads(site.run("run", "--json", job_file(site, text, "contained")).stdout)
    directory = site.state / "jobs" / reported["id"]
    assert (directory / "c1" / "0" / "out.txt").read_text() == "of the input fileyes0owna b"
    work, pipe = (directory / "c1" / "0.out").read_text().split()
    called = (site.directory / "said").read_text().splitlines()[-1]
    assert called.startswith(f"exec --bind {pipe.removesuffix('/out')} --bind {work} --pwd {work} image.sif sh -c")
    assert "sesame" not in called


def test_a_sweep_is_set_up_once_for_each_launcher(site: Koala) -> None:
    log = site.directory / "launchers"
    text = f"""
        walltime = 600
        kind = "malleable"
        runner = "sweep"
        software = ["bin"]
        container = "image.sif"
        setup = ["echo $KOALA_RANK >>{log}", "export PYTHONPATH=/else:$PYTHONPATH OWN=own"]
        [[components]]
        command = ["sh", "-c", "echo $INSIDE $OWN $PYTHONPATH {{a}}"]
        minimum = 1
        maximum = 2
        [sweep.parameters]
        a = "1..20"
    """
    site.run("run", job_file(site, text, "sweep"))
    outputs = (path.read_text().split() for path in (newest_job(site) / "sweep" / "tasks").rglob("*.out"))
    assert sorted(outputs) == sorted(["yes", "own", "/else", str(number)] for number in range(1, 21))
    assert 1 <= len(log.read_text().split()) <= 2


def test_adaptive_programs_find_their_library_after_any_lines(site: Koala) -> None:
    """Also when these set PYTHONPATH anew."""
    program = "import koala_app, os; app = koala_app.join(); print(app.size, os.environ['OWN'])"
    text = f"""
        walltime = 600
        kind = "malleable"
        runner = "adaptive"
        setup = ["export PYTHONPATH=/else OWN=own"]
        [[components]]
        command = ["{sys.executable}", "-c", "{program}"]
        minimum = 1
        maximum = 2
    """
    assert site.run("run", "-q", job_file(site, text, "adaptive")).stdout == "c1/0: 1 own\n"


@pytest.mark.skipif(shutil.which("mpiexec.hydra") is None, reason="no MPICH is installed")
def test_an_mpi_world_is_set_up_on_each_node(site: Koala) -> None:
    """Mpiexec comes by the PATH that the lines leave; a line that fails on one node ends the job."""
    (site.directory / "mpi").mkdir()
    hydra = site.directory / "mpi" / "mpiexec.hydra"
    hydra.write_text(f'#!/bin/sh\necho by module >&2\nexec {shutil.which("mpiexec.hydra")} "$@"\n')
    hydra.chmod(0o755)
    text = f"""
        walltime = 600
        launcher = "mpi"
        setup = ["export PATH={site.directory}/mpi:$PATH OWN=own", 'LINE']
        [[components]]
        cluster = "alpha"
        command = ["sh", "-c", 'echo "$OWN $KOALA_RANK $1"', "sh", "a b"]
        processors = 1
        [[components]]
        cluster = "beta"
        command = ["sh", "-c", 'echo "$OWN $KOALA_RANK $1"', "sh", "c  d"]
        processors = 1
    """
    done = site.run("run", "-q", job_file(site, text.replace("LINE", "true"), "world"))
    assert sorted(done.stdout.splitlines()) == ["c1/0: own 0 a b", "c2/0: own 1 c  d"]
    assert "by module" in (newest_job(site) / "launcher.err").read_text()
    failing = text.replace("LINE", '[ "$KOALA_CLUSTER" != beta ] || (echo no >&2; exit 5)')
    ended = site.run("run", job_file(site, failing, "world"), check=5)
    assert "ended with status 5 on" in ended.stderr


def test_secrets_are_in_no_command_line_and_no_readable_file(site: Koala) -> None:
    process = site.start_anew(
        *("run", "-C", "beta", "--export", "EXPORTED", "--setup", "export OWN=word-of-setup", "--"),
        *("sh", "-c", f"touch {site.directory}/up; while [ -e {site.directory}/up ]; do sleep 0.1; done"),
        environment={"EXPORTED": "word-exported"},
    )
    eventually((site.directory / "up").exists)
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "word-exported" not in commands
    assert not [line for line in commands.splitlines() if "word-of-setup" in line and " run " not in line]
    (site.directory / "up").unlink()
    process.communicate(timeout=LIVENESS)
    assert process.returncode == 0
    told = [path for path in site.directory.rglob("*") if path.is_file() and b"word-exported" in path.read_bytes()]
    assert told  # the journal has it
    assert not [path for path in told if _readable_by_others(path, site.directory)]


def _readable_by_others(path: Path, top: Path) -> bool:
    inner = [one for one in path.parents if one.is_relative_to(top) and one != top]
    return path.stat().st_mode & 0o044 != 0 and all(one.stat().st_mode & 0o011 for one in inner)
