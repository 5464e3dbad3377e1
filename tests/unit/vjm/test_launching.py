# SPDX-License-Identifier: Apache-2.0
"""How the agent starts a process, and the lines of a shell before it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from koala_adapter.vjm.agent import processes as launching
from koala_adapter.vjm.agent import setup
from koala_adapter.vjm.agent.processes import LaunchError, start


@pytest.fixture(params=["spawn", "popen", "an old C library"])
def every_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start processes in each of the ways there are; each leaves the agent in its directory."""

    def missing(*_: object, **_named: object) -> None:
        raise NotImplementedError

    if request.param == "popen":
        monkeypatch.delattr(os, "posix_spawn")
    elif request.param == "an old C library":
        monkeypatch.setattr(os, "posix_spawn", missing)
    here = Path.cwd()
    yield
    assert Path.cwd() == here


def said(directory: Path, *argv: str, path: str = os.defpath) -> tuple[str, str]:
    """Run a program to its end and return what it wrote to its stdout and stderr."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        pid = start(list(argv), str(directory), {"PATH": path, "WORD": "grüße"}, [output.fileno(), errors.fileno()])
        os.waitpid(pid, 0)
        output.seek(0)
        errors.seek(0)
        return output.read().decode(), errors.read().decode()


@pytest.mark.usefixtures("every_way")
def test_where_and_with_what_it_runs(tmp_path: Path) -> None:
    script = 'pwd; echo "$WORD" "$1"; cat; echo $(( $(cut -d" " -f6 /proc/$$/stat) == $$ )); echo bad >&2'
    assert said(tmp_path, "sh", "-c", script, "sh", "a b") == (f"{tmp_path}\ngrüße a b\n1\n", "bad\n")


@pytest.mark.usefixtures("every_way")
def test_signals_and_descriptors_are_as_a_program_expects_them(tmp_path: Path) -> None:
    """What Python ignores is not ignored there, and the agent's own files are not open."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    own = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(own, True)  # noqa: FBT003 - the library's own way
    launching.keep_descriptors()
    try:
        output, _ = said(tmp_path, "sh", "-c", "grep SigIgn /proc/self/status; ls /proc/$$/fd")
    finally:
        os.close(own)
        signal.signal(signal.SIGPIPE, before)
    ignored, *descriptors = output.split()[1:]
    assert not int(ignored, 16) & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))
    assert descriptors == ["0", "1", "2"]


@pytest.mark.usefixtures("every_way")
def test_a_program_is_found_as_a_shell_finds_it(tmp_path: Path) -> None:
    """The first that can be run; places that are not there, or are files, are passed over."""
    for name, mode in (("locked", 0o600), ("good", 0o700), ("later", 0o700)):
        (tmp_path / name).mkdir()
        program = tmp_path / name / "program"
        program.write_text(f"#!/bin/sh\necho {name}\n")
        program.chmod(mode)
    path = f"{tmp_path}/nowhere:{tmp_path}/good/program:{tmp_path}/locked:{tmp_path}/good:{tmp_path}/later"
    assert said(tmp_path, "program", path=path) == ("good\n", "")


