# SPDX-License-Identifier: Apache-2.0
"""Runner ``sweep``: the workers are launchers, which pull the tasks of the sweep from the service. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.dynaco.execute import Retirements
from koala_adapter.runners.workers import AddressedSignal, WorkersRunner
from koala_adapter.vjm.channel import Signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.runners.runner import AddressedLaunch, Application
    from koala_adapter.runners.workers import Order
    from koala_adapter.scheduler.actions import Rank

_SCRIPT = """\
for python in /usr/bin/python3 /usr/libexec/platform-python python3; do
    if command -v "$python" >/dev/null 2>&1; then
        exec "$python" -S -B "${PYTHONPATH%%:*}/koala_sweep.py"
    fi
done
echo "no python3 on $(uname -n)" >&2
exit 127
"""
COMMAND = ("/bin/sh", "-c", _SCRIPT)
"""Any Python from 3.6 on; what is imported is in the library, where PYTHONPATH begins."""


URGENT = 23
"""SIGURG: what is no launcher does not notice it."""
KILLED_LATER = 10
"""Seconds after a launcher's own time for its task, in which it must have gone."""


class SweepRunner(WorkersRunner):
    """Starts a launcher for each rank, and has launchers leave one by one."""

    def __init__(self, application: Application) -> None:
        """See :class:`Runner`."""
        super().__init__(application)
        for component in application.job.components:
            self._retiring[component.name] = Retirements(float(component.retirement.grace + KILLED_LATER))

    def launches_in(self, rank: Rank) -> Sequence[AddressedLaunch]:
        """See :meth:`Runner.launches_in`."""
        library = self.application.library
        return [
            replace(one, launch=replace(one.launch, argv=COMMAND, library=library)) for one in super().launches_in(rank)
        ]

    def _ask(self, rank: Rank) -> Sequence[Order]:
        """Ask by a signal that the task, which gets it, too, does not notice."""
        asked = Signal(task=self.task_of(rank.rank), signal=URGENT)
        return [AddressedSignal(placeholder=rank.placeholder, signal=asked)]
