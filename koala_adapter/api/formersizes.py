# SPDX-License-Identifier: Apache-2.0
"""What components of a job that has ended had, where nothing was left of them at its end. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.records import JobRecord


def former_sizes(record: JobRecord) -> Mapping[tuple[str, ClusterName | None], int]:
    """Return, by component and cluster, the processors of such components when they had most; empty for other jobs.

    As far back as changes of size are kept.
    """
    if not record.state.final:
        return {}
    left = {claim.component for claim in record.claims if claim.processors}
    found: dict[tuple[str, ClusterName | None], int] = {}
    for component in {claim.component for claim in record.claims} - left:
        sizes: Counter[ClusterName] = Counter()
        most: Counter[ClusterName] = Counter()
        for change in reversed(record.size_changes):
            if change.component == component:
                sizes[change.cluster] = change.before
                most = max(most, sizes.copy(), key=lambda one: one.total())
        found.update(((component, cluster), size) for cluster, size in most.items() if size)
    return found
