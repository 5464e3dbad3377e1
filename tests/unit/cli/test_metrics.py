# SPDX-License-Identifier: Apache-2.0
"""What ``koala metrics`` says where nobody answers."""

from __future__ import annotations

import socket

from click.testing import CliRunner

from koala_adapter.cli.koala import koala


def test_a_port_where_nobody_listens_is_told_in_words() -> None:
    """The number of the error is nothing for people."""
    with socket.socket() as taken:  # bound and not listening: nobody else gets it meanwhile
        taken.bind(("127.0.0.1", 0))
        result = CliRunner().invoke(koala, ["metrics", "--port", str(taken.getsockname()[1])])
    assert result.exit_code != 0
    assert "Errno" not in result.output
    assert "Connection refused" in result.output
