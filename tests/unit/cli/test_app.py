# SPDX-License-Identifier: Apache-2.0
"""The program `koala`: its commands and arguments, interrupts, its log and its end."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from json import dumps, loads
from pathlib import Path
from typing import cast

import click
import pytest
import structlog
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.application.shipping import C_FILES, FILE_NAME, NEGOTIATION_FILE_NAME, PKG_CONFIG_FILE
from koala_adapter.cli.arguments import SOURCE, JobArguments, needs_options, sweep_of_words
from koala_adapter.cli.console import LineEnds
from koala_adapter.cli.innerservice import log_to_file
from koala_adapter.cli.koala import koala
from koala_adapter.cli.log import KEPT, LARGEST, RotatedLog
from koala_adapter.cli.session import Session
from koala_adapter.cli.terminal import Interrupts
from koala_adapter.config.jobfile import job_of_values
from koala_adapter.config.tomlfile import toml_of
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import Job, Launcher
from koala_adapter.python.description import Job as Description
from koala_adapter.python.description import SlotKeys

# -- ``koala app``: what it writes is whole, compiles with what pkg-config says, and overwrites nothing of others.


FILES = [FILE_NAME, NEGOTIATION_FILE_NAME, *C_FILES, PKG_CONFIG_FILE]
PROGRAM = """\
#include <koala_app.h>
int main(void) {
    koala_app *app = koala_app_join("any", NULL, NULL, "");
    int size = app ? koala_app_size(app) : 0;
    koala_app_close(app);
    return size == 1 ? 0 : 1;
}
"""


def install(directory: Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(koala, ["app", "--install", str(directory)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_it_says_what_it_wrote_and_may_write_it_again(tmp_path: Path) -> None:
    """All files are there, each is named, and an older version of them is replaced."""
    directory = tmp_path / "new" / "library"
    written = "".join(f"wrote {directory / name}\n" for name in FILES)
    assert install(directory) == (0, written, "")
    header = directory / "koala_app.h"
    whole = header.read_text(encoding="utf-8")
    header.write_text("\n".join(whole.split("\n")[:10]), encoding="utf-8")
    assert install(directory) == (0, written, "")
    assert header.read_text(encoding="utf-8") == whole


@pytest.mark.parametrize("name", FILES)
def test_files_of_others_stay(tmp_path: Path, name: str) -> None:
    """Nothing is written where another file has one of the names, or a link that leads elsewhere."""
    mine = tmp_path / name
    mine.write_text("mine", encoding="utf-8")
    code, output, complaint = install(tmp_path)
    assert (code, output) == (1, "")
    assert f"{mine} exists and is not one that koala has written" in " ".join(complaint.split())
    assert [path.name for path in tmp_path.iterdir()] == [name]
    mine.unlink()
    mine.symlink_to(tmp_path / "elsewhere")
    assert install(tmp_path)[0] == 1
    assert not (tmp_path / "elsewhere").exists()


def test_a_directory_that_pkg_config_cannot_read_is_refused(tmp_path: Path) -> None:
    code, _, complaint = install(tmp_path / "my library")
    assert code == 1
    assert "without blanks" in " ".join(complaint.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real("cc", "pkg-config")
def test_a_program_is_compiled_with_what_pkg_config_says(tmp_path: Path) -> None:
    """The command of the help text builds a program that runs, outside koala, as a rigid one."""
    assert install(tmp_path)[0] == 0
    environment = {"PATH": os.environ["PATH"], "PKG_CONFIG_PATH": str(tmp_path)}

    def told(*options: str) -> list[str]:
        command = ["pkg-config", *options, "koala_app"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    (tmp_path / "program.c").write_text(PROGRAM, encoding="utf-8")
    program = str(tmp_path / "program")
    sources, flags = told("--variable=sources"), told("--cflags", "--libs")
    subprocess.run(["cc", "-o", program, str(tmp_path / "program.c"), *sources, *flags], check=True)
    assert subprocess.run([program], env=environment, check=False).returncode == 0


def test_the_file_for_python_runs_alone(tmp_path: Path) -> None:
    assert install(tmp_path)[0] == 0
    text = "from koala_app import *; app = join(); print(app.rank, app.size, app.point())"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); exec({text!r})"],
        env={}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "0 1 None\n"


# -- A command line describes a job as a job file does, whatever its words contain.


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def arguments(words: list[str], **keys: object) -> JobArguments:
    return JobArguments(words=tuple(words), keys=keys)


def job_of(described: Description) -> Job:
    return job_of_values(described.values(), source=SOURCE, user="u", directory=Path("/"))


@given(words=st.lists(WORDS, min_size=1, max_size=4), directory=WORDS)
def test_words_arrive_as_they_were_written(words: list[str], directory: str) -> None:
    """Quotes, backslashes and control characters among them; the job file that is saved has them, too."""
    values = arguments(words, processors=3, flexible=True)._description().values() | {"working_directory": directory}
    assert tomllib.loads(toml_of(values)) == values
    assert values["components"] == [{"command": words, "processors": 3, "flexible": True}]


def test_everything_that_can_be_said() -> None:
    """The job has it, and is called by its program."""
    words = ["./bin/simulate", "--steps", "5"]
    said = arguments(words, processors=14, ranks_per_slot=2, launcher="mpi", walltime="2m", cluster="alpha")
    found = job_of(said._description())
    assert (found.name, found.walltime, found.launcher) == ("simulate", 120, Launcher.MPI)
    assert found.working_directory == str(Path.cwd())
    (component,) = found.components
    assert (component.command, component.minimum, component.cluster) == (tuple(words), 7, "alpha")
    assert component.slot.ranks == 2
    assert job_of(arguments(words, name="ocean")._description()).name == "ocean"


@pytest.mark.parametrize(
    ("options", "word", "key"), [({"walltime": "soon"}, "ls", "walltime"), ({}, "l\0s", "command")]
)
def test_what_no_job_may_be(options: dict[str, object], word: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{SOURCE}: [^:]*{key}"):
        job_of(arguments([word, "x"], **options)._description())


def slot_of(words: str) -> SlotKeys:
    """Return the slot that options say. Raises UsageError."""
    command = click.command()(needs_options(lambda needs: needs))
    return cast("SlotKeys", command.main(words.split(), standalone_mode=False))


@pytest.mark.parametrize(
    ("words", "slot"),
    [
        ("", {}),
        ("--threads 2 --memory 4GiB --exclusive --scratch 500",
         {"threads": 2, "memory": "4GiB", "exclusive": True, "scratch": "500"}),
        ("--gpus 2", {"gpus": 2}),
        ("--gpus a100:2", {"gpus": "a100:2"}),
        ("--queue long --qos alpha=high --account alpha=a --account beta=b",
         {"queue": "long", "qos": {"alpha": "high"}, "account": {"alpha": "a", "beta": "b"}}),
        ("--feature ib --feature avx512 --license m=2 --license n=1",
         {"features": ("ib", "avx512"), "licenses": {"m": 2, "n": 1}}),
        ("--directive alpha=--x=1 --directive alpha=-y", {"directives": {"alpha": ["--x=1", "-y"]}}),
    ],
)  # fmt: skip
def test_options_of_a_slot(words: str, slot: SlotKeys) -> None:
    assert slot_of(words) == slot
    values = arguments(["p"], **slot)._description().values()
    assert tomllib.loads(toml_of(values)) == values
    assert values["components"] == [{"command": ["p"], "processors": 1, **loads(dumps(slot))}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--threads 0", "0 is not in the range x>=1"),
        ("--queue alpha=long --queue short", "found alpha=long, short, allowed is one NAME"),
        ("--license m", 'found "m", allowed is NAME=N'),
        ("--license m=x", 'found "m=x", allowed is NAME=N with a whole number N'),
        ("--directive --reservation", 'found "--reservation", allowed is CLUSTER=ARG'),
    ],
)
def test_options_that_are_no_slot(words: str, said: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        slot_of(words)
    assert said in caught.value.format_message()


# ---- sweeps ---------------------------------------------------------------------------------------------------------


def test_a_sweep(tmp_path: Path) -> None:
    """With one cluster it is not divided among several."""
    (tmp_path / "names").write_text("n\n")
    words = ["prog", "{a}-{b}", "{c}", ":::", "a=1..2", "b=x,1..2", f"c=@{tmp_path}/names"]
    described = sweep_of_words(words, maximum=5, grace=3)
    assert tomllib.loads(toml_of(described.values())) == described.values()
    job = job_of(described)
    assert job.sweep is not None
    assert [axis.count for axis in job.sweep.axes] == [2, 2, 1]
    (component,) = job.components
    assert (component.maximum, component.retirement.grace, component.flexible) == (4, 3, True)
    words = ["p", "{a}{b}", ":::", "a=1..4", "b=1..4"]
    job = job_of(sweep_of_words(words, together=True, repeats=0, cluster="alpha", walltime="1m", maximum=3))
    assert job.sweep is not None
    assert (job.sweep.together, job.sweep.repeats, job.walltime) == (True, 0, 60)
    (component,) = job.components
    assert (component.maximum, component.cluster, component.flexible) == (3, "alpha", False)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["prog", "{a}"], "nothing says what the parameters are"),
        ([":::", "a=1"], "no program before"),
        (["p", "{a}", ":::", "1..3"], "found '1..3' behind"),
        (["p", "{a}", ":::", "a=1", "a=2"], "there twice"),
        (["p", "{a}", ":::", "a="], "parameter a has no values"),
        (["p", "{a}", ":::", "a=1..2..-1"], rf"^{SOURCE}: sweep\.parameters\.a: found "),
    ],
)
def test_words_that_are_no_sweep(words: list[str], refusal: str) -> None:
    with pytest.raises(ConfigurationError, match=refusal):
        job_of(sweep_of_words(words))


# -- Interrupts come at once, or at the end of what must not be broken off, and never get lost.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_is_raised_at_once(number: signal.Signals) -> None:
    """Outside of anything that puts it off; afterwards the handler is the one that was there before."""
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_an_interrupt_that_is_put_off_comes_at_the_end() -> None:
    """The block is not broken off; afterwards the interrupt is raised, once."""
    done = []

    def interrupted(interrupts: Interrupts) -> None:
        with interrupts.deferred():
            signal.raise_signal(signal.SIGINT)
            with interrupts.deferred():
                done.append("inner")
            done.append("outer")

    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            interrupted(interrupts)
        with interrupts.deferred():
            done.append("quiet")
    assert done == ["inner", "outer", "quiet"]


def test_a_part_can_be_let_in_again() -> None:
    """What is pending is raised where interrupts are let in; what comes there is raised at once."""
    with Interrupts() as interrupts, interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts.let_in():
            raise AssertionError("not reached")
        with pytest.raises(KeyboardInterrupt), interrupts.let_in():
            signal.raise_signal(signal.SIGTERM)


# -- What is printed through a file that takes away the blanks at the ends of lines.


def test_blanks_at_the_ends_of_lines_are_not_written() -> None:
    """The file stays open; collected after its owner has closed the file, nothing is flushed, and nothing raised."""
    file = io.StringIO()
    ends = LineEnds(file)
    ends.write("a  b   \n c \n")
    LineEnds(file).close()
    assert file.getvalue() == "a  b\n c\n"
    file.close()
    ends.close()


# -- What ``koala metrics`` says where nobody answers.


def test_a_port_where_nobody_listens_is_told_in_words() -> None:
    """The number of the error is nothing for people."""
    with socket.socket() as taken:  # bound and not listening: nobody else gets it meanwhile
        taken.bind(("127.0.0.1", 0))
        result = CliRunner().invoke(koala, ["metrics", "--port", str(taken.getsockname()[1])])
    assert result.exit_code != 0
    assert "Errno" not in result.output
    assert "Connection refused" in result.output


def test_the_address_of_the_site_file_is_asked(tmp_path: Path) -> None:
    """Who listens on another address than 127.0.0.1 is found there."""
    site = tmp_path / "site.toml"
    site.write_text('[metrics]\nlisten = "127.0.0.2"\n[[clusters]]\nname = "a"\nplugin = "local"\n')
    with socket.create_server(("127.0.0.2", 0)) as listener:

        def tell() -> None:
            with listener.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\ntold 1\n")

        threading.Thread(target=tell, daemon=True).start()
        words = ["--site", str(site), "--state", str(tmp_path / "s"), "metrics"]
        result = CliRunner().invoke(koala, [*words, "--port", str(listener.getsockname()[1])])
    assert (result.exit_code, result.output) == (0, "told 1\n")


# -- The log of a service in the background stays small, and loses nothing that is recent.


@pytest.fixture
def descriptors(tmp_path: Path) -> Iterator[tuple[int, int]]:
    first = os.open(tmp_path / "service.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    second = os.dup(first)
    yield first, second
    os.close(first)
    os.close(second)


def test_a_full_file_is_put_aside(tmp_path: Path, descriptors: tuple[int, int]) -> None:
    """So many are kept, the latest lines in the file itself; none is larger than allowed, nobody else can read it."""
    log = RotatedLog(tmp_path / "service.log", descriptors, largest=50)
    for number in range(100):
        log.write(f"line {number:04}\n")
    names = ["service.log", *(f"service.log.{number}" for number in range(1, KEPT + 1))]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    texts = [(tmp_path / name).read_text() for name in reversed(names)]
    assert "".join(texts).splitlines() == [f"line {number:04}" for number in range(80, 100)]
    assert all(len(text) <= 50 for text in texts)
    assert (tmp_path / "service.log").stat().st_mode & 0o777 == 0o600


def test_the_other_stream_goes_to_the_new_file(tmp_path: Path, descriptors: tuple[int, int]) -> None:
    """What is printed there, such as a traceback of the interpreter, is not in a file that was put aside."""
    log = RotatedLog(tmp_path / "service.log", descriptors, largest=20)
    log.write("x" * 20)
    log.write("y" * 5)
    os.write(descriptors[0], b"z")
    assert (tmp_path / "service.log").read_text() == "yyyyyz"


def test_a_file_that_somebody_else_has_put_aside_is_left_alone(tmp_path: Path, descriptors: tuple[int, int]) -> None:
    """Nor does anything fail when it is gone; a line that is too long for any file is written all the same."""
    log = RotatedLog(tmp_path / "service.log", descriptors, largest=20)
    log.write("x" * 30)
    (tmp_path / "service.log").rename(tmp_path / "mine")
    log.write("y" * 30)
    (tmp_path / "service.log").write_text("theirs")
    log.write("z" * 30)
    assert (tmp_path / "mine").read_text() == "x" * 30 + "y" * 30 + "z" * 30
    assert (tmp_path / "service.log").read_text() == "theirs"


def test_the_log_of_a_service_inside_a_command_is_put_aside(tmp_path: Path) -> None:
    """It is as large as that of a service in the background, however many commands write to it."""
    (tmp_path / "service.log").write_bytes(b"x" * LARGEST)
    session = Session(site_option=None, state_option=tmp_path)
    with log_to_file(session):
        structlog.get_logger().info("one more")
    assert (tmp_path / "service.log.1").stat().st_size == LARGEST
    assert "one more" in (tmp_path / "service.log").read_text()
