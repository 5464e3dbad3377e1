# SPDX-License-Identifier: Apache-2.0
"""Runner of launcher ``process``: every rank is the component's command, started in its own placeholder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.runners.runner import AddressedLaunch, Runner
from koala_adapter.vjm.channel import Launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.scheduler.actions import Rank


class ProcessRunner(Runner):
    """Starts one process for each rank; they find each other by KOALA_ADDRESSES if they need to."""

    def launches_in(self, rank: Rank) -> Sequence[AddressedLaunch]:
        """See :meth:`Runner.launches_in`."""
        application = self.application
        launch = Launch(
            task=self.task_of(rank.rank),
            argv=application.component(rank).command,
            environment=application.environment(rank),
            working_directory=application.job.working_directory,
            files=application.files.get(rank.component, ()),
            time_limit=float(application.job.walltime),
            output_files=application.component(rank).output_files,
        )
        return (AddressedLaunch(placeholder=rank.placeholder, launch=launch),)
