# SPDX-License-Identifier: Apache-2.0
"""The whole search of ``koala init``: the batch systems of this host and those at other sites, and its refusals."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal

from koala_adapter.config.locations import no_site_file
from koala_adapter.config.sitefile import RemoteSiteConfig, load_site_text
from koala_adapter.errors import ConfigurationError, LoginNeededError, LrmUnavailableError
from koala_adapter.lrm import Surroundings
from koala_adapter.service.opening import SiteHosts
from koala_adapter.sitesetup.find import Address, find_address, find_candidates, probe_all, site_text, unique_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.lrm import LeftOut, PluginDefinition
    from koala_adapter.lrm.lrmhost import HostFacts, LrmHost
    from koala_adapter.sitesetup.find import Candidate, UsableCluster


# -- Other sites ---------------------------------------------------------------------------------------------
# What they are called, what a login there sees, and what plugins find with that.

LOGIN_TIME = 10.0
"""Seconds that the user's login files may take at a site."""
LOGIN_SHELLS = frozenset({"bash", "ksh", "sh", "zsh"})
"""Shells that take ``-lc``."""
BEGINNING = "koala-variables"
"""Printed before the variables: login files may print, too."""
ADDRESSES = r"""getent ahostsv4 "$(hostname)" | sed 's/^\([0-9.]*\).*/name \1/'
ip -o -4 address show scope global | sed 's/.* inet \([0-9.]*\).*/own \1/'"""
"""Prints the addresses that the name of a host leads to there, and those that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSite:
    """A site that answers, and what plugins find there."""

    site: RemoteSiteConfig
    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]


def sites_of(
    destinations: Sequence[str], *, options: Sequence[str] = (), python: str | None = None
) -> tuple[RemoteSiteConfig, ...]:
    """Return sites for what ssh is given, each with a name of its own, made of the host's.

    Raises ConfigurationError for what no site file can have.
    """
    found: list[RemoteSiteConfig] = []
    for ssh in dict.fromkeys(destinations):
        host = re.sub(r"^ssh://", "", ssh).rpartition("@")[2].partition(":")[0]
        name = unique_name(host, (one.name for one in found))
        given: dict[str, Any] = {} if python is None else {"python": python}
        try:
            found.append(RemoteSiteConfig(name=name, ssh=ssh, ssh_options=tuple(options), **given))
        except ValueError:
            hint = "HOST is a host of ~/.ssh/config, or user@host; each option of ssh is one --ssh-option"
            raise ConfigurationError(f"--ssh {ssh!r} cannot be used", hint=hint) from None
    return tuple(found)


async def look_at_site(site: RemoteSiteConfig, host: LrmHost, plugins: Mapping[str, PluginDefinition]) -> FoundSite:
    """Return a site with the address that its nodes need, and what plugins find there. Raises LrmUnavailableError."""
    facts = await host.facts()
    environment = {**facts.variables, **await _variables_of_login(host, facts)}
    able = {name: one for name, one in plugins.items() if one.sites}
    async with BlockingPortal() as portal:
        around = Surroundings(environment=environment, uid=facts.uid, host=host, call=portal.call)
        candidates, left_out = await anyio.to_thread.run_sync(find_candidates, able, around)
        await portal.stop(cancel_remaining=True)
    listen = await address_for_nodes(host)
    found = site.model_copy(update={"listen": listen or None})
    return FoundSite(
        site=found,
        candidates=tuple(replace(one, name=_name_of(one, site), site=site.name) for one in candidates),
        left_out=tuple(replace(one, what=f"{one.what}, at {site.name}") for one in left_out),
    )


def _name_of(candidate: Candidate, site: RemoteSiteConfig) -> str:
    """Return the name of a cluster, which begins with that of its site."""
    return candidate.name if candidate.name.startswith(site.name) else f"{site.name}-{candidate.name}"


async def _variables_of_login(host: LrmHost, facts: HostFacts) -> Mapping[str, str]:
    """Return the variables that the user has after a login, which a command given to ssh has not; none in time: none.

    Many sites set PATH and SGE_ROOT there alone.
    """
    shell = facts.variables.get("SHELL", "")
    shell = shell if shell.rpartition("/")[2] in LOGIN_SHELLS else "/bin/sh"
    output = b""
    with anyio.move_on_after(LOGIN_TIME):
        try:
            command = (shell, "-lc", f"printf '{BEGINNING}\\0'; env -0")
            _, output, _ = await host.run(command, environment=facts.variables)
        except OSError:
            return {}
    _, _, told = output.decode("utf-8", "replace").partition(f"{BEGINNING}\0")
    return dict(line.split("=", 1) for line in told.split("\0") if "=" in line)


async def address_for_nodes(host: LrmHost) -> str:
    """Return an address of the login node where its name does not lead to it; empty: the name serves."""
    try:
        with anyio.fail_after(LOGIN_TIME):
            _, output, _ = await host.run(("/bin/sh", "-c", ADDRESSES))
    except (OSError, LrmUnavailableError, TimeoutError):
        return ""
    lines = [line.split() for line in output.decode("ascii", "replace").splitlines()]
    told: dict[str, list[str]] = {"name": [], "own": []}
    for line in lines:
        if len(line) == 2 and line[0] in told:  # noqa: PLR2004 - kind and address
            told[line[0]].append(line[1])
    return "" if not told["own"] or set(told["name"]) & set(told["own"]) else told["own"][0]


# -- The whole search ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of a search: batch systems found, and how."""

    clusters: tuple[UsableCluster, ...]
    left_out: tuple[LeftOut, ...]
    sites: tuple[RemoteSiteConfig, ...] = ()

    def text(self, *, made: str) -> str:
        """Return the site file; there must be clusters. ``made``: by what and when."""
        here = any(one.candidate.site is None for one in self.clusters)
        # Agents at other sites come by the connections that koala makes.
        address = find_address() if here else Address(listen="127.0.0.1")
        return site_text(self.clusters, self.left_out, address, made=made, sites=self.sites)


