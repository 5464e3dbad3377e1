# SPDX-License-Identifier: Apache-2.0
"""Choice of the transport of a cluster: commands, or a DRMAA library, by the settings of the site.

For clusters whose jobs are read by commands. Plugins import this module; the modules that use a DRMAA library are
imported only for a cluster whose site wants them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field

from koala_adapter.errors import LrmRejectedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.lrm import ClusterContext
    from koala_adapter.lrm.drmaa.libraries import Library
    from koala_adapter.lrm.drmaa.transport import DrmaaTransport


# -- Settings ------------------------------------------------------------------------------------------------


class TransportSettings(BaseModel, defer_build=True):
    """How placeholders are submitted."""

    transport: Literal["commands", "drmaa"] = Field(
        default="commands",
        description="How placeholders are submitted: by the batch system's own commands, or through its DRMAA library, "
        "in a helper process. Everything else is done by commands in either case.",
    )
    drmaa_library: Path | None = Field(
        default=None,
        description="libdrmaa of this batch system, for transport = 'drmaa'; by default looked for in /usr/lib, "
        "/usr/local and /opt.",
    )
    script_directory: Path | None = Field(
        default=None,
        description="Where scripts are kept (mode 0700) with transport = 'drmaa', seen by the nodes under the same "
        "path, in a folder for each cluster and state directory; default: in the state directory.",
    )


# -- Choice of the transport ---------------------------------------------------------------------------------


def chosen_transport(
    settings: TransportSettings,
    context: ClusterContext,
    *,
    expected: Library,
    variables: Mapping[str, str],
    timeout: float,
) -> DrmaaTransport | None:
    """Return the transport of a cluster that is read by commands, where its site wants one.

    ``variables``: what chooses the cluster; ``timeout``: seconds after which a call counts as hung.
    """
    if settings.transport != "drmaa":
        return None
    from koala_adapter.lrm.drmaa.client import DrmaaClient, HelperLaunch, drmaa_library_places, first_library
    from koala_adapter.lrm.drmaa.transport import DrmaaTransport, ScriptStore, script_folder

    library = settings.drmaa_library or first_library(drmaa_library_places(expected.name))
    client = DrmaaClient(context, HelperLaunch(library=library, variables=variables), request_timeout=timeout)
    scripts = ScriptStore(script_folder(settings.script_directory, context))
    return DrmaaTransport(client, scripts, expected=expected)


def one_text(words: Sequence[str]) -> str:
    """Return arguments as a native specification. Raises LrmRejectedError for what it cannot hold."""
    for word in words:
        if not word or any(character.isspace() for character in word):
            message = f"{word!r} cannot go through DRMAA: a native specification is divided at blanks"
            raise LrmRejectedError(message, hint="change the directives of this cluster, or transport = 'commands'")
    return " ".join(words)
