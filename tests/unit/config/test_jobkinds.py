# SPDX-License-Identifier: Apache-2.0
"""Parts of job files: sweeps, MPI, patterns of files, and the environment, set-up and software of programs."""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from koala_adapter.config.fields import OutputPattern, exported, stays_behind
from koala_adapter.config.jobfile import check_job, explained, load_job_text
from koala_adapter.config.sitefile import NoSettings, SiteConfig, load_site_text
from koala_adapter.errors import ConfigurationError
from koala_adapter.lrm import load_plugins
from koala_adapter.model import Job, JobKind, MpiResize, RunnerName
from koala_adapter.tasks.sweep import Expansion, filled
from koala_adapter.vjm.agent.results import NamePattern, Patterns
from tests.unit.config.toml_text import plugin

# -- Sweeps in job files: what they mean, and what is refused.


TOP = 'walltime = 60\nkind = "malleable"\nrunner = "sweep"\n'
COMPONENT = '[[components]]\ncommand = ["p", "{a}", "{b}"]\nminimum = 1\nmaximum = 9\n'
SWEEP = '[sweep.parameters]\na = "1..3"\nb = ["x", "y"]\n'


def load(text: str, directory: Path = Path("/"), where: SiteConfig | None = None) -> Job:
    """Read a job file, and check it against a site."""
    return load_job_text(text, directory=directory, user="u", site=where)


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
        (TOP + COMPONENT + '[sweep.parameters]\na = { file = "empty" }\nb = ["x"]', "empty has no line with a value"),
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
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(ConfigurationError, match=refusal):
        load(text, tmp_path)


ARRAY = '[[components]]\ncommand = ["p"]\nprocessors = 1\n'


@pytest.mark.parametrize(
    ("array", "indices", "most"),
    [
        ("1-3", ["1", "2", "3"], 3),
        ("1-9:4%2", ["1", "5", "9"], 2),
        ("7", ["7"], 1),
        ("1,5,7-9,8%4", ["1", "5", "7", "8", "9"], 4),
        ("0-999999", None, 1000),
    ],
)
def test_an_array_is_a_sweep_of_its_indices(array: str, indices: list[str] | None, most: int, tmp_path: Path) -> None:
    """The tasks are tried again, and not the job as a whole."""
    job = load(f'walltime = 60\narray = "{array}"\nretries = 4\n{ARRAY}', tmp_path)
    assert (job.kind, job.runner, job.retries) == (JobKind.MALLEABLE, RunnerName.SWEEP, 0)
    (component,) = job.components
    assert (component.minimum, component.maximum, component.flexible) == (1, most, True)
    assert job.sweep is not None
    assert (job.sweep.is_array, job.sweep.repeats) == (True, 4)
    tasks = Expansion(job.sweep, {})
    assert (indices is None and len(tasks) == 10**6) or [tasks.row(n)["index"] for n in range(len(tasks))] == indices


