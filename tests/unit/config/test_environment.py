# SPDX-License-Identifier: Apache-2.0
"""The environment of a program in job files and site files: exported variables, setup, software and containers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.config.exported import exported, stays_behind
from koala_adapter.config.jobfile import check_job, load_job_text
from koala_adapter.config.sitefile import NoSettings, SiteConfig, load_site_text
from koala_adapter.errors import ConfigurationError
from tests.unit.config.toml_text import plugin

if TYPE_CHECKING:
    from koala_adapter.model import Job

HEAD = "walltime = 60\n"
COMPONENT = '[[components]]\ncommand = ["a"]\nprocessors = 1\n'
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
def site() -> SiteConfig:
    return load_site_text(SITE_TEXT, {"fake": plugin("fake", NoSettings)})


def job(text: str, site: SiteConfig | None = None) -> Job:
    return load_job_text(text, user="u", directory=Path("/"), site=site)


def refusal(text: str, site: SiteConfig | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        job(text, site)
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
    text = f'{HEAD}export = ["A", "B"]\nenvironment = {{ B = "file", C_1 = "file" }}\n{COMPONENT}export = ["C_*"]\n'
    found = job(text + 'environment = { C_2 = "own" }\n' + COMPONENT)
    assert dict(found.environment) == {"A": "here", "B": "file", "C_1": "file"}
    assert [dict(one.environment) for one in found.components] == [{"C_2": "own"}, {}]
    everything = dict(job(f'{HEAD}export = "all"\n{COMPONENT}').environment)
    assert {"A", "B", "C_1", "C_2", "PATH"} <= everything.keys()
    assert not [name for name in everything if stays_behind(name)]


def test_setup_software_and_container_of_job_and_component() -> None:
    """Lines and software add up, in this order; of images the nearer one counts."""
    keys = 'setup = ["one"]\nsoftware = ["gromacs"]\ncontainer = "a.sif"\n'
    own = 'setup = ["two\\nlines"]\nsoftware = ["cp2k", "gromacs"]\ncontainer = "docker://b"\n'
    first, second = job(HEAD + keys + COMPONENT + own + COMPONENT).components
    assert (first.setup, first.software, first.container) == (
        ("one", "two\nlines"),
        ("gromacs", "cp2k"),
        "docker://b",
    )
    assert (second.setup, second.software, second.container) == (("one",), ("gromacs",), "a.sif")


def test_site_file(site: SiteConfig) -> None:
    """What a cluster has is known to the scheduler by its names."""
    alpha, beta, _ = site.clusters
    assert alpha.setup == ("source /etc/profile",)
    assert alpha.software == {"gromacs": ("module load GROMACS",), "lammps/2024": ()}
    assert alpha.parameters.software == ("gromacs", "lammps/2024")
    assert (alpha.parameters.container_runtime, beta.parameters.container_runtime) == ("apptainer", "podman")
    assert site.clusters[2].parameters.container_runtime == ""


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
        (
            'export = ["SLURM_*"]',
            "allowed is names in full in the place of SLURM_*: patterns leave these variables out",
        ),
        ('setup = "module load gcc"', 'setup: found "module load gcc", allowed is a list'),
        ('setup = [""]', f'setup[0]: found "", allowed is {LINE}'),
        (f'setup = ["{"x" * 1001}"]', f"allowed is {LINE}"),
        (
            'software = ["a b"]',
            'software[0]: found "a b", allowed is a letter or digit, then letters, digits, _ . + / or -',
        ),
        (
            'container = "--bind=/"',
            'container: found "--bind=/", allowed is an image as the container runtime names it',
        ),
        ('container = ""', 'container: found "", allowed is an image as the container runtime names it'),
    ],
)
@pytest.mark.parametrize("at_top", [True, False])
def test_bad_values(keys: str, said: str, *, at_top: bool) -> None:
    """One line each, with file, line, what was found and what is allowed; in the job as in a component."""
    text = f"{HEAD}{keys}\n{COMPONENT}" if at_top else f"{HEAD}{COMPONENT}{keys}\n"
    message = refusal(text)
    place = "job:2: " if at_top else "job:5: components[0]."
    assert message.startswith(place)
    assert said in message
    assert "\n" not in message


def test_a_variable_that_is_no_text_is_refused_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTES", "\udcff")
    message = refusal(f'{HEAD}export = ["BYT*"]\n{COMPONENT}')
    assert message == "job:2: export: the value of BYTES is not UTF-8: allowed is a list without it"
    assert "BYTES" not in dict(job(f'{HEAD}export = "all"\n{COMPONENT}').environment)


WHAT = "allowed is what one cluster has all of"
LACKS = "its software in the site file does not include"


@pytest.mark.parametrize(
    ("top", "own", "said"),
    [
        ('software = ["gromacs"]', "", None),
        ('software = ["gromacs"]', 'cluster = "alpha"\ncontainer = "x"', None),
        (
            "",
            'software = ["gromacs"]\ncluster = "beta"',
            f"5: components[0].software: found gromacs, {WHAT} (beta: {LACKS}",
        ),
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
    site: SiteConfig, top: str, own: str, said: str | None
) -> None:
    """By name, with what each cluster lacks; by the service, too, whose site file may be another one."""
    text = f"{HEAD}{top}{'' if not top else chr(10)}{COMPONENT}{own}\n"
    if said is None:
        check_job(job(text, site), site)
        return
    assert refusal(text, site).startswith(f"job:{said}")
    with pytest.raises(ConfigurationError, match=WHAT):
        check_job(job(text), site)


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
