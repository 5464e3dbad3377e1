# SPDX-License-Identifier: Apache-2.0
"""The command line ``koala``: one module per group of commands."""

from koala_adapter.cli.main import main

__all__ = ["main"]