INDICES = 'allowed is numbers and ranges, such as "1-100"'


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ('array = "5-1"\n' + ARRAY, f'job:2: array: found "5-1", {INDICES}'),
        ('array = "1-"\n' + ARRAY, f'job:2: array: found "1-", {INDICES}'),
        ('array = "1-5%0"\n' + ARRAY, f'job:2: array: found "1-5%0", {INDICES}'),
        ('array = "1-5:0"\n' + ARRAY, f'job:2: array: found "1-5:0", {INDICES}'),
        ('array = "0-1000000"\n' + ARRAY, "allowed is at most 1,000,000 indices in one range, or 10,000"),
        ('array = "0-9999,20000"\n' + ARRAY, "allowed is at most 1,000,000 indices in one range, or 10,000"),
        ('array = "1-5"\nkind = "moldable"\n' + ARRAY, "job:3: kind: given together with array: allowed is one"),
        ('array = "1-5"\n' + ARRAY + SWEEP, "job:6: sweep: given together with array: allowed is one"),
        ('array = "1-5"\n' + ARRAY + ARRAY, "job:3: components: found 2, allowed with array is one: each task is"),
        ('array = "1-5"\n' + ARRAY.replace("1\n", "2\n"), "components[0].processors: found 2, allowed with array is 1"),
        ('array = "1-5"\nlauncher = "mpi"\n' + ARRAY, 'components[0].launcher: found "mpi", allowed with runner'),
        ('array = "1-5"\nretry_on = ["lost"]\n' + ARRAY, 'job:3: retry_on: allowed with runner = "ranks" only'),
        ('array = "1-5"\n' + ARRAY + 'output_files = ["x"]', "components[0].output_files: not with array: what a task"),
    ],
)
def test_what_an_array_cannot_be(text: str, refusal: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load("walltime = 60\n" + text, tmp_path)
    assert refusal in refused.value.message


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
def test_the_weakest_cluster_decides(wanted: str, pinned: str, method: MpiResize) -> None:
    """Of those on which it may run; one of which the site file says nothing cannot spawn."""
    where = site(able="spawn", silent="")
    found = load(HEAD + SHARED + wanted + MPIRESIZE_COMPONENT + pinned, where=where)
    assert found.mpi_resize is method
    said = explained(found, where)
    assert ("spawned" in said) == (method is MpiResize.SPAWN)
    assert ("silent cannot spawn" in said) == (method is MpiResize.RESTART and "able" not in pinned)
    assert load(HEAD + MPIRESIZE_COMPONENT, where=site(a="spawn", b="spawn")).mpi_resize is MpiResize.SPAWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD + 'mpi_resize = "spawn"\n' + MPIRESIZE_COMPONENT, "job:5: mpi_resize: .* the MPI of silent"),
        (HEAD + MPIRESIZE_COMPONENT, r"working_directory: missing: .* the MPI of silent cannot spawn\)"),
        (HEAD + 'mpi_resize = "restart"\n' + MPIRESIZE_COMPONENT, "working_directory: missing"),
        (HEAD + SHARED + MPIRESIZE_COMPONENT + MPIRESIZE_COMPONENT, "components: allowed .* is one component"),
        (HEAD.replace('launcher = "mpi"', 'mpi_resize = "restart"') + MPIRESIZE_COMPONENT, "allowed .* .mpi. only"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        load(text, where=site(able="spawn", silent="restart"))


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


# The environment of a program in job files and site files: exported variables, setup, software and containers.

WALLTIME = "walltime = 60\n"
ONE_PROCESS = '[[components]]\ncommand = ["a"]\nprocessors = 1\n'
SITE_TEXT = """
[[clusters]]
name = "alpha"
plugin = "fake"
setup = ["source /etc/profile"]
container_runtime = "apptainer"
[clusters.software]
gromacs = ["module load GROMACS"]
"lammps/2024" = []
[[clusters]]
name = "beta"
plugin = "fake"
container_runtime = "podman"
[clusters.software]
cp2k = ["module load CP2K"]
[[clusters]]
name = "gamma"
plugin = "fake"
enabled = false
software = { vasp = [] }
"""


@pytest.fixture(scope="module")
def some_site() -> SiteConfig:
    return load_site_text(SITE_TEXT, {"fake": plugin("fake", NoSettings)})


def refusal(text: str, some_site: SiteConfig | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(text, where=some_site)
    return caught.value.message


HERE = {
    "PATH": "/bin",
    "PYTHONPATH": "/lib",
    "CONDA_PREFIX": "/conda",
    "CONDA_EXE": "conda",
    "BASH_FUNC_module%%": "() { :; }",
    "SLURM_CONF": "/slurm.conf",
    "SSH_CLIENT": "x",
    "KOALA_SITE": "x",
    "TMPDIR": "/tmp/of-mine",
    "DISPLAY": ":0",
    "DRMAA_LIBRARY_PATH": "x",
    "BYTES": "\udcff",
}


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ((), set()),
        (("*",), {"PATH", "PYTHONPATH", "CONDA_PREFIX", "CONDA_EXE", "BASH_FUNC_module%%"}),
        (("CONDA_*", "NOT_SET"), {"CONDA_PREFIX", "CONDA_EXE"}),
        (("P*H",), {"PATH", "PYTHONPATH"}),
        (("S*", "D*", "T*", "K*"), set()),
        (("SLURM_CONF", "TMPDIR", "DISPLAY"), {"SLURM_CONF", "TMPDIR", "DISPLAY"}),
        (("conda_*", "path"), set()),
        (("CONDA_[EX]*",), {"CONDA_EXE"}),
    ],
)
def test_what_is_exported(patterns: tuple[str, ...], names: set[str]) -> None:
    """By name whatever is named; by a pattern nothing of koala's, of a batch system's, or of the login session's."""
    assert exported(patterns, HERE) == {name: HERE[name] for name in names}


