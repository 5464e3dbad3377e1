# SPDX-License-Identifier: Apache-2.0
"""Holds the house together: who may import whom, and which parts may not touch the world.

The rules are those of docs/architecture.md. The source is read, not a running program, so an import inside a
function or under TYPE_CHECKING counts like any other. Each rule is also shown to catch a violation.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = "koala_adapter"
PLUGINS = frozenset({"koala_drmaa", "koala_local", "koala_pbs", "koala_sge", "koala_slurm", "koala_wiki"})
EXPERIMENTS = "koala_experiments"
DISTRIBUTIONS = (*PLUGINS, EXPERIMENTS)
"""What the core finds by entry points, and never imports."""
AGENT = f"{CORE}.vjm.agent"


def _in(*names: str) -> tuple[str, ...]:
    return tuple(f"{CORE}.{name}" for name in names)


APPLICATION = _in(*(f"application.{part}" for part in ("notes", "sizes", "process", "bargains", "session")))
NEGOTIATION = f"{CORE}.negotiation"
SCHEMA = f"{NEGOTIATION}.schema"
"""What does not travel to programs, as all the rest of that room does."""
(GATEWAY,) = _in("gateway")
CONNECTION, LAUNCHER = _in("tasks.connection", "tasks.launcher")
TASKWORKER, LEAVE = _in("python.taskworker", "dask.leave")
WORKER, STEPPER = f"{EXPERIMENTS}.worker", f"{EXPERIMENTS}.stepper"
HELPER = _in(*(f"lrm.drmaa.{name}" for name in ("complaints", "helper", "ledger")))
STANDALONE = (AGENT, GATEWAY, *APPLICATION, NEGOTIATION, CONNECTION, LAUNCHER, WORKER, *HELPER)
"""Modules that run alone, with whatever Python a node has."""

NOUNS = _in("__version__", "on_demand", "errors", "outcome", "model", "slots")
"""What every room may import: the nouns, the error tree, and what the package itself has."""

SCHEDULER_NOUNS = tuple(
    f"scheduler.{part}"
    for part in (
        "actions",
        "context",
        "events",
        "knownpolicies",
        "parameters",
        "records",
        "clusters",
        "sizechange",
        "states",
        "timers",
        "timetable",
    )
)
"""What the rooms inside the scheduler share."""


def _rooms(*names: str) -> tuple[str, ...]:
    return (*NOUNS, *_in(*names))


MAY_IMPORT = {
    **dict.fromkeys(NOUNS[2:], NOUNS),
    **{one: _rooms(one.removeprefix(f"{CORE}.")) for one in _in("wire", "sizes", "host", "queueing", "report")},
    NEGOTIATION: _rooms("negotiation"),
    f"{CORE}.application": _rooms("application", "negotiation"),
    **dict.fromkeys(APPLICATION, (*APPLICATION, NEGOTIATION)),
    GATEWAY: (GATEWAY,),
    f"{CORE}.lrm": _rooms("lrm", "host", "wire"),
    f"{CORE}.sites": _rooms("sites", "gateway", "host", "lrm"),
    f"{CORE}.lrm.drmaa": _rooms("lrm", "host"),
    f"{CORE}.scheduler": _rooms("scheduler", "sizes", "wire"),
    f"{CORE}.scheduler.placement": _rooms("scheduler.placement", *SCHEDULER_NOUNS),
    f"{CORE}.scheduler.claiming": _rooms("scheduler.claiming", "scheduler.placement", *SCHEDULER_NOUNS),
    f"{CORE}.scheduler.malleable": _rooms("scheduler.malleable", "scheduler.claiming", *SCHEDULER_NOUNS),
    f"{CORE}.vjm": _rooms("vjm", "host", "wire"),
    AGENT: (AGENT,),
    f"{CORE}.driver": _rooms("driver", "scheduler"),
    f"{CORE}.policies": _rooms("policies", "lrm", "queueing", "scheduler", "sizes"),
    f"{CORE}.runners": _rooms("runners", "scheduler", "sizes", "vjm"),
    f"{CORE}.tasks": _rooms("tasks", "vjm.certificate"),
    CONNECTION: (),
    LAUNCHER: (CONNECTION,),
    f"{CORE}.testing": _rooms("testing", "lrm"),
    f"{CORE}.config": _rooms(
        "config", "host.regularfile", "lrm", "policies", "scheduler", "sizes", "tasks", "vjm.agent.processes", "wire"
    ),
    f"{CORE}.ordering": _rooms("ordering", "host", "lrm", "policies.checked", "queueing"),
    f"{CORE}.service": _rooms(
        "service",
        *("application", "config", "driver", "host", "lrm", "negotiation", "runners", "scheduler"),
        *("report.sitevalues", "report.values", "sites", "sizes", "tasks", "vjm", "wire"),
    ),
    f"{CORE}.simulation": _rooms(
        "simulation",
        *("config.fields", "config.diagnosis", "config.tomlfile"),
        *("driver", "queueing", "report", "scheduler", "sizes"),
    ),
    f"{CORE}.api": _rooms(
        "api", "config", "driver", "host", "lrm", "negotiation", "report", "scheduler", "service", "vjm", "wire"
    ),
    f"{CORE}.wiki": _rooms("wiki", "api.client", "host", "lrm", "report.sitevalues", "report.values"),
    f"{CORE}.wiki.codec": _rooms("wiki.codec", "wire.hostlists"),
    f"{CORE}.sitesetup": _rooms("sitesetup", "api", "config", "lrm", "scheduler", "service", "vjm"),
    f"{CORE}.dask": _rooms("dask", "api", "config", "host.privatedirectory", "lrm", "python", "report"),
    LEAVE: (),
    f"{CORE}.parsl": _rooms("config", "lrm", "python", "report"),
    f"{CORE}.web": _rooms("web", "api.asyncclient", "api.client", "report"),
    f"{CORE}.python": _rooms(
        "python",
        *("api", "config", "lrm", "policies", "report", "scheduler.knownpolicies", "sitesetup", "tasks"),
        *("host.privatedirectory", "host.regularfile", "vjm.certificate"),
    ),
    TASKWORKER: (CONNECTION,),
    f"{CORE}.cli": (CORE,),
    "koala_drmaa": (*_rooms("lrm"), "koala_drmaa"),
    "koala_local": (*_rooms("host", "lrm"), "koala_local"),
    "koala_pbs": (*_rooms("lrm"), "koala_pbs"),
    "koala_sge": (*_rooms("lrm"), "koala_sge"),
    "koala_slurm": (*_rooms("lrm", "wire"), "koala_slurm"),
    "koala_wiki": (*_rooms("lrm", "wiki.client", "wiki.codec"), "koala_wiki"),
    EXPERIMENTS: (
        *_rooms("api", "cli", "config", "lrm", "report", "scheduler", "service", "simulation", "sizes"),
        *_in("python.localsite", "python.site", "tasks.connection", "tasks.server", "vjm.certificate"),
        EXPERIMENTS,
    ),
    STEPPER: (),
    WORKER: (CONNECTION,),
}
"""Of our own modules, a room on the left imports only those on its right. The longest matching name rules."""

IMPORTED_ONLY_BY = {
    f"{CORE}.cli": (*_in("cli", "__main__"), EXPERIMENTS),
    f"{CORE}.sitesetup": _in("sitesetup", "python", "cli"),
    f"{CORE}.api": (
        *_in("api", "dask", "parsl", "python", "sitesetup", "web", "wiki.multicluster", "cli"),
        EXPERIMENTS,
    ),
    f"{CORE}.python": (*_in("python", "cli", "dask", "parsl"), EXPERIMENTS),
    f"{CORE}.dask": _in("dask"),
    f"{CORE}.parsl": _in("parsl"),
    "parsl": _in("parsl"),
    f"{CORE}.web": _in("web", "cli"),
    f"{CORE}.service": (*_in("service", "api", "sitesetup", "cli"), EXPERIMENTS),
    f"{CORE}.simulation": (*_in("simulation", "cli"), EXPERIMENTS),
    EXPERIMENTS: (EXPERIMENTS,),
}
"""The rooms on top, and what is installed for one of them alone: whatever lies below does not know them."""

SERVING_SITES = ("koala_drmaa", "koala_pbs", "koala_sge", "koala_slurm")
"""Plugins whose clusters may be at other sites: ``sites`` in their definitions."""
RUNNING_HERE = ("koala_slurm.library", "koala_slurm.library_helper")
"""What they use on this host alone: the helper process of pyslurm."""
PAST_THE_DOOR = (
    *("os.environ", "os.geteuid", "os.getenv", "os.open"),
    *("grp", "pwd", "shutil", "socket", "subprocess", "tempfile"),
)
"""What reaches the host of koala, not that of the batch system."""

OF_EXTRAS = {
    **dict.fromkeys(("dask", "distributed"), f"{CORE}.dask"),
    **dict.fromkeys(("starlette", "uvicorn"), f"{CORE}.web"),
}
"""What only an extra of setup.cfg brings along, and the one room that needs it."""

# fmt: off
WORLD = frozenset({
    "anyio", "asyncio", "concurrent", "datetime", "http", "io", "logging", "multiprocessing", "os",
    "pathlib", "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl",
    "structlog", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
})
# fmt: on
"""Modules that reach files, networks, processes, clocks, threads or chance."""

HARMLESS = (
    "pathlib.PurePath",
    "pathlib.PurePosixPath",
    "time.strptime",
    "urllib.parse.quote",
    "urllib.parse.unquote_to_bytes",
)
"""Names from these modules that compute and nothing else."""

WORLD_CALLS = frozenset({"__import__", "input", "open", "print"})

PURE = _in(
    *("scheduler", "queueing", "sizes", "slots", "model", "outcome", "errors", "wiki.codec", "wiki.inventory"),
    *(
        "runners.coordinator",
        "runners.notes",
        "tasks.sweep",
        "report.markup",
        "report.sitevalues",
        "report.values",
        "service.listings",
        "vjm.channel",
        "lrm.drmaa.protocol",
        "gateway.streams",
        "sites.network",
    ),
    *(f"negotiation.{part}" for part in ("templates", "document", "states", "endpoint")),
)
"""Rooms and files that compute and do nothing else. So does each module that calls itself pure, see `is_pure`."""

PURE_CLAIM = re.compile(r"^Pure\b|[.:] Pure\b", re.MULTILINE)
"""A sentence of a module's docstring that begins with this word makes it one of the pure parts."""

