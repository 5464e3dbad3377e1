# SPDX-License-Identifier: Apache-2.0
"""Placeholders and their agents: job scripts, the control center that agents dial in to, and the channel.

The door of the service's side is :class:`koala_adapter.vjm.center.ControlCenter`, with ``channel`` for messages,
``certificate`` for secrets and ``output`` for files of output and input. ``jobscript`` makes the script of a
placeholder, which carries the package ``agent`` to the node. VJM is the Virtual Job Model (Xing 2009).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.vjm.newcertificate import create_certificate, new_pem

__all__ = ["create_certificate", "new_pem"]

__getattr__, __dir__ = on_demand(__name__, {"newcertificate": __all__})
