# SPDX-License-Identifier: Apache-2.0
"""Which program is called where the commands of Grid Engine are Debian's wrapper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_sge.settings import WRAPPER, SgeSettings, behind_wrapper

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = SgeSettings.model_validate({"root": "/sge"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give a directory in which qstat is a link to the wrapper, beside one with the program itself."""
    for name in ("bin", "lib", "share"):
        (tmp_path / name).mkdir()
    for program in (tmp_path / "share" / WRAPPER, tmp_path / "lib" / "qstat"):
        program.touch(mode=0o755)
    (tmp_path / "bin" / "qstat").symlink_to(tmp_path / "share" / WRAPPER)
    return tmp_path


def test_the_program_itself_is_called(path: Path) -> None:
    """The wrapper would cost ten times as much as what it calls."""
    found = behind_wrapper(SETTINGS, search_path=str(path / "bin"), programs=path / "lib")
    assert found.bin_directory == path / "lib"


@pytest.mark.parametrize("lacking", ["bin/qstat", "lib/qstat"])
def test_what_is_no_wrapper_is_called_as_it_is(path: Path, lacking: str) -> None:
    """No qstat in PATH, or nothing where the wrapper's programs should be."""
    (path / lacking).unlink()
    assert behind_wrapper(SETTINGS, search_path=str(path / "bin"), programs=path / "lib") == SETTINGS


def test_a_program_in_path_is_called(path: Path) -> None:
    """Any other installation's commands are the programs themselves."""
    assert behind_wrapper(SETTINGS, search_path=str(path / "lib"), programs=path / "lib") == SETTINGS


def test_what_the_site_says_holds(path: Path) -> None:
    """A directory in the site file is not second-guessed."""
    given = SETTINGS.model_copy(update={"bin_directory": path / "bin"})
    assert behind_wrapper(given, search_path=str(path / "bin"), programs=path / "lib") is given
