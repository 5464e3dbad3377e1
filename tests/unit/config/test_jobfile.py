# SPDX-License-Identifier: Apache-2.0
"""Job files: what they give when right, and that all that is wrong is said at once, each with line, key and way out."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.config.jobfile import check_job, job_from_dict, load_job, load_job_text
from koala_adapter.config.jobtables import ComponentTable, InputFileTable, JobTable
from koala_adapter.config.sitefile import NoSettings, NotifyConfig, SiteConfig, load_site_text
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import (
    LARGEST_SENT,
    ClusterName,
    Component,
    InputFile,
    Job,
    JobId,
    JobKind,
    Launcher,
    Retirement,
    RunnerName,
)
from koala_adapter.slots import Slot
from tests.unit.config.toml_text import plugin, replaced, toml_file, values

NOWHERE = Path("/nonexistent-directory-of-a-test")
EXAMPLES = Path(__file__).parents[3] / "examples"
HEAD = "walltime = 60\n"
EVOLVING = """
kind = "evolving"
runner = "adaptive"
walltime = 60
[[components]]
command = ["x"]
minimum = 1
maximum = 4
"""
MALLEABLE = f'{HEAD}kind = "malleable"\nrunner = "workers"\n[[components]]\ncommand = ["w"]\nminimum = 1\nmaximum = 4\n'
ADAPTIVE = MALLEABLE.replace("workers", "adaptive")
COMPONENT = '[[components]]\ncommand = ["a"]\nprocessors = 1\n'

SITE_TEXT = """
[scheduler]
launch_margin = 60
[[clusters]]
name = "alpha"
plugin = "fake"
walltime_limit = "1h"
[[clusters]]
name = "beta"
plugin = "fake"
walltime_limit = "2h"
[[clusters]]
name = "gamma"
plugin = "fake"
enabled = false
"""

VALID: dict[str, object] = {
    "name": "all keys",
    "kind": "moldable",
    "placement": "worst-fit",
    "walltime": "1h30m",
    "priority": 5,
    "maximum_tries": 7,
    "working_directory": "/scratch",
    "launcher": "mpi",
    "environment": {"A": "1"},
    "components": [
        {"command": ["./a", "-x"], "processors": 4, "cluster": "alpha", "environment": {"B": "2"}},
        {"name": "second", "command": ["./b"], "minimum": 2, "maximum": 8, "launcher": "mpi"},
    ],
}


def loaded(text: str, directory: Path = NOWHERE, site: SiteConfig | None = None) -> Job:
    return load_job_text(
        text, directory=directory, job_id=JobId("7"), user="ada", submitted_at=1.5, source="j.toml", site=site
    )


def refusal(text: str, directory: Path = NOWHERE, site: SiteConfig | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        loaded(text, directory, site)
    return caught.value.message


@pytest.fixture(scope="module")
def site() -> SiteConfig:
    return load_site_text(SITE_TEXT, {"fake": plugin("fake", NoSettings)})


def test_smallest_job() -> None:
    assert loaded(HEAD + COMPONENT) == Job(
        id=JobId("7"),
        name="j.toml",
        kind=JobKind.RIGID,
        components=(Component(name="c1", command=("a",), minimum=1, maximum=1),),
        walltime=60,
        user="ada",
        submitted_at=1.5,
    )


def test_values_arrive_as_written() -> None:
    job = loaded(toml_file(VALID))
    assert (job.name, job.kind, job.placement, job.walltime) == ("all keys", JobKind.MOLDABLE, "worst-fit", 5400)
    assert (job.priority, job.maximum_tries, job.working_directory) == (5, 7, "/scratch")
    assert (job.launcher, job.environment) == (Launcher.MPI, (("A", "1"),))
    first, second = job.components
    assert (first.name, first.command, first.minimum, first.maximum) == ("c1", ("./a", "-x"), 4, 4)
    assert (first.cluster, first.environment, first.launcher) == ("alpha", (("B", "2"),), Launcher.MPI)
    assert (second.name, second.minimum, second.maximum, second.cluster) == ("second", 2, 8, None)


def test_a_file_is_named_in_refusals_and_names_the_job(tmp_path: Path) -> None:
    path = tmp_path / "simulate.toml"
    path.write_text(HEAD + COMPONENT, encoding="utf-8")
    assert load_job(path, job_id=JobId("1"), user="u", submitted_at=0).name == "simulate"
    path.write_text("walltime = 0\n" + COMPONENT, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"simulate.toml:1: walltime: found 0") as caught:
        load_job(path, job_id=JobId("1"), user="u", submitted_at=0)
    assert "koala docs jobfile" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "^j.toml: walltime: this key is required: How long"),
        (HEAD, "^j.toml: components: this key is required"),
        (HEAD + "components = []", "^j.toml:2: components: found an empty list"),
        (HEAD + '[components]\ncommand = ["a"]', r"^j.toml:2: components: found a table, .*write \[\[components\]\]"),
        ("walltime = 1.5\n" + COMPONENT, "^j.toml:1: walltime: found 1.5, allowed is a whole number from 1 to"),
        ("wall_time = 1\n" + HEAD + COMPONENT, '^j.toml:1: wall_time: unknown key, .*did you mean "walltime"'),
        ("processors = 1\n" + HEAD + COMPONENT, r"^j.toml:1: processors: unknown key, .*belongs in \[\[components\]\]"),
        (HEAD + 'kind = "modable"\n' + COMPONENT, 'kind: .*"malleable" or "evolving"; did you mean "moldable"'),
        (MALLEABLE.replace('runner = "workers"\n', ""), '^j.toml: runner: allowed in a malleable job is "workers"'),
        (EVOLVING.replace('runner = "adaptive"\n', ""), '^j.toml: runner: allowed in an evolving job is "workers" or'),
        (EVOLVING.replace('"adaptive"', '"sweep"'), 'runner: found "sweep", allowed in an evolving job is'),
        (HEAD + 'runner = "workers"\n' + COMPONENT, r"^j.toml:2: runner: .*allowed in a malleable job only"),
        (MALLEABLE.replace("maximum = 4", "maximum = 1"), "^j.toml:7: .*write processors = 1 instead"),
        (HEAD + 'kind = "malleable"\nrunner = "workers"\n' + COMPONENT, "components: no component can change its size"),
        (ADAPTIVE + "retire_grace = 3", r'retire_grace: allowed with runner = "workers" or "sweep" only'),
        (MALLEABLE + "point_patience = 3", r'point_patience: allowed with runner = "adaptive" only'),
        (MALLEABLE + 'launcher = "mpi"', r'launcher: found "mpi", allowed with runner = "workers" is "process"'),
        (MALLEABLE + "initial = 9", r"initial: found 9, allowed is from minimum \(1\) to maximum \(4\)"),
        (MALLEABLE + 'sizes = "odd"', r'sizes: found "odd", allowed is "any", "power-of-two" or "multiple-of-N"'),
        (MALLEABLE + 'retire_signal = "STOP"', r'retire_signal: found "STOP", allowed is "TERM", "INT"'),
        (MALLEABLE + 'retire_signal = "INT"\nretire_command = ["a"]', "given together with retire_command"),
        (MALLEABLE + 'retire_command = [""]', r"retire_command: .*first text is the name or path of a program"),
        ("warn_before = 60\n" + MALLEABLE, r"^j.toml:1: warn_before: found 60, allowed is less than walltime"),
        (
            "warn_before = 6\n" + HEAD + COMPONENT,
            r'^j.toml:1: warn_before: allowed with runner = "adaptive" or "workers", or with checkpoint_signal, only',
        ),
        ('checkpoint_signal = "KILL"\n' + HEAD + COMPONENT, r'checkpoint_signal: found "KILL", allowed is "TERM"'),
        ('retry_on = ["lost"]\n' + HEAD + COMPONENT, r"^j.toml:1: retry_on: allowed together with retries only"),
        (
            'retries = 1\nretry_on = ["lost", "ill"]\n' + HEAD + COMPONENT,
            r'^j.toml:2: retry_on\[1\]: found "ill", allowed is "failed", "lost", "memory", "walltime" or an exit',
        ),
        ("retries = 1\nretry_on = [0]\n" + HEAD + COMPONENT, r"retry_on\[0\]: found 0, allowed is .* from 1 to 255"),
        ("retries = 1\nretry_on = [true]\n" + HEAD + COMPONENT, r"retry_on\[0\]: found true, allowed is"),
        ("retries = 1\n" + MALLEABLE, r'^j.toml:1: retries: allowed with runner = "ranks" only'),
        ('checkpoint_signal = "USR1"\n' + MALLEABLE, r'checkpoint_signal: allowed with runner = "ranks" only'),
        (HEAD + COMPONENT + "retire_grace = 4", r"retire_grace: allowed in a malleable job only"),
        (MALLEABLE + COMPONENT + "initial = 1", r"components\[1\].initial: allowed in a component with"),
        (HEAD + "kind = 1\n" + COMPONENT, 'kind: found 1, allowed is "rigid" or "moldable" or "malleable"'),
        (HEAD + 'placement = "best-fit"\n' + COMPONENT, 'placement: .*allowed is "worst-fit"'),
        (
            HEAD + 'priority = "urgent"\n' + COMPONENT,
            'priority: found "urgent", allowed is "low", "normal", "high", "super-high" or a whole number',
        ),
        ('relay = true\nlauncher = "mpi"\n' + HEAD + COMPONENT, r'^j.toml:1: relay: allowed without launcher = "mpi"'),
        ("host_ports = [80]\n" + MALLEABLE.replace("workers", "sweep"), r"j.toml:1: host_ports: allowed without"),
        ("host_ports = [0]\n" + HEAD + COMPONENT, r"^j.toml:1: host_ports\[0\]: found 0, allowed is"),
        ("relay = true\n" + MALLEABLE.replace("maximum = 4", "maximum = 257"), "^j.toml:1: relay: .*257 ranks"),
        (HEAD + 'working_directory = "~/x"\n' + COMPONENT, "working_directory: .*an absolute path"),
        (HEAD + 'name = "a\\nb"\n' + COMPONENT, "name: .*on one line"),
        ("walltime = 01:30:00\n" + COMPONENT, r'walltime: found 01:30:00, .*; in quotes, "01:30:00", it is a duration'),
        ("walltime = 24:00:00\n" + COMPONENT, "1: column 14: .*a duration such as 24:00:00 or 1h30m needs quotes"),
        (
            'walltime = "10"\n' + COMPONENT,
            r'digits alone may mean seconds or minutes: write "10s" for seconds or "10m" for minutes',
        ),
        (HEAD + 'name = "a\\u202Eb"\n' + COMPONENT, "name: .*without invisible ones"),
        (HEAD + 'environment.KOALA_RANK = "0"\n' + COMPONENT, "^j.toml:2: environment.KOALA_RANK: .*set for each rank"),
        (HEAD + "environment.N = 4\n" + COMPONENT, "^j.toml:2: environment.N: found 4, allowed is a text in quotes"),
        (HEAD + '[[components]]\ncommand = "ls -l"\nprocessors = 1', r'command: .*such as command = \["ls", "-l"\]'),
        (HEAD + '[[components]]\ncommand = "a | b"\nprocessors = 1', r'command: .*\["/bin/sh", "-c", "a | b"\]'),
        (HEAD + '[[components]]\ncommand = "it\'s"\nprocessors = 1', r'command: .*\["/bin/sh", "-c", "it\'s"\]'),
        (HEAD + f'[[components]]\ncommand = "{"x" * 61}"\nprocessors = 1', r'command: .*\["./simulate", "--steps",'),
        (HEAD + "[[components]]\ncommand = []\nprocessors = 1", "command: found an empty list, .*at least 1"),
        (HEAD + '[[components]]\ncommand = [""]\nprocessors = 1', r"command\[0\]: found an empty text"),
        (HEAD + "[[components]]\ncommand = [1]\nprocessors = 1", r"^j.toml:3: components\[0\].command\[0\]: found 1, "),
        (HEAD + '[[components]]\ncommand = ["a"]', r"^j.toml:2: components\[0\]: the size is missing"),
        (HEAD + COMPONENT + "minimum = 1", r"^j.toml:5: components\[0\].minimum: given together with processors"),
        (HEAD + COMPONENT + 'name = "a/b"', r"components\[0\].name: .*a letter, then letters"),
        (HEAD + COMPONENT + 'name = "c2"\n' + COMPONENT, r"^j.toml:6: components\[1\].name: \"c2\" is already"),
        (HEAD + COMPONENT + COMPONENT + 'launcher = "mpi"', r"^j.toml:8: components\[1\].launcher: .*one launcher"),
        (
            HEAD + '[[components]]\ncommand = ["a"]\nminimum = 1\nmaximum = 2',
            r"^j.toml:4: components\[0\].minimum: allowed in a moldable or malleable job only",
        ),
        (MALLEABLE.replace("minimum = 1", "minimum = 5"), r"^j.toml:7: .*maximum: found 4, .* at least minimum \(5\)"),
    ],
)
def test_wrong_jobs_are_refused(text: str, expected: str) -> None:
    assert re.search(expected, refusal(text)), refusal(text)


def test_all_problems_are_told_at_once() -> None:
    text = (
        'walltime = "1:00"\nenvironment = { KOALA_X = "1" }\n'
        '[[components]]\nnam = "x"\ncommand = ["a"]\n'
        '[[components]]\nname = "a"\ncommand = ["a"]\nprocessors = 1\ninput_files = ["missing"]\n'
        '[[components]]\nname = "a"\ncommand = ["a"]\nprocessors = 1\n'
    )
    places = [line.split(": ")[:2] for line in refusal(text).splitlines()]
    assert places == [
        ["j.toml:1", "walltime"],
        ["j.toml:2", "environment.KOALA_X"],
        ["j.toml:3", "components[0]"],
        ["j.toml:4", "components[0].nam"],
        ["j.toml:10", "components[1].input_files[0]"],
        ["j.toml:12", "components[2].name"],
    ]


def test_flexible_component_and_its_policy() -> None:
    policy = 'placement = "flexible-cluster-minimization"\n'
    job = loaded(policy + HEAD + COMPONENT + "flexible = true\n" + COMPONENT)
    assert [component.flexible for component in job.components] == [True, False]
    assert job.placement == "flexible-cluster-minimization"
    said = refusal(HEAD + COMPONENT + 'flexible = true\ncluster = "alpha"\n')
    assert said == 'j.toml:5: components[0].flexible: allowed in a component without cluster = "alpha" only'


def test_input_files(tmp_path: Path) -> None:
    """Paths are relative to the job file, logical names are not; a target is the last part unless one is given."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").touch()
    (tmp_path / "b.txt").write_text("abc", encoding="utf-8")
    files = f'["data/../data/a.txt", {{ source = "{tmp_path}/b.txt", target = "in/./c.txt" }}, "lfn:d", "lfn:e/f/"]'
    job = loaded(f"{HEAD}{COMPONENT}input_files = {files}", tmp_path)
    assert job.components[0].input_files == (
        InputFile(source=str(tmp_path / "data" / "a.txt"), target="a.txt", size=0),
        InputFile(source=str(tmp_path / "b.txt"), target="in/c.txt", size=3),
        InputFile(source="lfn:d", target="d"),
        InputFile(source="lfn:e/f/", target="f"),
    )


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ('["missing"]', r':5: components\[0\].input_files\[0\]: found "missing", allowed is an existing file'),
        ('["."]', r"input_files\[0\]: .*/pipe: it is neither a regular file, nor a link to one"),
        ('["pipe"]', r"input_files\[0\]: .* is neither"),
        ('["~/x"]', r"input_files\[0\]: .*~ is not expanded"),
        ('[""]', r"input_files\[0\]: found \"\", allowed is the path of a file"),
        ('["lfn:"]', r"input_files\[0\]: found \"lfn:\", allowed is lfn: and a name as catalogues have it"),
        ('["lfn:/a"]', r"input_files\[0\]: .*not beginning with /"),
        ('["lfn:a b"]', r"input_files\[0\]: .*without blanks"),
        ('["lfn:.."]', r"input_files\[0\]: .*no name for the ranks"),
        ('["lfn:x/a", "a"]', r"input_files\[1\]: another input file is already called \"a\""),
        ('["a\\u0000b"]', r"input_files\[0\]: found "),
        ("[5]", r"input_files\[0\]: found 5"),
        ('["a", "sub/a"]', r"input_files\[1\]: another input file is already called \"a\""),
        ('[{ source = "a", target = "../a" }]', r"input_files\[0\].target: .*without \.\."),
        ('[{ source = "a", target = "/a" }]', r"input_files\[0\].target: .*relative"),
        ('[{ source = "a", target = "d" }, { source = "a", target = "./d//e" }]', r'files\[1\]: found "d/e", but'),
        ('[{ source = "a", target = "d/e/f" }, { source = "a", target = "d" }]', r"files\[0\]: .*\[1\] is called"),
        (f'[{{ source = "a", target = "d/{"n" * 256}" }}]', r"input_files\[0\].target: found .*at most 255 bytes"),
        (f'[{{ source = "a", target = "{"é" * 128}" }}]', r"input_files\[0\].target: found .*at most 255 bytes"),
        (f'[{{ source = "a", target = "{"d/" * 1950}x" }}]', r"input_files\[0\].target: .*at most 3839 bytes"),
        ('[{ source = "a", target = "a/" }]', r"input_files\[0\].target: .*with a file name"),
        ('[{ source = "a", targt = "b" }]', r'input_files\[0\].targt: unknown key, .*did you mean "target"'),
        ('[{ target = "b" }]', r"input_files\[0\].source: this key is required"),
    ],
)
def test_input_files_that_cannot_be_sent_are_refused(tmp_path: Path, files: str, expected: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").touch()
    (tmp_path / "sub" / "a").touch()
    os.mkfifo(tmp_path / "pipe")
    assert re.search(expected, refusal(f"{HEAD}{COMPONENT}input_files = {files}", tmp_path))


def test_targets_must_fit_behind_the_working_directory(tmp_path: Path) -> None:
    """A path that the kernel does not take is refused when the job file is read, not on the node."""
    (tmp_path / "a").touch()
    files = f'{COMPONENT}input_files = [{{ source = "a", target = "{"d/" * 1900}x" }}]'
    assert loaded(HEAD + files, tmp_path).components
    where = f'working_directory = "/{"w/" * 200}"\n'
    assert "allowed is a path of at most 3693 bytes" in refusal(where + HEAD + files, tmp_path)
    assert "working_directory: found" in refusal(f'working_directory = "/{"w" * 256}"\n' + HEAD + COMPONENT)


def test_output_files(tmp_path: Path) -> None:
    job = loaded(f'{HEAD}{COMPONENT}output_files = ["result-*", "./logs/"]\n', tmp_path)
    assert job.components[0].output_files == ("result-*", "logs")
    said = refusal(f'{HEAD}{COMPONENT}output_files = ["a", "../b"]\n')
    assert said.startswith('j.toml:5: components[0].output_files[1]: found "../b", allowed is a path or glob pattern')
    assert "allowed is a list of at most 100" in refusal(f"{HEAD}{COMPONENT}output_files = {['a'] * 101}\n")


def test_input_files_that_are_large_together_travel_ahead(tmp_path: Path) -> None:
    """A component whose files fit into a launch has none that travel by themselves."""
    (tmp_path / "d" / "below").mkdir(parents=True)
    for name in ("d/b", "d/below/a"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(LARGEST_SENT // 2 + 1)
    one = f'{COMPONENT}input_files = ["d/b"]\n'
    small, large = loaded(HEAD + one + one.replace("d/b", "./d/"), tmp_path).components
    assert (small.has_large_files, large.has_large_files) == (False, True)
    (directory,) = large.input_files
    assert (directory.target, directory.size) == ("d", 2 * (LARGEST_SENT // 2 + 1))


def test_clusters_must_be_those_of_the_site(site: SiteConfig) -> None:
    text = HEAD + COMPONENT + 'cluster = "{}"\n'
    assert loaded(text.format("alhpa")).components[0].cluster == "alhpa"
    assert loaded(text.format("alpha"), site=site).components[0].cluster == "alpha"
    message = refusal(text.format("alhpa"), site=site)
    assert message.startswith(
        'j.toml:5: components[0].cluster: found "alhpa", allowed is a cluster of the site: "alpha"'
    )
    assert message.endswith('did you mean "alpha"?')
    assert "a cluster that is disabled" in refusal(text.format("gamma"), site=site)


def test_walltime_must_fit_the_clusters(site: SiteConfig) -> None:
    """The limit of the pinned cluster counts, else the longest one; the launch margin is part of it."""
    text = "walltime = {}\n" + COMPONENT + "{}"
    assert loaded(text.format(3540, 'cluster = "alpha"'), site=site).walltime == 3540
    message = refusal(text.format(3541, 'cluster = "alpha"'), site=site)
    assert re.search(r'^j.toml:1: walltime: found 00:59:01, allowed is at most 00:59:00: cluster "alpha"', message)
    assert loaded(text.format(7140, ""), site=site).walltime == 7140
    assert "every cluster grants at most 02:00:00" in refusal(text.format(7141, ""), site=site)


def test_a_job_without_file_is_checked_against_the_site(site: SiteConfig) -> None:
    """The service checks a job that came over its socket in the same way."""
    component = Component(name="c1", command=("a",), minimum=1, maximum=1, cluster=ClusterName("beta"))
    job = Job(
        id=JobId("7"),
        name="n",
        kind=JobKind.RIGID,
        components=(component,),
        walltime=60,
        user="u",
        submitted_at=0,
    )
    check_job(job, site)
    with pytest.raises(ConfigurationError, match=r"^job 7: walltime: found 24:00:00"):
        check_job(replace(job, walltime=86_400), site)
    with pytest.raises(ConfigurationError, match=r'cluster of component "c1": found "delta"'):
        check_job(replace(job, components=(replace(component, cluster=ClusterName("delta")),)), site)


def test_placement_comes_from_the_site_when_the_job_names_none(site: SiteConfig) -> None:
    """A job that names a policy keeps it."""
    assert loaded(HEAD + COMPONENT, site=site).placement == site.scheduler.placement


def test_jobs_survive_the_socket_of_the_service() -> None:
    """A job as JSON and back is the same job; what is none is refused."""
    job = loaded(toml_file(VALID))
    assert job_from_dict(json.loads(json.dumps(asdict(job)))) == job
    with pytest.raises(ConfigurationError, match="walltime"):
        job_from_dict({**asdict(job), "walltime": "soon"})
    with pytest.raises(ConfigurationError):
        job_from_dict({})


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_examples_load(path: Path, tmp_path: Path) -> None:
    """Each example is right, once the one C program among them is compiled."""
    for file in filter(Path.is_file, EXAMPLES.iterdir()):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "allreduce").touch()
    job = load_job(tmp_path / path.name, job_id=JobId("1"), user="u", submitted_at=0)
    assert all(component.input_files for component in job.components)


KEYS = st.sampled_from([*JobTable.model_fields, *ComponentTable.model_fields, *InputFileTable.model_fields, "", "é"])


@given(st.dictionaries(KEYS, values(KEYS), max_size=6))
def test_any_toml_is_loaded_or_refused(tables: dict[str, object]) -> None:
    _load_or_refuse(toml_file(tables))


@given(st.lists(st.integers(min_value=0, max_value=100), min_size=1, max_size=5), values(KEYS))
def test_any_change_of_a_good_file_is_loaded_or_refused(place: list[int], value: object) -> None:
    """One wrong value anywhere in a good file gives a job or a ConfigurationError."""
    changed = replaced(VALID, place, value)
    assert isinstance(changed, dict)
    _load_or_refuse(toml_file(changed))


def _load_or_refuse(text: str) -> None:
    try:
        job = loaded(text)
    except ConfigurationError as error:
        refused = error.message
    else:
        refused = ""
        assert job_from_dict(asdict(job)) == job
    assert all(line.startswith("j.toml") for line in refused.splitlines())


def test_processes_that_change_together() -> None:
    """What a malleable job says of its adaptive component is kept; components of fixed size may stand beside it."""
    job = loaded(ADAPTIVE + 'point_patience = "2m"\nflexible = true\n' + COMPONENT)
    changing, head = job.components
    assert (job.runner, changing.point_patience, changing.flexible) == (RunnerName.ADAPTIVE, 120, True)
    assert job.adapts(changing.name)
    assert job.is_head(head.name)
    assert not job.adapts(head.name)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (ADAPTIVE, 60),
        ('warn_before = "30s"\n' + ADAPTIVE, 30),
        ("warn_before = 0\n" + ADAPTIVE, 0),
        (MALLEABLE, 0),
        ("warn_before = 59\n" + MALLEABLE, 59),
        (HEAD + COMPONENT, 0),
        ('checkpoint_signal = "USR1"\nwarn_before = 7\n' + HEAD + COMPONENT, 7),
        ('checkpoint_signal = "USR1"\n' + HEAD + COMPONENT, 30),
    ],
)
def test_when_a_job_is_warned_of_the_end_of_its_walltime(text: str, seconds: int) -> None:
    assert loaded(text).warn_before == seconds


def test_what_is_reached_through_koala() -> None:
    job = loaded("relay = true\nhost_ports = [4711, 4712, 4711]\n" + MALLEABLE)
    assert (job.relay, job.host_ports) == (True, (4711, 4712))
    assert not loaded(MALLEABLE).relay


def test_workers_and_their_head() -> None:
    more = 'initial = 2\nsizes = "multiple-of-2"\nretire_command = ["bye"]\nretire_grace = "2m"\nflexible = true\n'
    job = loaded(MALLEABLE + more + COMPONENT)
    workers, head = job.components
    assert (job.kind, job.runner, job.is_head("c1"), job.is_head("c2")) == (
        JobKind.MALLEABLE,
        RunnerName.WORKERS,
        False,
        True,
    )
    assert (workers.initial, workers.sizes, workers.flexible) == (2, "multiple-of-2", True)
    assert workers.retirement == Retirement(command=("bye",), grace=120)
    assert head.retirement == Retirement(signal=signal.SIGTERM, grace=30)


# -- Slots: what each rank needs, in words of the job file and as a value.

ALPHA, BETA = ClusterName("alpha"), ClusterName("beta")
EACH = Slot(threads=2)


@pytest.mark.parametrize(
    ("keys", "slot", "slots"),
    [
        ("", Slot(), ()),
        ("threads = 2", EACH, ()),
        ('memory = "4GiB"', Slot(memory_mib=4096), ()),
        ("memory = 500", Slot(memory_mib=500), ()),
        ('memory = "500"', Slot(memory_mib=500), ()),
        ('memory = "500 M"', Slot(memory_mib=500), ()),
        ('memory = "1.5g"', Slot(memory_mib=1536), ()),
        ('memory = "1025K"', Slot(memory_mib=2), ()),
        ('scratch = "2TB"', Slot(scratch_mib=2 * 1024**2), ()),
        ("gpus = 2", Slot(gpus=2), ()),
        ('gpus = "2"', Slot(gpus=2), ()),
        ('gpus = "a100:2"', Slot(gpus=2, gpu_kind="a100"), ()),
        ("gpus = 0", Slot(), ()),
        ("exclusive = true", Slot(exclusive=True), ()),
        ('features = ["avx512", "ib", "ib"]', Slot(features=("avx512", "ib")), ()),
        ("licenses = { matlab = 2 }", Slot(licenses=(("matlab", 2),)), ()),
        ('queue = "long"\naccount = "physics"\nqos = "high"', Slot(queue="long", account="physics", qos="high"), ()),
        ('threads = 2\nqueue = { alpha = "long" }', EACH, ((ALPHA, replace(EACH, queue="long")),)),
        (
            'qos = "h"\nqueue = { alpha = "l" }\naccount = { alpha = "a", beta = "b" }\ndirectives = {beta=["-y=1"]}',
            Slot(qos="h"),
            (
                (ALPHA, Slot(qos="h", queue="l", account="a")),
                (BETA, Slot(qos="h", account="b", directives=("-y=1",))),
            ),
        ),
    ],
)
def test_slots(keys: str, slot: Slot, slots: tuple[tuple[ClusterName, Slot], ...], site: SiteConfig) -> None:
    component = loaded(f"{HEAD}{COMPONENT}{keys}", site=site).components[0]
    assert (component.slot, component.slots) == (slot, slots)


SIZE_ALLOWED = "allowed is MiB as a whole number, or a text with a unit"
GPUS_ALLOWED = 'allowed is a whole number from 0 to 1024, or a kind and a number, such as "a100:2"'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("threads = 0", "threads: found 0, allowed is a whole number from 1 to 65536"),
        ('threads = "2"', 'threads: found "2", allowed is a whole number from 1 to 65536'),
        ("ranks_per_slot = 201", "ranks_per_slot: found 201, allowed is a whole number from 1 to 200"),
        ('memory = "4 bananas"', f'memory: found "4 bananas", {SIZE_ALLOWED}'),
        ("memory = 1.5", f"memory: found 1.5, {SIZE_ALLOWED}"),
        ("memory = true", f"memory: found true, {SIZE_ALLOWED}"),
        ("memory = 0", "memory: found 0, allowed is from 1 to 1073741824 MiB"),
        ('scratch = "9999999T"', 'scratch: found "9999999T", allowed is from 1 to 1073741824 MiB'),
        ('gpus = "a100"', f'gpus: found "a100", {GPUS_ALLOWED}'),
        ('gpus = "a100:0"', f'gpus: found "a100:0", {GPUS_ALLOWED}'),
        ("gpus = -1", f"gpus: found -1, {GPUS_ALLOWED}"),
        ("exclusive = 1", "exclusive: found 1, allowed is true or false"),
        ('features = "ib"', 'features: found "ib", allowed is a list: [ ... ]'),
        ('features = ["a&b"]', 'features[0]: found "a&b", allowed is one word of letters'),
        ("licenses = { m = 0 }", "licenses.m: found 0, allowed is a whole number from 1 to 1000000"),
        ("queue = 3", 'queue: found 3, allowed is a name in quotes, or a table by cluster, such as { alpha = "long" }'),
        ('queue = "a b"', 'queue: found "a b", allowed is the name of a partition or queue, without spaces'),
        ('account = { alpha = "" }', 'account.alpha: found "", allowed is one word of letters'),
        ('qos = { alpa = "x" }', 'qos.alpa: found "alpa", allowed is a cluster of the site: "alpha", "beta", "gamma"'),
        ('directives = { alpha = ["x"] }', 'directives.alpha[0]: found "x", allowed is an argument that begins with -'),
        ('directives = { d = ["-x"] }', 'directives.d: found "d", allowed is a cluster of the site: "alpha", "beta"'),
        ('directives = ["-x"]', "directives: found a list of 1, allowed is a table"),
    ],
)
def test_slots_that_cannot_be(line: str, said: str, site: SiteConfig) -> None:
    message = refusal(f"{HEAD}{COMPONENT}{line}\n", site=site)
    assert message.startswith(f"j.toml:5: components[0].{said}")
    assert "\n" not in message


