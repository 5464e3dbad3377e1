# SPDX-License-Identifier: Apache-2.0
"""The files with which a program on a node pulls work: itself, and beside it the connection."""

from __future__ import annotations

from importlib import resources

from koala_adapter import pull

CONNECTION_FILE = "koala_pull.py"


def node_files(package: str, module: str, name: str) -> dict[str, bytes]:
    """Return the text of a module of a package as file ``name``, and that of the connection, by their names."""
    text = resources.files(package).joinpath(f"{module}.py").read_text(encoding="utf-8")
    alone = text.replace("koala_adapter.pull.connection", CONNECTION_FILE.removesuffix(".py"))
    connection = resources.files(pull).joinpath("connection.py").read_bytes()
    return {CONNECTION_FILE: connection, name: alone.encode()}
