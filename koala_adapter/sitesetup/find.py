# SPDX-License-Identifier: Apache-2.0
"""Finding clusters (``koala init``): candidates, probes, the text of the site file, this host's address."""

from __future__ import annotations

import ipaddress
import math
import re
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from koala_adapter.config.sitefile import ClusterConfig, shortest_poll_interval
from koala_adapter.config.tomlfile import printable, show_duration, toml_text
from koala_adapter.errors import KoalaError, LrmError, PluginError
from koala_adapter.lrm import Discovery, LeftOut, Surroundings
from koala_adapter.service.clusters import read_cluster
from koala_adapter.service.opening import SiteHosts, close_lrm, make_lrm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.config.sitefile import RemoteSiteConfig
    from koala_adapter.lrm import FoundCluster, Lrm, PluginDefinition
    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_adapter.model import Queue


# -- Candidates: batch systems that plugins find -------------------------------------------------------------
# All plugins are asked side by side; each find gets a name of its own.

LONGEST_NAME = 63
UNNAMED = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A batch system that a plugin found, under the name that it would have in a site file."""

    name: str
    plugin: str
    found: FoundCluster
    site: str | None = None
    """Where it is; None: on this host."""

    @property
    def described(self) -> str:
        """Description for the user."""
        return f"{self.name} ({self.what})"

    @property
    def what(self) -> str:
        """Description without its name."""
        return f"{self.found.described}{f', at {self.site}' if self.site else ''}"


SEARCH_TIME = 30.0
"""Seconds within which the search of a plugin must end."""


def find_candidates(
    plugins: Mapping[str, PluginDefinition], around: Surroundings, *, limit: float = SEARCH_TIME
) -> tuple[tuple[Candidate, ...], tuple[LeftOut, ...]]:
    """Return what the installed plugins find, in the order of the plugins' names, and what they leave out.

    A plugin that cannot be loaded, or whose search fails or takes longer than ``limit`` seconds, is left out.
    """
    names = sorted(plugins)
    ended: dict[str, Discovery] = {}

    def search(name: str) -> None:
        ended[name] = _search(plugins, name, around)

    # One that hangs, for example at a file system that does not answer, must not be waited for at the end either.
    searches = [threading.Thread(target=search, args=(name,), name=f"search of {name}", daemon=True) for name in names]
    until = time.monotonic() + limit
    for one in searches:
        one.start()
    for one in searches:
        one.join(max(0.0, until - time.monotonic()))
    found = [ended.get(name) or _unended(name, limit) for name in names]
    candidates: list[Candidate] = []
    for plugin, discovery in zip(names, found, strict=True):
        for cluster in discovery.clusters:
            name = unique_name(cluster.name, (one.name for one in candidates))
            candidates.append(Candidate(name=name, plugin=plugin, found=cluster))
    return tuple(candidates), tuple(left for discovery in found for left in discovery.left_out)


def _unended(name: str, limit: float) -> Discovery:
    why = f"its search has not ended within {limit:.0f} s"
    remedy = "does a file system or a server of that batch system not answer?"
    return Discovery(left_out=(LeftOut(what=f"plugin {name}", why=why, remedy=remedy),))


def unique_name(wanted: str, taken: Iterable[str]) -> str:
    """Return a name that a site file allows and that is not taken, as near to the wanted one as possible."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", wanted).strip("-")
    plain = (plain if plain[:1].isalpha() else f"{UNNAMED}-{plain}".strip("-"))[:LONGEST_NAME]
    others = set(taken)
    name, number = plain, 1
    while name in others:
        number += 1
        end = f"-{number}"
        name = plain[: LONGEST_NAME - len(end)] + end
    return name


def _search(plugins: Mapping[str, PluginDefinition], name: str, around: Surroundings) -> Discovery:
    try:
        discover = plugins[name].discover
    except PluginError as error:
        return Discovery(left_out=(LeftOut(what=f"plugin {name}", why=error.message, remedy=error.hint),))
    if discover is None:
        return Discovery()
    try:
        return discover(around)
    except Exception as error:  # noqa: BLE001 - a stranger's code must not keep the others from being found
        why = f"its search failed: {type(error).__name__}: {error}"
        return Discovery(left_out=(LeftOut(what=f"plugin {name}", why=why, remedy="report it to its authors"),))


