# SPDX-License-Identifier: Apache-2.0
"""Loading plugins: good ones are found by name, and each way of being broken is refused with its author's address."""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, ConfigDict

from koala_adapter.errors import EXIT_CONFIGURATION, LrmUnsupportedError, PluginError
from koala_adapter.lrm import (
    ENTRY_POINT_GROUP,
    INTERFACE_VERSION,
    Capabilities,
    Lrm,
    PinnedStart,
    PluginDefinition,
    load_plugins,
)
from koala_adapter.model import LrmJobId

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from koala_adapter.lrm import ClusterContext


class ClosedSettings(BaseModel):
    """Settings as they must be."""

    model_config = ConfigDict(extra="forbid")


class OpenSettings(BaseModel):
    """Settings in which a misspelt key goes unnoticed."""


def make_nothing(_context: ClusterContext, _settings: BaseModel) -> Lrm:
    """Stand for a factory that is never called."""
    raise NotImplementedError


def define(**changes: Any) -> PluginDefinition:  # noqa: ANN401 - also wrong types, on purpose
    """Return a good definition called ``sample``, with changes."""
    values: dict[str, Any] = {
        "name": "sample",
        "summary": "a plugin of the tests",
        "settings": ClosedSettings,
        "capabilities": Capabilities(),
        "factory": make_nothing,
    }
    return PluginDefinition(**(values | changes))


GOOD = define()
SECOND = define(name="second")
RENAMED = define(name="other")
OLD = define(interface_version=INTERFACE_VERSION + 1)
OPEN = define(settings=OpenSettings)
NO_MODEL = define(settings=dict)
NO_CLASS = define(settings=ClosedSettings())
NO_FACTORY = define(factory=None)
NAMELESS = define(capabilities=Capabilities(find_by_name=False))
OUTSIDE_ONLY = define(capabilities=Capabilities(submit=False, find_by_name=False))
NO_CAPABILITIES = define(capabilities={"submit": True})
NO_DEFINITION = {"name": "sample"}


def entry(attribute: str, *, name: str = "sample", module: str = __name__) -> EntryPoint:
    """Return an entry point that names something of this module."""
    return EntryPoint(name=name, value=f"{module}:{attribute}", group=ENTRY_POINT_GROUP)


def test_good_plugins_are_found_by_name() -> None:
    """Definitions come back under the names of their entry points."""
    assert load_plugins([entry("GOOD"), entry("SECOND", name="second")]) == {"sample": GOOD, "second": SECOND}


def test_without_submitting_nothing_must_be_found_by_name() -> None:
    """A plugin for systems that are only scheduled from outside has no submissions that could be sent twice."""
    assert load_plugins([entry("OUTSIDE_ONLY")]) == {"sample": OUTSIDE_ONLY}


def test_no_plugins() -> None:
    """An installation without plugins is no error of the registry."""
    assert load_plugins([]) == {}


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (entry("RENAMED"), "calls itself 'other'"),
        (entry("OLD"), f"this is interface {INTERFACE_VERSION}"),
        (entry("OPEN"), 'extra="forbid"'),
        (entry("NO_MODEL"), "pydantic model class"),
        (entry("NO_CLASS"), "pydantic model class"),
        (entry("NO_FACTORY"), "factory must be callable"),
        (entry("NAMELESS"), "cannot find its submissions by name"),
        (entry("NO_CAPABILITIES"), "capabilities must be Capabilities, not dict"),
        (entry("NO_DEFINITION"), "expected a PluginDefinition, found dict"),
        (entry("NOT_THERE"), "AttributeError"),
        (entry("PLUGIN", module="koala_no_such_module"), "ModuleNotFoundError"),
    ],
    ids=lambda value: value.value.partition(":")[2] if isinstance(value, EntryPoint) else "",
)
def test_broken_plugins_are_refused(broken: EntryPoint, complaint: str) -> None:
    """Whatever is wrong, the error names the entry point, what it found and a way out."""
    with pytest.raises(PluginError) as caught:
        load_plugins([broken])[broken.name]
    assert complaint in caught.value.message
    assert broken.value in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == EXIT_CONFIGURATION


def test_failing_import_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin whose module raises at import, in whatever way, is named instead of ending the program."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "koala_explodes.py").write_text("raise ZeroDivisionError('boom')\n")
    with pytest.raises(PluginError, match="cannot be imported: ZeroDivisionError: boom"):
        load_plugins([entry("PLUGIN", module="koala_explodes")])["sample"]


