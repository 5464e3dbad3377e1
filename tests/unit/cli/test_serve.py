# SPDX-License-Identifier: Apache-2.0
"""The service in the foreground, from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from koala_adapter.cli.koala import koala
from koala_adapter.errors import EXIT_CONFIGURATION

if TYPE_CHECKING:
    from pathlib import Path


def test_a_missing_site_file_is_refused(tmp_path: Path) -> None:
    """Before there is a service."""
    environment = {"HOME": str(tmp_path), "PATH": str(tmp_path), "KOALA_SITE": None, "KOALA_STATE": str(tmp_path / "s")}
    done = CliRunner().invoke(koala, ["serve", "--end-when-idle", "0"], env=environment)
    assert done.exit_code == EXIT_CONFIGURATION, done.stderr
    assert "no site file found" in done.stderr
