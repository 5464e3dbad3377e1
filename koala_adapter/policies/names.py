# SPDX-License-Identifier: Apache-2.0
"""Names of installed policies, by their entry points alone: nothing of a policy is imported for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.lrm.contract import installed_entry_points
from koala_adapter.policies import ENTRY_POINT_GROUP

if TYPE_CHECKING:
    from importlib import metadata

    from koala_adapter.policies import PolicyKind


def installed() -> tuple[metadata.EntryPoint, ...]:
    """Return the entry points of installed policies, without importing them."""
    return tuple(installed_entry_points().select(group=ENTRY_POINT_GROUP))


def policy_names(kind: PolicyKind) -> tuple[str, ...]:
    """Return the names of installed policies of a kind, without importing them."""
    prefix = f"{kind}."
    return tuple(sorted(one.name.removeprefix(prefix) for one in installed() if one.name.startswith(prefix)))