@pytest.mark.parametrize(
    "name",
    [
        *("KOALA_STATE", "SLURM_JOB_ID", "SLURMD_NODENAME", "SGE_TASK_ID", "PBS_JOBID", "PMI_RANK", "OMPI_COMM_X"),
        *("JOB_ID", "NSLOTS", "PE_HOSTFILE", "LSB_JOBID", "DRMAA_LIBRARY_PATH"),
        *("SSH_AUTH_SOCK", "DISPLAY", "XDG_RUNTIME_DIR", "XDG_SESSION_ID", "DBUS_SESSION_BUS_ADDRESS", "TERM", "TMUX"),
        *("TMPDIR", "HOME", "USER", "SHELL", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_"),
    ],
)  # fmt: skip
def test_what_stays_behind(name: str) -> None:
    """It would be wrong on a node, or makes a program take itself for part of another job."""
    assert stays_behind(name)


def test_the_documented_list_is_true() -> None:
    """What the manual names stays behind."""
    page = (Path(__file__).parents[3] / "docs" / "jobfile.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"Left out are variables\n\n(.*?)\n\n", page, re.DOTALL)
    named = re.findall(r"`([A-Z0-9_]+\*?)`", listed)
    assert "SLURM_*" in named
    assert [one for one in named if not stays_behind(one.replace("*", "X"))] == []


def test_exported_variables_are_read_at_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the job for all components, each component's beside them; what is written in a file goes before."""
    for name, value in (("A", "here"), ("B", "here"), ("C_1", "here"), ("C_2", "here"), ("SSH_TTY", "x")):
        monkeypatch.setenv(name, value)
    text = (
        f'{WALLTIME}export = ["A", "B"]\nenvironment = {{ B = "file", C_1 = "file" }}\n{ONE_PROCESS}export = ["C_*"]\n'
    )
    found = load(text + 'environment = { C_2 = "own" }\n' + ONE_PROCESS)
    assert dict(found.environment) == {"A": "here", "B": "file", "C_1": "file"}
    assert [dict(one.environment) for one in found.components] == [{"C_2": "own"}, {}]
    everything = dict(load(f'{WALLTIME}export = "all"\n{ONE_PROCESS}').environment)
    assert {"A", "B", "C_1", "C_2", "PATH"} <= everything.keys()
    assert not [name for name in everything if stays_behind(name)]


def test_setup_software_and_container_of_job_and_component() -> None:
    """Lines and software add up, in this order; of images the nearer one counts."""
    keys = 'setup = ["one"]\nsoftware = ["gromacs"]\ncontainer = "a.sif"\n'
    own = 'setup = ["two\\nlines"]\nsoftware = ["cp2k", "gromacs"]\ncontainer = "docker://b"\n'
    first, second = load(WALLTIME + keys + ONE_PROCESS + own + ONE_PROCESS).components
    assert (first.setup, first.software, first.container) == (
        ("one", "two\nlines"),
        ("gromacs", "cp2k"),
        "docker://b",
    )
    assert (second.setup, second.software, second.container) == (("one",), ("gromacs",), "a.sif")


WORDS = '"all", or a list of names and patterns of variables, such as ["PYTHONPATH", "CONDA_*"]'
LINE = 'a line of a shell of at most 1000 characters, such as "module load gcc/12"'


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("export = true", f"export: found true, allowed is {WORDS}"),
        ('export = "ALL"', f'export: found "ALL", allowed is {WORDS}'),
        ('export = ["*"]', f"export: found a list of 1, allowed is {WORDS}"),
        ('export = ["A=1"]', f"export: found a list of 1, allowed is {WORDS}"),
        ('export = ["A", "KOALA_X"]', "allowed is names other than KOALA_X: koala sets those that begin with KOALA_"),
        ('export = ["SLURM_*"]', "allowed is names in full in the place of SLURM_*: patterns"),
        ('setup = "module load gcc"', 'setup: found "module load gcc", allowed is a list'),
        ('setup = [""]', f'setup[0]: found "", allowed is {LINE}'),
        (f'setup = ["{"x" * 1001}"]', f"allowed is {LINE}"),
        ('software = ["a b"]', 'software[0]: found "a b", allowed is a letter or digit'),
        ('container = "--bind=/"', 'container: found "--bind=/", allowed is an image'),
        ('container = ""', 'container: found "", allowed is an image as the container runtime names it'),
    ],
)
@pytest.mark.parametrize("at_top", [True, False])
def test_bad_values(keys: str, said: str, *, at_top: bool) -> None:
    """One line each, with file, line, what was found and what is allowed; in the job as in a component."""
    text = f"{WALLTIME}{keys}\n{ONE_PROCESS}" if at_top else f"{WALLTIME}{ONE_PROCESS}{keys}\n"
    message = refusal(text)
    place = "job:2: " if at_top else "job:5: components[0]."
    assert message.startswith(place)
    assert said in message
    assert "\n" not in message


