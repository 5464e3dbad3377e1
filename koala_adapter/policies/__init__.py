# SPDX-License-Identifier: Apache-2.0
"""Policies that a site installs: their definition by entry points, loading them, and checking their answers.

This module is the door for authors of policies: an entry point of the group ``koala_adapter.policies`` names a
:class:`PolicyDefinition`. ``loading`` finds and makes the installed policies, ``checked`` verifies what they answer.
The scheduler and the queues are given the policies; they do not look for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.policies.definition import (
        ENTRY_POINT_GROUP,
        INTERFACE_VERSION,
        PolicyDefinition,
        PolicyKind,
        policy_names,
    )
    from koala_adapter.policies.loading import load_policies

__all__ = [
    "ENTRY_POINT_GROUP",
    "INTERFACE_VERSION",
    "PolicyDefinition",
    "PolicyKind",
    "load_policies",
    "policy_names",
]

_DEFINITION = tuple({*__all__} - {"load_policies"})
__getattr__, __dir__ = on_demand(__name__, {"definition": _DEFINITION, "loading": ("load_policies",)})