def test_a_plugin_is_imported_when_it_is_looked_up() -> None:
    """One that is broken stops nobody who does not use it, and is known by name before it is imported."""
    plugins = load_plugins([entry("GOOD"), entry("PLUGIN", name="broken", module="koala_no_such_module")])
    assert plugins["sample"] is GOOD
    assert "broken" in plugins
    assert "missing" not in plugins
    assert sorted(plugins) == ["broken", "sample"]
    with pytest.raises(KeyError):
        plugins["missing"]
    with pytest.raises(PluginError, match="koala_no_such_module"):
        dict(plugins)


def test_two_of_one_name_are_refused() -> None:
    """Two distributions that offer the same name are a conflict that a person must settle."""
    with pytest.raises(PluginError, match="two plugins are called 'sample'"):
        load_plugins([entry("GOOD"), entry("GOOD")])


def test_installed_plugins_load() -> None:
    """Ours keep the contract; where none is installed (tests from the source) at least ``local`` does."""
    installed = list(entry_points(group=ENTRY_POINT_GROUP))
    wanted = installed or [entry("PLUGIN", name="local", module="koala_local")]
    assert set(dict(load_plugins(wanted))) == {point.name for point in wanted}
    assert load_plugins() == load_plugins(installed)


class Bare(Lrm):
    """An LRM with only what it must have."""

    capabilities = Capabilities()

    async def version(self) -> str:
        """Give none."""
        return "bare 0"

    async def nodes(self) -> tuple[()]:
        """Give none."""
        return ()

    async def jobs(self, *, name_prefix: str = "") -> tuple[()]:  # noqa: ARG002
        """Give none."""
        return ()

    async def queues(self) -> tuple[()]:
        """Give none."""
        return ()

    def render(self, submission: Any) -> Any:  # noqa: ANN401
        """Give nothing."""

    async def submit(self, submission: Any) -> tuple[()]:  # noqa: ANN401, ARG002
        """Give none."""
        return ()

    async def cancel(self, ids: Any) -> None:  # noqa: ANN401
        """Do nothing."""


JOB = LrmJobId("1")
START = PinnedStart(job=JOB, nodes=("n1",))
CALLS: dict[str, Callable[[Lrm], Any]] = {
    "history": lambda lrm: lrm.history([JOB]),
    "hold": lambda lrm: lrm.hold([JOB]),
    "release": lambda lrm: lrm.release([JOB]),
    "start_on": lambda lrm: lrm.start_on(START),
    "suspend": lambda lrm: lrm.suspend([JOB]),
    "resume": lambda lrm: lrm.resume([JOB]),
    "requeue": lambda lrm: lrm.requeue([JOB]),
    "signal": lambda lrm: lrm.signal([JOB], 10),
    "modify": lambda lrm: lrm.modify(JOB, walltime=60),
    "notify": lambda lrm: lrm.notify(JOB, "text"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("operation", sorted(CALLS))
async def test_what_a_plugin_leaves_out_is_unsupported(operation: str) -> None:
    """Every optional operation that a plugin does not write raises LrmUnsupportedError with its name."""
    with pytest.raises(LrmUnsupportedError, match=f"Bare cannot {operation}"):
        await CALLS[operation](Bare())


@pytest.mark.anyio
async def test_defaults_do_no_harm() -> None:
    """Start, close and both checks have defaults, and every optional method is in the table above."""
    lrm = Bare()
    await lrm.start()
    assert await lrm.check() == ()
    assert [result.ok for result in await lrm.check_outside()] == [False]
    await lrm.close()
    optional = {
        name
        for name, method in inspect.getmembers(Lrm, inspect.iscoroutinefunction)
        if not getattr(method, "__isabstractmethod__", False)
    }
    with pytest.raises(LrmUnsupportedError, match="Bare cannot hold"):
        await lrm.undo_start(START)
    await lrm.confirm_start(START)
    assert await lrm.confirm_starts([START]) == {}
    assert await lrm.original_request(JOB) == ""
    with pytest.raises(LrmUnsupportedError, match="Bare cannot release"):
        await lrm.give_back([JOB])
    assert await lrm.held_by_hook() == ()
    harmless = {"start", "close", "check", "check_outside", "undo_start", "confirm_start", "confirm_starts"}
    await lrm.look_for_obstacle()
    assert lrm.submission_obstacle == lrm.submission_way == ""
    harmless |= {"held_by_hook", "give_back", "look_for_obstacle", "original_request"}
    assert optional - harmless == set(CALLS)
