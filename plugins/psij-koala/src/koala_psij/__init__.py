# SPDX-License-Identifier: Apache-2.0
"""PSI/J over koala-adapter: the executor "koala", which PSI/J finds by the descriptor beside this package."""

from __future__ import annotations

from koala_psij.executor import KoalaExecutorConfig

__all__ = ["KoalaExecutorConfig"]
