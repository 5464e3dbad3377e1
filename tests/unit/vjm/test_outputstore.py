# SPDX-License-Identifier: Apache-2.0
"""Output files: each byte once and in order, whatever is sent twice; private."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import ProtocolError
from koala_adapter.vjm.output import OutputStore

STREAM = bytes(range(256)) * 2


@given(pieces=st.lists(st.tuples(st.integers(0, 511), st.integers(0, 120)), max_size=20))
def test_any_overlap_gives_the_stream_once(pieces: list[tuple[int, int]]) -> None:
    """Pieces that begin within what is there extend it; those beyond are refused; nothing is ever wrong or double."""
    store = OutputStore()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rank.out"
        size = 0
        for offset, length in pieces:
            data = STREAM[offset : offset + length]
            if offset > size:
                with pytest.raises(ProtocolError, match="missing"):
                    store.append(path, offset, data)
            else:
                size = max(size, offset + len(data))
                assert store.append(path, offset, data) == size
            assert path.read_bytes() == STREAM[:size]


def test_files_are_private(tmp_path: Path) -> None:
    """Files 0600, every new directory 0700, whatever the umask."""
    before = os.umask(0)
    try:
        OutputStore().append(tmp_path / "job" / "component" / "0.out", 0, b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "job" / "component" / "0.out").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "job" / "component").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "job").stat().st_mode & 0o777 == 0o700


def test_nothing_is_written_through_a_link_or_into_a_fifo(tmp_path: Path) -> None:
    """What somebody put in the place of the file is left alone, and is an error, not a wait."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link.out").symlink_to(victim)
    os.mkfifo(tmp_path / "fifo.out")
    for name in ("link.out", "fifo.out"):
        with pytest.raises(OSError):  # noqa: PT011 - which error depends on what is there
            OutputStore().append(tmp_path / name, 0, b"x")
    assert victim.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.out"
    path.touch()
    os.chown(path, 65534, 65534)
    with pytest.raises(PermissionError, match="not a plain file of our own"):
        OutputStore().append(path, 0, b"x")


def test_a_file_that_was_emptied_can_go_on(tmp_path: Path) -> None:
    """The lost part reads as NUL bytes, the rest is in its place; what is there is never cut."""
    path = tmp_path / "x.out"
    store = OutputStore()
    store.append(path, 0, b"12345")
    path.unlink()
    assert store.skip(path, 5) == 5
    assert store.append(path, 5, b"678") == 8
    assert store.skip(path, 2) == 8
    assert path.read_bytes() == b"\0\0\0\0\x00678"
