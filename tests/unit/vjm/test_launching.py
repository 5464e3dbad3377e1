# SPDX-License-Identifier: Apache-2.0
"""How the agent starts a process: by the C library where that can be, else by subprocess, and alike."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.vjm.agent import processes as launching
from koala_adapter.vjm.agent.processes import LaunchError, start

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["spawn", "popen", "an old C library"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each of them; each leaves the agent where it was."""

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
        start(list(argv), str(directory), {"PATH": path, "WORD": "grüße"}, [output.fileno(), errors.fileno()]).wait()
        output.seek(0)
        errors.seek(0)
        return output.read().decode(), errors.read().decode()


def test_where_and_with_what_it_runs(tmp_path: Path) -> None:
    script = 'pwd; echo "$WORD" "$1"; cat; echo $(( $(cut -d" " -f6 /proc/$$/stat) == $$ )); echo bad >&2'
    assert said(tmp_path, "sh", "-c", script, "sh", "a b") == (f"{tmp_path}\ngrüße a b\n1\n", "bad\n")


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


def test_a_program_is_found_as_a_shell_finds_it(tmp_path: Path) -> None:
    """The first that can be run; places that are not there, or are files, are passed over."""
    for name, mode in (("locked", 0o600), ("good", 0o700), ("later", 0o700)):
        (tmp_path / name).mkdir()
        program = tmp_path / name / "program"
        program.write_text(f"#!/bin/sh\necho {name}\n")
        program.chmod(mode)
    path = f"{tmp_path}/nowhere:{tmp_path}/good/program:{tmp_path}/locked:{tmp_path}/good:{tmp_path}/later"
    assert said(tmp_path, "program", path=path) == ("good\n", "")


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


def test_a_program_that_is_there_and_locked_is_no_missing_one(tmp_path: Path) -> None:
    """Also where later places have none."""
    (tmp_path / "program").write_text("")
    (tmp_path / "program").chmod(0o600)
    with pytest.raises(LaunchError, match="Permission denied"):
        said(tmp_path, "program", path=f"{tmp_path}:{tmp_path}/nowhere")


def test_what_no_program_can_be_given_is_refused(tmp_path: Path) -> None:
    for argv in (("echo", "a\0b"), ("a\0b",)):
        with pytest.raises(ValueError, match="null"):
            said(tmp_path, *argv)
    with pytest.raises(ValueError, match="environment variable"):
        launching.start(["true"], str(tmp_path), {"A=B": "C"}, [1, 2])
