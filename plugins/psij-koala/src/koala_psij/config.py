# SPDX-License-Identifier: Apache-2.0
"""What can be said of the executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psij import JobExecutorConfig

if TYPE_CHECKING:
    from os import PathLike


class KoalaExecutorConfig(JobExecutorConfig):
    """Which site, and which service."""

    def __init__(self, site: str | PathLike[str] | None = None, state: str | PathLike[str] | None = None) -> None:
        """``site``, ``state``: site file and state directory of koala, by default those of its command line."""
        super().__init__()
        self.site = site
        self.state = state
