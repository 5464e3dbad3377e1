# SPDX-License-Identifier: Apache-2.0
"""The output files of a job file: patterns, relative to a rank's directory, of what is fetched from there at its end.

They are matched by the agent, on the node. As in a shell: ``*``, ``?`` and ``[...]`` within a name, where a dot at its
beginning must be written; ``**`` as a name of its own is any number of directories.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from koala_adapter.config.fields import NotAllowedError, path_fault

MOST_PATTERNS = 100


def _pattern(value: str) -> str:
    parts = [part for part in value.split("/") if part not in {"", "."}]
    if not parts or "\0" in value or value.startswith("/") or ".." in parts:
        raise NotAllowedError("a path or glob pattern below the rank's directory: relative, without ..")
    if (fault := path_fault(value)) is not None:
        raise NotAllowedError(fault)
    return "/".join(parts)


OutputPattern = Annotated[str, AfterValidator(_pattern)]
"""Normalized: without empty parts, ``.`` or a slash at its end."""