@pytest.mark.usefixtures("every_way")
@pytest.mark.parametrize(
    ("argv", "fault", "code"),
    [
        ("no-such-program", "no-such-program: command not found", 127),
        ("./nothing", "./nothing: command not found", 127),
        ("./unlocked", "Exec format error", 126),
        ("./locked", "Permission denied", 126),
        ("./lost", "the interpreter of ./lost was not found", 126),
    ],
)
def test_what_cannot_be_started_is_told(tmp_path: Path, argv: str, fault: str, code: int) -> None:
    for name, mode, text in (("unlocked", 0o700, "\0"), ("locked", 0o600, ""), ("lost", 0o700, "#!/no/such/thing\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    with pytest.raises(LaunchError, match=fault) as caught:
        said(tmp_path, argv)
    assert caught.value.code == code


@pytest.mark.usefixtures("every_way")
def test_a_program_that_is_there_and_locked_is_no_missing_one(tmp_path: Path) -> None:
    """Also where later places have none."""
    (tmp_path / "program").write_text("")
    (tmp_path / "program").chmod(0o600)
    with pytest.raises(LaunchError, match="Permission denied"):
        said(tmp_path, "program", path=f"{tmp_path}:{tmp_path}/nowhere")


@pytest.mark.usefixtures("every_way")
def test_what_no_program_can_be_given_is_refused(tmp_path: Path) -> None:
    for argv in (("echo", "a\0b"), ("a\0b",)):
        with pytest.raises(ValueError, match="null"):
            said(tmp_path, *argv)
    with pytest.raises(ValueError, match="environment variable"):
        launching.start(["true"], str(tmp_path), {"A=B": "C"}, [1, 2])


# Lines of a shell before a task: what the program gets of them, and what is told of a line that fails.

SHOW = (
    "import json, os, signal, sys;"
    "print(json.dumps([sys.argv[1:], dict(os.environ), os.getpid(), signal.getsignal(signal.SIGPIPE).value]))"
)
PROGRAM = (sys.executable, "-S", "-c", SHOW)
MODULE = """\
module() {
    [ "$2" != gcc/99 ] || { echo "gcc/99 is unknown" >&2; return 1; }
    export LOADED="$2"
}
"""
HARD = ("--help", "a b", "it's", '"$HOME"', "`id`", "", "*", "\\", "line\nbreak", "-n", "é")
SHELLS = ("bash", "sh")


@dataclass
class Ran:
    """A task that has ended."""

    process: subprocess.CompletedProcess[bytes]
    state: str
    argv: Sequence[str]
    lines: Sequence[str]

    @property
    def failure(self) -> tuple[str, int] | None:
        code = self.process.returncode
        return setup.failure(self.state, self.argv, self.lines, code, self.process.stderr)

    @property
    def environment(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.process.stdout)[1]
        return found


@dataclass
class Node:
    """A place where lines run."""

    directory: Path
    shell: str

    def run(
        self,
        *lines: str,
        argv: Sequence[str] = PROGRAM,
        library: str | None = None,
        environment: dict[str, str] | None = None,
    ) -> Ran:
        state = str(self.directory / "state of it")
        variables = {"PATH": os.environ["PATH"], **(environment or {})}
        command = setup.with_setup(argv, lines, state, library, variables)
        assert Path(command[0]).name == self.shell
        done = subprocess.run(
            command, env=variables, cwd=self.directory, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        return Ran(done, state, argv, lines)


@pytest.fixture(params=SHELLS)
def node(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Return a node with bash, and one without."""
    if request.param == "sh":
        monkeypatch.setattr(setup, "_bash", lambda _environment: None)
    return Node(tmp_path, request.param)


def test_the_program_gets_its_arguments_untouched(node: Node) -> None:
    """Whatever characters they have; they are in no text that a shell reads."""
    ran = node.run("true", argv=(*PROGRAM, *HARD))
    assert json.loads(ran.process.stdout)[0] == list(HARD)
    assert ran.failure is None


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("export A=1", "export B=$A$A"), {"A": "1", "B": "11"}),
        (("A='it''s \"x\"'", "export A"), {"A": 'its "x"'}),
        (("for one in 1 2; do\n    A=$A$one\ndone; export A",), {"A": "12"}),
        (("set -a", ". ./values", "set +a"), {"A": "from a file"}),
        (("set -eu -C", "export A=$(echo x | tr x y)"), {"A": "y"}),
        (("set -- three words here", "export A=$#"), {"A": "3"}),
        (("cd /", "export A=$PWD"), {"A": "/"}),
        ((". ./vars.sh",), {"SEEN": ""}),
    ],
)
def test_the_program_starts_in_what_the_lines_leave(
    node: Node, lines: tuple[str, ...], expected: dict[str, str]
) -> None:
    """One shell runs them in order, each whole, and nothing of koala's own text is left.

    Files such as those of compilers take the arguments of who sources them for theirs, and shift them away.
    """
    (node.directory / "values").write_text("A='from a file'\n")
    (node.directory / "vars.sh").write_text('export SEEN="$*"\n[ $# -eq 0 ] || shift\n')
    ran = node.run(*lines, argv=(*PROGRAM, "kept"))
    assert json.loads(ran.process.stdout)[0] == ["kept"]
    assert expected.items() <= ran.environment.items()
    assert not [name for name in ran.environment if name.lower().startswith("koala")]


def test_what_bash_declares_reaches_the_program(tmp_path: Path) -> None:
    """As ``export -p`` of bash writes it into files that people source."""
    ran = Node(tmp_path, "bash").run('declare -x A="of declare"')
    assert ran.environment["A"] == "of declare"


def test_a_module_function_is_found(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the file that BASH_ENV names, or else in those that login shells read."""
    file = tmp_path / "modules.sh"
    file.write_text(MODULE)
    if node.shell == "sh":
        monkeypatch.setattr(setup, "_BEGIN", setup._BEGIN.replace("/etc/profile.d", str(tmp_path)))
    for argument in ("gcc/12", "gcc/99"):
        ran = node.run(f"module load {argument}", environment={"BASH_ENV": str(file)})
        if argument == "gcc/12":
            assert ran.environment["LOADED"] == "gcc/12"
        else:
            text = f"setup line 1 (module load gcc/99) ended with status 1 on {socket.gethostname()}: gcc/99 is unknown"
            assert ran.failure == (text, 1)


@pytest.mark.parametrize(
    ("lines", "line", "code", "words"),
    [
        (("true", "false", "true"), "setup line 2 (false) ended with status 1", 1, ""),
        (("true", "nosuchcommand"), "setup line 2 (nosuchcommand) ended with status 127", 127, "not found"),
        (("echo first >&2; echo >&2; echo last >&2; (exit 9)",), "ended with status 9", 9, ": first; last"),
        (("exit 0",), "setup line 1 (exit 0) ended with status 0", 1, ""),
        (("true && { echo 'a' ; }", "fi"), "setup line 2 (fi) ended with status", 2, "yntax error"),
        (("set -e", f"x={'1' * 200}; false"), f"setup line 2 (x={'1' * 98}...) ended with status 1", 1, ""),
        (("set -u", 'echo "$NOT_SET"'), "setup line 2", None, "NOT_SET"),
    ],
)
def test_a_line_that_fails_is_told_with_its_words(
    node: Node, lines: tuple[str, ...], line: str, code: int | None, words: str
) -> None:
    ran = node.run(*lines)
    assert ran.failure is not None
    text, found = ran.failure
    assert line in text
    assert code in {None, found}
    assert words in text
    assert b"[[" not in ran.process.stdout


@pytest.mark.parametrize("argv", [("./nosuchprogram",), ("nosuchprogram", "x")])
def test_a_program_that_is_not_there_is_told(tmp_path: Path, argv: tuple[str, ...]) -> None:
    ran = Node(tmp_path, "bash").run("true", argv=argv)
    assert ran.failure is not None
    assert ran.failure[0].startswith(f"{argv[0]} cannot be run after setup on {socket.gethostname()}: ")
    assert ran.failure[1] == 127


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "/the library"), ("/own", "/the library:/own"), ("/the library:/own", "/the library:/own")],
)
def test_the_library_stays_first(node: Node, before: str | None, after: str) -> None:
    """Whatever modules put in front of it."""
    lines = ["unset PYTHONPATH" if before is None else f"export PYTHONPATH='{before}'"]
    assert node.run(*lines, library="/the library").environment["PYTHONPATH"] == after


def test_the_program_takes_the_place_of_the_shell(node: Node) -> None:
    """Its process id and its death by a signal are its own, and so is its exit status."""
    command = ("/bin/sh", "-c", 'kill -9 "$$"')
    assert node.run("true", argv=command).process.returncode == -signal.SIGKILL
    ran = node.run('export SHELL_PID="$$"')
    assert ran.environment["SHELL_PID"] == str(json.loads(ran.process.stdout)[2])
    ended = node.run("true", argv=("/bin/sh", "-c", "exit 3"))
    assert (ended.process.returncode, ended.failure) == (3, None)


def test_a_shell_elsewhere_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bash is neither in /bin nor in /usr/bin, but where PATH says."""
    (tmp_path / "bash").write_text("#!/bin/sh\n")
    (tmp_path / "bash").chmod(0o755)
    monkeypatch.setattr(setup, "BASHES", ())
    assert setup._bash({"PATH": f"/nowhere:{tmp_path}"}) == str(tmp_path / "bash")
    assert setup._bash({"PATH": "/nowhere"}) is None