MOLDABLE = COMPONENT.replace("processors = 1", "minimum = 4\nmaximum = 12")


def test_ranks_that_share_a_slot() -> None:
    """What is counted is slots: each has the threads of its ranks, and all else that is asked for once."""
    component = loaded(f'{HEAD}kind = "moldable"\n{MOLDABLE}ranks_per_slot = 4\nthreads = 3\nmemory = "1g"').components[
        0
    ]
    assert (component.minimum, component.maximum) == (1, 3)
    assert component.slot == Slot(threads=12, ranks=4, memory_mib=1024)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + COMPONENT + "ranks_per_slot = 3", "j.toml:4: components[0].processors: found 1, allowed is a multiple"),
        (MALLEABLE + "ranks_per_slot = 2", 'components[0].ranks_per_slot: allowed with runner = "ranks" only'),
        (ADAPTIVE + "ranks_per_slot = 2", 'components[0].ranks_per_slot: allowed with runner = "ranks" only'),
    ],
)
def test_ranks_that_cannot_share_a_slot(text: str, said: str) -> None:
    assert said in refusal(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("12", ("12", "ok")),
        ("12:ok", ("12", "ok")),
        ("sim:failed", ("sim", "failed")),
        ("a:b:any", ("a:b", "any")),
    ],
)
def test_jobs_before(text: str, found: tuple[str, str]) -> None:
    (after,) = load_job_text(f'after = ["{text}"]\n{HEAD}{COMPONENT}', user="alice", directory=Path()).after
    assert (after.job, after.end.value) == found


