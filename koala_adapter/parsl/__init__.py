# SPDX-License-Identifier: Apache-2.0
"""Parsl on all clusters of a site: blocks of workers are koala jobs. Needs the extra ``koala-adapter[parsl]``."""

from __future__ import annotations

try:
    from koala_adapter.parsl.provider import KoalaProvider
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "parsl":
        raise
    message = "koala_adapter.parsl needs Parsl, which is not installed: pip install 'koala-adapter[parsl]'"
    raise ModuleNotFoundError(message, name=error.name) from None

__all__ = ["KoalaProvider"]
