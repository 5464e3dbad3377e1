# SPDX-License-Identifier: Apache-2.0
"""The site configuration: what it may say, its fields, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from koala_adapter.config.fields import Environment, Host, Seconds, WholeSeconds
from koala_adapter.config.jobtables import ComponentTable, InputFileTable, JobTable
from koala_adapter.config.sitefile import (
    ClusterConfig,
    ControlCenterConfig,
    SchedulerConfig,
    SiteConfig,
    load_site,
    load_site_text,
    shortest_poll_interval,
)
from koala_adapter.config.slottable import DirectivesConfig
from koala_adapter.config.tomlfile import show_duration
from koala_adapter.config.written import DURATION_PATTERN, parse_duration
from koala_adapter.errors import ConfigurationError
from koala_adapter.lrm.contract import Directives
from koala_adapter.lrm.rate import RequestWindow
from koala_adapter.scheduler.parameters import ClusterParameters
from tests.unit.config.toml_text import plugin, replaced, toml_file, values

# -- Site files: what they give when right, and that all that is wrong is said at once, with line, key and way out.


class FakeSettings(BaseModel):
    """Settings as a plugin's author would write them: strictness is not their worry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    conf: str | None = Field(default=None, description="Path of the configuration.")
    slots: int = Field(default=1, ge=1, le=9)
    mode: Literal["fast", "careful"] = "fast"
    names: tuple[str, ...] = ()
    either: int | bool = 0
    word: str = "x"

    @field_validator("word")
    @classmethod
    def _known(cls, word: str) -> str:
        if word == "absolute":
            raise ValueError("must be a path")
        if word == "unknown":
            raise ValueError("nobody knows it")
        return word

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.slots > 1 and self.mode == "careful":
            raise ValueError("give slots or mode, not both")
        return self


PLUGINS = {name: plugin(name, FakeSettings) for name in ("local", "slurm", "sge")}

VALID: dict[str, object] = {
    "control_center": {"port": 7000, "lease": "5m", "address": "head.example.org"},
    "scheduler": {"backoff": 1, "longest_backoff": "1h", "reuse": False},
    "clusters": [
        {"name": "alpha", "plugin": "slurm", "settings": {"conf": "/etc/slurm.conf"}},
        {
            "name": "beta",
            "plugin": "local",
            "walltime_limit": "12:00:00",
            "directives": {"add": ["--x=1"], "drop": ["-V"], "rename": {"--time": "--limit"}},
            "settings": {"slots": 4, "names": ["n1", "n2"]},
        },
    ],
}


def refusal(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_site_text(text, PLUGINS, source="s.toml")
    return caught.value.message


def one_cluster(lines: str) -> str:
    return f'[[clusters]]\nname = "alpha"\nplugin = "slurm"\n{lines}\n'


def test_smallest_site_has_the_documented_defaults() -> None:
    site = load_site_text(one_cluster(""), PLUGINS)
    assert site.control_center == ControlCenterConfig()
    assert site.scheduler == SchedulerConfig()
    (cluster,) = site.clusters
    assert (cluster.name, cluster.plugin, cluster.requests_per_minute) == ("alpha", "slurm", 60)
    assert cluster.requests_as_owner == 1800
    assert cluster.parameters == ClusterParameters(name=cluster.cluster_name)
    assert cluster.settings == FakeSettings()
    assert site.parameters.lease == 300


def test_values_arrive_as_written() -> None:
    site = load_site_text(toml_file(VALID), PLUGINS)
    beta = site.cluster("beta")
    assert site.parameters.lease == 300
    assert site.parameters.longest_backoff == 3600
    assert beta.parameters.walltime_limit == 43_200
    assert beta.changes == Directives(add=("--x=1",), drop=("-V",), rename=(("--time", "--limit"),))
    assert beta.settings == FakeSettings(slots=4, names=("n1", "n2"))
    assert site.enabled_clusters == site.clusters
    with pytest.raises(ConfigurationError, match="no cluster 'delta'; there are: "):
        site.cluster("delta")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('gpu = "-l gpu={n}"', "s.toml:5: clusters[0].map.gpu: unknown key, allowed is threads, memory, gpus, "),
        ('gpus = "-l gpu=1"', 's.toml:5: clusters[0].map.gpus: found "-l gpu=1", allowed is arguments with {n} '),
        ('gpus = "gpu={n}"', 's.toml:5: clusters[0].map.gpus: found "gpu={n}", allowed is arguments that begin '),
        ("gpus = 2", "s.toml:5: clusters[0].map.gpus: found 2, allowed is a text in quotes"),
        ('exclusive = "-l e={n}"', 's.toml:5: clusters[0].map.exclusive: found "-l e={n}", allowed is arguments w'),
    ],
)
def test_a_map_is_checked(line: str, problem: str) -> None:
    assert refusal(one_cluster(f"[clusters.map]\n{line}")).startswith(problem)


