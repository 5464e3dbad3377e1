# SPDX-License-Identifier: Apache-2.0
"""Close to files (CoreGRID TR-0092): run where the input files are, or where they can be brought in least time.

What is known comes with the views: which paths a cluster holds (RLS) and the bandwidth to it (NIP). What is not known
makes no difference, so on a site that says nothing this is worst fit.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from koala_adapter.scheduler.placement.worstfit import WorstFit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.model import ClusterName, InputFile
    from koala_adapter.scheduler.placement.fitting import Preference
    from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest

MIB = 1024**2
SIZE = 1.0
"""MiB that a file of unknown size counts: enough to compare bandwidths."""


class CloseToFiles(WorstFit):
    """Each component to a cluster that holds its input files, else to that with the least transfer time (KOALA's CF).

    As everywhere, clusters that can start the component at once go before those where it would queue, and equally
    close ones are told apart as worst fit does.
    """

    name = "close-to-files"

    def preference(self, views: Mapping[ClusterName, ClusterView]) -> Preference:
        """See :meth:`WorstFit.preference`: the nearer the better; of two unknown distances, the less to move."""

        def nearness(request: ComponentRequest, view: ClusterView) -> tuple[float, ...]:
            missing = [file for file in request.component.input_files if not holds(view, file.source)]
            return -transfer_seconds(missing, view, views), -sum(size_mib(file) for file in missing)

        return nearness


def holds(view: ClusterView, path: str) -> bool:
    """Tell whether the nodes of a cluster have a file already."""
    return any(path == held or path.startswith(held.rstrip("/") + "/") for held in view.files)


def size_mib(file: InputFile) -> float:
    """Return the size of a file in MiB, as far as it is known."""
    return SIZE if file.size is None else file.size / MIB


def transfer_seconds(missing: list[InputFile], view: ClusterView, views: Mapping[ClusterName, ClusterView]) -> float:
    """Return the seconds to bring files to a cluster, one after the other, each from where that is fastest.

    Every file is on the submitting host, and on the clusters that hold it. Infinite where no bandwidth is known.
    """
    seconds = 0.0
    for file in missing:
        sources = [rate for name, rate in view.bandwidth_from if name in views and holds(views[name], file.source)]
        rates = [rate for rate in (view.bandwidth, *sources) if rate is not None and rate > 0]
        if not rates:
            return inf
        seconds += size_mib(file) / max(rates)
    return seconds
