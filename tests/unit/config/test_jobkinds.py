# SPDX-License-Identifier: Apache-2.0
"""Job files of sweeps and of MPI programs that change size, and patterns for output files."""

from __future__ import annotations

import fnmatch
import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from koala_adapter.config.fields import OutputPattern
from koala_adapter.config.jobfile import explained, load_job, load_job_text
from koala_adapter.config.sitefile import load_site_text
from koala_adapter.errors import ConfigurationError
from koala_adapter.lrm import load_plugins
from koala_adapter.model import Job, JobId, MpiResize, RunnerName
from koala_adapter.tasks.sweep import Expansion, filled
from koala_adapter.vjm.agent.results import NamePattern, Patterns

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.config.sitefile import SiteConfig


# -- Sweeps in job files: what they mean, and what is refused.


TOP = 'walltime = 60\nkind = "malleable"\nrunner = "sweep"\n'
COMPONENT = '[[components]]\ncommand = ["p", "{a}", "{b}"]\nminimum = 1\nmaximum = 9\n'
SWEEP = '[sweep.parameters]\na = "1..3"\nb = ["x", "y"]\n'


def load(text: str, directory: Path) -> Job:
    """Read a job file."""
    return load_job_text(text, directory=directory, job_id=JobId("1"), user="u", submitted_at=0.0)


def commands(job: Job) -> list[list[str]]:
    assert job.sweep is not None
    tasks = Expansion(job.sweep, {})
    return [list(filled(job.components[0].command, tasks.row(task))) for task in range(len(tasks))]


def test_a_sweep(tmp_path: Path) -> None:
    job = load(TOP + COMPONENT + '[sweep]\nrepeats = 0\n[sweep.parameters]\na = [1, 2.5]\nb = "3..4"\n', tmp_path)
    assert (job.runner, job.components[0].retirement.grace) == (RunnerName.SWEEP, 0)
    assert job.sweep is not None
    assert job.sweep.repeats == 0
    assert commands(job) == [["p", "1", "3"], ["p", "1", "4"], ["p", "2.5", "3"], ["p", "2.5", "4"]]


def test_values_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("one\n\ntwo\n")
    job = load(TOP + COMPONENT + '[sweep.parameters]\na = { file = "names" }\nb = ["x"]\n', tmp_path)
    assert job.sweep is not None
    assert (job.sweep.axes[0].file, job.sweep.axes[0].count) == (str(tmp_path / "names"), 2)


@pytest.mark.parametrize("kind", ["FIFO", "pipe"])
def test_values_from_a_pipe_are_refused(tmp_path: Path, kind: str) -> None:
    """The service reads the file again later: a pipe would be empty then, or keep everybody waiting."""
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\n")
    os.close(writer)
    os.mkfifo(tmp_path / "names")
    file = str(tmp_path / "names") if kind == "FIFO" else f"/dev/fd/{reader}"
    try:
        with pytest.raises(ConfigurationError, match=r"cannot be used: it is no regular file"):
            load(TOP + COMPONENT + f'[sweep.parameters]\na = {{ file = "{file}" }}\nb = ["x"]\n', tmp_path)
    finally:
        os.close(reader)


def test_tables(tmp_path: Path) -> None:
    job = load(TOP + COMPONENT + '[[sweep.table]]\na = 1\nb = "x"\n[[sweep.table]]\nb = "y"\na = 2\n', tmp_path)
    assert commands(job) == [["p", "1", "x"], ["p", "2", "y"]]


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (TOP + COMPONENT, r"sweep: the table \[sweep\] is missing"),
        (TOP + COMPONENT + "[sweep]", "there is none: allowed is at least one"),
        (TOP + COMPONENT + '[sweep.parameters]\na = "1..3"\nb = ["x"]\nc = ["z"]', r"no argument .* has \{c\}"),
        (TOP + COMPONENT + '[sweep.parameters]\na = "one"\nb = ["x"]', 'a range such as "1..100"'),
        (TOP + COMPONENT + '[sweep.parameters]\na = "3..1..1"\nb = ["x"]', "whose step leads"),
        (TOP + COMPONENT + '[sweep.parameters]\na = { file = "none" }\nb = ["x"]', "none cannot be used: No such"),
        (TOP + COMPONENT + '[sweep.parameters]\na = "1..2000"\nb = "1..2000"', "4,000,000 tasks, allowed are at most"),
        (TOP + COMPONENT + '[sweep]\ncombine = "together"\n' + SWEEP, "a 3, b 2 values, allowed with"),
        (TOP + COMPONENT + "[[sweep.table]]\na = 1\nb = 2\n[[sweep.table]]\na = 1", "the names of the first one: a, b"),
        (TOP + COMPONENT + SWEEP + "[[sweep.table]]\na = 1", "it is in sweep.table, too"),
        (TOP + COMPONENT + 'output_files = ["x"]\n' + SWEEP, "what a task prints is kept"),
        (TOP + COMPONENT + COMPONENT + SWEEP, "is one component"),
        (TOP + 'launcher = "mpi"\n' + COMPONENT + SWEEP, 'with runner = "sweep" is "process"'),
        (TOP.replace("sweep", "workers") + COMPONENT + SWEEP, 'allowed with runner = "sweep" only'),
        (TOP + COMPONENT + 'retire_signal = "TERM"\n' + SWEEP, 'allowed with runner = "workers" only'),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, refusal: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=refusal):
        load(text, tmp_path)


