# SPDX-License-Identifier: Apache-2.0
"""The cache of input files at a site: contents by their SHA-256 in ``cache`` of the user's directory there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import to_thread

from koala_adapter.errors import LrmUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.sites.remotesite import RemoteSite

DIRECTORY = "cache"
BLOCK = 1024 * 1024
"""Bytes that are read, and handed to the connection, at once."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a cache has."""

    whole: Mapping[str, int]
    """Sizes by digests."""
    parts: Mapping[str, int]
    """Bytes that have come of contents that are not whole."""


class SiteCache:
    """The cache of one site. Each method raises OSError for an error there, LrmUnavailableError while it is away."""

    def __init__(self, host: RemoteSite) -> None:
        """``host``: the site."""
        self._host = host

    async def look(self, digests: Collection[str] | None = None) -> Found:
        """Return what there is of contents, which count as used now; None: what was used latest."""
        wanted = None if digests is None else list(digests)
        found = await self._host.ask({"do": "look_into_cache", "path": DIRECTORY, "digests": wanted})
        return Found(whole=self._sizes(found.get("whole")), parts=self._sizes(found.get("parts")))

    async def make_room(self, need: int, *, bound: int, keep: Collection[str]) -> tuple[Sequence[str], int]:
        """Remove what was used longest ago, but nothing of ``keep``.

        Return the digests of what was removed, and how many bytes are lacking still.
        """
        request = {"do": "make_room_in_cache", "path": DIRECTORY, "need": need, "bound": bound, "keep": list(keep)}
        found = await self._host.ask(request)
        removed, lacking = found.get("removed"), found.get("lacking")
        if not isinstance(removed, list) or not isinstance(lacking, int):
            raise LrmUnavailableError(f"site {self._host.name} gave no answer on the room in its cache")
        return [str(digest) for digest in removed], lacking

    async def put(self, pieces: AsyncIterable[bytes], digest: str, *, size: int, offset: int) -> None:
        """Send a content of ``size`` bytes; ``pieces``: of what comes after its first ``offset`` bytes."""
        request = {"do": "put", "path": DIRECTORY, "digest": digest, "size": size, "offset": offset}
        await self._host.ask(request, pieces)

    async def put_file(self, path: Path, digest: str, offset: int, sent: Callable[[int], None]) -> None:
        """Send a content from a file, after its first ``offset`` bytes; ``sent`` is told how many bytes went."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(descriptor).st_size
            await self.put(_pieces(descriptor, offset, sent), digest, size=size, offset=offset)
        finally:
            os.close(descriptor)

    def _sizes(self, found: object) -> Mapping[str, int]:
        if not isinstance(found, dict) or not all(isinstance(size, int) for size in found.values()):
            raise LrmUnavailableError(f"site {self._host.name} gave no sizes of contents")
        return {str(digest): size for digest, size in found.items()}


async def _pieces(descriptor: int, offset: int, sent: Callable[[int], None]) -> AsyncIterator[bytes]:
    while data := await to_thread.run_sync(os.pread, descriptor, BLOCK, offset):
        yield data
        offset += len(data)
        sent(len(data))
