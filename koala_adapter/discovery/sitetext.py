# SPDX-License-Identifier: Apache-2.0
"""The site file of what was found, with comments that say what each line is and what else could be said. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.config.formatting import printable, show_duration, toml_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from koala_adapter.discovery.probing import UsableCluster
    from koala_adapter.model import Queue
    from koala_adapter.plugin import LeftOut

COLUMN = 40
"""Where the comments behind values begin."""
QUEUES_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """How the nodes reach the control center on this host."""

    listen: str
    address: str = ""
    """Empty: the name of this host."""


def site_text(clusters: Sequence[UsableCluster], left_out: Sequence[LeftOut], address: Address, *, made: str) -> str:
    """Return the text of a site file. ``made``: by what and when, for its first line."""
    blocks = [
        _head(made),
        [*_control_center(address)],
        *([*_cluster(cluster)] for cluster in clusters),
        [*_left_out(left_out)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _head(made: str) -> list[str]:
    return [
        f"# Site file of koala-adapter, {printable(made)}.",
        "#",
        "# `koala check` tries it; `koala conf site` shows every key, `koala docs site-file` the manual.",
    ]


def _control_center(address: Address) -> Iterator[str]:
    yield "[control_center]"
    yield _line("listen", toml_text(address.listen), "the addresses of this host where placeholders report")
    if address.address:
        yield _line("address", toml_text(address.address), "by which nodes reach this host")
    else:
        yield _line('#address = "login1.example.org"', "", "by which nodes reach this host; without it: its name")
    yield _line("#port = 8899", "", "fixed, for a firewall's rule; without it: one is chosen and kept")


def _cluster(cluster: UsableCluster) -> Iterator[str]:
    found = cluster.candidate.found
    yield f"# {printable(found.described)}: {printable(cluster.version)}, {_count(cluster.nodes, 'node')}, " + _count(
        cluster.processors, "processor"
    )
    yield "[[clusters]]"
    yield _line("name", toml_text(cluster.candidate.name), "in job files and reports: change it as you like")
    yield _line("plugin", toml_text(cluster.candidate.plugin))
    yield from _queue(cluster)
    yield _line("threshold", "0", "idle processors always left to local users")
    yield _line("#placeholders_in_flight = 500", "", "most of ours waiting here; keep below the limit of your account")
    if cluster.poll_interval is not None:
        interval = f"{cluster.poll_interval:g}"
        yield _line(
            "poll_interval", interval, "seconds between looks; shorter ones cost more than 60 requests a minute"
        )
    yield ""
    yield "[clusters.settings]"
    for key, value in found.settings.items():
        yield _line(key, toml_text(value) if isinstance(value, str) else str(value).lower())


def _queue(cluster: UsableCluster) -> Iterator[str]:
    names = [_described(queue) for queue in cluster.queues[:QUEUES_SHOWN]]
    more = len(cluster.queues) - len(names)
    if names:
        yield f"# queues: {', '.join(names)}{f' and {more} more' if more > 0 else ''}"
    if cluster.queue is not None:
        yield _line("queue", toml_text(cluster.queue), "there is no default")
    elif cluster.queues:
        yield _line(f"#queue = {toml_text(cluster.queues[0].name)}", "", "without it: the default")
    if cluster.walltime_limit is not None:
        limit = toml_text(show_duration(cluster.walltime_limit))
        yield _line("walltime_limit", limit, "the longest that its queue grants")


def _described(queue: Queue) -> str:
    words = [f"{queue.processors} processors"] if queue.processors else []
    if queue.walltime_limit is not None:
        words.append(f"at most {show_duration(queue.walltime_limit)}")
    words += [] if queue.up else ["closed"]
    words += ["default"] if queue.default else []
    return printable(queue.name) + (f" ({', '.join(words)})" if words else "")


def _left_out(left_out: Sequence[LeftOut]) -> Iterator[str]:
    if left_out:
        yield "# Seen and left out:"
    for one in left_out:
        remedy = f"; {one.remedy}" if one.remedy else ""
        yield f"# - {printable(one.what)}: {printable(one.why)}{printable(remedy)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _line(key: str, value: str, comment: str = "") -> str:
    said = f"{key} = {value}" if value else key
    return f"{said:<{COLUMN}} # {comment}" if comment else said
