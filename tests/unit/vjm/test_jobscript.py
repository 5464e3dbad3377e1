# SPDX-License-Identifier: Apache-2.0
"""The job script: what it contains, what it does not, and which Python it finds."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koala_adapter.vjm.jobscript import END_OF_AGENT, OTHER_PYTHONS, SYSTEM_PYTHONS, AgentConfig, render_job_script

TOKEN = "token-0123456789abcdef"
AGENT = AgentConfig(
    batch="koala-1", host="127.0.0.1", port=9, fingerprint="ab" * 32, lease=0.1, walltime=60.0, token=TOKEN
)
NODE = "/usr/bin:/bin"
"""PATH of an ordinary node."""


def render(agent: AgentConfig = AGENT) -> str:
    return render_job_script(agent=agent, array_index_variable="SGE_TASK_ID", job_id_variable="JOB_ID")


def looking_for(script: str, *, system: str, others: str) -> str:
    """Return the script as it is with other places and names of Python."""
    for listed, wanted in ((SYSTEM_PYTHONS, system), (OTHER_PYTHONS, others)):
        assert " ".join(listed) in script
        script = script.replace(" ".join(listed), wanted)
    return script


def run(
    script: str,
    path: str,
    tmp_path: Path,
    shell: Sequence[str] = ("/bin/sh",),
    **changes: Any,  # noqa: ANN401 - any
) -> subprocess.CompletedProcess[str]:
    """Run a script as a batch system does, with its own PATH. ``changes``: in how its shell is started."""
    how = {"input": script, "env": {"PATH": path, "TMPDIR": str(tmp_path)}, "cwd": tmp_path, **changes}
    return subprocess.run([*shell], capture_output=True, text=True, check=False, timeout=90, **how)


def check_agent_ran(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert "no contact to the control center for 0.1 s" in done.stderr


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def only(directory: Path, *names: str) -> str:
    """Return a PATH with the few commands that the script needs besides Python."""
    directory.mkdir(exist_ok=True)
    for name in ("uname", "cat", "sh", *names):
        (directory / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    return str(directory)


def test_token_is_only_in_the_input_of_python() -> None:
    """It comes after the beginning of the here-document: not in an argument, not in the environment."""
    script = render()
    assert script.count(TOKEN) == 1
    assert script.startswith("#!/bin/sh\n")
    assert script.index("<<'") < script.index(TOKEN)
    assert TOKEN not in repr(AGENT)
    script = render(replace(AGENT, token=None, token_file="/home/u/.koala/token"))
    assert TOKEN not in script, "such a script may be read by anybody"
    assert "/home/u/.koala/token" in script


@pytest.mark.parametrize(
    "host", ["$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '"', "\\", "\nEND_OF_KOALA_AGENT\ntouch pwned\n"]
)
def test_values_are_data(host: str, tmp_path: Path) -> None:
    done = run(render(replace(AGENT, host=host)), NODE, tmp_path)
    check_agent_ran(done)
    assert not list(tmp_path.iterdir())


def test_no_python_is_said_clearly(tmp_path: Path) -> None:
    """Status 127, and stderr names the node, the PATH and what was looked for."""
    script = looking_for(render(), system="/nowhere/python3", others="python3 python3.11")
    done = run(script, only(tmp_path / "bin"), tmp_path)
    assert done.returncode == 127
    assert "no usable Python 3.6" in done.stderr
    assert f"PATH={tmp_path / 'bin'}" in done.stderr


def test_unusable_pythons_are_passed_over(tmp_path: Path) -> None:
    """Where the system has none: one that is not there and a broken one are left; the next one runs the agent."""
    executable(tmp_path / "bin" / "python3", "#!/bin/sh\nexit 1\n")
    path = only(tmp_path / "bin")
    chosen = f"{tmp_path}/chosen"
    Path(chosen).symlink_to(sys.executable)
    script = looking_for(render(), system="/nowhere/python3", others=f"nowhere python3 {chosen}")
    done = run(script, path, tmp_path)
    check_agent_ran(done)


def test_nothing_is_imported_from_the_directory_of_the_job(tmp_path: Path) -> None:
    for name in ("ssl", "json", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("open('pwned', 'w')")
    environment = {"PATH": NODE, "PYTHONPATH": str(tmp_path)}
    done = run(render(), NODE, tmp_path, env=environment)
    check_agent_ran(done)
    assert not (tmp_path / "pwned").exists()


def test_places_of_python_cover_the_usual_nodes() -> None:
    """The system's own first, RHEL 8's among them, then the default name, and no version that is too old."""
    assert SYSTEM_PYTHONS == ("/usr/bin/python3", "/usr/libexec/platform-python")
    assert OTHER_PYTHONS[0] == "python3"
    assert {"python3.6", "python3.14"} <= set(OTHER_PYTHONS)
    assert "python3.5" not in OTHER_PYTHONS


SHELLS = [path for name in ("dash", "bash", "busybox") if (path := shutil.which(name))]


def as_sh(shell: str) -> list[str]:
    """Return the command line by which a shell is a POSIX one."""
    return [shell, *{"bash": ["--posix"], "busybox": ["sh"]}.get(Path(shell).name, [])]


def counting(path: Path, program: str) -> Path:
    return executable(path, f'#!/bin/sh\necho >>"$0.starts"\nexec {program} "$@"\n')


def starts(program: Path) -> int:
    """Return how often a counting program was started."""
    noted = Path(f"{program}.starts")
    return len(noted.read_text().splitlines()) if noted.exists() else 0


WITHOUT_SSL = """\
#!/bin/sh
echo >>"$0.starts"
while [ "$1" != -c ]; do shift; done
shift
exec {python} -I -S -B -c 'import sys; sys.modules["_ssl"] = None; exec(sys.argv.pop(1))' "$@"
"""


@pytest.mark.parametrize("shell", SHELLS, ids=lambda path: Path(path).name)
def test_the_python_of_the_system_is_started_once(shell: str, tmp_path: Path) -> None:
    """What stands first in the PATH, such as a shim, is not started at all."""
    system = counting(tmp_path / "system" / "python3", sys.executable)
    shim = counting(tmp_path / "bin" / "python3", sys.executable)
    script = looking_for(render(), system=f"/nowhere/python3 {system}", others="python3")
    done = run(script, only(tmp_path / "bin"), tmp_path, as_sh(shell))
    check_agent_ran(done)
    assert (starts(system), starts(shim)) == (1, 0)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda path: Path(path).name)
def test_a_python_that_is_not_enough_hands_over_to_another(shell: str, tmp_path: Path) -> None:
    """One without ssl looks among the others, passes over a broken one, and the next runs the agent."""
    system = executable(tmp_path / "system" / "python3", WITHOUT_SSL.format(python=sys.executable))
    executable(tmp_path / "bin" / "python3", "#!/bin/sh\ncat\nexit 1\n")
    good = counting(tmp_path / "bin" / "python3.9", sys.executable)
    script = looking_for(render(), system=str(system), others="nowhere python3 python3.9")
    done = run(script, only(tmp_path / "bin"), tmp_path, as_sh(shell))
    check_agent_ran(done)
    assert starts(system) == 2  # it tries itself, too, as one of those that are looked for
    assert starts(good) == 2  # tried, then taken


def no_files() -> None:
    """Let the process write no regular file, as where all file systems are full; pipes are left."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def run_file(
    script: str, path: str, tmp_path: Path, shell: Sequence[str], *, name: str | None = None
) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "spool" / "script"
    file.parent.mkdir()
    file.write_text(script)
    command = [*shell, name or str(file)]
    return run(script, path, file.parent, command, input=None, stdin=subprocess.DEVNULL, preexec_fn=no_files)


