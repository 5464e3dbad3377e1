# SPDX-License-Identifier: Apache-2.0
"""Writes what is made from the program: JSON Schemas, keys and tables in pages, the manual page koala(1).

Run it after a change of a model or a command: ``python docs/reference.py``. A test fails while a file is out of date.
"""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.manpages import man_page
from docs.statediagram import drawing
from docs.variables import table as variables_table
from koala_adapter.cli.jsonshapes import SHAPES
from koala_adapter.config.jobtables import ComponentTable, InputFileTable, JobHeader, SweepTable
from koala_adapter.config.schema import job_schema, schema_text, site_schema
from koala_adapter.config.sitefile import (
    ClusterConfig,
    ControlCenterConfig,
    MetricsConfig,
    NotifyConfig,
    RemoteSiteConfig,
    SchedulerConfig,
)
from koala_adapter.config.slottable import DirectivesConfig, MapConfig, SlotTable
from koala_adapter.host import metrics as catalogue
from koala_adapter.lrm import Capabilities, PluginDefinition
from koala_adapter.negotiation.states import BROKEN, EXPIRED, LOST, RECEIVED, REJECTED, SENT, WITHDRAWN
from koala_adapter.simulation.platform import (
    BackgroundLoad,
    ClusterModel,
    Failures,
    Platform,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel

DOCS = Path(__file__).parent
MAN_PAGE = DOCS.parent / "man" / "koala.1"
OURS = ("drmaa", "local", "pbs", "sge", "slurm", "wiki")
MARKED = re.compile(r"(<!-- keys: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
NEGOTIATION = re.compile(r"(<!-- negotiation: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
DRMAA = re.compile(r"(<!-- drmaa: libraries -->\n).*?(<!-- end -->)", re.DOTALL)
CAPABILITIES = re.compile(r"(<!-- capabilities -->\n).*?(<!-- end -->)", re.DOTALL)
VARIABLES = re.compile(r"(<!-- variables: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
JSON = re.compile(r"(<!-- json -->\n).*?(<!-- end -->)", re.DOTALL)
METRICS = re.compile(r"(<!-- metrics: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
MODELS: dict[str, type[BaseModel]] = {
    "control_center": ControlCenterConfig,
    "scheduler": SchedulerConfig,
    "metrics": MetricsConfig,
    "notify": NotifyConfig,
    "sites": RemoteSiteConfig,
    "clusters": ClusterConfig,
    "clusters.directives": DirectivesConfig,
    "clusters.map": MapConfig,
    "job": JobHeader,
    "components": ComponentTable,
    "components.slot": SlotTable,
    "components.input_files": InputFileTable,
    "sweep": SweepTable,
    "platform": Platform,
    "platform.clusters": ClusterModel,
    "platform.background": BackgroundLoad,
    "platform.failures": Failures,
}


def our_plugins() -> dict[str, PluginDefinition]:
    """Return our plugins, those that are there."""
    found = {}
    for name in OURS:
        try:
            plugin = getattr(import_module(f"koala_{name}"), "PLUGIN", None)
        except ModuleNotFoundError:
            continue
        if isinstance(plugin, PluginDefinition):
            found[name] = plugin
    return found


def generated() -> dict[Path, str]:
    """Return the right content of each file that is made, or has parts that are made, from the models."""
    ours = our_plugins()
    models = MODELS | {f"settings.{name}": plugin.settings for name, plugin in ours.items()}
    contents = {
        DOCS / "site.schema.json": schema_text(site_schema(ours)),
        DOCS / "job.schema.json": schema_text(job_schema()),
    }
    for page in (DOCS / "site-file.md", DOCS / "jobfile.md", DOCS / "simulation.md"):
        contents[page] = MARKED.sub(
            lambda mark: f"{mark[1]}{_keys(models.get(mark[2]))}{mark[3]}", page.read_text(encoding="utf-8")
        )
    page = DOCS / "negotiation.md"
    tables = {"said": _said(), "heard": _heard()}
    contents[page] = NEGOTIATION.sub(
        lambda mark: f"{mark[1]}{tables[mark[2]]}{mark[3]}", page.read_text(encoding="utf-8")
    )
    contents[DOCS / "_static" / "negotiation.svg"] = drawing()
    for page in (DOCS / "environment.md", DOCS.parent / "CONTRIBUTING.md"):
        contents[page] = VARIABLES.sub(
            lambda mark: f"{mark[1]}{variables_table(mark[2])}{mark[3]}", page.read_text(encoding="utf-8")
        )
    page = DOCS / "json.md"
    contents[page] = JSON.sub(lambda mark: f"{mark[1]}{_json_shapes()}{mark[2]}", page.read_text(encoding="utf-8"))
    page = DOCS / "metrics.md"
    contents[page] = METRICS.sub(
        lambda mark: f"{mark[1]}{_metrics(getattr(catalogue, mark[2]))}{mark[3]}", page.read_text(encoding="utf-8")
    )
    page = DOCS / "drmaa.md"
    contents[page] = DRMAA.sub(lambda mark: f"{mark[1]}{_libraries()}{mark[2]}", page.read_text(encoding="utf-8"))
    page = DOCS / "plugins.md"
    contents[page] = CAPABILITIES.sub(
        lambda mark: f"{mark[1]}{_capabilities(ours)}{mark[2]}", page.read_text(encoding="utf-8")
    )
    contents[MAN_PAGE] = man_page()
    return contents


def _json_shapes() -> str:
    """Return the table of what commands print with ``--json``."""
    rows = [
        f"| `{name}` | {shape.version} | {', '.join(f'`koala {command}`' for command in shape.commands)} |"
        for name, shape in SHAPES.items()
    ]
    return "\n".join(["| schema | version | printed by |", "|---|---|---|", *rows, ""])


def _metrics(told: Sequence[catalogue.Metric]) -> str:
    """Return the table of what one command tells."""
    rows = [
        f"| `{one.name}{'_total' if one.kind is catalogue.Kind.COUNTER else ''}` | {one.kind} "
        f"| {', '.join(f'`{label}`' for label in one.labels)} | {one.help} |"
        for one in told
    ]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows, ""])


def _capabilities(plugins: Mapping[str, PluginDefinition]) -> str:
    """Return the table of the capabilities that each plugin does not state."""
    names = [field.name for field in fields(Capabilities)]
    rows = []
    for plugin, definition in plugins.items():
        lacking = [f"`{name}`" for name in names if not _states(definition.capabilities, name)]
        rows.append(f"| `{plugin}` | {', '.join(lacking)} |")
    return "\n".join(["| plugin | does not state |", "|---|---|", *rows, ""])


def _states(capabilities: Capabilities, name: str) -> bool:
    """Tell whether a capability is stated; those that say how jobs are pinned mean nothing without ``pin``."""
    return bool(getattr(capabilities, name)) and (capabilities.pin or not name.startswith("pin_"))


def _said() -> str:
    """Return what a side may say in each state of a negotiation, and the state that follows."""
    rows = [
        f"| {state} | {', '.join(f'{said} ({to})' for said, to in row.items())} |" for state, row in SENT.items() if row
    ]
    return "\n".join(["| state | may say (then it is) |", "|---|---|", *rows, ""])


def _heard() -> str:
    """Return what each message does in each state of a negotiation; those that do the same stand together.

    Left out is what the page says in sentences: an ending ends a negotiation that has begun, and one that has ended
    otherwise than well answers with its end.
    """
    rows = []
    for state, row in RECEIVED.items():
        if state in OVER:
            continue
        for step in dict.fromkeys(row.values()):
            messages = [message for message in row if row[message] == step and step != (ENDED_BY.get(message), "-")]
            if messages:
                following, answer = step
                rows.append(f"| {state} | {', '.join(messages)} | {following} | {answer} |")
    return "\n".join(["| state | hears | then it is | and answers |", "|---|---|---|---|", *rows, ""])


ENDED_BY = {"reject": REJECTED, "withdraw": WITHDRAWN, "expire": EXPIRED, "error": BROKEN}
OVER = {*ENDED_BY.values(), LOST}


def _libraries() -> str:
    """Return the table of what DRMAA libraries can do, one column for each."""
    known = [library for library in import_module("koala_adapter.lrm.drmaa.libraries").LIBRARIES if library.mark]
    rows = {
        "system": [library.system for library in known],
        "seen": [library.seen for library in known],
        "always asked for": [", ".join(f"`{option}`" for option in library.native) for library in known],
        "walltime": [f"`{library.walltime}`" for library in known],
        "queue": [f"`{library.queue}`" for library in known],
        "memory": [f"`{library.memory}`" for library in known],
        "ids": [library.ids for library in known],
        "id in the job": [f"`{library.job_id_variable}`" for library in known],
        "number of an element of a bulk": [
            f"`{library.index_variable}`" if library.index_variable else "told none" for library in known
        ],
        "placeholders as a bulk (plugin `drmaa`)": [_yes(library.bulk) for library in known],
        "hold and release": [_yes(library.hold) for library in known],
        "suspend and resume": [_yes(library.suspend) for library in known],
        "exit code 0 is believed": [_yes(library.tells_success) for library in known],
        "confused": [library.confused for library in known],
        "sessions and threads": [library.sessions for library in known],
    }
    lines = [f"| {name} | {' | '.join(values)} |" for name, values in rows.items()]
    head = f"| | {' | '.join(library.name for library in known)} |"
    return "\n".join([head, f"|---|{'---|' * len(known)}", *lines, ""])


def _yes(value: object) -> str:
    return "yes" if value else "no"


def _keys(model: type[BaseModel] | None) -> str:
    """Return the keys of a table of a TOML file as a table of the page."""
    if model is None:
        return "The plugin is not installed.\n"
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    required = schema.get("required", [])
    elsewhere = SlotTable.model_fields if model is ComponentTable else {}
    shown = {key: value for key, value in schema["properties"].items() if key not in elsewhere}
    entries = [_entry(key, value, definitions, key in required) for key, value in shown.items()]
    return "\n".join(["| key | value | meaning |", "|---|---|---|", *entries, ""]) if entries else "It has no keys.\n"


def _entry(key: str, value: Mapping[str, object], definitions: Mapping[str, object], required: bool) -> str:  # noqa: FBT001
    facts = [_type(value, definitions)]
    if required:
        facts.append("required")
    elif (default := value.get("default")) not in (None, "", [], {}) and not isinstance(default, dict):
        facts.append(f"default `{_toml(default)}`")
    description = value.get("description") or _described(value.get("$ref"), definitions)
    return f"| `{key}` | {', '.join(facts)} | {description} |".replace("\n", " ")


def _described(reference: object, definitions: Mapping[str, object]) -> object:
    """Return what a definition says of itself: pydantic leaves out a description that says the same."""
    target = definitions.get(reference.rpartition("/")[2]) if isinstance(reference, str) else None
    return target.get("description", "") if isinstance(target, dict) else ""


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


CHOICES = ("anyOf", "allOf", "oneOf")


def _type(value: Mapping[str, object], definitions: Mapping[str, object]) -> str:
    """Return the kind of value in words, with its bounds."""
    options = next((value[key] for key in CHOICES if value.get(key)), None)
    if isinstance(options, list):
        rest = {**value, **dict.fromkeys(CHOICES)}
        words = [_type({**rest, **one}, definitions) for one in options if one != {"type": "null"}]
        return " or ".join(dict.fromkeys(words))
    if isinstance(reference := value.get("$ref"), str):
        target = definitions.get(reference.rpartition("/")[2])
        return _type(target, definitions) if isinstance(target, dict) else "a table"
    if "enum" in value or "const" in value:
        choices = value.get("enum", [value.get("const")])
        return " or ".join(f"`{_toml(word)}`" for word in choices) if isinstance(choices, list) else ""
    if value.get("x-unit") == "seconds":
        return "duration" + _bounds(value)
    kinds = {
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
        "array": "list",
        "object": "table",
    }
    unit = f" {value['x-unit']}" if "x-unit" in value else ""
    return kinds.get(str(value.get("type")), "text") + _bounds(value) + unit


def _bounds(value: Mapping[str, object]) -> str:
    low, high = value.get("minimum"), value.get("maximum")
    words = (f" from {_toml(low)}" if low is not None else "") + (f" to {_toml(high)}" if high is not None else "")
    return words + (" s" if words and value.get("x-unit") == "seconds" else "")


def main() -> None:
    """Write the files."""
    for path, content in generated().items():
        path.write_text(content, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
