# SPDX-License-Identifier: Apache-2.0
"""Dask on all clusters of a site at once: ``KoalaCluster``, whose workers are one job that grows and shrinks.

It needs what ``pip install 'koala-adapter[dask]'`` installs; nothing else of koala-adapter does.
"""

from __future__ import annotations

try:
    import distributed as _distributed
except ModuleNotFoundError as error:
    if error.name != "distributed":
        raise
    message = "koala_adapter.dask needs Dask's package distributed: pip install 'koala-adapter[dask]'"
    raise ModuleNotFoundError(message, name=error.name) from None

from koala_adapter.dask.cluster import KoalaCluster

__all__ = ["KoalaCluster"]

del _distributed
