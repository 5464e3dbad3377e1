# SPDX-License-Identifier: Apache-2.0
"""Plugins are found by name, and the contract's capabilities are asked for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from koala_adapter.errors import EXIT_CONFIGURATION, LrmRejectedError, LrmUnsupportedError, PluginError
from koala_adapter.lrm import (
    ENTRY_POINT_GROUP,
    INTERFACE_VERSION,
    Capabilities,
    ClusterContext,
    Lrm,
    PinnedStart,
    PluginDefinition,
    load_plugins,
)
from koala_adapter.lrm.contract import Directives, ReservationRequest, Submission, expressible
from koala_adapter.lrm.mapping import MAP_KEYS, arguments_of, braces_problem, divide
from koala_adapter.model import BatchKey, LrmJobId
from koala_adapter.slots import PLAIN, SLOT_KEYS, Slot

# Loading plugins: good ones are found by name, and each way of being broken is refused with its author's address.


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
    return EntryPoint(name=name, value=f"{module}:{attribute}", group=ENTRY_POINT_GROUP)


def test_good_plugins_are_found_by_name() -> None:
    """One that does not submit need not find its submissions by name."""
    points = [entry("GOOD"), entry("SECOND", name="second")]
    assert load_plugins(points) == {"sample": GOOD, "second": SECOND}
    assert load_plugins([entry("OUTSIDE_ONLY")]) == {"sample": OUTSIDE_ONLY}


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
    with pytest.raises(PluginError) as caught:
        load_plugins([broken])[broken.name]
    assert complaint in caught.value.message
    assert broken.value in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == EXIT_CONFIGURATION


def test_failing_import_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "koala_explodes.py").write_text("raise ZeroDivisionError('boom')\n")
    with pytest.raises(PluginError, match="cannot be imported: ZeroDivisionError: boom"):
        load_plugins([entry("PLUGIN", module="koala_explodes")])["sample"]


def test_a_plugin_is_imported_when_it_is_looked_up() -> None:
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
RESERVATION = ReservationRequest(
    placeholders=Submission(key=BatchKey("r"), count=1, script="", walltime=60), starts_in=10.0
)
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
    "reserve": lambda lrm: lrm.reserve(RESERVATION),
    "unreserve": lambda lrm: lrm.unreserve("r"),
    "notify": lambda lrm: lrm.notify(JOB, "text"),
}


@pytest.mark.parametrize("operation", sorted(CALLS))
async def test_what_a_plugin_leaves_out_is_unsupported(operation: str) -> None:
    with pytest.raises(LrmUnsupportedError, match=f"Bare cannot {operation}"):
        await CALLS[operation](Bare())


async def test_defaults_do_no_harm() -> None:
    lrm = Bare()
    await lrm.start()
    assert await lrm.check() == ()
    assert [result.ok for result in await lrm.check_outside()] == [False]
    await lrm.close()
    with pytest.raises(LrmUnsupportedError, match="Bare cannot hold"):
        await lrm.undo_start(START)
    with pytest.raises(LrmUnsupportedError, match="Bare cannot release"):
        await lrm.give_back([JOB])
    await lrm.confirm_start(START)
    assert await lrm.confirm_starts([START]) == {}
    assert await lrm.reservations() == {}
    assert await lrm.original_request(JOB) == ""
    assert await lrm.jobs_to_schedule() == await lrm.held_by_hook() == ()
    await lrm.look_for_obstacle()
    assert lrm.submission_obstacle == lrm.submission_way == ""
    operations = inspect.getmembers(Lrm, inspect.iscoroutinefunction)
    optional = {name for name, method in operations if not getattr(method, "__isabstractmethod__", False)}
    assert optional - CALLS.keys() == {
        *("start", "close", "check", "check_outside", "undo_start", "give_back", "confirm_start", "confirm_starts"),
        *("reservations", "original_request", "jobs_to_schedule", "held_by_hook", "look_for_obstacle"),
    }


# The contract has the capabilities that are asked for, and the manual's table has the same.

ROOT = Path(__file__).parents[3]
CONTRACT = ROOT / "koala_adapter" / "lrm" / "contract.py"
NAMES = [field.name for field in fields(Capabilities)]


def test_the_manual_lists_every_capability_and_no_other() -> None:
    text = (ROOT / "docs" / "plugins.md").read_text()
    table = text.partition("## Capabilities")[2].partition("<!-- capabilities -->")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == NAMES


def test_every_capability_is_asked_for() -> None:
    """Somebody outside the contract and the plugins asks for it: the core, or the conformance kit for an operation."""
    sources = [path.read_text() for path in (ROOT / "koala_adapter").rglob("*.py") if path != CONTRACT]
    asked = set(re.findall(r"""(?:\.|need\("|: \(")(\w+)\b""", "".join(sources)))
    assert set(NAMES) <= asked


# Keys of a slot that a cluster can express: natively, and as its site file maps them to arguments.

PLACEHOLDERS = Submission(key=BatchKey("koala-1"), count=2, script="#!/bin/sh\n", walltime=60)
NOTHING: frozenset[str] = frozenset()


def site(**mapped: str) -> Directives:
    """Return the directives of a site that maps these keys."""
    return Directives(map=tuple((key, arguments_of(text)) for key, text in mapped.items()))


def test_native_and_mapped_keys_are_expressible() -> None:
    can = expressible(Capabilities(slots=frozenset({"threads"})), site(gpus="-l gpu={n}", memory="-l mem_free={mib}M"))
    assert can == {"threads", "gpus"}
    assert Slot(threads=2, gpus=1, qos="high").beyond(can) == ("qos",)


def test_all_keys_of_a_slot_can_be_mapped_but_directives() -> None:
    assert set(MAP_KEYS) == {*SLOT_KEYS, "memory"} - {"directives"}


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("-l gpu={n}", ("-l gpu={n}",)),
        ("-pe smp {n} -R y", ("-pe smp {n}", "-R y")),
        ("--gres=gpu:{n}", ("--gres=gpu:{n}",)),
        (":ngpus={n} -W x=1", (":ngpus={n}", "-W x=1")),
        ("--comment='two words {n}'", ("--comment='two words {n}'",)),
    ],
)
def test_a_value_is_divided_into_arguments(text: str, arguments: tuple[str, ...]) -> None:
    assert arguments_of(text) == arguments


@pytest.mark.parametrize("text", ["", "  ", "gpu={n}", "-l 'gpu={n}", "-l gpu={n}\n-V", '-l m="{mib}'])
def test_what_is_no_list_of_arguments_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="arguments that begin with -"):
        arguments_of(text)


@pytest.mark.parametrize(
    ("key", "text", "right"),
    [
        ("gpus", "-l gpu={n}", True),
        ("gpus", "-l gpu={kind}", False),
        ("gpus", "-l gpu=1", False),
        ("gpus", "-l gpu={n}{", False),
        ("gpus", "-l gpu={n} -l m={kind}", False),
        ("gpu_kind", "-l gpu={n},model={kind}", True),
        ("gpu_kind", "-l gpu={n}", False),
        ("exclusive", "-l exclusive=true", True),
        ("exclusive", "-l exclusive={n}", False),
        ("licenses", "-l {name}={n}", True),
        ("licenses", "-l {name}", True),
    ],
)
def test_braces_of_a_key(key: str, text: str, *, right: bool) -> None:
    assert (braces_problem(key, text) == "") is right


@pytest.mark.parametrize(
    ("slot", "mapped", "arguments"),
    [
        (Slot(threads=4), {"threads": "-pe smp {n} -R y"}, ("-pe smp 4", "-R y")),
        (Slot(gpus=2), {"gpus": "-l gpu={n}"}, ("-l gpu=2",)),
        (Slot(gpus=2, gpu_kind="a100"), {"gpus": "-l g={n}", "gpu_kind": "-l g_{kind}={n}"}, ("-l g_a100=2",)),
        (Slot(exclusive=True), {"exclusive": "-l exclusive=true"}, ("-l exclusive=true",)),
        (Slot(scratch_mib=9), {"scratch": "-l tmp={mib}M"}, ("-l tmp=9M",)),
        (Slot(features=("ib", "avx")), {"features": "-l {name}"}, ("-l ib", "-l avx")),
        (Slot(licenses=(("a", 2), ("b", 1))), {"licenses": "-l {name}={n}"}, ("-l a=2", "-l b=1")),
        (Slot(account="phys"), {"account": "-P {name}"}, ("-P phys",)),
        (Slot(qos="high"), {"qos": "-l {name}=1"}, ("-l high=1",)),
    ],
)
def test_mapped_keys_become_arguments(slot: Slot, mapped: dict[str, str], arguments: tuple[str, ...]) -> None:
    divided = divide(replace(PLACEHOLDERS, slot=slot), NOTHING, site(**mapped), system="Toy")
    assert divided.directives.add == arguments
    assert divided.rest == PLACEHOLDERS


def test_order_is_site_then_map_then_slot() -> None:
    directives = replace(site(memory="-l mem={mib}M"), add=("-site",))
    slot = Slot(directives=("-own",))
    divided = divide(
        replace(PLACEHOLDERS, memory_mib=5, slot=slot), frozenset({"directives"}), directives, system="Toy"
    )
    assert divided.directives.add == ("-site", "-l mem=5M", "-own")
    assert divided.rest == PLACEHOLDERS
    assert divided.mapped == {"memory"}


def test_native_keys_stay_in_the_rest() -> None:
    slot = Slot(threads=2, gpus=1, gpu_kind="a100")
    native = frozenset({"threads", "gpus", "gpu_kind"})
    divided = divide(replace(PLACEHOLDERS, slot=slot), native, site(gpus="-l gpu={n}"), system="Toy")
    assert divided.rest.slot == slot, "gpus are mapped only for slots that name no kind"
    assert divide(replace(PLACEHOLDERS, slot=slot), native, Directives(), system="Toy").rest.slot == slot


@pytest.mark.parametrize(
    ("slot", "named", "hint"),
    [
        (Slot(threads=2, qos="x"), "threads, qos", r"\[clusters.map\].*threads and qos"),
        (Slot(directives=("-x",)), "directives", "leave it out"),
    ],
)
def test_what_nothing_expresses_is_refused_by_name(slot: Slot, named: str, hint: str) -> None:
    with pytest.raises(LrmRejectedError, match=f"Toy cannot be asked for {named} ") as caught:
        divide(replace(PLACEHOLDERS, slot=slot), NOTHING, Directives(), system="Toy")
    assert re.search(hint, caught.value.hint)


@pytest.mark.parametrize(
    "slot",
    [
        Slot(account="a b"),
        Slot(account="-P"),
        Slot(features=("a,b=1",)),
        Slot(features=("ok", "a&b")),
        Slot(features=("ib:ppn=9",)),
        Slot(features=("ib+9",)),
        Slot(licenses=(("x;y", 1),)),
        Slot(gpus=1, gpu_kind="a'b"),
        Slot(qos="{name}"),
    ],
)
def test_values_that_are_no_word_are_refused(slot: Slot) -> None:
    with pytest.raises(LrmRejectedError, match="cannot be asked for"):
        divide(replace(PLACEHOLDERS, slot=slot), frozenset(SLOT_KEYS), Directives(), system="Toy")


def test_plain_submissions_are_unchanged() -> None:
    divided = divide(PLACEHOLDERS, NOTHING, site(gpus="-l gpu={n}"), system="Toy")
    assert (divided.rest, divided.directives.add, divided.mapped) == (PLACEHOLDERS, (), frozenset())
    assert divided.rest.slot == PLAIN