INSIDE_FUNCTIONS = {
    # The command line, and Python programs: a command that only asks begins without them.
    f"{CORE}.cli": ["koala_adapter.cli.koala.koala"],  # Ctrl-C while it is imported is answered by main
    f"{CORE}.cli.jobs": ["http.client.HTTPConnection", "http.client.HTTPException"],
    f"{CORE}.cli.koala": ["importlib.metadata"],
    f"{CORE}.cli.plan": ["rich.syntax.Syntax"],
    f"{CORE}.cli.run": ["koala_adapter.cli.innerservice.inner_service"],
    f"{CORE}.cli.session": [
        "koala_adapter.cli.console.LineEnds",
        "koala_adapter.cli.console.SafeConsole",
        "koala_adapter.cli.log.set_up_log",
    ],
    f"{CORE}.api.client": ["koala_adapter.model.Job"],
    f"{CORE}.lrm.rate": ["structlog"],
    f"{CORE}.python.site": [
        "anyio.CancelScope",
        "anyio.to_thread",
        "concurrent.futures.ThreadPoolExecutor",
        "koala_adapter.api.closedjournal.closed_journal",
        "koala_adapter.api.offline.WithoutService",
    ],
    f"{CORE}.report.figures": ["matplotlib.figure"],
    # A service: most never change a size, and never send a notice.
    f"{CORE}.application.shipping": ["koala_adapter.negotiation"],
    f"{CORE}.service.notices": ["urllib.request"],
    f"{CORE}.service.sizes": ["koala_adapter.service.sizes.loop.Sizes"],
    # What runs alone: many placeholders start at once on one node, and not every Python has ctypes and ssl.
    f"{CORE}.gateway.direct": ["ssl"],
    f"{CORE}.tasks.launcher": ["ctypes"],
    f"{AGENT}.holding": ["koala_adapter.vjm.agent.probe.Probes", "koala_adapter.vjm.agent.task.TaskList"],
    f"{AGENT}.processes": ["subprocess"],
    f"{AGENT}.task": [
        "koala_adapter.vjm.agent.application.ApplicationSocket",
        "koala_adapter.vjm.agent.inputs.Inputs",
        "koala_adapter.vjm.agent.relay.Relay",
    ],
    f"{AGENT}.usage": ["ctypes"],
}
"""All imports that do not stand at the top of a file, by module. What else a room needs late, its door hands on."""

