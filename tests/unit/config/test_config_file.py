# SPDX-License-Identifier: Apache-2.0
"""Site files: where they are found, that conf/ and docs/ say what is so, and which keys reach the scheduler."""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from koala_adapter.config import locations
from koala_adapter.config.locations import locate_site_file, no_site_file, state_directory
from koala_adapter.config.parameterkeys import Kind, settings_of
from koala_adapter.config.schema import job_schema, site_schema
from koala_adapter.config.sitefile import (
    ClusterConfig,
    ControlCenterConfig,
    NoSettings,
    SchedulerConfig,
    SiteConfig,
    load_site,
    load_site_text,
)
from koala_adapter.config.slottable import DirectivesConfig
from koala_adapter.config.tomlfile import (
    MAXIMUM_SIZE,
    key_lines,
    nearest_line,
    parse_document,
    read_document,
    show_path,
)
from koala_adapter.errors import ConfigurationError
from koala_adapter.lrm import PluginDefinition
from koala_adapter.model import ClusterName
from koala_adapter.scheduler.events import Configured
from koala_adapter.scheduler.parameters import Approach, ClusterParameters, Parameters
from koala_adapter.service.service import configuration
from tests.unit.config.toml_text import TEXT, plugin, toml, values

# The site file: where it is found, how it is read, and its reference page.

# -- TOML files as people leave them: missing, unreadable, not text, not TOML; and the lines on which keys stand.


NOBODY = 65_534


def refusal(path: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_document(path)
    return caught.value.message


def syntax_refusal(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse_document(text, source="f")
    return caught.value.message


@pytest.fixture
def as_nobody() -> Iterator[None]:
    """Be a user without rights, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


def test_unreadable_file(tmp_path: Path, as_nobody: None) -> None:
    path = tmp_path / "secret.toml"
    if os.geteuid() != NOBODY:
        path.touch(mode=0)
    assert refusal(path) == f"{path}: you may not read this file"


def test_paths_that_lead_to_no_file(tmp_path: Path) -> None:
    """A pipe is refused at once, though nobody writes to it."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "x.toml") == f"{tmp_path / 'x.toml'}: there is no such file"
    assert refusal(tmp_path) == f"{tmp_path}: this is a directory"
    assert refusal(tmp_path / "pipe").endswith("this is not a regular file")
    for path in (tmp_path / "loop", tmp_path / "file" / "x", tmp_path / "a\0b", tmp_path / ("n" * 300)):
        assert "cannot be opened" in refusal(path)


def test_too_large_file(tmp_path: Path) -> None:
    """A file beyond the limit is not even parsed; one at the limit is."""
    path = tmp_path / "big.toml"
    path.write_bytes(b"#" * MAXIMUM_SIZE)
    assert read_document(path).data == {}
    path.write_bytes(b"#" * (MAXIMUM_SIZE + 1))
    assert "larger than 1 MiB" in refusal(path)


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b'a = 1\nb = "\xe9"\n')
    assert refusal(path) == f"{path}:2: the file is not UTF-8: found the byte 0xe9"
    path.write_bytes("a = 1".encode("utf-16"))
    assert "not UTF-8" in refusal(path)


def test_byte_order_mark_and_foreign_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "dos.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\r\nb = 2\r\n")
    document = read_document(path)
    assert document.data == {"a": 1, "b": 2}
    assert key_lines(document.text) == {("a",): 1, ("b",): 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1\nb = = 2", "f:2: column 5: Invalid value"),
        ("a = 1\na = 2", "f:2: this key or table is given a second time (Cannot overwrite a value)"),
        ("[a]\n[b]\n[a]\n", "f:3: column 3: this key or table is given a second time (Cannot declare ('a',) twice)"),
        ("a = [1,\n2", "f:2: Unclosed array: the file ends too early"),
        ("a = '''x", "f:1: Expected \"'''\": the file ends too early"),
        ("a = 2021-02-30", "f:1: column 5: Invalid date or datetime"),
        (f"a = {'9' * 5000}", "f: a value cannot be read"),
    ],
)
def test_what_is_no_toml_is_refused_with_line_and_column(text: str, expected: str) -> None:
    """The parser's complaint comes with the place in front; a key given twice is called that."""
    assert syntax_refusal(text).startswith(expected)


def test_nesting_without_end_is_refused() -> None:
    assert "nested too deeply" in syntax_refusal("a = " + "[" * 100_000)


