# SPDX-License-Identifier: Apache-2.0
"""A started plugin for the conformance kit, and jobs of other users beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from koala_adapter.lrm import PluginDefinition
from koala_adapter.lrm.commands import THIS_HOST
from koala_adapter.lrm.lrmhost import LrmHost
from koala_adapter.testing import LrmUnderTest, new_context


async def start_plugin(
    definition: PluginDefinition,
    settings: BaseModel,
    directory: Path,
    *,
    processors: int | None = None,
    host: LrmHost = THIS_HOST,
    **given: Any,  # noqa: ANN401 - fields of LrmUnderTest
) -> LrmUnderTest:
    """Start a plugin with a context of its own.

    ``processors``: None: those that are idle now. ``host``: where its batch system is, connected. ``given``: further
    fields of LrmUnderTest.
    """
    context = new_context(directory, host=host)
    lrm = definition.factory(context, settings)
    await lrm.start()
    return LrmUnderTest(
        definition=definition,
        settings=settings,
        context=context,
        lrm=lrm,
        scratch=directory,
        processors=sum(node.processors_idle for node in await lrm.nodes()) if processors is None else processors,
        **given,
    )


@asynccontextmanager
async def started_plugin(
    definition: PluginDefinition,
    settings: BaseModel,
    directory: Path,
    **given: Any,  # noqa: ANN401 - passed on
) -> AsyncIterator[LrmUnderTest]:
    """Start a plugin as `start_plugin` does; close it when the test is over."""
    under = await start_plugin(definition, settings, directory, **given)
    yield under
    await under.lrm.close()


@asynccontextmanager
async def queued_job(run: Callable[..., str], submit: str, cancel: str, *options: str) -> AsyncIterator[None]:
    """Have a job of ten minutes in a fake batch system during the block; ``run`` runs a command of the fake."""
    job = run(submit, *options, stdin="#!/bin/sh\nexec sleep 600\n").strip()
    yield
    run(cancel, job)
