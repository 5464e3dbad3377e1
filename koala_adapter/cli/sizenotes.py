# SPDX-License-Identifier: Apache-2.0
"""Between which sizes a job will change on a site, and when, as one is told before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.malleable.approaches import Approach

if TYPE_CHECKING:
    from koala_adapter.config.sitemodel import SiteConfig
    from koala_adapter.model import Component, Job

_WHEN = {
    Approach.PRA: "grows while processors are free, before jobs that wait are looked at",
    Approach.PWA: "grows while processors are free, and gives them back when other jobs wait",
    Approach.NONE: "changes only when it asks for it itself, or its owner does by `koala resize`",
}


def size_notes(job: Job, site: SiteConfig) -> list[str]:
    """Return a sentence for each component that changes its size while the job runs; empty for other jobs."""
    return [_note(job, one, site.parameters.approach) for one in job.components if job.changes_size(one.name)]


def _note(job: Job, component: Component, approach: Approach) -> str:
    if component.cluster is not None:
        where = f"on {component.cluster}"
    elif component.flexible:
        where = "on all clusters together"
    else:
        where = "on the cluster where it starts"
    who = "it" if len(job.components) == 1 else component.name
    span = f"{component.minimum} to {component.maximum} processors {where}"
    return f"{who} can have {span} while it runs: it {_WHEN[approach]}"