def test_a_map_reaches_the_plugin() -> None:
    site = load_site_text(one_cluster('[clusters.map]\ngpus = "-l gpu={n} -R y"'), PLUGINS)
    assert site.clusters[0].changes == Directives(map=(("gpus", ("-l gpu={n}", "-R y")),))


def test_a_file_is_read_and_named_in_refusals(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(toml_file(VALID), encoding="utf-8")
    assert load_site(path, PLUGINS) == load_site_text(toml_file(VALID), PLUGINS)
    path.write_text(one_cluster("threshold = -1"), encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_site(path, PLUGINS)
    assert caught.value.message.startswith(f"{path}:4: clusters[0].threshold: found -1")
    assert "koala docs site-file" in caught.value.hint


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("treshold = 1", 'treshold: unknown key, allowed is name, plugin, .*did you mean "threshold"'),
        ("backoff = 1", r"backoff: unknown key, .*; it belongs in \[scheduler\]"),
        ('threshold = "1"', 'threshold: found "1", allowed is a whole number from 0 to 10000000'),
        ("threshold = true", "threshold: found true, allowed is a whole number"),
        ("threshold = -1", "threshold: found -1, allowed is a whole number from 0"),
        ("enabled = 1", "enabled: found 1, allowed is true or false"),
        ("queue = 5", "queue: found 5, allowed is a text in quotes"),
        ('queue = "a b"', "queue: found .*, allowed is the name of a partition or queue"),
        ("memory_mib = 0", "memory_mib: found 0, allowed is a whole number from 1 to 16777216 MiB"),
        ("poll_interval = 1", "poll_interval: found 1, allowed is at least 2.5 seconds"),
        ("poll_interval = nan", "poll_interval: found nan, allowed is a number from 0.1 to 3600 seconds"),
        ('walltime_limit = "90"', 'walltime_limit: found "90", .*write "90s" for seconds or "90m"'),
        ('walltime_limit = "10:30"', "walltime_limit: .*hours and minutes or minutes and seconds"),
        ("walltime_limit = 2020-01-01", "walltime_limit: found 2020-01-01, allowed is a whole number"),
        ('malleability = "egz"', r'malleability: found "egz", allowed is "egs" or .*"fpsma"; did you mean "egs"\?$'),
        ('output_directory = "tmp"', "output_directory: found .*, allowed is an absolute path"),
        ('control_center_address = "https://x"', "control_center_address: .*without port or protocol"),
        ('directives = "x"', 'directives: found "x", allowed is a table'),
        ('directives.drop = ["x"]', r"directives.drop\[0\]: .*flag alone"),
        ('directives.add = ["--x\\n#SBATCH"]', r"directives.add\[0\]: .*no line break"),
        ('directives.add = ["x"]', r"directives.add\[0\]: .*begins with -"),
        ('directives = {drop = ["-a"], rename = {-a = "-b"}}', "directives.rename.-a: .*also dropped"),
        ('settings = "x"', 'settings: found "x", allowed is a table'),
        ('partition = "main"', 'partition: unknown key; a partition is called "queue" here'),
        ('[clusters.settings]\nqueue = "x"', "settings.queue: unknown key, allowed is queue one level"),
        ('[clusters.settings]\npartition = "x"', "settings.partition: unknown key, allowed is queue one level up"),
        ("[clusters.settings]\nconv = 1", 'settings.conv: unknown key, .*did you mean "conf"'),
        ("[clusters.settings]\nconf = 1", "settings.conf: found 1, allowed is a text in quotes"),
        ('[clusters.settings]\nslots = "2"', 'settings.slots: found "2", allowed is a whole number'),
        ("[clusters.settings]\nslots = 10", "settings.slots: found 10, .*from 1 to 9"),
        ('[clusters.settings]\nmode = "carefull"', 'settings.mode: .*"fast" or "careful"; did you mean "careful"'),
        ('[clusters.settings]\neither = "x"', 'settings.either: found "x"'),
        ('[clusters.settings]\nword = "absolute"', 'settings.word: found "absolute", allowed is a path'),
        ('[clusters.settings]\nword = "unknown"', 'settings.word: found "unknown": nobody knows'),
        ("[clusters.settings]\nnames = [1]", r"settings.names\[0\]: found 1, allowed is a text"),
    ],
)
def test_wrong_cluster_is_refused_with_line_key_found_and_allowed(lines: str, said: str) -> None:
    message = refusal(one_cluster(lines))
    assert len(message.splitlines()) in {1, 2}
    assert re.search(rf"^s.toml:{4 + lines.count(chr(10))}: clusters\[0\].{said}", message, re.MULTILINE), message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "^s.toml: clusters: this key is required"),
        ("clusters = []", "^s.toml:1: clusters: found an empty list, allowed is a list of at least 1"),
        ("clusters = 3", "^s.toml:1: clusters: found 3, allowed is a list"),
        ("clusters = [3]", r"^s.toml:1: clusters\[0\]: found 3, allowed is a table"),
        ('[clusters]\nname = "a"', r"^s.toml:1: clusters: found a table, .*write \[\[clusters\]\], not \[clusters\]"),
        ('[[clusters]]\nname = "a"', r"^s.toml:1: clusters\[0\].plugin: this key is required: Plugin that speaks"),
        ('[[clusters]]\nplugin = "sge"', r"^s.toml:1: clusters\[0\].name: this key is required"),
        ('[[clusters]]\nname = "1 a"\nplugin = "sge"', r"clusters\[0\].name: .*a letter, then letters, digits"),
        ('[[clusters]]\nname = "a"\nplugin = "slrum"', r'found "slrum", .*"local", .*did you mean "slurm"'),
        (one_cluster("") + one_cluster(""), r"^s.toml:6: clusters\[1\].name: found \"alpha\", the name of"),
        (one_cluster("enabled = false"), r"^s.toml:1: clusters: every cluster has enabled = false"),
        (one_cluster("") + "[control_center]\nport = 80", r"control_center.port: found 80, allowed is 0, or 1024"),
        (one_cluster("") + "[control_center]\nlease = 50", r":6: control_center.lease: .*three heartbeats \(60"),
        (one_cluster("") + '[control_center]\naddress = "0.0.0.0"', r"address: .*that nodes can connect to"),
        (one_cluster("") + "[scheduler]\nbackoff = 7200", r"scheduler: longest_backoff|longest_backoff: found 3600"),
        (one_cluster("") + '[scheduler]\nplacement = "worstfit"', r'is "worst-fit" or .*; did you mean "worst-fit"'),
        (one_cluster("") + "[scheduler]\nlease = 50", r":6: scheduler.lease: .*; it belongs in \[control_center\]$"),
        (
            one_cluster("") + '[scheduler]\napproach = "pwq"',
            r'^s.toml:6: scheduler.approach: found "pwq", allowed is "none" or "pra" or "pwa"; did you mean "pwa"\?$',
        ),
        (one_cluster("") + '[scheduler]\nanswer_timeout = "0s"', r"answer_timeout: found .*0.*from 1 to 3600 seconds$"),
        (
            one_cluster('[clusters.settings]\nslots = 2\nmode = "careful"'),
            r"^s.toml:4: clusters\[0\].settings: give slots or mode, not both",
        ),
        (
            one_cluster("") + '[notify]\nwebhook = "ftp://x"',
            "^s.toml:6: notify.webhook: .* http:// or https://",
        ),
        (
            one_cluster("") + '[notify]\nmail = "a b"',
            '^s.toml:6: notify.mail: found "a b", allowed is one mail',
        ),
        (
            one_cluster("") + '[[sites]]\nname = "far"\nssh = "far"\nlease = 59',
            r"^s.toml:8: sites\[0\].lease: found 59, allowed is at least three heartbeats of",
        ),
        ("schedular = 1\n" + one_cluster(""), r'^s.toml:1: schedular: unknown key, .*did you mean "scheduler"'),
    ],
)
def test_wrong_site_is_refused(text: str, expected: str) -> None:
    assert re.search(expected, refusal(text)), refusal(text)


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    """Unknown keys, wrong values, impossible combinations and wrong settings come in one message, one per line."""
    text = (
        "[control_center]\nlease = 10\nadress = 1\n"
        '[[clusters]]\nname = "a"\nplugin = "nope"\nthreshold = "x"\n'
        '[[clusters]]\nname = "a"\nplugin = "sge"\n[clusters.settings]\nslots = 0\n'
    )
    places = [line.split(": ")[:2] for line in refusal(text).splitlines()]
    assert places == [
        ["s.toml:2", "control_center.lease"],
        ["s.toml:3", "control_center.adress"],
        ["s.toml:6", "clusters[0].plugin"],
        ["s.toml:7", "clusters[0].threshold"],
        ["s.toml:9", "clusters[1].name"],
        ["s.toml:12", "clusters[1].settings.slots"],
    ]