@pytest.mark.parametrize("value", ['["12:"]', '[":ok"]', '["12:okay"]', "[true]", "[[]]"])
def test_jobs_before_that_cannot_be(value: str) -> None:
    message = refusal(f"after = {value}\n{HEAD}{COMPONENT}")
    assert message.startswith("j.toml:1: after[0]: found ")
    assert "allowed is the id or name of a job" in message


def test_notices_need_a_way(site: SiteConfig) -> None:
    text = f'notify = ["end", "fail"]\n{HEAD}{COMPONENT}'
    assert "j.toml:1: notify: allowed where the site file says how to tell" in refusal(text, site=site)
    told = site.model_copy(update={"notify": NotifyConfig(mail="me@example.org")})
    job = load_job_text(text, user="alice", directory=Path(), site=told)
    assert [one.value for one in job.notify] == ["end", "fail"]


def test_a_job_file_in_a_directory_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """The paths of its input files could not be written down."""
    path = tmp_path / "\udcff" / "a.toml"
    path.parent.mkdir()
    path.write_text('walltime = "1m"\n[[components]]\ncommand = ["true"]\nprocessors = 1\n')
    with pytest.raises(ConfigurationError, match=r"the name of its directory is not UTF-8: .*udcff") as refused:
        load_job(path, user="u")
    refused.value.message.encode()
