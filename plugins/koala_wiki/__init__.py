# SPDX-License-Identifier: Apache-2.0
"""Plugin ``wiki``: a cluster whose resource manager speaks WIKI, to be scheduled from outside.

That is an old Slurm with sched/wiki or sched/wiki2, a Metacluster-like system, or our own ``koala wiki serve``. WIKI
has no submission, so no placeholder can be placed there. The door is PLUGIN.
"""

from __future__ import annotations

from koala_wiki.lrm import PLUGIN

__all__ = ["PLUGIN"]
