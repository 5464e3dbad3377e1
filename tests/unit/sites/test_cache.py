# SPDX-License-Identifier: Apache-2.0
"""The cache of input files at a site, in a real gateway that a stand-in for ssh starts."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from pathlib import Path

import anyio
import pytest

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.sites.contents import SiteCache
from tests.unit.sites.test_remotesite import Place, place

__all__ = ["place"]

SIZE = 5 * 1024 * 1024 + 17
BOUND = 1024**3


class Content:
    """A file here that goes to the cache."""

    def __init__(self, directory: Path, size: int = SIZE) -> None:
        data = os.urandom(size)
        self.size = size
        self.digest = hashlib.sha256(data).hexdigest()
        self.path = directory / self.digest
        self.path.write_bytes(data)
        self.sent = 0

    async def put(self, cache: SiteCache, offset: int = 0) -> None:
        """Send what comes after ``offset``."""
        await cache.put_file(self.path, self.digest, offset, self.note)

    def note(self, size: int) -> None:
        """Count what was sent."""
        self.sent += size


@pytest.fixture
def cached(place: Place) -> Path:
    """Return the directory of the cache."""
    return place.directory / "cache"


async def test_a_content_arrives_whole(place: Place, cached: Path, tmp_path: Path) -> None:
    """Several at once, each for its user alone."""
    cache, contents = SiteCache(place.site), [Content(tmp_path) for _ in range(6)]
    assert not (await cache.look()).whole
    async with anyio.create_task_group() as tasks:
        for content in contents:
            tasks.start_soon(content.put, cache)
    assert (await cache.look([one.digest for one in contents])).whole == {one.digest: SIZE for one in contents}
    for content in contents:
        assert (cached / content.digest).read_bytes() == content.path.read_bytes()
        assert (cached / content.digest).stat().st_mode & 0o777 == 0o400
        assert content.sent == SIZE
    assert os.stat(cached).st_mode & 0o777 == 0o700  # noqa: PTH116 - in a directory of this test alone


async def test_a_transfer_goes_on_where_it_was(place: Place, cached: Path, tmp_path: Path) -> None:
    """What came before the connection broke is not sent again, and is no content before the rest is there."""
    cache, content = SiteCache(place.site), Content(tmp_path, 4 * SIZE)
    await cache.look()

    async def break_soon() -> None:
        while content.sent < SIZE:
            await anyio.lowlevel.checkpoint()
        await place.break_connection()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(break_soon)
        with pytest.raises(LrmUnavailableError):
            await content.put(cache)
    assert not (cached / content.digest).exists()
    await place.restore()
    offset = (await cache.look([content.digest])).parts[content.digest]
    assert 0 < offset < content.size
    content.sent = 0
    await content.put(cache, offset)
    assert content.sent == content.size - offset
    assert (cached / content.digest).read_bytes() == content.path.read_bytes()


async def test_another_content_is_not_taken_for_it(place: Place, cached: Path, tmp_path: Path) -> None:
    """What is wrong with what has come costs that part."""
    cache, content = SiteCache(place.site), Content(tmp_path)
    await cache.look()
    (cached / f"{content.digest}.part").write_bytes(bytes(1000))
    with pytest.raises(OSError, match="with another content") as caught:
        await content.put(cache, 1000)
    assert caught.value.errno == errno.EBADMSG
    found = await cache.look([content.digest])
    assert not found.whole
    assert not found.parts
    with pytest.raises(OSError, match="less of it is there"):
        await content.put(cache, 1000)
    await content.put(cache)
    assert (await cache.look([content.digest])).whole


@pytest.mark.parametrize("digest", ["../../x", "A" * 64, ""])
async def test_a_path_is_no_digest(place: Place, tmp_path: Path, digest: str) -> None:
    cache, content = SiteCache(place.site), Content(tmp_path, 10)
    await cache.look()
    with pytest.raises(OSError, match="is no digest"):
        await cache.put_file(content.path, digest, 0, content.note)
    with pytest.raises(OSError, match="is no digest"):
        await cache.look([digest])


async def test_a_part_that_cannot_be_written_is_told(place: Place, cached: Path, tmp_path: Path) -> None:
    """A file that cannot be written is an error of that file, and the connection stays."""
    cache, content = SiteCache(place.site), Content(tmp_path)
    await cache.look()
    (cached / f"{content.digest}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"\.part"):
        await content.put(cache)
    (cached / f"{content.digest}.part").unlink()
    await content.put(cache)
    assert not place.site.trouble


async def test_what_was_used_longest_ago_makes_room(place: Place, cached: Path, tmp_path: Path) -> None:
    """Nothing that is to be kept goes, and what cannot be freed is told."""
    cache, contents = SiteCache(place.site), [Content(tmp_path, 1000) for _ in range(4)]
    await cache.look()
    for content in contents:
        await content.put(cache)
    old, part, kept, young = contents
    (cached / part.digest).rename(cached / f"{part.digest}.part")
    now = time.time()
    for age, content in enumerate((young, kept, part, old)):
        path = cached / content.digest if content is not part else cached / f"{part.digest}.part"
        os.utime(path, (now - 100 * age, now - 100 * age))
    keep = {kept.digest}
    assert await cache.make_room(1000, bound=5000, keep=keep) == ([], 0)
    assert len((await cache.look()).whole) == 3
    assert await cache.make_room(1500, bound=4500, keep=keep) == ([old.digest], 0)
    assert set((await cache.look()).whole) == {kept.digest, young.digest}
    assert await cache.make_room(1500, bound=3000, keep=keep) == ([part.digest, young.digest], 0)
    assert set((await cache.look()).whole) == {kept.digest}
    assert await cache.make_room(1500, bound=2000, keep=keep) == ([], 500)
    assert set((await cache.look()).whole) == {kept.digest}


async def test_what_is_used_now_goes_last(place: Place, cached: Path, tmp_path: Path) -> None:
    cache, contents = SiteCache(place.site), [Content(tmp_path, 1000) for _ in range(2)]
    await cache.look()
    for content in contents:
        await content.put(cache)
        os.utime(cached / content.digest, (1000, 1000))
    await cache.look([contents[0].digest])
    await cache.make_room(0, bound=1000, keep=())
    assert set((await cache.look()).whole) == {contents[0].digest}