def our_surroundings() -> Surroundings:
    """Return where plugins look: the variables of this process, the files of this host."""
    return Surroundings(environment=os.environ)


def search(
    plugins: Mapping[str, PluginDefinition],
    directory: Path,
    *,
    sites: Sequence[RemoteSiteConfig] = (),
    around: Surroundings | None = None,
    tell: Callable[[str], None] = lambda _: None,
    log_in: Callable[[RemoteSiteConfig], None] | None = None,
) -> Found:
    """Find what is here and at other sites, and try it. ``directory``: the state directory, which is there.

    Takes seconds; ``tell`` hears what is being done. ``log_in`` has a person log in to a site that asks for that, once
    for each. Raises LrmUnavailableError for a site that cannot be connected, and ConfigurationError for one where no
    batch system can be used.
    """
    tell("looking for batch systems")
    asked: set[str] = set()
    while True:
        try:
            found = anyio.run(_search_all, plugins, directory, sites, around or our_surroundings(), tell)
            break
        except _ClosedSiteError as closed:
            if log_in is None or closed.site.name in asked:
                raise closed.error from None
            asked.add(closed.site.name)
            log_in(closed.site)
    if found.clusters:
        # Whatever a plugin told us, what is written can be read.
        load_site_text(found.text(made="found"), plugins)
    return found


class _ClosedSiteError(Exception):
    """A person must log in to a site."""

    def __init__(self, site: RemoteSiteConfig, error: LoginNeededError) -> None:
        super().__init__(error.message)
        self.site = site
        self.error = error


async def _search_all(
    plugins: Mapping[str, PluginDefinition],
    directory: Path,
    sites: Sequence[RemoteSiteConfig],
    around: Surroundings,
    tell: Callable[[str], None],
) -> Found:
    async with SiteHosts(sites, directory) as hosts:
        there = await _look_at_all(sites, hosts, plugins)
        here, left_out = await anyio.to_thread.run_sync(find_candidates, plugins, around)
        candidates = list(here)
        for one in there:
            for candidate in one.candidates:
                name = unique_name(candidate.name, (other.name for other in candidates))
                candidates.append(replace(candidate, name=name))
            left_out += one.left_out
        clusters, failing = await probe_all(candidates, plugins, directory, hosts, tell=tell)
    left_out += failing
    used = {one.candidate.site for one in clusters}
    if missing := [site.name for site in sites if site.name not in used]:
        message = f"no batch system can be used at {', '.join(missing)}{_seen(left_out)}"
        raise ConfigurationError(message, hint="leave that site out, or write its tables by hand: `koala docs sites`")
    return Found(clusters=clusters, left_out=left_out, sites=tuple(one.site for one in there))


async def _look_at_all(
    sites: Sequence[RemoteSiteConfig], hosts: SiteHosts, plugins: Mapping[str, PluginDefinition]
) -> list[FoundSite]:
    """Look at all sites side by side. Raises what the first one that cannot be used does, or _ClosedSiteError."""
    found: dict[str, FoundSite | LrmUnavailableError] = {}

    async def one(site: RemoteSiteConfig) -> None:
        try:
            found[site.name] = await look_at_site(site, hosts.at(site.name), plugins)
        except LrmUnavailableError as error:
            found[site.name] = error

    async with anyio.create_task_group() as tasks:
        for site in sites:
            tasks.start_soon(one, site)
    for site in sites:
        result = found[site.name]
        if isinstance(result, LoginNeededError):
            raise _ClosedSiteError(site, result)
        if isinstance(result, LrmUnavailableError):
            raise result
    return [result for site in sites if isinstance(result := found[site.name], FoundSite)]


# -- Refusals ------------------------------------------------------------------------------------------------


def no_site_file_here(
    plugins: Mapping[str, PluginDefinition], *, around: Surroundings | None = None
) -> ConfigurationError:
    """Return the refusal for a missing site file: where it was looked for, which batch systems are here, what to do."""
    candidates, left_out = find_candidates(plugins, our_surroundings() if around is None else around)
    if not candidates:
        nothing = nothing_found(left_out)
        return ConfigurationError(f"{no_site_file()}; {nothing.message}", hint=nothing.hint)
    here = ", ".join(one.described for one in candidates)
    hint = "`koala init` tries them and writes a site file; `koala demo` needs none"
    return ConfigurationError(f"{no_site_file()}; batch systems of this host: {here}", hint=hint)


def nothing_found(left_out: Sequence[LeftOut]) -> ConfigurationError:
    """Return what is said where no batch system can be used."""
    seen = _seen(left_out)
    hint = (
        "set SLURM_CONF, SGE_ROOT or PBS_CONF_FILE, or write a site file by hand: `koala conf` lists examples; "
        "`koala demo` needs none"
    )
    what = "no batch system can be used from here:" if seen else "no batch system was found on this host"
    return ConfigurationError(f"{what}{seen}", hint=hint)


def _seen(left_out: Sequence[LeftOut]) -> str:
    """Return a line for each thing that was seen and left out."""
    return "".join(f"\n  {one.what}: {one.why}{f'; {one.remedy}' if one.remedy else ''}" for one in left_out)
