# SPDX-License-Identifier: Apache-2.0
"""A service inside the test's process, of which every action is seen that it carries out."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from anyio.from_thread import start_blocking_portal

from koala_adapter.api.server import host
from koala_adapter.api.statedirectory import ownership
from koala_adapter.lrm import load_plugins
from koala_adapter.service.agents import LiveEffector

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.scheduler.actions import Action


@contextmanager
def service_inside(site: SiteConfig, directory: Path) -> Iterator[list[Action]]:
    """Run a service during the block; yield the actions that it has carried out so far, in their order."""
    done: list[Action] = []

    carry_out = LiveEffector.carry_out

    def noted(effector: LiveEffector, action: Action) -> None:
        carry_out(effector, action)
        done.append(action)

    with ownership(directory), pytest.MonkeyPatch.context() as patch, start_blocking_portal() as portal:
        patch.setattr(LiveEffector, "carry_out", noted)
        future, server = portal.start_task(partial(host, site, load_plugins(), directory))
        try:
            yield done
        finally:
            portal.call(server.quiet)
            future.cancel()