@pytest.mark.parametrize(
    ("name", "batch"), [(None, AGENT.batch), ("./script", "it's\\$(exit)`exit`\""), (None, "koala-'%s")]
)
@pytest.mark.parametrize("shell", SHELLS, ids=lambda path: Path(path).name)
def test_a_script_with_a_file_needs_no_other_file(shell: str, batch: str, name: str | None, tmp_path: Path) -> None:
    """A full or read-only /tmp, where bash keeps here-documents, keeps no agent from starting."""
    script = render(replace(AGENT, batch=batch))
    done = run_file(script, NODE, tmp_path, as_sh(shell), name=name)
    check_agent_ran(done)


@pytest.mark.parametrize("by_pipe", [True, False], ids=["pipe", "file"])
@pytest.mark.parametrize("shell", SHELLS, ids=lambda path: Path(path).name)
def test_a_script_on_standard_input_needs_no_file(shell: str, by_pipe: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter
    """The shell reads it from there and can write no file, wherever that were."""
    how = {"env": {"PATH": NODE, "TMPDIR": "/nowhere"}, "preexec_fn": no_files}
    if by_pipe:
        done = run(render(), NODE, tmp_path, as_sh(shell), **how)
    else:
        script = tmp_path / "script"
        script.write_text(render())
        with script.open("rb") as file:
            done = run("", NODE, tmp_path, as_sh(shell), input=None, stdin=file, **how)
    check_agent_ran(done)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda path: Path(path).name)
