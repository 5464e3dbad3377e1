# SPDX-License-Identifier: Apache-2.0
"""Runners of jobs that get further ranks while they run. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.dynaco.plan import growth
from koala_adapter.runners.process import ProcessRunner

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from koala_adapter.runners.runner import AddressedLaunch, Application


class GrowingRunner(ProcessRunner):
    """Starts a process for each rank, also for those that come later."""

    def grow(self, application: Application, ranks: Collection[int]) -> Sequence[AddressedLaunch]:
        """Take new ranks in, which ``application`` has beside the former ones; return what is to be started."""
        self.application = application
        wanted = {step.rank for step in growth(ranks)}
        return [launch for rank in application.ranks if rank.rank in wanted for launch in self.launches_in(rank)]