KINDS = r'allowed is a range such as "1\.\.100" or "0\.\.1\.\.0\.25", a list of values, or \{ file = "FILE" \}'


@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        ("[]", r"a: found an empty list, allowed is a list of at least 1"),
        ("[true, 1.5]", r"a\[0\]: found true, allowed is a text in quotes, or a number"),
        ("[1, { x = 2 }]", r"a\[1\]: allowed is a text in quotes, or a number"),
        ("{ x = 1 }", r'a: allowed is \{ file = "FILE" \}, with a value on each line of it'),
        ('{ file = "" }', r'a: allowed is \{ file = "FILE" \}, with a value on each line of it'),
        ("5", f"a: found 5, {KINDS}"),
        ("true", f"a: found true, {KINDS}"),
        ('"one"', f'a: found "one", {KINDS}'),
    ],
)
def test_values_that_are_refused_are_refused_once(values: str, refusal: str, tmp_path: Path) -> None:
    """With what is allowed for values of their kind, and not for those of all kinds."""
    text = TOP + COMPONENT.replace(', "{b}"', "") + f"[sweep.parameters]\na = {values}\n"
    with pytest.raises(ConfigurationError) as refused:
        load(text, tmp_path)
    assert re.fullmatch(rf"job:9: sweep\.parameters\.{refusal}", refused.value.message), refused.value.message


# -- How an MPI program changes its size: what the job file says, what the site file says, and the weakest decides.


HEAD = 'kind = "malleable"\nrunner = "adaptive"\nlauncher = "mpi"\nwalltime = 60\n'
MPIRESIZE_COMPONENT = '[[components]]\ncommand = ["a"]\nminimum = 1\nmaximum = 4\n'
SHARED = 'working_directory = "/scratch"\n'


def site(**methods: str) -> SiteConfig:
    """Return a site of local clusters, each with what its file says of its MPI."""
    tables = (
        f'[[clusters]]\nname = "{name}"\nplugin = "local"\nsettings = {{ processors = 2 }}\n'
        + (f'mpi_resize = "{method}"\n' if method else "")
        for name, method in methods.items()
    )
    return load_site_text("".join(tables), source="site.toml", plugins=load_plugins())


def job(tmp_path: Path, text: str, where: SiteConfig | None) -> Job:
    path = tmp_path / "j.toml"
    path.write_text(text, encoding="utf-8")
    return load_job(path, job_id=JobId("1"), user="u", submitted_at=0, site=where)


@pytest.mark.parametrize(
    ("wanted", "pinned", "method"),
    [
        ("", "", MpiResize.RESTART),
        ('mpi_resize = "any"\n', "", MpiResize.RESTART),
        ("", 'cluster = "able"\n', MpiResize.SPAWN),
        ("", 'cluster = "silent"\n', MpiResize.RESTART),
        ('mpi_resize = "spawn"\n', 'cluster = "able"\n', MpiResize.SPAWN),
        ('mpi_resize = "restart"\n', 'cluster = "able"\n', MpiResize.RESTART),
    ],
)
def test_the_weakest_cluster_decides(tmp_path: Path, wanted: str, pinned: str, method: MpiResize) -> None:
    """Of those on which it may run; one of which the site file says nothing cannot spawn."""
    where = site(able="spawn", silent="")
    found = job(tmp_path, HEAD + SHARED + wanted + MPIRESIZE_COMPONENT + pinned, where)
    assert found.mpi_resize is method
    said = explained(found, where)
    assert ("spawned" in said) == (method is MpiResize.SPAWN)
    assert ("silent cannot spawn" in said) == (method is MpiResize.RESTART and "able" not in pinned)


