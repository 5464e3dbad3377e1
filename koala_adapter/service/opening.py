# SPDX-License-Identifier: Apache-2.0
"""Where the requests to a batch system are counted by all that ask it: `koala serve`, `schedule`, `wiki serve`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from koala_adapter.config.locations import requests_directory
from koala_adapter.plugin.sharedwindow import prepare_directory, window_path

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.config.sitefile import ClusterConfig
    from koala_adapter.plugin import PluginDefinition

log = structlog.get_logger()


def request_window(config: ClusterConfig, definition: PluginDefinition, directory: Path) -> Path:
    """Return the file in which the requests to a cluster's batch system are counted, in a directory made here.

    The directory is the user's own, whatever the state ``directory``. The state directory takes its place where that
    cannot be used, and for a batch system that nobody asks from another one. Raises OSError when neither can be used.
    """
    identity = _identity(config, definition)
    own = requests_directory() if definition.identified_by else None
    if own is not None:
        try:
            prepare_directory(own, now=time.time())
        except OSError as error:
            log.info("requests are counted for this state directory only", path=str(own), error=error.strerror)
        else:
            return window_path(own, *identity)
    prepare_directory(directory / "requests", now=time.time())
    return window_path(directory / "requests", *identity)


def _identity(config: ClusterConfig, definition: PluginDefinition) -> tuple[str, ...]:
    """Return what tells a batch system from all others."""
    if definition.identified_by:
        chosen = config.settings.model_dump_json(include=set(definition.identified_by))
        return (definition.name, chosen)
    return (definition.name, config.settings.model_dump_json(), config.name)
