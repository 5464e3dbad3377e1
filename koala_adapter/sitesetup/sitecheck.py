# SPDX-License-Identifier: Apache-2.0
"""The checks of a site that is reached by ssh (``koala check``), from the outside in."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import LrmError
from koala_adapter.lrm import CheckResult
from koala_adapter.sitesetup.search import address_for_nodes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from koala_adapter.config.sitefile import RemoteSiteConfig
    from koala_adapter.lrm.lrmhost import LrmHost

STEP_TIME = 60.0
"""Seconds that each step may take."""
TRIED = 64 * 1024
"""Bytes of the file that is written to see whether there is room: that of a job script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCheck:
    """Checks one site."""

    config: RemoteSiteConfig
    host: LrmHost
    center: tuple[str, int] | None
    """Where a control center listens here for the agents of trial placeholders; None: there are none."""
    tell: Callable[[str], None]
    """Hears what is being looked at."""

    async def run(self) -> list[CheckResult]:
        """Return what was found; what builds on a failure is left out. Where the first fails, the site is of no use."""
        if self.center is not None:
            self.host.relay_agents_to(*self.center)
        connected = await self._step("connection", self._connection)
        if not connected.ok:
            return [connected]
        return [
            connected,
            await self._step("directory", self._directory),
            await self._step("address for nodes", self._address),
            await self._step("speed", self._speed),
        ]

    async def _step(self, subject: str, look: Callable[[], Awaitable[str]]) -> CheckResult:
        self.tell(f"trying its {subject}")
        try:
            with anyio.fail_after(STEP_TIME):
                return CheckResult(subject=subject, ok=True, found=await look())
        except LrmError as error:
            return CheckResult(subject=subject, ok=False, found=error.message, remedy=error.hint)
        except OSError as error:
            remedy = f"see what happens to it on the login node: ssh {self.config.ssh}"
            return CheckResult(subject=subject, ok=False, found=str(error), remedy=remedy)
        except TimeoutError:
            remedy = "does a file system of the login node not answer?"
            return CheckResult(subject=subject, ok=False, found=f"not over within {STEP_TIME:.0f} s", remedy=remedy)

    async def _connection(self) -> str:
        facts = await self.host.facts()
        return f"{facts.user}@{facts.name} by `ssh {self.config.ssh}`, with Python {facts.python}"

    async def _directory(self) -> str:
        """Write a file and remove it. Raises LrmError."""
        path = self.config.directory
        try:
            place, mode = await self.host.make_directory(".")
            if mode & 0o077:
                raise LrmError(f"{place} is open to others (mode {mode:o})", hint=f"there: chmod 700 {place}")
            tried = f"{place}/check-{os.getpid()}-{self.config.name}"  # sites may share a home directory
            try:
                await self.host.write_private(tried, bytes(TRIED))
            finally:
                self.host.remove_soon(tried)
        except OSError as error:
            remedy = "name another one as `directory` of the site: private, writable, and seen by its nodes"
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                remedy = "make room there, or name a `directory` of the site elsewhere, which its nodes see"
            raise LrmError(f"{path} cannot be written: {error.strerror or error}", hint=remedy) from error
        return f"{place} (private)"

    async def _address(self) -> str:
        """Return where agents report. Raises LrmError where the name of the login node leads elsewhere."""
        other = "" if self.config.listen else await address_for_nodes(self.host)
        if other:
            name = (await self.host.facts()).name
            message = f"the name {name} does not lead to the login node itself there, as its nodes would need"
            raise LrmError(message, hint=f'set listen = "{other}" in [[sites]], or the address that its nodes reach')
        if self.center is None:
            return self.config.listen or (await self.host.facts()).name
        place, port = self.host.door or ("", 0)
        return f"{place}, where agents report at port {port}"

    async def _speed(self) -> str:
        return str(await self.host.measure())
