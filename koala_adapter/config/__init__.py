# SPDX-License-Identifier: Apache-2.0
"""Site files and job files: reading, checking, and refusing with file, line and key.

The doors are :func:`koala_adapter.config.sitefile.load_site` and :func:`koala_adapter.config.jobfile.load_job`. Where
the site file and the state directory are is in :mod:`koala_adapter.config.locations`, which clients use without
loading pydantic. Errors of any file are worded in :mod:`koala_adapter.config.diagnosis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.config.fields import after_of
    from koala_adapter.config.jobfile import explained, job_as_described, job_from_dict
    from koala_adapter.config.sitefile import load_site

__all__ = [
    "after_of",
    "explained",
    "job_as_described",
    "job_from_dict",
    "load_site",
]

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "fields": ("after_of",),
        "jobfile": ("explained", "job_as_described", "job_from_dict"),
        "sitefile": ("load_site",),
    },
)