def test_all_clusters_can_spawn(tmp_path: Path) -> None:
    assert job(tmp_path, HEAD + MPIRESIZE_COMPONENT, site(a="spawn", b="spawn")).mpi_resize is MpiResize.SPAWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            HEAD + 'mpi_resize = "spawn"\n' + MPIRESIZE_COMPONENT,
            r"j.toml:5: mpi_resize: found \"spawn\", which the MPI of silent",
        ),
        (
            HEAD + MPIRESIZE_COMPONENT,
            r"working_directory: missing: .* \(by the site file, the MPI of silent cannot spawn\)",
        ),
        (HEAD + 'mpi_resize = "restart"\n' + MPIRESIZE_COMPONENT, "working_directory: missing"),
        (HEAD + SHARED + MPIRESIZE_COMPONENT + MPIRESIZE_COMPONENT, "components: allowed .* is one component"),
        (
            HEAD.replace('launcher = "mpi"', 'mpi_resize = "restart"') + MPIRESIZE_COMPONENT,
            "mpi_resize: allowed with .* launcher = .mpi. only",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        job(tmp_path, text, site(able="spawn", silent="restart"))


# -- Patterns of output files: what a job file may say, and what the agent takes them for.


PATTERN: TypeAdapter[str] = TypeAdapter(OutputPattern)


def wanted(patterns: list[str], path: str) -> bool:
    """Tell whether the agent takes a file for wanted: it, or a directory above it, matches."""
    followed = Patterns(patterns)
    states = followed.start
    for name in path.split("/"):
        matched, states = followed.step(states, name)
        if matched:
            return True
    return False


@pytest.mark.parametrize(
    ("given_", "kept"),
    [("a", "a"), ("./a//b/", "a/b"), ("**/x-?.[ch]", "**/x-?.[ch]"), (" ", " "), ("a/.../b", "a/.../b")],
)
def test_patterns_are_normalized(given_: str, kept: str) -> None:
    """What means nothing to a path is left out, so that the agent need not know of it."""
    assert PATTERN.validate_python(given_) == kept


@pytest.mark.parametrize("pattern", ["", ".", "/", "/a", "..", "a/../b", "a\0b", "n" * 256, "d/" * 2100 + "x"])
def test_patterns_that_lead_nowhere_are_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match="a path"):
        PATTERN.validate_python(pattern)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("result-*", "result-1", True),
        ("result-*", "d/result-1", False),
        ("*", "a", True),
        ("*", ".a", False),
        (".*", ".a", True),
        ("d", "d/deep/.file", True),
        ("d/*", "d/a/b", True),
        ("d/*.x", "d/a/b.x", False),
        ("**", "a/b/c", True),
        ("**", ".git/x", False),
        ("**/*.txt", "a.txt", True),
        ("**/*.txt", "a/b/c.txt", True),
        ("**/*.txt", "a/.b/c.txt", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "b/z", False),
        ("a/**", "a/x", True),
        ("[a-c]?[!x]", "bzy", True),
        ("[a-c]?[!x]", "bzx", False),
        ("[]]", "]", True),
        ("[", "[", True),
        ("[!]", "[!]", True),
        ("[z-a]", "m", False),
        ("a\\*", "a\\b", True),
        ("x.y", "xzy", False),
        ("ä?", "äö", True),
    ],
)
def test_matching(pattern: str, path: str, *, expected: bool) -> None:
    """As in a shell, with ``**`` for any number of directories; a directory is wanted with all that is in it."""
    assert wanted([pattern], path) is expected


@given(pattern=st.text("ab*?", min_size=1, max_size=12), name=st.text("ab", min_size=1, max_size=12))
def test_names_match_as_in_the_library(pattern: str, name: str) -> None:
    """What Python's own matching of names says, the agent says, too."""
    assert NamePattern(pattern).matches(name) is fnmatch.fnmatchcase(name, pattern)


def test_no_pattern_takes_long() -> None:
    """Match many stars, for which matching that goes back would try more places than it can in years."""
    assert not NamePattern("*a" * 100 + "b").matches("a" * 255)