@pytest.mark.parametrize("dots", ["[{}]", "[[{}]]", "{} = 1", "x = {{ {} = 1 }}"])
@pytest.mark.parametrize("part", ["a", '"b"', "'c' "])
def test_a_key_of_very_many_parts_is_refused_unparsed(monkeypatch: pytest.MonkeyPatch, dots: str, part: str) -> None:
    """Refuse a key of twenty thousand parts before the parser sees it, which takes half a minute for it."""
    monkeypatch.setattr(tomllib, "loads", lambda _: pytest.fail("it was parsed"))
    text = "first = 1\n" + dots.format(".".join([part] * 20_000))
    assert syntax_refusal(text) == "f:2: found a key of more than 16 parts with dots between them"


def test_dots_in_texts_are_no_parts_of_keys() -> None:
    """Nor are those in comments; and as many parts as anybody needs are read."""
    dots = ".".join(["a"] * 50)
    text = f'# {dots}\nx = "{dots}"\ny = \'{dots}\'\nz = """\n"" {dots} \\""" {dots}"""\'\'\n{dots}\n"""\n'
    text = text.replace('"""\'\'\n', "\n")
    lines = f"w = '''\n{dots}\n'''\n{'.'.join('abcdefghij')} = 1\n"
    assert set(parse_document(text + lines, source="f").data) == {"x", "y", "z", "w", "a"}


@pytest.mark.parametrize(
    "text",
    ["{0} = 1", '"{0}" = 1', "[{0}]\n[{0}]", "[{0}.a]\n[{0}]\n[{0}]", "x = {0}", 'x = "\\{0}"', "{0} = 1\n" * 2],
)
def test_what_a_refusal_quotes_is_bounded(text: str) -> None:
    """Whatever is wrong with a key of 100 kB, nobody has to scroll through it."""
    document = text.format("k" * 100_000)
    with pytest.raises(ConfigurationError) as caught:
        load_site_text(document, {})
    assert len(caught.value.message) < 2000
    assert "k" * 400 not in caught.value.message


def test_lines_of_keys_tables_and_elements() -> None:
    text = (
        "# a comment with [brackets] and k = 1\n"
        'top = """\n[not.a.table]\nk = 1"""\n'
        "[scheduler] # header\n"
        "  backoff . longest = 3\n"
        "[[clusters]]\n"
        "\"name\" = 'a#b'\n"
        "[clusters.settings]\n"
        "conf = 1\n"
        "[[clusters]]\n"
        'tags = [ "x", # one\n\n  { deep = [\n1] } ]\n'
        "[clusters.settings]\n"
        "conf = 2020-01-01 00:00:00\n"
    )
    lines = key_lines(text)
    assert lines["top",] == 2
    assert lines["scheduler", "backoff", "longest"] == 6
    assert lines["clusters", 0] == 7
    assert lines["clusters", 0, "name"] == 8
    assert lines["clusters", 0, "settings", "conf"] == 10
    assert lines["clusters", 1] == 11
    assert lines["clusters", 1, "tags", 0] == 12
    assert lines["clusters", 1, "tags", 1, "deep"] == 14
    assert lines["clusters", 1, "tags", 1, "deep", 0] == 15
    assert lines["clusters", 1, "settings", "conf"] == 17
    assert not any("not" in path for path in lines)
    assert nearest_line(lines, ("clusters", 1, "settings", "missing")) == 16
    assert nearest_line(lines, ("nowhere",)) is None


@given(st.dictionaries(TEXT, values(), max_size=4))
def test_every_value_has_its_line(tables: dict[str, object]) -> None:
    text = ""
    expected: dict[tuple[str | int, ...], int] = {}
    for number, (key, value) in enumerate(tables.items(), 1):
        text += f"{toml(key)} = {toml(value)}\n"
        expected |= dict.fromkeys(_paths((key,), value), number)
    assert key_lines(text) == expected


@given(st.text(max_size=60))
def test_scan_of_anything_ends(text: str) -> None:
    assert all(line >= 1 for line in key_lines(text).values())


def test_key_paths_are_shown_as_people_write_them() -> None:
    assert show_path(("clusters", 1, "settings", "conf")) == "clusters[1].settings.conf"
    assert show_path(("a b", 'q"', "\x1b")) == '"a b"."q\\"".' + '"\\x1b"'


def _paths(path: tuple[str | int, ...], value: object) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for part, item in inner:
            yield from _paths((*path, part), item)


# -- Where the site file and the state of the service are found.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home directory; the system's site file is in a directory of the test."""
    monkeypatch.setattr(locations, "SYSTEM_SITE_FILE", tmp_path / "etc" / "site.toml")
    return tmp_path / "home"


