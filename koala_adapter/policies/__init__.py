# SPDX-License-Identifier: Apache-2.0
"""Policies that a site brings along: how they are defined, found by their entry points, and made.

What decides is handed what is found here; it does not look for it.
"""

from koala_adapter.policies.definition import ENTRY_POINT_GROUP, INTERFACE_VERSION, PolicyDefinition, PolicyKind

__all__ = ["ENTRY_POINT_GROUP", "INTERFACE_VERSION", "PolicyDefinition", "PolicyKind"]