def test_a_variable_that_is_no_text_is_refused_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTES", "\udcff")
    message = refusal(f'{WALLTIME}export = ["BYT*"]\n{ONE_PROCESS}')
    assert message == "job:2: export: the value of BYTES is not UTF-8: allowed is a list without it"
    assert "BYTES" not in dict(load(f'{WALLTIME}export = "all"\n{ONE_PROCESS}').environment)


WHAT = "allowed is what one cluster has all of"
LACKS = "its software in the site file does not include"


@pytest.mark.parametrize(
    ("top", "own", "said"),
    [
        ('software = ["gromacs"]', "", None),
        ('software = ["gromacs"]', 'cluster = "alpha"\ncontainer = "x"', None),
        ("", 'software = ["gromacs"]\ncluster = "beta"', f"5: components[0].software: found gromacs, {WHAT} (beta:"),
        (
            'software = ["gromacs"]',
            'software = ["cp2k"]',
            f"6: components[0].software: found gromacs, cp2k, {WHAT} (alpha: {LACKS} cp2k; beta: {LACKS} gromacs)",
        ),
        ('software = ["vasp"]', "", f"2: software: found vasp, {WHAT} (alpha: {LACKS} vasp; beta: {LACKS} vasp)"),
        (
            'launcher = "mpi"',
            'container = "x"\ncluster = "beta"',
            f"6: components[0].container: found x, {WHAT} (beta: its container_runtime, podman, cannot run the ranks",
        ),
    ],
)
def test_what_no_cluster_has_is_refused_before_anything_is_submitted(
    some_site: SiteConfig, top: str, own: str, said: str | None
) -> None:
    """By name, with what each cluster lacks; by the service, too, whose site file may be another one."""
    text = f"{WALLTIME}{top}{'' if not top else chr(10)}{ONE_PROCESS}{own}\n"
    if said is None:
        check_job(load(text, where=some_site), some_site)
        return
    assert refusal(text, some_site).startswith(f"job:{said}")
    with pytest.raises(ConfigurationError, match=WHAT):
        check_job(load(text), some_site)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ('container_runtime = "docker"', 'found "docker", allowed is "apptainer" or "singularity" or "podman"'),
        ('setup = ["a", 1]', "setup[1]: found 1, allowed is a text"),
        ('software = ["gromacs"]', "software: found a list of 1, allowed is a table"),
        ('software = { gromacs = "module load" }', 'software.gromacs: found "module load", allowed is a list'),
        ('software = { "a b" = [] }', "allowed is a letter or digit, then letters, digits, _ . + / or -"),
    ],
)
def test_bad_values_in_a_site_file(key: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_site_text(f'[[clusters]]\nname = "a"\nplugin = "fake"\n{key}\n', {"fake": plugin("fake", NoSettings)})
    assert caught.value.message.startswith("site file:4: clusters[0].")
    assert said in caught.value.message
