# SPDX-License-Identifier: Apache-2.0
"""What ``koala metrics`` says where nobody answers."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

from click.testing import CliRunner

from koala_adapter.cli.koala import koala

if TYPE_CHECKING:
    from pathlib import Path


class Telling(BaseHTTPRequestHandler):
    """Tells that it was asked."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"told 1\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_port_where_nobody_listens_is_told_in_words() -> None:
    """The number of the error is nothing for people."""
    with socket.socket() as taken:  # bound and not listening: nobody else gets it meanwhile
        taken.bind(("127.0.0.1", 0))
        result = CliRunner().invoke(koala, ["metrics", "--port", str(taken.getsockname()[1])])
    assert result.exit_code != 0
    assert "Errno" not in result.output
    assert "Connection refused" in result.output


def test_the_address_of_the_site_file_is_asked(tmp_path: Path) -> None:
    """Who listens on another address than 127.0.0.1 is found there."""
    site = tmp_path / "site.toml"
    site.write_text('[metrics]\nlisten = "127.0.0.2"\n[[clusters]]\nname = "a"\nplugin = "local"\n')
    with HTTPServer(("127.0.0.2", 0), Telling) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        words = ["--site", str(site), "--state", str(tmp_path / "s"), "metrics", "--port", str(server.server_port)]
        result = CliRunner().invoke(koala, words)
    assert (result.exit_code, result.output) == (0, "told 1\n")
