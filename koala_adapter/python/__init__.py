# SPDX-License-Identifier: Apache-2.0
"""What ``import koala_adapter as koala`` offers to programs: jobs, sites, handles, results, and an executor.

The door is :mod:`koala_adapter` itself, which imports these modules on demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.python.description import Job

__all__ = ["Job"]

__getattr__, __dir__ = on_demand(__name__, {"description": ("Job",)})
