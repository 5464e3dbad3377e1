# SPDX-License-Identifier: Apache-2.0
"""A fake PBS for machines without one: its commands act on a directory and run jobs as ordinary processes.

It prints what OpenPBS 23.06 printed where it was recorded, words as numbers among it, refuses in its words and with its
exit statuses, and refuses every option that it does not know.
"""

from __future__ import annotations

from tests.fakes.pbs.server import FakePbs

__all__ = ["FakePbs"]