def made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_the_nearest_site_file_is_taken(home: Path, tmp_path: Path) -> None:
    """Where there is none, a refusal lists the places. A relative base directory is ignored, as XDG asks."""
    environment = {"HOME": str(home)}
    assert locate_site_file(None, environment) is None
    for place in ("$KOALA_SITE", str(home / ".config" / "koala" / "site.toml"), str(tmp_path / "etc" / "site.toml")):
        assert place in no_site_file(environment)
    expected = made(tmp_path / "etc" / "site.toml")
    assert locate_site_file(None, environment) == expected
    expected = made(home / ".config" / "koala" / "site.toml")
    assert locate_site_file(None, environment) == expected
    assert locate_site_file(None, {**environment, "XDG_CONFIG_HOME": "x"}) == expected
    environment["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    expected = made(tmp_path / "xdg" / "koala" / "site.toml")
    assert locate_site_file(None, environment) == expected
    environment["KOALA_SITE"] = str(made(tmp_path / "mine.toml"))
    assert locate_site_file(None, environment) == tmp_path / "mine.toml"
    assert locate_site_file(made(tmp_path / "given.toml"), environment) == tmp_path / "given.toml"


def test_a_named_file_that_is_missing_is_not_replaced_by_another(home: Path, tmp_path: Path) -> None:
    made(tmp_path / "etc" / "site.toml")
    missing = tmp_path / "missing.toml"
    with pytest.raises(ConfigurationError, match=r"missing.toml.*on the command line"):
        locate_site_file(missing, {"HOME": str(home)})
    with pytest.raises(ConfigurationError, match=r"missing.toml.*\$KOALA_SITE"):
        locate_site_file(None, {"HOME": str(home), "KOALA_SITE": str(missing)})


def test_state_directory(home: Path) -> None:
    environment = {"HOME": str(home)}
    for variables in (environment, {**environment, "XDG_STATE_HOME": "relative"}):
        assert state_directory(None, variables) == home / ".local" / "state" / "koala"
    environment["XDG_STATE_HOME"] = "/xdg"
    assert state_directory(None, environment) == Path("/xdg/koala")
    environment["KOALA_STATE"] = "relative"
    assert state_directory(None, environment) == Path.cwd() / "relative"
    assert state_directory(Path("given"), environment) == Path.cwd() / "given"
    assert not home.exists()


@pytest.mark.parametrize("home", [None, "", "rel", "./rel", "~"])
def test_a_home_that_is_no_absolute_path_is_not_taken(home: str | None) -> None:
    """That of the password file is: else each directory would have a state of its own, or the root directory."""
    environment = {} if home is None else {"HOME": home}
    expected = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".local" / "state" / "koala"
    assert state_directory(None, environment) == expected


def test_a_user_without_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_home", lambda: None)
    with pytest.raises(ConfigurationError, match="KOALA_STATE"):
        state_directory(None, {})


# -- What is written for people stays true: conf/ loads and is complete, docs/ is what the models say.


ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf"
EXAMPLES = sorted(CONF.glob("*.toml"))
SCHEMA_WRITER = (2, 12)
"""From this pydantic on, schemas are written in the form that is kept in docs/."""


class AnySettings(BaseModel, extra="allow"):
    """Settings of a plugin that is not there."""


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ours() -> dict[str, PluginDefinition]:
    module = reference()
    found: dict[str, PluginDefinition] = module.our_plugins()
    return {name: found.get(name) or plugin(name, AnySettings) for name in module.OURS}


def with_optional_keys(path: Path) -> str:
    return re.sub(r"(?m)^#(?=[a-z_]+ = )", "", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_load(path: Path, ours: dict[str, PluginDefinition]) -> None:
    site = load_site(path, ours)
    # A cluster at another site has no keys that are of this host.
    everything = re.sub(r"(?m)^site = .*$", "", with_optional_keys(path))
    assert len(load_site_text(everything, ours, source=path.name).clusters) == len(site.clusters)


AT_SITES = """
[[sites]]
name = "delft"
ssh = "fs3"
[[sites]]
name = "delft"
ssh = "-oProxyCommand=x"
bandwidth_from = { delf = 80.0 }
[[clusters]]
name = "a"
plugin = "slurm"
site = "delf"
[[clusters]]
name = "b"
plugin = "drmaa"
site = "delft"
token_directory = "/home/ann"
settings.processors = 1
"""


def test_sites_and_their_clusters_fit(ours: dict[str, PluginDefinition]) -> None:
    plugins = {**ours, "drmaa": replace(ours["drmaa"], sites=False)}  # as one of others may be
    with pytest.raises(ConfigurationError) as refusal:
        load_site_text(AT_SITES, plugins, source="site.toml")
    expected = (
        'site.toml:6: sites[1].name: found "delft" twice',
        "site.toml:7: sites[1].ssh: ",
        'site.toml:8: sites[1].bandwidth_from: found "delf", allowed is another site',
        'site.toml:12: clusters[0].site: found "delf", allowed is a site: "delft"',
        'site.toml:16: clusters[1].site: the plugin "drmaa" serves this host alone',
        "site.toml:17: clusters[1].token_directory: allowed is no token_directory with a site",
    )
    for line, text in zip(refusal.value.message.splitlines(), expected, strict=True):
        assert line.startswith(text)


@pytest.mark.parametrize("ports", ["80-1025", "50000", "60000-50000", "50000-65536", "50000-50999 "])
def test_ports_of_a_site_are_a_range(ours: dict[str, PluginDefinition], ports: str) -> None:
    text = '[[sites]]\nname = "delft"\nssh = "fs3"\nports = "50000-50999"\n'
    near = '[[clusters]]\nname = "near"\nplugin = "local"\nsettings.processors = 1\n'
    assert load_site_text(text + near, ours).sites[0].port_range == (50_000, 50_999)
    allowed = r"sites\[0\].ports: found .*, allowed is the first and the last port, from 1024 to 65535"
    with pytest.raises(ConfigurationError, match=allowed):
        load_site_text(text.replace("50000-50999", ports) + near, ours)


def test_it_is_known_whether_workers_may_be_where_they_cannot_connect_to_this_host(
    ours: dict[str, PluginDefinition],
) -> None:
    text = AT_SITES.partition('[[sites]]\nname = "delft"\nssh = "-o')[0]
    far = '[[clusters]]\nname = "far"\nplugin = "slurm"\nsite = "delft"\n'
    near = '[[clusters]]\nname = "near"\nplugin = "local"\nsettings.processors = 1\n'
    site = load_site_text(text + far + near, ours)
    assert [site.may_be_far(cluster) for cluster in ("near", "far", None)] == [False, True, True]


def test_each_plugin_has_an_example(ours: dict[str, PluginDefinition]) -> None:
    assert {path.stem for path in EXAMPLES} >= {"site", *ours}
    for name in ours:
        assert {cluster.plugin for cluster in load_site(CONF / f"{name}.toml", ours).clusters} == {name}


def test_complete_site_shows_every_key_and_its_default(ours: dict[str, PluginDefinition]) -> None:
    """What conf/site.toml writes out as a default is the default."""
    written = tomllib.loads(with_optional_keys(CONF / "site.toml"))
    assert set(written["control_center"]) == set(ControlCenterConfig.model_fields)
    assert set(written["scheduler"]) == set(SchedulerConfig.model_fields)
    assert set(written["clusters"][0]) == set(ClusterConfig.model_fields)
    assert set(written["clusters"][0]["directives"]) == set(DirectivesConfig.model_fields)
    site = load_site(CONF / "site.toml", ours)
    assert (site.control_center, site.scheduler) == (ControlCenterConfig(), SchedulerConfig())
    for name, field in ClusterConfig.model_fields.items():
        if not field.is_required() and name != "settings":
            assert getattr(site.clusters[0], name) == field.get_default(call_default_factory=True), name


def test_docs_are_current() -> None:
    """The schemas and the lists of keys in docs/ are those of the models; if not, run: python docs/reference.py."""
    module = reference()
    if tuple(map(int, pydantic.VERSION.split(".")[:2])) < SCHEMA_WRITER:
        pytest.skip("another pydantic words the same schemas in another way")
    if missing := set(module.OURS) - set(module.our_plugins()):
        pytest.skip(f"plugins are missing: {', '.join(sorted(missing))}")
    for path, content in module.generated().items():
        assert path.read_text(encoding="utf-8") == content, f"{path} is out of date: run python docs/reference.py"


def test_schemas_name_every_key(ours: dict[str, PluginDefinition]) -> None:
    """The schemas hold the keys of the models, and the settings of each plugin; all that they refer to is there."""
    site = json.loads(json.dumps(site_schema(ours)))
    assert set(site["$defs"]["ClusterConfig"]["properties"]) == set(ClusterConfig.model_fields)
    rules = {rule["if"]["properties"]["plugin"]["const"] for rule in site["$defs"]["ClusterConfig"]["allOf"]}
    assert rules == set(ours)
    assert site["$defs"]["SchedulerConfig"]["properties"]["pause"]["anyOf"][1]["type"] == "string"
    job = json.loads(json.dumps(job_schema()))
    assert set(job["required"]) == {"walltime", "components"}
    assert {"type": "string"} in job["$defs"]["ComponentTable"]["properties"]["input_files"]["items"]["anyOf"]
    for schema in (site, job):
        named = set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(schema)))
        assert named - set(schema["$defs"]) == set()


