# SPDX-License-Identifier: Apache-2.0
"""Contents in the caches of sites, and on their way from one site to another: real gateways by stand-ins for ssh."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
from anyio import to_thread

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.gateway import direct as at_site
from koala_adapter.sites.contents import (
    TRIAL_SIZE,
    BrokenOffError,
    Content,
    Pair,
    Passport,
    SiteCache,
    UnreachableError,
    digest_at,
    pass_content,
    pass_trial,
)
from koala_adapter.testing.trial import eventually
from koala_adapter.vjm.certificate import fingerprint_of
from koala_adapter.vjm.newcertificate import new_pem
from tests.unit.sites.test_remotesite import Place, changed_gateway, place, taken_port

__all__ = ["place"]

SIZE = 5 * 1024 * 1024 + 17

# -- The cache of a site -------------------------------------------------------------------------------------


class LocalFile:
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
    cache, contents = SiteCache(place.site), [LocalFile(tmp_path) for _ in range(6)]
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


async def test_an_answer_that_is_none_is_told_with_its_site(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_answer(*_request: object) -> dict[str, object]:
        return {}

    monkeypatch.setattr(place.site, "ask", no_answer)
    cache = SiteCache(place.site)
    with pytest.raises(LrmUnavailableError, match=f"^site {place.site.name} gave no sizes"):
        await cache.look()
    with pytest.raises(LrmUnavailableError, match=f"^site {place.site.name} gave no answer on the room"):
        await cache.make_room(1, bound=2, keep=())


async def test_a_content_that_is_sent_goes_on_where_it_was(place: Place, cached: Path, tmp_path: Path) -> None:
    """What came before the connection broke is not sent again, and is no content before the rest is there."""
    cache, content = SiteCache(place.site), LocalFile(tmp_path, 4 * SIZE)
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
    cache, content = SiteCache(place.site), LocalFile(tmp_path)
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
    cache, content = SiteCache(place.site), LocalFile(tmp_path, 10)
    await cache.look()
    with pytest.raises(OSError, match="is no digest"):
        await cache.put_file(content.path, digest, 0, content.note)
    with pytest.raises(OSError, match="is no digest"):
        await cache.look([digest])


async def test_a_part_that_cannot_be_written_is_told(place: Place, cached: Path, tmp_path: Path) -> None:
    """A file that cannot be written is an error of that file, and the connection stays."""
    cache, content = SiteCache(place.site), LocalFile(tmp_path)
    await cache.look()
    (cached / f"{content.digest}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"\.part"):
        await content.put(cache)
    (cached / f"{content.digest}.part").unlink()
    await content.put(cache)
    assert not place.site.trouble


async def test_what_was_used_longest_ago_makes_room(place: Place, cached: Path, tmp_path: Path) -> None:
    """Nothing that is to be kept goes, and what cannot be freed is told."""
    cache, contents = SiteCache(place.site), [LocalFile(tmp_path, 1000) for _ in range(4)]
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
    cache, contents = SiteCache(place.site), [LocalFile(tmp_path, 1000) for _ in range(2)]
    await cache.look()
    for content in contents:
        await content.put(cache)
        os.utime(cached / content.digest, (1000, 1000))
    await cache.look([contents[0].digest])
    await cache.make_room(0, bound=1000, keep=())
    assert set((await cache.look()).whole) == {contents[0].digest}


async def test_very_many_contents_are_asked_for(place: Place) -> None:
    """A job may have several directories of 10,000 files each; what no request holds is an error of that request."""
    cache, many = SiteCache(place.site), [f"{number:064x}" for number in range(50_000)]
    assert not (await cache.look(many)).whole
    assert await cache.make_room(1, bound=2, keep=many) == ([], 0)
    with pytest.raises(OSError, match="too long"):
        await cache.look(many * 4)
    assert not (await cache.look(many[:1])).whole


# -- Transfers from one site to another ----------------------------------------------------------------------

HERE = ("127.0.0.1",)


def passport() -> Passport:
    """Return what the gateways of a transfer know each other by."""
    pem = new_pem("transfer").decode()
    return Passport(pem=pem, fingerprint=fingerprint_of(pem))


class Two:
    """Two sites, of which the first has a file."""

    def __init__(self, directory: Path) -> None:
        for name in ("one", "other"):
            (directory / name).mkdir()
        self.one, self.other = Place(directory / "one"), Place(directory / "other")
        for at in (self.one, self.other):
            at.program = str(at.ssh)
            at.site = at.new_site()
        self.path = directory / "content"
        data = os.urandom(SIZE)
        self.path.write_bytes(data)
        self.digest = hashlib.sha256(data).hexdigest()
        self.came = 0
        self.there = directory / "other" / "there" / "cache" / self.digest

    def pair(self, *, receiver_listens: bool = True, addresses: tuple[str, ...] = HERE) -> Pair:
        """Return the pair by which the file goes to the other site."""
        return Pair(
            sender=self.one.site,
            receiver=self.other.site,
            receiver_listens=receiver_listens,
            addresses=addresses,
        )

    async def move(self, pair: Pair, offset: int = 0) -> None:
        """Move the file."""
        content = Content(path=str(self.path), digest=self.digest, size=SIZE, offset=offset)
        passed = await pass_content(pair, content, passport(), self.count)
        assert (passed.size, passed.latency is not None) == (SIZE - offset, True)

    def count(self, size: int) -> None:
        """Count what has come."""
        self.came += size

    async def part(self) -> int:
        """Return how much the other site has of the file."""
        found = await SiteCache(self.other.site).look([self.digest])
        return found.parts.get(self.digest, 0)


@pytest.fixture
async def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    monkeypatch.setattr("koala_adapter.sites.remotesite.FIRST_PAUSE", 0.1)
    two = Two(tmp_path)
    await SiteCache(two.other.site).look()
    yield two
    for at in (two.one, two.other):
        await at.site.close()


@pytest.mark.parametrize("receiver_listens", [True, False])
async def test_a_content_goes_from_site_to_site(two: Two, receiver_listens: bool) -> None:  # noqa: FBT001 - a parameter
    """Either side may listen; it arrives as through here: whole, under its digest, for its user alone."""
    await two.move(two.pair(receiver_listens=receiver_listens))
    assert two.there.read_bytes() == two.path.read_bytes()
    assert two.there.stat().st_mode & 0o777 == 0o400
    assert two.came == SIZE


@pytest.mark.parametrize("receiver_listens", [True, False])
async def test_the_listener_keeps_to_the_ports_of_its_site(two: Two, receiver_listens: bool) -> None:  # noqa: FBT001
    with taken_port() as taken:
        listener = two.other.site if receiver_listens else two.one.site
        listener.ports = taken, taken
        with pytest.raises(BrokenOffError, match="Address already in use"):
            await two.move(two.pair(receiver_listens=receiver_listens))
        listener.ports = taken, taken + 100
        await two.move(two.pair(receiver_listens=receiver_listens))
    assert two.there.exists()


async def test_the_addresses_of_the_listener_are_found(two: Two) -> None:
    if not at_site.own_addresses():
        pytest.skip("this host has no address but those of its loopback")
    await two.move(two.pair(addresses=()))
    assert two.there.exists()


async def test_a_content_that_is_passed_goes_on_where_it_was(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came before the connection of koala broke stays, and is no content before the rest is there."""
    monkeypatch.setattr("koala_adapter.sites.contents.LAST_WORDS", 0.1)
    await two.other.site.close()
    takes = b"            data = received("
    stops = b"            while came > 2500000:\n                time.sleep(1)\n"  # until its connection has ended
    with changed_gateway(monkeypatch, takes, stops + takes):
        two.other.site = two.other.new_site()
        assert not await two.part()

    async def move() -> None:
        with suppress(LrmUnavailableError, BrokenOffError):
            await two.move(two.pair())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(move)
        await eventually(two.part, bool, what="something has come", seconds=60)
        await two.other.break_connection()
    await two.other.restore()
    assert not two.there.exists()
    offset = await two.part()
    two.came = 0
    await two.move(two.pair(), offset)
    assert two.came == SIZE - offset
    assert hashlib.sha256(two.there.read_bytes()).hexdigest() == two.digest


