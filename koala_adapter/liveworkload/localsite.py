# SPDX-License-Identifier: Apache-2.0
"""The site file of local clusters that are started for an experiment. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.scheduler.malleable.approaches import Approach
    from koala_adapter.simulation.platform import ClusterModel

SITE = """\
[control_center]
listen = "127.0.0.1"
lease = 120
heartbeat = 10

[scheduler]
scan_interval = 0.5
approach = "{approach}"
malleability = "{malleability}"
launch_margin = 20
placeholder_life = 60
backoff = 1
reuse = false
maximum_tries = 1000000
"""
CLUSTER = """
[[clusters]]
name = "{name}"
plugin = "local"
poll_interval = 0.3
requests_per_minute = 3000
threshold = {threshold}
output_directory = "{directory}"
settings = {{ processors = {processors}, idle_seconds = 60 }}
"""


def site_text(clusters: Sequence[ClusterModel], approach: Approach, malleability: str, directory: str) -> str:
    """Return a site file. ``directory``: for what placeholders print.

    Placeholders are not handed from job to job, as in the simulator, and nothing is given up for long.
    """
    head = SITE.format(approach=approach.value, malleability=malleability)
    tables = [
        CLUSTER.format(name=one.name, processors=one.processors, threshold=one.threshold, directory=directory)
        for one in clusters
    ]
    return head + "".join(tables)