# What a site file says reaches the scheduler, so that the journal holds it; all that steers it can be said there.

CLUSTER = '[[clusters]]\nname = "alpha"\nplugin = "local"\n'
PLUGINS = {"local": plugin("local", NoSettings)}
TABLES: dict[Kind, tuple[type[BaseModel], ...]] = {
    Parameters: (ControlCenterConfig, SchedulerConfig),
    ClusterParameters: (ClusterConfig,),
}
ALPHA = ClusterParameters(name=ClusterName("alpha"), counts_slots=True, here=True)
KEYS = [(kind, name) for kind in TABLES for name in settings_of(kind)]


def key_of(kind: Kind, name: str) -> str:
    """Return the key of a parameter in site files."""
    return settings_of(kind)[name].key or name


def header_of(kind: Kind, name: str) -> str:
    """Return the header of the table of a site file that has a parameter."""
    if kind is ClusterParameters:
        return CLUSTER
    in_center = key_of(kind, name) in ControlCenterConfig.model_fields
    return f"{CLUSTER}[{'control_center' if in_center else 'scheduler'}]\n"


def another_value(kind: Kind, name: str) -> Any:  # noqa: ANN401 - of whatever type the parameter has
    setting, hint = settings_of(kind)[name], get_type_hints(kind)[name]
    default: Any = next(field.default for field in fields(kind) if field.name == name)
    if setting.choices is not None:
        return next(choice for choice in sorted(setting.choices) if choice != default)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(choice for choice in hint if choice != default)
    if setting.unit == "absolute paths":
        return ("/data",)
    return not default if hint is bool else (default or 0) + 1


