# SPDX-License-Identifier: Apache-2.0
"""Where the site file and the state of the service are found."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from koala_adapter.config import locations
from koala_adapter.config.locations import locate_site_file, no_site_file, state_directory
from koala_adapter.errors import ConfigurationError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home directory; the system's site file is in a directory of the test."""
    monkeypatch.setattr(locations, "SYSTEM_SITE_FILE", tmp_path / "etc" / "site.toml")
    return tmp_path / "home"


def made(path: Path) -> Path:
    """Return ``path`` after a file was made there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_the_nearest_site_file_is_taken(home: Path, tmp_path: Path) -> None:
    """The system's file, the user's, the variable's, the given one: each goes before the one before it."""
    environment = {"HOME": str(home)}
    expected = made(tmp_path / "etc" / "site.toml")
    assert locate_site_file(None, environment) == expected
    expected = made(home / ".config" / "koala" / "site.toml")
    assert locate_site_file(None, environment) == expected
    environment["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    expected = made(tmp_path / "xdg" / "koala" / "site.toml")
    assert locate_site_file(None, environment) == expected
    environment["KOALA_SITE"] = str(made(tmp_path / "mine.toml"))
    assert locate_site_file(None, environment) == tmp_path / "mine.toml"
    assert locate_site_file(made(tmp_path / "given.toml"), environment) == tmp_path / "given.toml"


def test_a_named_file_that_is_missing_is_not_replaced_by_another(home: Path, tmp_path: Path) -> None:
    """Neither by the user's nor by the system's."""
    made(tmp_path / "etc" / "site.toml")
    missing = tmp_path / "missing.toml"
    with pytest.raises(ConfigurationError, match=r"missing.toml.*on the command line"):
        locate_site_file(missing, {"HOME": str(home)})
    with pytest.raises(ConfigurationError, match=r"missing.toml.*\$KOALA_SITE"):
        locate_site_file(None, {"HOME": str(home), "KOALA_SITE": str(missing)})


def test_no_site_file_at_all(home: Path, tmp_path: Path) -> None:
    """None is taken; a refusal lists the places."""
    environment = {"HOME": str(home)}
    assert locate_site_file(None, environment) is None
    for place in ("$KOALA_SITE", str(home / ".config" / "koala" / "site.toml"), str(tmp_path / "etc" / "site.toml")):
        assert place in no_site_file(environment)


def test_relative_base_directories_are_ignored(home: Path) -> None:
    """As the XDG Base Directory Specification asks."""
    environment = {"HOME": str(home), "XDG_CONFIG_HOME": "x", "XDG_STATE_HOME": "y"}
    expected = made(home / ".config" / "koala" / "site.toml")
    assert locate_site_file(None, environment) == expected
    assert state_directory(None, environment) == home / ".local" / "state" / "koala"


def test_state_directory(home: Path) -> None:
    """The given one, the variable's, the user's; always absolute, and not made yet."""
    environment = {"HOME": str(home)}
    assert state_directory(None, environment) == home / ".local" / "state" / "koala"
    environment["XDG_STATE_HOME"] = "/xdg"
    assert state_directory(None, environment) == Path("/xdg/koala")
    environment["KOALA_STATE"] = "relative"
    assert state_directory(None, environment) == Path.cwd() / "relative"
    assert state_directory(Path("given"), environment) == Path.cwd() / "given"
    assert not home.exists()


@pytest.mark.parametrize("home", [None, "", "rel", "./rel", "~"])
def test_a_home_that_is_no_absolute_path_is_not_taken(home: str | None) -> None:
    """That of the password file is: else each directory would have a state of its own, or the root directory."""
    environment = {} if home is None else {"HOME": home}
    expected = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".local" / "state" / "koala"
    assert state_directory(None, environment) == expected


def test_a_user_without_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the variable that helps."""
    monkeypatch.setattr(locations, "_home", lambda: None)
    with pytest.raises(ConfigurationError, match="KOALA_STATE"):
        state_directory(None, {})
