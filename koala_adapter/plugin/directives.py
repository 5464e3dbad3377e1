# SPDX-License-Identifier: Apache-2.0
"""What a site wants changed in the submissions of koala to a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Directives:
    """What a site wants changed in every submission to a cluster (flags by their long or short LRM name)."""

    add: tuple[str, ...] = ()
    """Arguments appended, such as ``--account=physics`` or ``-l h_vmem=2G``."""
    drop: tuple[str, ...] = ()
    """Names of flags left out, such as ``--no-requeue``."""
    rename: tuple[tuple[str, str], ...] = field(default=())
    """Pairs (flag as we write it, flag as this site wants it)."""