def test_every_parameter_can_be_set() -> None:
    """But for the short list of those that no site file sets by such a key."""
    not_there = (
        "instance here bandwidth_from software container_runtime slot_keys counts_slots stages reserves site_lease site"
    )
    names = {field.name for kind in TABLES for field in fields(kind)} - {"name"}
    assert names - {name for kind in TABLES for name in settings_of(kind)} == set(not_there.split())


@pytest.mark.parametrize(("kind", "name"), KEYS)
def test_what_a_file_says_reaches_the_scheduler(kind: Kind, name: str) -> None:
    """Each is a key of one table, with its meaning, and changes its own parameter and no other."""
    key, setting = key_of(kind, name), settings_of(kind)[name]
    (table,) = (table for table in TABLES[kind] if key in table.model_fields)
    assert table.model_fields[key].description == setting.meaning
    value = another_value(kind, name)
    written = toml(list(value) if isinstance(value, tuple) else value.value if isinstance(value, Enum) else value)
    rest = "longest_backoff = 86400\n" if name == "backoff" else ""
    site = load_site_text(f"{header_of(kind, name)}{key} = {written}\n{rest}", PLUGINS)
    made = configuration(site, "me", 5.0, {})
    changed = {name: value} | ({"longest_backoff": 86_400.0} if rest else {})
    site_wide, cluster = (changed, {}) if kind is Parameters else ({}, changed)
    assert made == Configured(
        time=5.0, parameters=replace(Parameters(instance="me"), **site_wide), clusters=(replace(ALPHA, **cluster),)
    )


def test_a_site_that_says_nothing_has_the_defaults_of_the_scheduler() -> None:
    """Those of the site and those of a cluster; a cluster that is disabled is not told of."""
    site = SiteConfig(
        clusters=(ClusterConfig(name="alpha", plugin="local"), ClusterConfig(name="b", plugin="local", enabled=False))
    )
    assert configuration(site, "k", 5.0, {}) == Configured(time=5.0, parameters=Parameters(), clusters=(ALPHA,))


def test_what_steered_an_earlier_version_is_read_as_it_was_written() -> None:
    """Numbers that were written with a point are whole now, and bounds of site files do not hold for journals."""
    old = {"time": 1.0, "parameters": {"launch_margin": 120.0, "backoff": 0.0, "approach": "pra"}, "clusters": []}
    found = TypeAdapter(Configured).validate_json(json.dumps(old))
    assert found.parameters == Parameters(launch_margin=120, backoff=0.0, approach=Approach.PRA)
