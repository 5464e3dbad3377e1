# SPDX-License-Identifier: Apache-2.0
"""Co-allocation of parallel jobs over unmodified batch systems: the interface for Python programs.

``import koala_adapter as koala`` offers programs what the command ``koala`` offers users; docs/python.md is the manual.
The names in ``__all__`` are the stable interface. Each is imported when it is first used (PEP 562), so importing the
package itself costs almost nothing.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take longer than all the rest
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

_ERRORS = (
    "ConfigurationError",
    "JobFailedError",
    "JobNotFoundError",
    "JobRefusedError",
    "JobTimeoutError",
    "KoalaError",
    "ServiceUnavailableError",
)
_HOME = {
    "ClusterReport": "report.sitevalues",
    "Component": "python.description",
    "ComponentReport": "report.values",
    "Executor": "python.executor",
    "Job": "python.description",
    "JobHandle": "python.jobs",
    "JobReport": "report.values",
    "JobResult": "python.jobs",
    "JobState": "outcome",
    "Site": "python.site",
    "UsageReport": "report.values",
    "aio": "python.aio",
    "clusters": "python.site",
    "job": "python.site",
    "jobs": "python.site",
    "local_site": "python.localsite",
    "run": "python.site",
    "submit": "python.site",
    **dict.fromkeys(_ERRORS, "errors"),
}
"""The module of each name, below this package."""


def __getattr__(name: str) -> object:
    """Import what is first asked for (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see above

    module = import_module(f"{__name__}.{home}")
    found: object = module if home.endswith(f".{name}") else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return what there is, imported or not."""
    return sorted({*globals(), *__all__})
