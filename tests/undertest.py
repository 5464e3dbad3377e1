# SPDX-License-Identifier: Apache-2.0
"""A started plugin for the conformance kit, jobs of other users beside it, and what the kit expects of operators."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from koala_adapter.errors import LrmRejectedError
from koala_adapter.lrm import PinnedStart, PluginDefinition
from koala_adapter.lrm.commands import THIS_HOST
from koala_adapter.lrm.lrmhost import LrmHost
from koala_adapter.model import LrmJobState
from koala_adapter.testing import LrmConformance, LrmUnderTest, Trial, new_context
from koala_adapter.testing.trial import begin_start


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


class StartsByOperator(LrmConformance):
    """What the conformance kit expects where the plugin starts PBS's jobs itself, by qrun."""

    async def test_start_on_a_busy_node_is_accepted(self, live_trial: Trial) -> None:
        """It is refused: qrun would put more onto the node than it has. The job is held as before, and starts later."""
        trial = live_trial
        full = await trial.submit(count=trial.under_test.processors)
        await trial.wait_running(full)
        node = (await trial.jobs(full))[full.ids[0]].nodes[0]
        batch = await trial.submit(held=True)
        await trial.wait_states(batch, LrmJobState.HELD)
        with pytest.raises(LrmRejectedError, match="where 0 are idle"):
            await begin_start(trial.lrm, batch.ids[0], [node])
        for _ in range(2):
            await trial.lrm.undo_start(PinnedStart(job=batch.ids[0], nodes=(node,)))
            await trial.wait_states(batch, LrmJobState.HELD)
        full.go()
        await trial.wait_ended(full)
        assert await trial.states(batch) == [LrmJobState.HELD]
        await begin_start(trial.lrm, batch.ids[0], [node])
        await trial.wait_running(batch)
