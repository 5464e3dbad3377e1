# SPDX-License-Identifier: Apache-2.0
"""Where placeholders keep what they say, and what becomes of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from koala_adapter.config.sitefile import load_site
from koala_adapter.lrm import load_plugins
from koala_adapter.model import BatchKey, PlaceholderId
from koala_adapter.service.agents import last_words, tidy_words, words_paths
from koala_adapter.service.opening import make_lrm, words_directory
from tests.unit.service.scripted_lrm import config

if TYPE_CHECKING:
    from pathlib import Path

ONE = PlaceholderId(batch=BatchKey("koala-k-1"), index=1)


def test_words_are_kept_in_the_state_directory_unless_the_site_says_otherwise(tmp_path: Path) -> None:
    """There nobody else can put anything in the way; what the site names is not made by us."""
    plugins = load_plugins()
    text = '[[clusters]]\nname = "a"\nplugin = "local"\n'
    (tmp_path / "site.toml").write_text(text)
    own = load_site(tmp_path / "site.toml", plugins).clusters[0]
    make_lrm(own, plugins, tmp_path / "state")
    directory = words_directory(own, tmp_path / "state")
    assert directory == tmp_path / "state" / "clusters" / "a" / "output"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert words_directory(config(output_directory="/scratch"), tmp_path).as_posix() == "/scratch"


def test_files_in_which_nothing_was_said_are_removed(tmp_path: Path) -> None:
    spoken, silent, other = (tmp_path / name for name in ("koala-k-1.1.out", "koala-k-1.2.out", "koala-k-11.1.out"))
    spoken.write_text("no way\n")
    silent.touch()
    other.touch()
    tidy_words(tmp_path, ONE.batch)
    assert sorted(tmp_path.iterdir()) == [spoken, other]


def test_words_are_read_where_they_can_be(tmp_path: Path) -> None:
    """In the directory or one level deeper; a pipe or a link in the place of a file is not words."""
    plain, deeper = words_paths(tmp_path, ONE)
    deeper.parent.mkdir()
    deeper.write_text("deeper\n")
    os.mkfifo(plain)
    assert [last_words(path) for path in (plain, deeper)] == ["", "deeper"]
    plain.unlink()
    plain.symlink_to(deeper)
    assert last_words(plain) == ""