async def test_where_nothing_answers_no_connection_is_made(two: Two) -> None:
    for listens in (True, False):
        with pytest.raises(UnreachableError, match=r"cannot be reached at 255\.255\.255\.255"):
            await two.move(two.pair(receiver_listens=listens, addresses=("255.255.255.255",)))
    assert not two.came


async def test_a_content_that_has_changed_is_not_taken(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of another size is not sent, and one of another digest is not kept."""
    monkeypatch.setattr("koala_adapter.sites.contents.LAST_WORDS", 0.1)
    data = two.path.read_bytes()
    for content in (data[:-1], data[:-1] + b"?"):
        two.path.write_bytes(content)
        with pytest.raises(BrokenOffError):
            await two.move(two.pair())
        assert not two.there.exists()
    two.path.write_bytes(data)
    assert await digest_at(two.one.site, str(two.path)) == (two.digest, SIZE)
    with pytest.raises(OSError, match="no regular file"):
        await digest_at(two.one.site, str(two.path.parent))


async def test_a_full_disk_of_the_receiver_is_told(two: Two) -> None:
    two.there.with_suffix(".part").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"\.part"):
        await two.move(two.pair())


async def test_the_bandwidth_between_two_sites_is_measured(two: Two) -> None:
    passed = await pass_trial(two.pair(), passport())
    assert 0 < passed.size <= TRIAL_SIZE
    assert passed.seconds > 0
    assert passed.latency is not None


# -- A listening gateway and strangers --------------------------------------------------------------------------


class Listening:
    """A gateway that waits for a content."""

    def __init__(self, directory: Path) -> None:
        self.pass_by, self.told = passport(), anyio.Event()
        self.port, self.directory = 0, directory
        request = {"listens": True, "sends": False, "trial": True, "size": 5, "seconds": 20}
        shown = {"secret": "s" * 64, "certificate": self.pass_by.pem}
        self.passage = at_site.Passage({**request, **shown, "ports": (0, 0)}, self._tell)

    def _tell(self, said: dict[str, Any]) -> None:
        self.port = said["port"]
        anyio.from_thread.run_sync(self.told.set)

    def connect(self, secret: str, data: bytes = b"") -> bytes:
        """Say something by TLS, and return what comes back before the end."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as plain, context.wrap_socket(plain) as tls:
            tls.sendall(secret.encode() + data)
            return tls.recv(100)


async def test_strangers_get_nothing_from_a_gateway_that_listens(tmp_path: Path) -> None:
    """Silent ones, and one with a wrong secret, do not hold up the peer, after which nothing listens."""
    listening = Listening(tmp_path)
    found: dict[str, Any] = {}

    async def listen() -> None:
        found.update(await to_thread.run_sync(listening.passage.run))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await listening.told.wait()
        silent = [socket.create_connection(("127.0.0.1", listening.port)) for _ in range(3)]
        assert not await to_thread.run_sync(listening.connect, "x" * 64, b"12345")
        await to_thread.run_sync(listening.connect, "s" * 64, b"12345")
    assert found["came"] == 5
    for one in silent:
        assert not await to_thread.run_sync(one.recv, 1)
        one.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listening.port))


async def test_a_gateway_that_listens_ends_when_it_is_told_to(tmp_path: Path) -> None:
    listening = Listening(tmp_path)

    async def listen() -> None:
        with pytest.raises(OSError, match="the other site has not connected") as raised:
            await to_thread.run_sync(listening.passage.run)
        assert raised.value.errno == errno.EHOSTUNREACH

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await listening.told.wait()
        listening.passage.stop()
