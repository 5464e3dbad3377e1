# SPDX-License-Identifier: Apache-2.0
"""Tests of koala_adapter.dask; they need the extra "dask"."""
