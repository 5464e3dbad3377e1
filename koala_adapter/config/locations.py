# SPDX-License-Identifier: Apache-2.0
"""Where the site file and the state directory of the service are, the same for every command.

Clients import it without pydantic and anyio.
"""

from __future__ import annotations

import hashlib
import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

SITE_VARIABLE = "KOALA_SITE"
STATE_VARIABLE = "KOALA_STATE"
SYSTEM_SITE_FILE = Path("/etc/koala/site.toml")


def locate_site_file(explicit: Path | None = None, environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the site file: ``explicit``, else $KOALA_SITE, else the user's own, else the system's; None: no such file.

    The user's own is ``koala/site.toml`` in $XDG_CONFIG_HOME or ~/.config; the system's is /etc/koala/site.toml. One
    that is named, by argument or variable, must be there: another one is never taken in its place. Raises
    ConfigurationError when it is not.
    """
    environment = os.environ if environment is None else environment
    named = [("given on the command line", explicit)]
    named.append((f"named by ${SITE_VARIABLE}", _path_in(environment, SITE_VARIABLE)))
    for why, path in named:
        if path is not None:
            if not _is_there(path):
                raise ConfigurationError(f"{path}: there is no such site file ({why})", hint="check the path")
            return path.absolute()
    return next((path for path in _usual_site_files(environment) if _is_there(path)), None)


def no_site_file(environment: Mapping[str, str] | None = None) -> str:
    """Return the message that there is no site file, with the places where one was looked for."""
    looked = _usual_site_files(os.environ if environment is None else environment)
    places = ", ".join([f"${SITE_VARIABLE} (not set)", *map(str, looked)])
    return f"no site file found; looked for: {places}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFileState:
    """A site file and its content at some time."""

    path: str
    """Absolute."""
    digest: str
    """SHA-256 of the content, in hexadecimal digits; empty where the file could not be read."""

    @classmethod
    def of(cls, path: Path) -> SiteFileState:
        """Return the present state of a file, whether it can be read or not."""
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        except OSError:
            digest = ""
        return cls(path=str(path.absolute()), digest=digest)

    def is_file_of(self, other: SiteFileState) -> bool:
        """Tell whether both are the same file, whatever its content was."""
        try:
            return self.path == other.path or Path(self.path).samefile(other.path)
        except OSError:
            return False


def new_site_file() -> Path:
    """Return where a user's own site file belongs. Raises ConfigurationError where there is no home directory."""
    path = _user_site_file(os.environ)
    if path is None:
        raise ConfigurationError("there is no home directory to write the site file to", hint="say where: --output")
    return path


def state_directory(explicit: Path | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the absolute path of the service's private state: ``explicit``, else $KOALA_STATE, else the user's own.

    The user's own is ``koala`` in $XDG_STATE_HOME or ~/.local/state. It is not created here. Raises ConfigurationError
    when there is no home directory to put it in.
    """
    environment = os.environ if environment is None else environment
    if explicit is not None:
        return explicit.absolute()
    if (named := _path_in(environment, STATE_VARIABLE)) is not None:
        return named.absolute()
    base = _base_directory(environment, "XDG_STATE_HOME", ".local/state")
    if base is None:
        message = "there is no home directory to keep the state of the service in"
        raise ConfigurationError(message, hint=f"set ${STATE_VARIABLE} to a private directory")
    return base / "koala"


def requests_directory() -> Path | None:
    """Return where all processes of this user, whatever their state directory, count what they ask batch systems.

    It is not created here. None when there is no home directory to put it in.
    """
    base = _base_directory(os.environ, "XDG_STATE_HOME", ".local/state")
    return None if base is None else base / "koala" / "requests"


def _user_site_file(environment: Mapping[str, str]) -> Path | None:
    base = _base_directory(environment, "XDG_CONFIG_HOME", ".config")
    return base / "koala" / "site.toml" if base is not None else None


def _usual_site_files(environment: Mapping[str, str]) -> list[Path]:
    return [path for path in (_user_site_file(environment), SYSTEM_SITE_FILE) if path is not None]


def _base_directory(environment: Mapping[str, str], variable: str, default: str) -> Path | None:
    """Return an XDG base directory; a relative one is to be ignored (XDG Base Directory Specification)."""
    named = _path_in(environment, variable)
    if named is not None and named.is_absolute():
        return named
    own = environment.get("HOME", "")
    home = own if own.startswith("/") else _home()
    return Path(home) / default if home else None


def _home() -> str | None:
    """Return the home directory of the password file: $HOME is not set, or no absolute path."""
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return None
    return home if home.startswith("/") else None


def _path_in(environment: Mapping[str, str], variable: str) -> Path | None:
    value = environment.get(variable, "")
    return Path(value) if value else None


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
