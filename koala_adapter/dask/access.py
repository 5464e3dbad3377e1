# SPDX-License-Identifier: Apache-2.0
"""How workers get to the scheduler: the addresses on both sides, and the keys by which the two know each other."""

from __future__ import annotations

from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from koala_adapter.dask.workerjob import CREDENTIALS
from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from distributed import Security

    from koala_adapter.config.sitemodel import ControlCenterConfig

EVERYWHERE = "0.0.0.0"  # noqa: S104 - nodes must reach the scheduler; who connects proves that it has the key


def listening_address(control_center: ControlCenterConfig, host: str | None) -> str:
    """Return the address on which the scheduler listens: that by which nodes reach it, where that is one of ours."""
    if host is None:
        return control_center.listen
    try:
        ip_address(host)
    except ValueError:
        return EVERYWHERE
    return host


def as_nodes_reach_it(scheduler: str, host: str) -> str:
    """Return the address of a scheduler with the host that nodes know."""
    parts = urlsplit(scheduler)
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port}"


def credentials_of_workers(security: Security) -> dict[str, str]:
    """Return what workers need for TLS, by the names of the files; nothing where there is no TLS.

    Raises ConfigurationError when a file that ``security`` names cannot be read.
    """
    found: dict[str, str] = {}
    config = security.get_tls_config_for_role("worker")
    if not (config["ca_file"] and config["cert"]):
        return found
    for part, name in CREDENTIALS.items():
        value = config[part]
        if value is None:
            continue
        try:
            found[name] = value if "\n" in value else Path(value).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"KoalaCluster: security: the {part} of workers, {value}: {why}") from None
    return found


@contextmanager
def files_of(texts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Have texts in private files during the block; yields where each is, by its name."""
    with TemporaryDirectory(prefix="koala-dask-") as directory:
        paths = {name: Path(directory) / name for name in texts}
        for name, path in paths.items():
            path.touch(mode=0o600)
            path.write_text(texts[name], encoding="ascii")
        yield {name: str(path) for name, path in paths.items()}
