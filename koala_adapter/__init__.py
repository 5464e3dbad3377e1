# SPDX-License-Identifier: Apache-2.0
"""Co-allocation of parallel jobs over unmodified batch systems.

``import koala_adapter as koala`` gives a program what the command line gives a person: docs/python.md. What is named in
``__all__`` stays; it is imported when it is first used, so that importing this package costs nothing.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take longer than all the rest
    from koala_adapter.api.clusterreports import ClusterReport
    from koala_adapter.api.reports import ComponentReport, JobReport
    from koala_adapter.errors import (
        ConfigurationError,
        JobFailedError,
        JobNotFoundError,
        JobRefusedError,
        JobTimeoutError,
        KoalaError,
        ServiceUnavailableError,
    )
    from koala_adapter.python import aio
    from koala_adapter.python.description import Component, Job
    from koala_adapter.python.executor import Executor
    from koala_adapter.python.handle import JobHandle
    from koala_adapter.python.localsite import local_site
    from koala_adapter.python.result import JobResult
    from koala_adapter.python.site import Site
    from koala_adapter.python.words import clusters, job, jobs, run, submit
    from koala_adapter.scheduler.outcome import JobState

__version__ = "0.1.0"

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
    "ClusterReport": "api.clusterreports",
    "Component": "python.description",
    "ComponentReport": "api.reports",
    "Executor": "python.executor",
    "Job": "python.description",
    "JobHandle": "python.handle",
    "JobReport": "api.reports",
    "JobResult": "python.result",
    "JobState": "scheduler.outcome",
    "Site": "python.site",
    "aio": "python.aio",
    "clusters": "python.words",
    "job": "python.words",
    "jobs": "python.words",
    "local_site": "python.localsite",
    "run": "python.words",
    "submit": "python.words",
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
