# SPDX-License-Identifier: Apache-2.0
"""The evaluations of five published systems, as experiments that one command repeats.

``framework`` says what an experiment is and finds those that are installed; ``commands`` is the door, ``koala
experiment``. The others are the experiments, one or two in a module, and what runs them on live clusters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_experiments.liveruns import run_live
    from koala_experiments.stage import play_scenario

__all__ = ["play_scenario", "run_live"]

__getattr__, __dir__ = on_demand(__name__, {"liveruns": ("run_live",), "stage": ("play_scenario",)})
