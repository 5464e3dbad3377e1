# SPDX-License-Identifier: Apache-2.0
"""Opening a cluster's LRM: its request window, its plugin object, and the directories of its placeholders."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio
import structlog

from koala_adapter.config.locations import requests_directory
from koala_adapter.errors import ConfigurationError, LrmError
from koala_adapter.host.privatedirectory import make_private_directory
from koala_adapter.lrm import ClusterContext
from koala_adapter.lrm.commands import THIS_HOST, CommandRunner, login_name
from koala_adapter.lrm.rate import ANSWERS_SUFFIX, KeptAnswers, prepare_directory, window_path
from koala_adapter.sites.link import SiteAddress
from koala_adapter.sites.remotesite import RemoteSite

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from koala_adapter.config.sitefile import ClusterConfig, RemoteSiteConfig
    from koala_adapter.lrm import Lrm, PluginDefinition
    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_adapter.model import BatchKey


# -- Request windows -----------------------------------------------------------------------------------------
# All processes of a user that ask a batch system (``koala serve``, ``koala schedule``, ``koala wiki serve``) count
# their requests in one file, so that they keep to its bound together.

log = structlog.get_logger()


def request_window(config: ClusterConfig, definition: PluginDefinition, directory: Path) -> Path:
    """Return the file that counts requests to a cluster's batch system; its directory is created.

    The directory is the user's own, whatever the state ``directory``. The state directory takes its place where that
    cannot be used, and for a batch system that no other state directory asks. Raises OSError when neither can be used.
    """
    identity = _identity(config, definition)
    own = requests_directory() if definition.identified_by else None
    if own is not None:
        try:
            prepare_directory(own, now=time.time())
        except OSError as error:
            log.info("requests are counted for this state directory only", path=str(own), error=error.strerror)
        else:
            return window_path(own, *identity)
    prepare_directory(directory / "requests", now=time.time())
    return window_path(directory / "requests", *identity)


def _identity(config: ClusterConfig, definition: PluginDefinition) -> tuple[str, ...]:
    """Return a key that identifies a batch system."""
    if definition.identified_by:
        chosen = config.settings.model_dump_json(include=set(definition.identified_by))
        return (definition.name, chosen, *filter(None, (config.site,)))
    return (definition.name, config.settings.model_dump_json(), config.name)


# -- The plugin object of a cluster, made and closed ---------------------------------------------------------

CLOSING = 5.0
"""Seconds that a plugin may take to give its resources back."""


class SiteHosts:
    """The hosts of batch systems: this one, and one for each site, connected when it is first asked.

    The clusters of a site share its connection. To be used in one event loop, as a context manager or with `close`.
    """

    def __init__(self, sites: Iterable[RemoteSiteConfig], directory: Path, *, lasting: bool = False) -> None:
        """``directory``: the state directory. ``lasting``: gateways stay when the connection is lost, for agents."""
        self._sites = {one.name: one for one in sites}
        self._directory = directory
        self._lasting = lasting
        self._hosts: dict[str, LrmHost] = {}

    def __iter__(self) -> Iterator[LrmHost]:
        """Yield the sites that were asked for."""
        return iter(self._hosts.values())

    def at(self, site: str | None) -> LrmHost:
        """Return the host of a site by its name; None: this one."""
        if site is None:
            return THIS_HOST
        if site not in self._hosts:
            self._hosts[site] = _remote_host(self._sites[site], self._directory, lasting=self._lasting)
        return self._hosts[site]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, in_use: Container[str] = ()) -> None:
        """Close all connections, even during cancellation."""
        for name, host in self._hosts.items():
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSING):
                await host.close(in_use=name in in_use)


def _remote_host(remote: RemoteSiteConfig, directory: Path, *, lasting: bool) -> LrmHost:
    port_file = None
    if lasting:
        make_private_directory(directory / "sites")
        port_file = directory / "sites" / f"{remote.name}.port"
    address = SiteAddress(
        name=remote.name,
        ssh=remote.ssh,
        options=remote.ssh_options,
        program=remote.program,
        python=remote.python,
        directory=remote.directory,
        listen=remote.listen or "",
        ports=remote.port_range,
        lease=remote.lease,
    )
    return RemoteSite(
        address,
        # Two sites may be one login node, or have the same home directory: each has its own gateway.
        title=f"{remote.name} of {login_name()}@{socket.gethostname()}:{directory}",
        port_file=port_file,
        control=login_socket(directory, remote.name),
    )


def login_socket(directory: Path, site: str) -> Path:
    """Return the socket of a login to a site in a terminal (``koala login``). ``directory``: the state directory."""
    return directory / "sites" / f"{site}.ssh"


def make_lrm(
    config: ClusterConfig,
    plugins: Mapping[str, PluginDefinition],
    directory: Path,
    *,
    host: LrmHost = THIS_HOST,
    owner: bool = False,
    trusted: float = 0.0,
) -> tuple[Lrm, CommandRunner]:
    """Return a cluster's LRM, not started, and the window of its requests.

    ``directory``: the state directory, below which the plugin gets its private one. ``host``: one of `SiteHosts`.
    ``owner``: we own the order of all jobs there, and may ask more often, unless the site says how often.
    ``trusted``: seconds for which the answers about settings that other processes were given serve here. Raises
    OSError.
    """
    if host.here and config.site is not None:
        message = f"cluster {config.name} is at site {config.site}, which this command does not reach"
        raise ConfigurationError(message, hint="use it on the login node of the site")
    per_minute = config.requests_as_owner if owner else config.requests_per_minute
    window = request_window(config, plugins[config.plugin], directory)
    answers = KeptAnswers(window.with_suffix(ANSWERS_SUFFIX), trusted=trusted)
    commands = CommandRunner(per_minute=per_minute, shared=window, answers=answers, host=host)
    private = directory / "clusters" / config.name
    make_private_directory(private)
    if config.output_directory is None and host.here:
        make_private_directory(words_directory(config, directory))
    context = ClusterContext(
        cluster=config.cluster_name,
        commands=commands,
        state_directory=private,
        directives=config.changes,
        user=login_name() if host.here else "",
    )
    return plugins[config.plugin].factory(context, config.settings), commands


async def close_lrm(lrm: Lrm) -> None:
    """Close an LRM, even during cancellation."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSING), suppress(LrmError):
        await lrm.close()


# -- Token files and output directories of placeholders ------------------------------------------------------


def token_path(config: ClusterConfig, batch: BatchKey) -> Path | None:
    """Return the path of a submission's token for agents; None when it is in the job script."""
    return None if config.token_directory is None else Path(config.token_directory) / f"{batch}.token"


def words_directory(config: ClusterConfig, directory: Path) -> Path:
    """Return the directory of placeholders' own output; by default in the state directory."""
    if config.output_directory is not None:
        return Path(config.output_directory)
    return directory / "clusters" / config.name / "output"
