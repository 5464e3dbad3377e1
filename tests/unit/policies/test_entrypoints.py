# SPDX-License-Identifier: Apache-2.0
"""Policies of others are found by their entry points, and each way of being broken is refused with whose it is."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest

from koala_adapter.errors import EXIT_CONFIGURATION, ConfigurationError, PluginError
from koala_adapter.lrm.contract import installed_entry_points
from koala_adapter.policies import ENTRY_POINT_GROUP, INTERFACE_VERSION, PolicyDefinition, PolicyKind
from koala_adapter.policies.checked import CheckedQueues
from koala_adapter.policies.loading import load_definitions, load_policies, load_queue_policy, policy_names
from koala_adapter.queueing.backfill import Easy
from koala_adapter.scheduler.placement.policies import WorstFit
from tests.unit.policies.installed import install

if TYPE_CHECKING:
    from pathlib import Path


class Mine(WorstFit):
    """A placement policy of its own name."""

    name = "mine"


def fails() -> WorstFit:
    """Fail as a factory may."""
    raise ZeroDivisionError("boom")


def define(**changes: Any) -> PolicyDefinition:  # noqa: ANN401 - also wrong types, on purpose
    """Return a good definition of a placement policy ``mine``, with changes."""
    values: dict[str, Any] = {"kind": PolicyKind.PLACEMENT, "name": "mine", "summary": "a test's", "factory": Mine}
    return PolicyDefinition(**(values | changes))


GOOD = define()
OLD = define(interface_version=INTERFACE_VERSION + 1)
RENAMED = define(name="other")
OWN_NAME = define(name="worst-fit", factory=WorstFit)
SPACED = define(name="my own")
OTHER_KIND = define(kind=PolicyKind.QUEUE)
NO_FACTORY = define(factory=None)
FAILING = define(factory=fails)
NO_POLICY = define(factory=dict)
MISNAMED = define(factory=WorstFit)
QUEUE = define(kind=PolicyKind.QUEUE, factory=Easy)
NO_QUEUE = define(kind=PolicyKind.QUEUE, factory=lambda processors, *, weights: (processors, weights))
NO_DEFINITION = Mine


def entry(attribute: str, name: str = "placement.mine", module: str = __name__) -> EntryPoint:
    """Return an entry point that names something of this module."""
    return EntryPoint(name=name, value=f"{module}:{attribute}", group=ENTRY_POINT_GROUP)


def test_good_policies_are_made() -> None:
    """Placement policies come beside koala's own, which come first; those of queues are made when they are wanted."""
    policies = load_policies([entry("GOOD"), entry("QUEUE", "queue.mine")])
    assert policies.placement["mine"].name == "mine"
    assert (policies.placement_names[0], policies.placement_names[-1]) == ("worst-fit", "mine")
    queues = load_queue_policy("mine", [entry("QUEUE", "queue.mine")])
    assert isinstance(queues, CheckedQueues)
    assert queues.make is Easy
    assert "queue.mine" in queues.described
    assert load_queue_policy("easy", [entry("QUEUE", "queue.mine")]) is None
    with pytest.raises(ConfigurationError, match="no policy 'yours'") as caught:
        load_queue_policy("yours", [entry("QUEUE", "queue.mine")])
    assert "metacluster, mine" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (entry("OLD"), f"this is interface {INTERFACE_VERSION}"),
        (entry("RENAMED"), "calls itself placement.other"),
        (entry("OWN_NAME", "placement.worst-fit"), "'worst-fit' is the name of koala's own"),
        (entry("SPACED", "placement.my own"), "a name is a letter"),
        (entry("OTHER_KIND"), "calls itself queue.mine"),
        (entry("NO_FACTORY"), "factory must be callable"),
        (entry("FAILING"), "cannot be made: ZeroDivisionError: boom"),
        (entry("NO_POLICY"), "makes a dict, no PlacementPolicy"),
        (entry("MISNAMED"), "calls itself 'worst-fit'"),
        (entry("NO_DEFINITION"), "expected a PolicyDefinition, found ABCMeta"),
        (entry("NOT_THERE"), "AttributeError"),
        (entry("GOOD", module="koala_no_such_module"), "ModuleNotFoundError"),
        (entry("GOOD", "mine"), "is of no kind"),
    ],
    ids=lambda value: f"{value.name} {value.value}" if isinstance(value, EntryPoint) else "",
)
def test_broken_policies_are_refused(broken: EntryPoint, complaint: str) -> None:
    """Whatever is wrong, the error says what, and a way out."""
    with pytest.raises(PluginError) as caught:
        load_policies([broken])
    assert complaint in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == EXIT_CONFIGURATION


def test_a_queue_that_is_none_is_refused() -> None:
    """What a factory of queues makes is looked at before anything is scheduled by it."""
    with pytest.raises(PluginError, match="makes a tuple, no ClusterScheduler"):
        load_queue_policy("mine", [entry("NO_QUEUE", "queue.mine")])


def test_two_of_one_name_are_refused() -> None:
    """A person must settle it."""
    with pytest.raises(PluginError, match="'mine' is the name of another installed one"):
        load_definitions(PolicyKind.PLACEMENT, (), [entry("GOOD"), entry("GOOD")])


def test_the_distribution_at_fault_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name and version stand in the refusal; names are known without importing anything."""
    install(tmp_path, "[koala_adapter.policies]\nplacement.broken = koala_no_such_module:X\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed_entry_points.cache_clear()
    try:
        assert policy_names(PolicyKind.PLACEMENT) == ("broken",)
        assert policy_names(PolicyKind.QUEUE) == ()
        with pytest.raises(PluginError, match=r"koala-site-policies 1\.2 cannot be imported"):
            load_policies()
    finally:
        installed_entry_points.cache_clear()