STDLIB_SINCE_36 = frozenset({"contextvars", "dataclasses", "graphlib", "tomllib", "zoneinfo"})
"""Modules of the standard library that Python 3.6, the oldest on a node, does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One source file of ours."""

    name: str
    path: str
    source: str

    @property
    def package(self) -> str:
        """Name of the package that relative imports start from."""
        return self.name if self.path.endswith("__init__.py") else self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported name, absolute, with the line it stands on."""

    target: str
    line: int


@cache
def source_modules() -> list[Module]:
    found = []
    experiments = (ROOT / "plugins" / "koala-experiments" / "src", EXPERIMENTS)
    for root, folder in [(ROOT, CORE), *((ROOT / "plugins", name) for name in sorted(PLUGINS)), experiments]:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            relative = str(path.relative_to(ROOT))
            found.append(Module(name=name, path=relative, source=path.read_text(encoding="utf-8")))
    return found


def within(name: str, parts: Iterable[str]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


@cache
def tree(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def imports(module: Module) -> tuple[Import, ...]:
    """Return all that a module imports, wherever in the file it does so."""
    found = []
    for node in ast.walk(tree(module.source)):
        if isinstance(node, ast.Import):
            found += [Import(target=alias.name, line=node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.package.split(".")
                above = ".".join(parents[: len(parents) - node.level + 1])
                base = f"{above}.{base}" if base else above
            found += [Import(target=f"{base}.{alias.name}", line=node.lineno) for alias in node.names]
    return tuple(found)


def inner_imports(module: Module) -> list[str]:
    """Return what the functions of a module import."""
    functions = (
        one for one in ast.walk(tree(module.source)) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lines = {line for one in functions for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
    return sorted({item.target for item in imports(module) if item.line in lines})


def is_ours(name: str) -> bool:
    """Tell whether a module belongs to the core or to a distribution of ours that it finds by entry points."""
    return within(name, (CORE, *DISTRIBUTIONS))


def direction_violations(module: Module) -> list[str]:
    """Return each import of a module that goes against the one-way dependencies."""
    if module.name == CORE:
        return []  # it hands on, when asked, what programs get
    rule = max((part for part in MAY_IMPORT if within(module.name, [part])), key=len, default=None)
    found = []
    for item in imports(module):
        reserved = [part for part in IMPORTED_ONLY_BY if within(item.target, [part])]
        if item.target == CORE or not (is_ours(item.target) or reserved):
            continue  # of the bare package, the core uses nothing but the version
        if (
            (rule is not None and is_ours(item.target) and not within(item.target, MAY_IMPORT[rule]))
            or (within(module.name, [CORE]) and within(item.target, DISTRIBUTIONS))
            or any(not within(module.name, IMPORTED_ONLY_BY[part]) for part in reserved)
        ):
            found.append(f"{module.path}:{item.line}: {module.name} may not import {item.target}")
    return found


def door_violations(module: Module) -> list[str]:
    """Return what a plugin that serves clusters at other sites runs or reads here, past the host of its context."""
    if not within(module.name, SERVING_SITES) or within(module.name, RUNNING_HERE):
        return []
    found = [f"{item.line}: {item.target}" for item in imports(module) if within(item.target, PAST_THE_DOOR)]
    for node in ast.walk(tree(module.source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in PAST_THE_DOOR:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            found.append(f"{node.lineno}: open()")
    return [f"{module.path}:{one}, where a plugin asks the host of its context" for one in found]


def extra_violations(module: Module) -> list[str]:
    """Return each import of what is not installed with koala-adapter itself, but for the part that is for it."""
    return [
        f"{module.path}:{item.line}: {module.name} may not import {item.target}"
        for item in imports(module)
        if (top := item.target.partition(".")[0]) in OF_EXTRAS and not within(module.name, [OF_EXTRAS[top]])
    ]


def import_circle(modules: Sequence[Module]) -> list[str]:
    """Return the names of modules that import each other in a circle, the first again as the last; empty without."""
    names = {module.name for module in modules}
    graph: TopologicalSorter[str] = TopologicalSorter()
    for module in modules:
        # What the package itself has is there before anything that it hands on when it is asked for.
        targets = (item.target for item in imports(module) if item.target not in NOUNS[:2])
        found = (target if target in names else target.rpartition(".")[0] for target in targets)
        graph.add(module.name, *(name for name in found if name in names and name != module.name))
    try:
        graph.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def is_pure(module: Module) -> bool:
    """Tell whether a module must do no input or output and read no clock, by rule or by its own word."""
    docstring = ast.get_docstring(tree(module.source)) or ""
    return within(module.name, PURE) or PURE_CLAIM.search(docstring) is not None


def purity_violations(module: Module) -> list[str]:
    """Return each import and call of a module that touches the world."""
    found = [
        f"{module.path}:{item.line}: {module.name} is pure, it may not import {item.target}"
        for item in imports(module)
        if item.target.partition(".")[0] in WORLD and not within(item.target, HARMLESS)
    ]
    for node in ast.walk(tree(module.source)):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in WORLD_CALLS:
                found.append(f"{module.path}:{node.lineno}: {module.name} is pure, it may not call {name}()")
    return found


def agent_violations(module: Module) -> list[str]:
    """Return each import of what runs alone that a bare Python 3.6 could not satisfy."""
    found = []
    for item in imports(module):
        top = item.target.partition(".")[0]
        newer = top in STDLIB_SINCE_36 or item.target == "__future__.annotations" or within(item.target, [SCHEMA])
        alone: tuple[Sequence[str], ...] = ([AGENT], [GATEWAY], HELPER)
        own = next((parts for parts in alone if within(module.name, parts)), None)
        travels_along = own or [*APPLICATION, NEGOTIATION, CONNECTION]
        if newer or not (top in sys.stdlib_module_names or within(item.target, travels_along)):
            found.append(f"{module.path}:{item.line}: what runs alone may not import {item.target}")
    return found


def snippet(name: str, source: str) -> Module:
    """Return a module that exists only here, to show that a rule catches it."""
    return Module(name=name, path="snippet.py", source=source)


def test_dependencies_point_one_way() -> None:
    assert [line for module in source_modules() for line in direction_violations(module)] == []


def test_plugins_reach_the_batch_system_by_the_host_of_their_context() -> None:
    assert [line for module in source_modules() for line in door_violations(module)] == []


@pytest.mark.parametrize(
    "source", ["import subprocess", "import os\nhome = os.environ['HOME']", "text = open('/etc/hosts').read()"]
)
def test_a_way_past_the_host_of_the_context_is_found(source: str) -> None:
    assert len(door_violations(snippet("koala_slurm.lrm", source))) == 1


def test_an_extra_is_needed_by_its_own_part_alone() -> None:
    """Who does not use Dask needs none of it."""
    assert [line for module in source_modules() for line in extra_violations(module)] == []
    assert len(extra_violations(snippet(f"{CORE}.cli.run", "def f() -> None:\n    import distributed.client"))) == 1
    assert extra_violations(snippet(f"{CORE}.dask.cluster", "from distributed import Client")) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert import_circle(source_modules()) == []


def test_imports_stand_at_the_top_of_a_file() -> None:
    """But for those whose cost was measured, and is worth a second look."""
    assert {module.name: found for module in source_modules() if (found := inner_imports(module))} == INSIDE_FUNCTIONS
    assert inner_imports(snippet("a", "import b\ndef f() -> None:\n    if b:\n        from c import d\n")) == ["c.d"]


def test_pure_modules_do_not_touch_the_world() -> None:
    pure = [module for module in source_modules() if is_pure(module)]
    assert [line for module in pure for line in purity_violations(module)] == []


def test_what_runs_alone_needs_only_an_old_standard_library() -> None:
    """The agent and the application library import what Python 3.6 brings along, and nothing else."""
    alone = [module for module in source_modules() if within(module.name, STANDALONE)]
    agents = [module for module in alone if not within(module.name, [SCHEMA])]
    assert {STANDALONE[0], STANDALONE[1]} <= {module.name for module in agents}
    assert [line for module in agents for line in agent_violations(module)] == []


def test_rules_name_parts_that_exist() -> None:
    """A rule about a part that was renamed or removed would hold nothing."""
    modules = source_modules()
    assert [name for name in {*MAY_IMPORT, *PURE} if not any(within(one.name, [name]) for one in modules)] == []


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        (f"{CORE}.service.service", "import koala_slurm"),
        (f"{CORE}.cli.run", "def f() -> None:\n    from koala_sge import PLUGIN"),
        (f"{CORE}.model", "from koala_adapter.lrm import Lrm"),
        (f"{CORE}.scheduler.core", "from ..plugin import Lrm"),
        (f"{CORE}.service.service", "from koala_adapter.cli import main"),
        (f"{CORE}.scheduler.placement.policy", "from koala_adapter.scheduler.claiming.claims import reclaim"),
        (f"{CORE}.runners.rigid", "if TYPE_CHECKING:\n    from koala_adapter.service.service import Service"),
        (AGENT, "from koala_adapter.errors import KoalaError"),
        (f"{CORE}.cli.simulate", "import koala_experiments.commands"),
        (f"{CORE}.cli.run", "from koala_adapter.dask import KoalaCluster"),
        ("koala_slurm.parsing", "from koala_adapter.service.service import Service"),
        ("koala_local", "import koala_slurm"),
        (f"{CORE}.service.service", "from parsl.providers.base import ExecutionProvider"),
        (f"{CORE}.service.service", "from koala_adapter import Site"),
    ],
)
def test_import_against_the_direction_is_found(importer: str, source: str) -> None:
    """Each way of importing what a part may not import is reported with file and line."""
    found = direction_violations(snippet(importer, f"import json\n{source}\n"))
    assert len(found) == 1
    assert found[0].startswith(("snippet.py:2: ", "snippet.py:3: "))


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        (f"{CORE}.scheduler.core", "from .queue import Queue\nfrom koala_adapter.model import Job"),
        (f"{CORE}.cli.run", "from koala_adapter.service.service import Service\nfrom . import output"),
        ("koala_sge.lrm", "from koala_adapter.lrm.drmaa import transport\nfrom koala_adapter.lrm import Lrm"),
        ("koala_slurm.lrm", "import subprocess\nfrom koala_adapter.lrm.commands import CommandRunner"),
    ],
)
def test_import_along_the_direction_is_accepted(importer: str, source: str) -> None:
    assert direction_violations(snippet(importer, source)) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("from koala_adapter.second import x", "from koala_adapter import first"),
        ("from koala_adapter import second", "def f() -> None:\n    import koala_adapter.first"),
        ("import koala_adapter.second", "if TYPE_CHECKING:\n    from .first import x"),
    ],
)
def test_import_circle_is_found(first: str, second: str) -> None:
    modules = [snippet(f"{CORE}.first", first), snippet(f"{CORE}.second", second)]
    assert set(import_circle(modules)) == {f"{CORE}.first", f"{CORE}.second"}
    assert import_circle([modules[0], snippet(f"{CORE}.second", "")]) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os.path",
        "from time import monotonic",
        "from pathlib import Path, PurePath",
        "def f() -> None:\n    import random",
        "import logging as log",
        "text = open('state').read()",
        "def f() -> None:\n    print('placed')",
    ],
)
def test_touching_the_world_is_found(source: str) -> None:
    assert len(purity_violations(snippet(f"{CORE}.scheduler.core", source))) == 1


@pytest.mark.parametrize(
    ("name", "docstring", "pure"),
    [
        (f"{CORE}.scheduler", "The core.", True),
        (f"{CORE}.scheduler.claiming", "Claims.", True),
        (f"{CORE}.vjm.agent", "Runs on nodes.", False),
        (f"{CORE}.schedulers", "A name that begins alike.", False),
        ("koala_slurm.parsing", "Output to values. Pure.", True),
        ("koala_slurm.parsing", "Output to values.\n\nPure: the text comes in as an argument.", True),
        ("koala_slurm.lrm", "Runs what the Pure parts built.", False),
    ],
)
def test_pure_modules_are_recognised(name: str, docstring: str, pure: bool) -> None:  # noqa: FBT001 - given by name
    """Scheduler and codecs are pure by rule, others by their own word, and nothing is by resemblance."""
    assert is_pure(snippet(name, f'"""{docstring}"""')) is pure


@pytest.mark.parametrize(
    "source",
    [
        "import anyio",
        "from koala_adapter.errors import KoalaError",
        "import dataclasses",
        "from __future__ import annotations",
        "from koala_adapter.negotiation import document",
    ],
)
def test_agent_import_beyond_the_old_standard_library_is_found(source: str) -> None:
    """A third party's module, one of ours, and one younger than Python 3.6 are each reported."""
    assert len(agent_violations(snippet(AGENT, source))) == 1
