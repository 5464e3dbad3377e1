# SPDX-License-Identifier: Apache-2.0
"""What koala knows of the network and of files: how near its measurement is to a transfer, and what catalogues cost.

python -m benchmarks.network measured [--repeat 5] [--mib 64] [--delay 0]
python -m benchmarks.network catalogues [--repeat 7] [--entries 50000]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio

from benchmarks.common import Row, beside, in_turns, least, main, processor_seconds
from koala_adapter.sites.catalogue import read_catalogue
from koala_adapter.sites.remotesite import RemoteSite, SiteAddress
from tests.real.systems.othersite import ADDRESS, OtherSite

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1024**2


def measured(*, repeat: int = 5, mib: int = 64, delay: float = 0.0) -> list[Row]:
    """Bandwidth to a site as koala measures it with 6 MiB at most, over that of ``ssh SITE 'cat > /dev/null'``.

    ``delay``: seconds that each way takes.
    """
    content = os.urandom(mib * MIB)
    with OtherSite(delay=delay) as there:
        ssh = ["ssh", "-F", str(there.ssh_config), "site"]
        address = SiteAddress(name="site", ssh="site", options=("-F", str(there.ssh_config)), listen=ADDRESS)

        def copied() -> float:
            """Return MiB/s, with the time to log in left out."""
            times = []
            for data in (b"", content):
                began = time.monotonic()
                subprocess.run([*ssh, "cat > /dev/null"], input=data, check=True)
                times.append(time.monotonic() - began)
            return mib / (times[1] - times[0])

        async def measure() -> float:
            site = RemoteSite(address)
            try:
                found = await site.measure()
            finally:
                await site.close()
            return found.size / found.seconds / MIB

        turns = in_turns({"koala": lambda: anyio.run(measure), "ssh": copied}, repeat)
    koala, ssh_cat = (statistics.median(turns[name]) for name in ("koala", "ssh"))
    return [
        {
            "": "bandwidth, MiB/s",
            "koala": koala,
            "least": min(turns["koala"]),
            "most": max(turns["koala"]),
            "ssh cat": ssh_cat,
            "ratio": koala / ssh_cat,
        }
    ]


def catalogues(*, repeat: int = 7, entries: int = 50_000) -> list[Row]:
    """Processor time to read a catalogue and to look for each of its names, over that to split its text."""
    text = "".join(f"set{number % 100}/file{number} /data/sets/file{number}\n" for number in range(entries)).encode()
    found = read_catalogue(text)

    def look() -> None:
        for name in found.names:
            found.place_of(name)

    ways: dict[str, Callable[[], object]] = {
        "split into words": lambda: [line.split() for line in text.decode().split("\n")],
        "read": lambda: read_catalogue(text),
        "each name looked for": look,
    }
    times = least({name: partial(processor_seconds, way) for name, way in ways.items()}, repeat)
    return beside({name: {"processor, s": used} for name, used in times.items()}, "processor, s")


if __name__ == "__main__":
    main(measured, catalogues)
