# SPDX-License-Identifier: Apache-2.0
"""A started plugin for the conformance kit."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from koala_adapter.testing import LrmUnderTest, new_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pydantic import BaseModel

    from koala_adapter.lrm import PluginDefinition


@asynccontextmanager
async def started_plugin(
    definition: PluginDefinition,
    settings: BaseModel,
    directory: Path,
    *,
    processors: int | None = None,
    **given: Any,  # noqa: ANN401 - fields of LrmUnderTest
) -> AsyncIterator[LrmUnderTest]:
    """Start a plugin with a context of its own; close it when the test is over.

    ``processors``: None: those that are idle now. ``given``: further fields of LrmUnderTest.
    """
    context = new_context(directory)
    lrm = definition.factory(context, settings)
    await lrm.start()
    yield LrmUnderTest(
        definition=definition,
        settings=settings,
        context=context,
        lrm=lrm,
        scratch=directory,
        processors=sum(node.processors_idle for node in await lrm.nodes()) if processors is None else processors,
        **given,
    )
    await lrm.close()
