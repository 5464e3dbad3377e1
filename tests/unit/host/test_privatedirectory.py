# SPDX-License-Identifier: Apache-2.0
"""Directories for secrets: what another user could put in their place is not used, and nothing of it is changed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from koala_adapter.cli.koala import koala
from koala_adapter.errors import EXIT_CONFIGURATION
from koala_adapter.host.privatedirectory import (
    make_directory,
    make_private_directory,
    transient_directory,
    weakness,
)

if TYPE_CHECKING:
    from pathlib import Path

FOREIGN = 54321
"""A user id that nobody has."""

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def mode_of(path: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def sticky(path: Path) -> Path:
    """Make a directory in which everybody may make files, as /tmp is."""
    path.mkdir()
    path.chmod(0o1777)
    return path


@only_root
@pytest.mark.parametrize("command", [["status"], ["cancel", "1"], ["serve"], ["reap"], ["clusters"]])
@pytest.mark.parametrize("below", ["", "state"])
def test_a_link_of_somebody_else_is_not_followed(tmp_path: Path, command: list[str], below: str) -> None:
    """It is refused with path, owner and way out, and the directory that it names stays as it is."""
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o755)
    (ours / "state").mkdir(mode=0o755)
    link = sticky(tmp_path / "shared") / "link"
    link.symlink_to(ours)
    os.lchown(link, FOREIGN, FOREIGN)
    before = sorted(ours.rglob("*"))
    result = CliRunner().invoke(koala, ["--state", str(link / below), *command])
    assert result.exit_code == EXIT_CONFIGURATION
    said = " ".join(result.output.split())
    assert f"{link} is a symbolic link of user {FOREIGN}, who can point it anywhere" in said.replace("- ", "-")
    assert "--state" in said
    assert [mode_of(ours), mode_of(ours / "state")] == [0o755, 0o755]
    assert sorted(ours.rglob("*")) == before


@only_root
def test_links_and_parents_of_somebody_else(tmp_path: Path) -> None:
    """Wherever on the way they are: before a link, behind it, and in a chain of links."""
    shared = sticky(tmp_path / "shared")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, FOREIGN, FOREIGN)
    (tmp_path / "ours").mkdir()
    (shared / "first").symlink_to("second")
    (shared / "second").symlink_to("../ours")
    (shared / "into").symlink_to(theirs)
    assert weakness(shared / "first" / "state") == ""
    os.lchown(shared / "second", FOREIGN, FOREIGN)
    assert weakness(shared / "first" / "state").startswith(f"{shared / 'second'} is a symbolic link of user {FOREIGN}")
    assert weakness(shared / "into" / "state").startswith(f"{theirs} belongs to user {FOREIGN}")
    # What is in their directory is theirs; the way out of it is not.
    assert weakness(theirs / ".." / "ours" / "state") == ""


def test_links_of_our_own_may_be_used(tmp_path: Path) -> None:
    """In directories of our own, and in a sticky one."""
    (tmp_path / "disk").mkdir(mode=0o755)
    link = sticky(tmp_path / "shared") / "link"
    link.symlink_to(tmp_path / "disk")
    make_private_directory(link)
    assert mode_of(tmp_path / "disk") == 0o700
    make_private_directory(link / "deep" / "er")
    assert [mode_of(tmp_path / "disk" / one) for one in ("deep", "deep/er")] == [0o700] * 2


@pytest.mark.parametrize(("mode", "who"), [(0o777, "everybody"), (0o775, f"group {FOREIGN}")])
def test_a_directory_that_others_can_write_to(tmp_path: Path, mode: int, who: str) -> None:
    """What is in it could be exchanged at any time, unless it is sticky."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    shared = tmp_path / "shared"
    (shared / "mine").mkdir(parents=True)
    os.chown(shared, 0, FOREIGN)
    shared.chmod(mode)
    expected = f"{who} can write to {shared} (mode {mode:04o}) and so replace what is in it"
    assert weakness(shared / "mine") == expected
    for make in (make_directory, make_private_directory):
        with pytest.raises(PermissionError) as caught:
            make(shared / "new" / "one")
        assert caught.value.strerror == expected
    assert not (shared / "new").exists()
    shared.chmod(mode | stat.S_ISVTX)
    assert weakness(shared / "mine") == ""


def test_links_in_a_circle(tmp_path: Path) -> None:
    """They are an error, as they are for the kernel."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        weakness(tmp_path / "a" / "state")


def test_a_directory_that_is_there_keeps_its_mode_unless_it_is_to_be_private(tmp_path: Path) -> None:
    """A directory of scripts may be one that the user has opened; the state directory may not."""
    (tmp_path / "open").mkdir(mode=0o755)
    make_directory(tmp_path / "open")
    assert mode_of(tmp_path / "open") == 0o755
    make_private_directory(tmp_path / "open")
    assert mode_of(tmp_path / "open") == 0o700


def test_a_transient_directory_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    """By the next one that is made; one that is in use is left alone."""
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from koala_adapter.host.privatedirectory import transient_directory\n"
        "with transient_directory(Path(sys.argv[1])) as directory:\n"
        "    (directory / 'key').write_text('secret'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = tmp_path / "private"
    with transient_directory(parent) as used:
        (used / "key").write_text("secret")
        subprocess.run([sys.executable, "-c", program, str(parent)], check=False)
        assert len(list(parent.iterdir())) == 2
        with transient_directory(parent) as another:
            assert {*parent.iterdir()} == {used, another}
            assert mode_of(another) == 0o700
        assert (used / "key").read_text() == "secret"
    assert list(parent.iterdir()) == []
