# SPDX-License-Identifier: Apache-2.0
"""Keys of a slot that a cluster can express, natively and as its site file maps them."""

from __future__ import annotations

from koala_adapter.lrm.contract import Capabilities, Directives, expressible
from koala_adapter.slots import Slot


def test_native_and_mapped_keys_are_expressible() -> None:
    """Memory is part of every submission, so it is no key that a plugin may lack."""
    directives = Directives(map=(("gpus", ("-l gpu={n}",)), ("memory", ("-l mem_free={mib}M",))))
    can = expressible(Capabilities(slots=frozenset({"threads"})), directives)
    assert can == {"threads", "gpus"}
    assert Slot(threads=2, gpus=1, qos="high").beyond(can) == ("qos",)