# -- Probes: does a batch system answer and take jobs --------------------------------------------------------
# A probe also finds the queue and the limits that a site file should name.

PROBE_TIME = 90.0
"""Seconds that the questions to one batch system may take together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableCluster:
    """A batch system that answers and takes jobs, with the table for a site file."""

    candidate: Candidate
    version: str
    nodes: int
    processors: int
    queues: tuple[Queue, ...]
    queue: str | None
    """To be named, because the batch system has no default; None: its default, or what it chooses."""
    walltime_limit: int | None
    """Seconds; that of the queue that is used."""
    poll_interval: float | None
    """Seconds, where the default is too often for what a poll costs."""
    submission: str = ""
    """How placeholders are submitted, and why; empty where there is one way only."""


async def probe_all(
    candidates: Sequence[Candidate],
    plugins: Mapping[str, PluginDefinition],
    directory: Path,
    hosts: SiteHosts,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[UsableCluster, ...], tuple[LeftOut, ...]]:
    """Try the candidates side by side; ``directory``: the state directory. ``tell`` hears what is being looked at."""
    results: dict[str, UsableCluster | LeftOut] = {}

    async def one(candidate: Candidate) -> None:
        tell(f"asking {candidate.described}")
        results[candidate.name] = await _probe(candidate, plugins, directory, hosts.at(candidate.site))

    async with anyio.create_task_group() as tasks:
        for candidate in candidates:
            tasks.start_soon(one, candidate)
    ordered = [results[candidate.name] for candidate in candidates]
    usable = tuple(one for one in ordered if isinstance(one, UsableCluster))
    return usable, tuple(one for one in ordered if isinstance(one, LeftOut))


async def _probe(
    candidate: Candidate, plugins: Mapping[str, PluginDefinition], directory: Path, host: LrmHost
) -> UsableCluster | LeftOut:
    try:
        settings = plugins[candidate.plugin].settings(**candidate.found.settings)
        config = ClusterConfig(name=candidate.name, plugin=candidate.plugin, settings=settings, site=candidate.site)
        lrm, _ = make_lrm(config, plugins, directory, host=host)
    except (OSError, ValueError, KoalaError) as error:
        return LeftOut(what=candidate.what, why=str(error))
    try:
        with anyio.fail_after(PROBE_TIME):
            return await _look(candidate, config, lrm, host)
    except TimeoutError:
        return LeftOut(what=candidate.what, why=f"no answer within {PROBE_TIME:.0f} s")
    except LrmError as error:
        return LeftOut(what=candidate.what, why=error.message, remedy=error.hint)
    finally:
        await close_lrm(lrm)


async def _look(candidate: Candidate, config: ClusterConfig, lrm: Lrm, host: LrmHost) -> UsableCluster | LeftOut:
    await lrm.start()
    for result in await lrm.check():
        if not result.ok:
            why = f"{result.subject}: {result.found}"
            return LeftOut(what=candidate.what, why=why, remedy=result.remedy)
    queues = tuple(await lrm.queues())
    chosen = _chosen(queues)
    reading = await read_cluster(config, lrm, name_prefix="koala-", user=host.user, read_at=0.0)
    if not reading.processors:
        return LeftOut(what=candidate.what, why="it lists no processors")
    shortest = shortest_poll_interval(config.requests_per_minute, lrm.requests_per_poll)
    return UsableCluster(
        candidate=candidate,
        version=await lrm.version(),
        nodes=len(reading.nodes),
        processors=reading.processors,
        queues=queues,
        queue=chosen.name if chosen is not None and not chosen.default else None,
        walltime_limit=chosen.walltime_limit if chosen is not None else None,
        poll_interval=math.ceil(shortest) if shortest > config.poll_interval else None,
        submission=lrm.submission_way if host.here else "",
    )


def _chosen(queues: Sequence[Queue]) -> Queue | None:
    """Return the queue to be named in a site file; None: none need be named.

    A batch system whose queues are none of them a default chooses by itself; so does one whose default is closed
    not, and then the site file must name another.
    """
    default = next((queue for queue in queues if queue.default), None)
    if default is not None and default.up:
        return default
    return max((queue for queue in queues if queue.up), key=lambda queue: queue.processors, default=None)


# -- The text of the site file (pure) ------------------------------------------------------------------------
# Comments say what each line means and what else could be written.

COLUMN = 40
"""Where the comments behind values begin."""
QUEUES_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """How the nodes reach the control center on this host."""

    listen: str
    address: str = ""
    """Empty: the name of this host."""


def site_text(
    clusters: Sequence[UsableCluster],
    left_out: Sequence[LeftOut],
    address: Address,
    *,
    made: str,
    sites: Sequence[RemoteSiteConfig] = (),
) -> str:
    """Return the text of a site file. ``made``: by what and when, for its first line."""
    blocks = [
        _head(made),
        [*_control_center(address)],
        *([*_site(site)] for site in sites),
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


def _site(site: RemoteSiteConfig) -> Iterator[str]:
    yield "[[sites]]"
    yield _line("name", toml_text(site.name), "for `site =` below: change both as you like")
    yield _line("ssh", toml_text(site.ssh), "`ssh` is given this; it must log in without a question")
    if site.ssh_options:
        yield f"ssh_options = [{', '.join(map(toml_text, site.ssh_options))}]"
    if "python" in site.model_fields_set:
        yield _line("python", toml_text(site.python))
    yield _line('#directory = "~/.koala"', "", "private, for what its nodes must read")
    if site.listen is not None:
        yield _line("listen", toml_text(site.listen), "by which its nodes reach the login node")
    else:
        yield _line('#listen = "10.1.0.1"', "", "by which its nodes reach the login node; without it: its name")


def _cluster(cluster: UsableCluster) -> Iterator[str]:
    found = cluster.candidate.found
    yield (
        f"# {printable(cluster.candidate.what)}: {printable(cluster.version)}, {_count(cluster.nodes, 'node')}, "
        + _count(cluster.processors, "processor")
    )
    yield "[[clusters]]"
    yield _line("name", toml_text(cluster.candidate.name), "in job files and reports: change it as you like")
    yield _line("plugin", toml_text(cluster.candidate.plugin))
    if cluster.candidate.site is not None:
        yield _line("site", toml_text(cluster.candidate.site))
    yield from _queue(cluster)
    yield _line("threshold", "0", "idle processors always left to local users")
    yield _line("#placeholders_in_flight = 500", "", "most of ours waiting here; keep below the limit of your account")
    if cluster.poll_interval is not None:
        interval = f"{cluster.poll_interval:g}"
        yield _line(
            "poll_interval", interval, "seconds between looks; shorter ones cost more than 60 requests a minute"
        )
    yield ""
    if cluster.submission:
        yield f"# Placeholders are submitted {printable(cluster.submission)}."
        yield "# submit_by = 'drmaa' or 'commands' below asks for the one or the other: `koala docs drmaa`."
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


# -- The address by which nodes reach this host --------------------------------------------------------------
# It is the host's name where that leads to it, else its address in the network.

ANYWHERE = "192.0.2.1"
"""An address that no host has (RFC 5737): the route there is the one to other hosts. Nothing is sent."""


def find_address() -> Address:
    """Return how the control center is reached.

    A host whose name leads to itself only, as Debian sets it up, gives the address of its network; one without any
    network serves the nodes that run on it.
    """
    if any(not _is_loopback(address) for address in _addresses_of_name()):
        return Address(listen="0.0.0.0")  # noqa: S104 - agents prove themselves with a token; nodes are anywhere
    outside = _outside()
    if outside:
        return Address(listen="0.0.0.0", address=outside)  # noqa: S104 - agents prove themselves with a token
    return Address(listen="127.0.0.1")


def _addresses_of_name() -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    except OSError:
        return set()


def _outside() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ANYWHERE, 9))
        except OSError:
            return ""
        address = str(probe.getsockname()[0])
    return "" if _is_loopback(address) else address


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
