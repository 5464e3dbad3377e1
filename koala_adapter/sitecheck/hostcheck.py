# SPDX-License-Identifier: Apache-2.0
"""What ``koala check`` looks at on this host: all that needs no cluster."""

from __future__ import annotations

import os
import socket
import stat
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Protocol

from koala_adapter import __version__
from koala_adapter.api.statedirectory import socket_path
from koala_adapter.config.sitemodel import ANY_ADDRESS
from koala_adapter.errors import KoalaError
from koala_adapter.plugin import CheckResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from koala_adapter.api.client import Client
    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.plugin import PluginDefinition

OLDEST_PYTHON = (3, 11)


class Installation(Protocol):
    """What is checked. Each part is looked up when it is asked for, and then may be refused with a KoalaError."""

    @property
    def plugins(self) -> Mapping[str, PluginDefinition]:
        """The installed plugins."""

    @property
    def directory(self) -> Path:
        """The state directory, there or not."""

    @property
    def site_file(self) -> Path:
        """Where the site file is."""

    @property
    def site(self) -> SiteConfig:
        """What it says."""

    @property
    def client(self) -> Client:
        """The service, whether it runs or not."""


def check_host(installation: Installation) -> Iterator[CheckResult]:
    """Check everything that needs no cluster; what builds on a failure is left out."""
    yield _python()
    yield _package()
    plugins = _guarded("plugins", lambda: ", ".join(sorted(dict(installation.plugins))))
    yield plugins
    directory = _guarded("state directory", lambda: _state_directory(installation))
    yield directory
    if directory.ok:
        yield _service(installation)
    if plugins.ok:
        site = _guarded("site file", lambda: _site_file(installation))
        yield site
        if site.ok:
            yield _address(installation.site)


def _python() -> CheckResult:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= OLDEST_PYTHON
    return CheckResult(
        subject="Python", ok=ok, found=f"{version} in {sys.executable}", remedy="install Python 3.11 or newer"
    )


def _package() -> CheckResult:
    try:
        installed = metadata.version("koala-adapter")
    except metadata.PackageNotFoundError:
        remedy = "pip install koala-adapter: without its metadata no plugin is found"
        return CheckResult(subject="koala-adapter", ok=False, found=f"{__version__}, not installed", remedy=remedy)
    ok = installed == __version__
    found = __version__ if ok else f"{__version__}, but its metadata say {installed}"
    return CheckResult(subject="koala-adapter", ok=ok, found=found, remedy="install it again: pip install ...")


def _guarded(subject: str, look: Callable[[], str]) -> CheckResult:
    """Make a result of what ``look`` returns or raises."""
    try:
        return CheckResult(subject=subject, ok=True, found=look())
    except KoalaError as error:
        return CheckResult(subject=subject, ok=False, found=error.message, remedy=error.hint)
    except OSError as error:
        return CheckResult(subject=subject, ok=False, found=str(error))


def _state_directory(installation: Installation) -> str:
    directory = installation.directory
    socket_path(directory)
    if not directory.exists():
        return f"{directory} (not there yet; made when needed)"
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & 0o077:
        raise KoalaError(f"{directory} is open to others (mode {mode:o})", hint=f"chmod 700 {directory}")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise KoalaError(f"{directory} is not writable", hint=f"chmod 700 {directory}")
    return f"{directory} (private)"


def _service(installation: Installation) -> CheckResult:
    pid = installation.client.pid()
    found = "none runs; `koala run` and `koala submit` need none" if pid is None else f"runs (pid {pid})"
    return CheckResult(subject="service", ok=True, found=found)


def _site_file(installation: Installation) -> str:
    names = ", ".join(cluster.name for cluster in installation.site.enabled_clusters)
    return f"{installation.site_file} ({names or 'no cluster takes jobs of koala'})"


def _address(site: SiteConfig) -> CheckResult:
    """Check that the names by which nodes are to find this host mean something, at least here."""
    center = site.control_center
    addresses = dict.fromkeys(site.node_address(cluster) for cluster in site.enabled_clusters)
    for address in addresses:
        try:
            found = {str(entry[4][0]) for entry in socket.getaddrinfo(address, None)}
        except OSError as error:
            remedy = "set control_center.address to a name or address of this host that nodes can reach"
            said = f"{address!r} has no address here: {error.strerror or error}"
            return CheckResult(subject="address for nodes", ok=False, found=said, remedy=remedy)
        if center.listen in ANY_ADDRESS and found <= {"127.0.0.1", "127.0.1.1", "::1"} and not _all_local(site):
            remedy = "set control_center.address to an address of this host that nodes can reach"
            said = f"{address!r} is {', '.join(sorted(found))}, where every node finds only itself"
            return CheckResult(subject="address for nodes", ok=False, found=said, remedy=remedy)
    port = str(center.port) if center.port else "a port that is chosen once"
    found_ = f"{', '.join(addresses) or 'none needed'}; listens on {center.listen}, {port}"
    return CheckResult(subject="address for nodes", ok=True, found=found_)


def _all_local(site: SiteConfig) -> bool:
    return all(cluster.plugin == "local" for cluster in site.enabled_clusters)
