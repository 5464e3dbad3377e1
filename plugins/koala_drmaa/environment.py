# SPDX-License-Identifier: Apache-2.0
"""The environment and command line of a DRMAA helper process, and the library it is to load.

Debian's libdrmaa for Grid Engine is linked with jemalloc, which a running Python cannot load ("cannot allocate memory
in static TLS block"). Two cures exist, both settable only before a process starts; they are tried one after another.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import koala_adapter
from koala_adapter.plugin.commands import child_environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HELPER_MODULE = "koala_drmaa.helper"
STATIC_TLS_BYTES = 4096
"""Room for the thread-local variables of libraries loaded late (glibc's own default is 512)."""

_STATIC_TLS = re.compile(r"(\S+): cannot allocate memory in static TLS block")


class Loading(StrEnum):
    """How the dynamic loader is made to take libdrmaa."""

    TUNABLES = "tunables"
    """GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096 (glibc 2.33 or newer; ignored by older ones)."""
    PRELOAD = "preload"
    """LD_PRELOAD of the library that did not find room."""
    PLAIN = "plain"
    """Nothing special."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperLaunch:
    """How to start the helper of one cluster."""

    library: Path | None
    """libdrmaa of this cluster's LRM; None: whichever the dynamic loader finds."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What chooses the cluster (SGE_ROOT, SLURM_CONF ...)."""
    loading: Loading = Loading.TUNABLES
    preload: str = "libjemalloc.so.2"

    def argv(self) -> tuple[str, ...]:
        """Return the command line."""
        return (sys.executable, "-m", HELPER_MODULE)

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the helper: built, not inherited."""
        environment = child_environment(self.variables)
        if self.library is not None:
            environment["DRMAA_LIBRARY_PATH"] = str(self.library)
        match self.loading:
            case Loading.TUNABLES:
                environment["GLIBC_TUNABLES"] = f"glibc.rtld.optional_static_tls={STATIC_TLS_BYTES}"
            case Loading.PRELOAD:
                environment["LD_PRELOAD"] = self.preload
            case Loading.PLAIN:
                pass
        roots = [environment.get("PYTHONPATH", ""), *_module_roots()]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(root for root in roots if root))
        # The drmaa library takes its encoding from the locale.
        environment["LC_ALL"] = "C.UTF-8"
        return environment

    def after(self, complaint: str) -> HelperLaunch | None:
        """Return the launch to try after the library could not be loaded; None when nothing is left to try."""
        found = _STATIC_TLS.search(complaint)
        if found is None or self.loading is Loading.PRELOAD:
            return None
        return HelperLaunch(
            library=self.library,
            variables=self.variables,
            loading=Loading.PRELOAD,
            preload=found.group(1),
        )


def _module_roots() -> list[str]:
    """Directories from which the helper imports us: the same from which we were imported ourselves."""
    return [str(Path(file).resolve().parents[1]) for file in (__file__, koala_adapter.__file__)]


def drmaa_library_places(name: str) -> tuple[str, ...]:
    """Return where sites put a library such as ``slurm-drmaa``, as patterns for :func:`first_library`."""
    roots = (f"/usr/lib/{name}", f"/usr/local/{name}", f"/opt/{name}")
    return (*(f"{root}/lib*/libdrmaa.so*" for root in roots), f"/usr/lib/*/{name}/libdrmaa.so*")


def first_library(candidates: Iterable[str]) -> Path | None:
    """Return the first existing file; candidates may be patterns such as ``/usr/lib/*/libdrmaa.so.1``."""
    for candidate in candidates:
        root, pattern = Path(candidate).anchor, str(Path(candidate).relative_to(Path(candidate).anchor))
        for path in sorted(Path(root).glob(pattern)):
            if path.is_file():
                return path
    return None
