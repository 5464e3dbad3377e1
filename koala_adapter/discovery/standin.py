# SPDX-License-Identifier: Apache-2.0
"""The site file that stands in for one that nobody has written: kept in the state directory while nothing has changed.

What is here is looked at each time, which takes a moment; that all of it answers and takes jobs, once a day.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING

from koala_adapter.api.statedirectory import prepare_directory
from koala_adapter.discovery.candidates import find_candidates
from koala_adapter.discovery.search import our_surroundings, try_candidates
from koala_adapter.errors import ConfigurationError
from koala_adapter.plugin import readable_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from koala_adapter.discovery.candidates import Candidate
    from koala_adapter.plugin import LeftOut, PluginDefinition, Surroundings

FILE_NAME = "found-site.toml"
KEPT = 86_400.0
"""Seconds after which all is tried again."""


def standin_site_file(
    plugins: Mapping[str, PluginDefinition], directory: Path, *, around: Surroundings | None = None
) -> tuple[Path, str]:
    """Return the site file of what ``koala init`` would find, and what that is, for a person.

    ``directory``: the state directory. Raises ConfigurationError when there is nothing that can be used.
    """
    path = directory / FILE_NAME
    candidates, unusable = find_candidates(plugins, our_surroundings() if around is None else around)
    mark = f"# of {_fingerprint(candidates)}\n"
    if _is_fresh(path) and readable_text(path).endswith(mark):
        return path, ", ".join(one.described for one in candidates)
    prepare_directory(directory)
    found = try_candidates(candidates, unusable, plugins, directory)
    if not found.clusters:
        raise nothing_found(found.left_out)
    text = found.text(made=f"made because there was none, {time.strftime('%Y-%m-%d %H:%M')}")
    # What did not answer may do so next time: nothing is kept then.
    complete = len(found.clusters) == len(candidates)
    path.write_text(text + (mark if complete else ""), encoding="utf-8")
    return path, found.described


def nothing_found(left_out: Sequence[LeftOut]) -> ConfigurationError:
    """Return what is said where no batch system can be used."""
    seen = "".join(f"\n  {one.what}: {one.why}{f'; {one.remedy}' if one.remedy else ''}" for one in left_out)
    hint = (
        "set SLURM_CONF, SGE_ROOT or PBS_CONF_FILE, or write a site file by hand: `koala conf` lists examples; "
        "`koala demo` needs none"
    )
    what = "no batch system can be used from here:" if seen else "no batch system was found on this host"
    return ConfigurationError(f"{what}{seen}", hint=hint)


def _fingerprint(candidates: Sequence[Candidate]) -> str:
    told = [[one.name, one.plugin, sorted(one.found.settings.items())] for one in candidates]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _is_fresh(path: Path) -> bool:
    try:
        return 0 <= time.time() - path.stat().st_mtime < KEPT
    except OSError:
        return False
