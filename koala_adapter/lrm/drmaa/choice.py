# SPDX-License-Identifier: Apache-2.0
"""How a cluster that is read by commands is submitted to: by commands too, or by the DRMAA transport.

Plugins import this; what drives a DRMAA library is imported only for a cluster whose site wants it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.plugin import ClusterContext
    from koala_drmaa.libraries import Library
    from koala_drmaa.transport import DrmaaTransport
    from koala_drmaa.transportsettings import TransportSettings


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
    from koala_drmaa.client import DrmaaClient
    from koala_drmaa.environment import HelperLaunch, drmaa_library_places, first_library
    from koala_drmaa.scripts import ScriptStore
    from koala_drmaa.transport import DrmaaTransport

    library = settings.drmaa_library or first_library(drmaa_library_places(expected.name))
    client = DrmaaClient(context, HelperLaunch(library=library, variables=variables), request_timeout=timeout)
    scripts = ScriptStore(settings.script_directory or context.state_directory / "scripts")
    return DrmaaTransport(client, scripts, expected=expected)


def one_text(words: Sequence[str]) -> str:
    """Return arguments as a native specification. Raises LrmRejectedError for what it cannot hold."""
    for word in words:
        if not word or any(character.isspace() for character in word):
            message = f"{word!r} cannot go through DRMAA: a native specification is divided at blanks"
            raise LrmRejectedError(message, hint="change the directives of this cluster, or transport = 'commands'")
    return " ".join(words)
