# SPDX-License-Identifier: Apache-2.0
"""Terminals of ASCII get ASCII from every command that shows jobs or clusters."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.local_koala import LIVENESS, Koala

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def koala(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Koala]:
    """Give a site on which a job has run whose name is not ASCII."""
    one = Koala(tmp_path_factory.mktemp("q"))
    try:
        one.serve()
        one.run("run", one.job("true", name="später"))
        yield one
    finally:
        one.close()


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}], ids=["locale", "encoding"]
)
@pytest.mark.parametrize("command", ["status", "status 1", "status 1 --json", "explain 1", "clusters", "top --once"])
def test_ascii_is_all_there_is(koala: Koala, command: str, locale: dict[str, str]) -> None:
    """Neither other bytes nor the escapes of those that bars are drawn with; names of others are escaped."""
    done = subprocess.run(
        koala.command(*command.split()),
        env={**koala.environment, **locale, "COLUMNS": "60"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIVENESS,
        check=True,
    )
    assert done.stdout.isascii()
    assert b"\\u2" not in done.stdout
    assert (b"########" in done.stdout) == (command == "status 1")
    if command.startswith("status"):
        assert b"\\xe4" in done.stdout or b"\\u00e4" in done.stdout
