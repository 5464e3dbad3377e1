# SPDX-License-Identifier: Apache-2.0
"""Co-allocation of parallel jobs over unmodified batch systems: the interface for Python programs.

``import koala_adapter as koala`` offers programs what the command ``koala`` offers users; docs/python.md is the manual.
The names in ``__all__`` are the stable interface. Each is imported when it is first used (PEP 562), so importing the
package itself costs almost nothing. The rooms of koala hand on their names in the same way, see :func:`on_demand`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take longer than all the rest
    from collections.abc import Callable, Mapping, Sequence

    from koala_adapter.errors import (
        ConfigurationError,
        JobFailedError,
        JobNotFoundError,
        JobRefusedError,
        JobTimeoutError,
        KoalaError,
        ServiceUnavailableError,
    )
    from koala_adapter.outcome import JobState
    from koala_adapter.python import aio
    from koala_adapter.python.description import Component, Job
    from koala_adapter.python.executor import Executor
    from koala_adapter.python.jobs import JobHandle, JobResult
    from koala_adapter.python.localsite import local_site
    from koala_adapter.python.site import Site, clusters, job, jobs, run, submit
    from koala_adapter.report.sitevalues import ClusterReport
    from koala_adapter.report.values import ComponentReport, JobReport, UsageReport

__version__ = "0.2.0"

__all__ = [
    "ClusterReport",
    "Component",
    "ComponentReport",
    "ConfigurationError",
    "Executor",
    "Job",
    "JobFailedError",
    "JobHandle",
    "JobNotFoundError",
    "JobRefusedError",
    "JobReport",
    "JobResult",
    "JobState",
    "JobTimeoutError",
    "KoalaError",
    "ServiceUnavailableError",
    "Site",
    "UsageReport",
    "aio",
    "clusters",
    "job",
    "jobs",
    "local_site",
    "run",
    "submit",
]


def on_demand(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose names are imported when they are first used (PEP 562).

    ``homes``: the names by the module below the package that has them; one that ends this path is the module itself.
    """
    module = sys.modules[package]
    paths = {name: f"{package}.{home}" for home, names in homes.items() for name in names}

    def get(name: str) -> object:
        path = paths.get(name)
        if path is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        __import__(path)
        found: object = sys.modules[path] if path.endswith(f".{name}") else getattr(sys.modules[path], name)
        setattr(module, name, found)
        return found

    return get, lambda: sorted({*vars(module), *paths})


__getattr__, __dir__ = on_demand(
    __name__,
    {
        "errors": (
            "ConfigurationError",
            "JobFailedError",
            "JobNotFoundError",
            "JobRefusedError",
            "JobTimeoutError",
            "KoalaError",
            "ServiceUnavailableError",
        ),
        "outcome": ("JobState",),
        "python.aio": ("aio",),
        "python.description": ("Component", "Job"),
        "python.executor": ("Executor",),
        "python.jobs": ("JobHandle", "JobResult"),
        "python.localsite": ("local_site",),
        "python.site": ("Site", "clusters", "job", "jobs", "run", "submit"),
        "report.sitevalues": ("ClusterReport",),
        "report.values": ("ComponentReport", "JobReport", "UsageReport"),
    },
)