def test_what_a_terminal_would_act_on_is_escaped() -> None:
    message = refusal(one_cluster(f'queue = "\\u001b[31m {"x" * 500}"\n"k\\u001b" = 1\n{"k" * 9000} = 1'))
    assert "\x1b" not in message
    assert all(len(line) < 500 for line in message.splitlines())


def test_more_problems_than_anybody_reads_are_counted() -> None:
    """A file of another kind does not fill the screen."""
    lines = refusal("".join(f"key{number} = 1\n" for number in range(500))).splitlines()
    assert len(lines) == 41
    assert "and 461 more" in lines[-1]


def test_nodes_reach_the_most_particular_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's own address goes before the site's, that before the one listened on, that before the host name."""
    monkeypatch.setattr("socket.gethostname", lambda: "head")
    text = '[control_center]\n{}\n[[clusters]]\nname = "a"\nplugin = "sge"\n{}\n'

    def address(center: str, cluster: str = "") -> str:
        site = load_site_text(text.format(center, cluster), PLUGINS)
        return site.node_address(site.clusters[0])

    assert address("") == "head"
    assert address('listen = "10.0.0.1"') == "10.0.0.1"
    assert address('listen = "10.0.0.1"\naddress = "login"') == "login"
    assert address('address = "login"', 'control_center_address = "fe80::1"') == "fe80::1"


@given(st.integers(min_value=6, max_value=6000))
def test_shortest_poll_interval_fits_the_bound(per_minute: int) -> None:
    """Polling as often as is allowed never has to wait for the bound of requests."""
    window = RequestWindow(per_minute)
    interval = shortest_poll_interval(per_minute)
    for poll in range(40):
        for _ in range(2):
            assert window.wait(poll * interval + 1e-6 * poll) == 0.0
            window.record(poll * interval + 1e-6 * poll)


@pytest.mark.parametrize(
    "model",
    [SiteConfig, ControlCenterConfig, SchedulerConfig, ClusterConfig, JobTable, ComponentTable, InputFileTable],
)
def test_every_key_is_described(model: type[BaseModel]) -> None:
    assert all(field.description for field in model.model_fields.values())
    assert model.model_config.get("frozen")
    assert model.model_config.get("extra") == "forbid"


MODELS = (SiteConfig, ControlCenterConfig, SchedulerConfig, ClusterConfig, DirectivesConfig, FakeSettings)
KEYS = st.sampled_from([*(key for model in MODELS for key in model.model_fields), "", "é", "a.b"])


@given(st.dictionaries(KEYS, values(KEYS), max_size=6))
def test_any_toml_is_loaded_or_refused(tables: dict[str, object]) -> None:
    _load_or_refuse(toml_file(tables))


@given(st.lists(st.integers(min_value=0, max_value=100), min_size=1, max_size=5), values(KEYS))
def test_any_change_of_a_good_file_is_loaded_or_refused(place: list[int], value: object) -> None:
    """One wrong value anywhere in a good file gives a site or a ConfigurationError."""
    changed = replaced(VALID, place, value)
    assert isinstance(changed, dict)
    _load_or_refuse(toml_file(changed))


def _load_or_refuse(text: str) -> None:
    try:
        site = load_site_text(text, PLUGINS, source="s.toml")
    except ConfigurationError as error:
        refused = error.message
    else:
        refused = ""
        assert site.enabled_clusters
    assert all(line.startswith("s.toml") for line in refused.splitlines())


# -- Durations, host names and variables: what is taken, and what is refused because it has two meanings.


HOST: TypeAdapter[str] = TypeAdapter(Host)
ENVIRONMENT: TypeAdapter[dict[str, str]] = TypeAdapter(Environment)
SECONDS: TypeAdapter[float] = TypeAdapter(Seconds)
WHOLE_SECONDS: TypeAdapter[int] = TypeAdapter(WholeSeconds)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:01", 1), ("1:30:00", 5400), ("100:00:00", 360_000), ("2-00:00:10", 172_810), ("90s", 90), ("45m", 2700),
        ("1h30m", 5400), ("1d2h3m4s", 93_784), ("0s", 0),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds
    assert re.search(DURATION_PATTERN, text)


@pytest.mark.parametrize(
    "text",
    [
        *("90", "10:30", "", "1:60:00", "1:00:60", "h", "30m1h", "1h1h", "1.5h", "-5s", "+5s", "1 h", "1H", "1w"),
        *("\u0661s", "1h\n"),
    ],
)
def test_durations_with_two_meanings_or_none_are_refused(text: str) -> None:
    """Nothing is guessed: the refusal lists the forms."""
    with pytest.raises(ValueError, match="HH:MM:SS"):
        parse_duration(text)
    assert not re.search(DURATION_PATTERN.replace("$", r"\Z"), text)


@given(st.text(st.sampled_from("0123456789:-dhms \n"), max_size=10))
def test_schema_and_parser_agree_on_durations(text: str) -> None:
    """What an editor accepts by the schema is what the program accepts."""
    try:
        parse_duration(text)
        accepted = True
    except ValueError:
        accepted = False
    assert bool(re.search(DURATION_PATTERN.replace("$", r"\Z"), text)) == accepted


@given(st.integers(min_value=0, max_value=10**8))
def test_shown_durations_are_read_back(seconds: int) -> None:
    assert parse_duration(show_duration(seconds)) == seconds


def test_numbers_are_durations_but_true_is_not() -> None:
    assert SECONDS.validate_python(0.5) == 0.5
    assert WHOLE_SECONDS.validate_python(90) == 90
    assert show_duration(0.5) == "0.5 s"
    for adapter, value in (
        (SECONDS, True),
        (WHOLE_SECONDS, True),
        (WHOLE_SECONDS, 1.5),
        (SECONDS, None),
        (SECONDS, []),
    ):
        with pytest.raises(ValidationError):
            adapter.validate_python(value)


@pytest.mark.parametrize("host", ["a", "head.example.org", "10.0.0.1", "::1", "fe80::1%eth0", "my_host", "0.0.0.0"])
def test_hosts(host: str) -> None:
    assert HOST.validate_python(host) == host


@pytest.mark.parametrize("host", ["", "a b", "a:80", "http://a", "-a", "a-", "a..b", ".a", "a\n", "é", "x" * 300])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValidationError):
        HOST.validate_python(host)


@pytest.mark.parametrize("name", ["", "1A", "A B", "A=B", "é", "KOALA_RANK", "A\n"])
def test_names_that_no_variable_can_have_are_refused(name: str) -> None:
    for variables in ({name: "x"}, {"A": "a\0b"}):
        with pytest.raises(ValidationError):
            ENVIRONMENT.validate_python(variables)


@pytest.mark.parametrize("name", ["_A1", "koala", "BASH_FUNC_module%%", "BASH_FUNC_ml()", "my.option", "A-B"])
def test_names_of_exported_functions_and_other_programs_are_taken(name: str) -> None:
    """The environment modules are shell functions, and not every program keeps to the names of a shell."""
    assert ENVIRONMENT.validate_python({name: "x y\n"}) == {name: "x y\n"}
