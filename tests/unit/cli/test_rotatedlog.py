# SPDX-License-Identifier: Apache-2.0
"""The log of a service in the background stays small, and loses nothing that is recent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import structlog

from koala_adapter.cli.innerservice import log_to_file
from koala_adapter.cli.log import KEPT, LARGEST, RotatedLog
from koala_adapter.cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def descriptors(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Give two descriptors of one file, as a process has its standard streams."""
    first = os.open(tmp_path / "service.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    second = os.dup(first)
    yield first, second
    os.close(first)
    os.close(second)


def test_a_full_file_is_put_aside(tmp_path: Path, descriptors: tuple[int, int]) -> None:
    """So many are kept, the latest lines in the file itself; none is larger than allowed, nobody else can read it."""
    log = RotatedLog(tmp_path / "service.log", descriptors, largest=50)
    for number in range(100):
        log.write(f"line {number:04}\n")
    names = ["service.log", *(f"service.log.{number}" for number in range(1, KEPT + 1))]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    texts = [(tmp_path / name).read_text() for name in reversed(names)]
    assert "".join(texts).splitlines() == [f"line {number:04}" for number in range(80, 100)]
    assert all(len(text) <= 50 for text in texts)
    assert (tmp_path / "service.log").stat().st_mode & 0o777 == 0o600


def test_the_other_stream_goes_to_the_new_file(tmp_path: Path, descriptors: tuple[int, int]) -> None:
    """What is printed there, such as a traceback of the interpreter, is not in a file that was put aside."""
    log = RotatedLog(tmp_path / "service.log", descriptors, largest=20)
    log.write("x" * 20)
    log.write("y" * 5)
    os.write(descriptors[0], b"z")
    assert (tmp_path / "service.log").read_text() == "yyyyyz"


def test_a_file_that_somebody_else_has_put_aside_is_left_alone(tmp_path: Path, descriptors: tuple[int, int]) -> None:
    """Nor does anything fail when it is gone; a line that is too long for any file is written all the same."""
    log = RotatedLog(tmp_path / "service.log", descriptors, largest=20)
    log.write("x" * 30)
    (tmp_path / "service.log").rename(tmp_path / "mine")
    log.write("y" * 30)
    (tmp_path / "service.log").write_text("theirs")
    log.write("z" * 30)
    assert (tmp_path / "mine").read_text() == "x" * 30 + "y" * 30 + "z" * 30
    assert (tmp_path / "service.log").read_text() == "theirs"


def test_the_log_of_a_service_inside_a_command_is_put_aside(tmp_path: Path) -> None:
    """It is as large as that of a service in the background, however many commands write to it."""
    (tmp_path / "service.log").write_bytes(b"x" * LARGEST)
    session = Session(site_option=None, state_option=tmp_path)
    with log_to_file(session):
        structlog.get_logger().info("one more")
    assert (tmp_path / "service.log.1").stat().st_size == LARGEST
    assert "one more" in (tmp_path / "service.log").read_text()
