# SPDX-License-Identifier: Apache-2.0
"""Private directories of agents: removed whatever is in them, and only when nobody alive has them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.vjm.agent import place
from koala_adapter.vjm.agent.place import claim_directory, make_private_directory, remove_stale, remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """Return where a tree can be made that is too deep for pytest to remove, should the agent have left it."""
    path = tmp_path / "top"
    yield path
    subprocess.run(["chmod", "-Rf", "u+rwx", path], check=False, timeout=60)
    subprocess.run(["rm", "-rf", path], check=True, timeout=60)


def deep(top: Path, depth: int) -> None:
    top.mkdir()
    place = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deep", dir_fd=place)
        inner = os.open("deep", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=place))
    os.close(place)


def test_a_place_that_cannot_be_written_to_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is private wherever it is; where none can be made, the refusal names the first place."""
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    monkeypatch.setattr(place, "OTHER_PLACES", (str(tmp_path / "neither"), str(other)))
    made = Path(make_private_directory())
    assert (made.parent, made.stat().st_mode & 0o777) == (other, 0o700)
    monkeypatch.setattr(place, "OTHER_PLACES", (str(tmp_path / "neither"),))
    with pytest.raises(FileNotFoundError) as refused:
        make_private_directory()
    assert refused.value.filename == str(tmp_path / "none")


def test_any_tree_is_removed(tmp_path: Path, top: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    deep(top, 1200)
    for name in ("owner", "deep/owner", "name\n", os.fsdecode(b"\xff")):
        (top / name).touch()
    (top / "link").symlink_to(kept)
    (top / "deep" / "link").symlink_to(kept / "file")
    os.mkfifo(top / "deep" / "pipe")
    for number in range(50):
        (top / "wide" / str(number)).mkdir(parents=True)
    (top / "wide").chmod(0)
    (top / "deep" / "deep").chmod(0o500)
    remove_tree(str(top))
    assert not top.exists()
    assert (kept / "file").exists()
    remove_tree(str(top))


def test_a_link_in_the_place_of_the_tree_is_not_followed(tmp_path: Path) -> None:
    """It, and what it leads to, stays."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    remove_tree(str(tmp_path / "link"))
    assert (tmp_path / "kept").exists()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / ("koala-" + "0" * 32)
    made.mkdir(mode=0o700)
    (made / "1").mkdir()
    return made


def test_what_the_dead_left_is_removed(tmp_path: Path, directory: Path) -> None:
    lock = claim_directory(str(directory))
    assert lock is not None
    remove_stale(str(tmp_path))
    assert (directory / "1").exists()
    os.close(lock)
    remove_stale(str(tmp_path))
    assert not directory.exists()


def test_what_is_not_proved_to_be_ours_and_dead_stays(tmp_path: Path, directory: Path) -> None:
    """Without a word of its owner, from another machine, readable by others, of another name, or only a link to one."""
    remove_stale(str(tmp_path))
    assert directory.exists()
    lock = claim_directory(str(directory))
    assert lock is not None
    os.close(lock)
    mine = (directory / "owner").read_bytes()
    (directory / "owner").write_bytes(b"another " + mine)
    remove_stale(str(tmp_path))
    assert directory.exists()
    (directory / "owner").write_bytes(mine)
    directory.chmod(0o750)
    remove_stale(str(tmp_path))
    assert directory.exists()
    directory.chmod(0o700)
    other = directory.rename(tmp_path / "koala-mine")
    directory.symlink_to(other)
    remove_stale(str(tmp_path))
    assert (other / "1").exists()
