# SPDX-License-Identifier: Apache-2.0
"""What commands import while a service answers them: nothing of the service, so that they answer at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.imported import imported_packages
from tests.local_koala import Koala

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ALONE = frozenset({"click", "koala_adapter"})


@pytest.fixture(scope="module")
def koala(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Koala]:
    """Give a site whose service has run a job."""
    one = Koala(tmp_path_factory.mktemp("q"))
    try:
        one.serve()
        one.run("run", one.job("echo hello"))
        yield one
    finally:
        one.close()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["status"], ALONE | {"rich"}),
        (["status", "--json"], ALONE),
        (["status", "1"], ALONE | {"rich"}),
        (["status", "1", "--json"], ALONE),
        (["explain", "1"], ALONE | {"rich"}),
        (["explain", "1", "--json"], ALONE),
        (["logs", "1"], ALONE),
        (["cancel", "1", "--json"], ALONE),
        (["clusters"], ALONE | {"rich"}),
        (["clusters", "--json"], ALONE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_asking_a_service_imports_little(koala: Koala, arguments: list[str], expected: frozenset[str]) -> None:
    """Values are read and shown with click, and with rich where something is drawn."""
    found = imported_packages(koala.command(*arguments)[1:], koala.environment)
    assert found == expected
