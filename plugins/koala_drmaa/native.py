# SPDX-License-Identifier: Apache-2.0
"""How a submission is asked for through a library: its native options, and where its placeholders find their numbers.

What the settings of a cluster leave open is as the library has it. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError
from koala_drmaa.libraries import INDEX_VARIABLE

if TYPE_CHECKING:
    from koala_adapter.plugin import Submission
    from koala_drmaa.libraries import Library
    from koala_drmaa.settings import DrmaaSettings

ELEMENTS_JOB = {"SLURM_JOB_ID": "SLURM_ARRAY_JOB_ID"}
"""Where an element of a bulk finds the id that its own begins with, if not where a job finds its own."""


def is_bulk(settings: DrmaaSettings, library: Library) -> bool:
    """Tell whether several placeholders go as one bulk."""
    return library.bulk if settings.submission == "auto" else settings.submission == "bulk"


def index_variable(settings: DrmaaSettings, library: Library) -> str:
    """Return where a placeholder finds its number."""
    if not is_bulk(settings, library):
        return INDEX_VARIABLE
    return settings.array_index_variable or library.index_variable or INDEX_VARIABLE


def job_id_variable(settings: DrmaaSettings, library: Library) -> str:
    """Return where a placeholder finds its id, or the beginning of it."""
    if settings.job_id_variable is not None:
        return settings.job_id_variable
    own = library.job_id_variable
    return ELEMENTS_JOB.get(own, own) if is_bulk(settings, library) else own


def native_options(settings: DrmaaSettings, submission: Submission, library: Library) -> tuple[str, ...]:
    """Return native options as the settings, or else the library, spell them.

    Raises LrmRejectedError for a queue that cannot be expressed.
    """
    values = {
        "walltime": str(submission.walltime),
        "walltime_minutes": str(-(-submission.walltime // 60)),
        "queue": submission.queue or settings.queue or "",
        "memory_mib": str(submission.memory_mib or ""),
    }
    options = [
        *(library.native if settings.native_specification is None else (settings.native_specification,)),
        _chosen(settings.walltime_specification, library.walltime).format_map(values),
    ]
    if values["queue"]:
        specification = _chosen(settings.queue_specification, library.queue)
        if not specification:
            message = f"queue {values['queue']!r} cannot be asked for: no queue_specification"
            raise LrmRejectedError(message, hint="set queue_specification in the cluster's settings")
        options.append(specification.format_map(values))
    if submission.memory_mib is not None:
        options.append(_chosen(settings.memory_specification, library.memory).format_map(values))
    return tuple(option for option in options if option)


def _chosen(given: str | None, usual: str) -> str:
    return usual if given is None else given