def test_a_python_hands_over_what_a_file_holds(shell: str, tmp_path: Path) -> None:
    """The second Python reads the script from its beginning."""
    uncounted = WITHOUT_SSL.format(python=sys.executable).replace('echo >>"$0.starts"\n', "")
    system = executable(tmp_path / "system" / "python3", uncounted)
    script = looking_for(render(), system=str(system), others=f"nowhere {sys.executable}")
    done = run_file(script, only(tmp_path / "bin"), tmp_path, as_sh(shell))
    check_agent_ran(done)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda path: Path(path).name)
def test_a_file_that_has_the_name_of_the_shell_is_not_read(shell: str, tmp_path: Path) -> None:
    """A script that comes through a pipe is called by the name of its shell, which may be a file in the directory."""
    lure = f"{render().splitlines()[0]}\n{render().splitlines()[1]}\n<<'{END_OF_AGENT}'\nopen('pwned', 'w')\n"
    for name in {Path(shell).name, "sh", "bash", "dash", "-sh"}:
        (tmp_path / name).write_text(lure)
    done = run(render(), NODE, tmp_path, [Path(shell).name, *as_sh(shell)[1:]], executable=shell)
    check_agent_ran(done)
    assert not (tmp_path / "pwned").exists()


def test_a_python_that_is_not_enough_says_so_when_there_is_no_other(tmp_path: Path) -> None:
    """In the same words as the shell, where there is no Python at all."""
    system = executable(tmp_path / "system" / "python3", WITHOUT_SSL.format(python=sys.executable))
    script = looking_for(render(), system=str(system), others="python3 python3.11")
    done = run(script, only(tmp_path / "bin"), tmp_path)
    assert done.returncode == 127
    said = f"(PATH={tmp_path / 'bin'}); looked for: {system} python3 python3.11\n"
    assert done.stderr == f"koala agent: no usable Python 3.6 or newer on {os.uname().nodename} {said}"


FOREIGN = 54321
"""A user id that nobody has."""


def say(directory: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a script that finds no Python, says so, and is to keep that in a directory."""
    script = render_job_script(
        agent=AGENT, array_index_variable="SGE_TASK_ID", job_id_variable=None, words_directory=str(directory)
    )
    script = looking_for(script, system="/nowhere/python3", others="nowhere")
    work = tmp_path / "work"
    work.mkdir()
    ended = run(script.replace("    exit 127\n", "    pwd\n    exit 127\n"), NODE, work)
    assert ended.returncode == 127
    return ended


def test_words_are_kept_in_a_directory_of_our_own(tmp_path: Path) -> None:
    """In a new file that nobody else may read; the script goes on where it was."""
    own = tmp_path / "it's own"
    own.mkdir(mode=0o755)
    ended = say(own, tmp_path)
    (file,) = own.iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == (f"{AGENT.batch}.1.out", 0o600)
    assert "no usable Python" in file.read_text()
    assert file.read_text().splitlines()[-1] == str(tmp_path / "work")
    assert ended.stdout + ended.stderr == ""


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o775])
def test_words_are_kept_apart_where_others_can_write(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    say(shared, tmp_path)
    (made,) = shared.iterdir()
    assert (made.name, made.stat().st_mode & 0o777) == (f"{AGENT.batch}.1", 0o700)
    assert "no usable Python" in (made / f"{AGENT.batch}.1.out").read_text()


@pytest.mark.parametrize(
    "put",
    [
        lambda path, _target: os.mkfifo(path),
        lambda path, target: path.symlink_to(target),
        lambda path, target: [path.mkdir(), (path / f"{AGENT.batch}.1.out").symlink_to(target / "made")],
    ],
    ids=["a pipe that nobody reads", "a link to a directory", "a directory with a link in it"],
)
@pytest.mark.parametrize("name", [f"{AGENT.batch}.1", f"{AGENT.batch}.1.out"])
@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_what_stands_in_the_way_is_neither_followed_nor_waited_for(
    tmp_path: Path, put: Callable[[Path, Path], object], name: str, mode: int
) -> None:
    """Nothing appears behind a link, and a pipe keeps nobody."""
    target, shared = tmp_path / "target", tmp_path / "shared"
    target.mkdir()
    shared.mkdir()
    shared.chmod(mode)
    put(shared / name, target)
    say(shared, tmp_path)
    assert list(target.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_words_are_kept_apart_in_a_directory_of_somebody_else(tmp_path: Path) -> None:
    """Also when it is closed to others: who owns it can exchange what is in it. Where there is none, none is made."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, FOREIGN, FOREIGN)
    say(theirs, tmp_path)
    assert [str(path.relative_to(theirs)) for path in theirs.rglob("*.out")] == [f"{AGENT.batch}.1/{AGENT.batch}.1.out"]
    (tmp_path / "work").rmdir()
    ended = say(tmp_path / "nowhere", tmp_path)
    assert "no usable Python" in ended.stderr
    assert not (tmp_path / "nowhere").exists()
