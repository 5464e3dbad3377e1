# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - these are tests
"""The base class for a plugin's tests: all conformance tests, their fixtures, and tests of its description."""

from __future__ import annotations

import re
import secrets
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel, ValidationError

from koala_adapter.lrm import Capabilities, Lrm
from koala_adapter.model import LrmJobState, NodeState
from koala_adapter.testing.jobs import ControlTests, FailureTests, LifeTests
from koala_adapter.testing.submission import CANARY, SlotTests, StrangerTests, SubmissionTests
from koala_adapter.testing.trial import Trial

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from koala_adapter.testing.trial import LrmUnderTest


# -- Tests of what a plugin says: of itself, the LRM, a future submission ------------------------------------


class DescriptionTests:
    """Tests that start no job."""

    async def test_settings_are_closed_and_described(self, under_test: LrmUnderTest) -> None:
        """The settings model refuses unknown keys and describes every field for the manual."""
        model = under_test.definition.settings
        assert model.model_config.get("extra") == "forbid", "set extra='forbid', or misspelt keys go unnoticed"
        with pytest.raises(ValidationError):
            model.model_validate({**under_test.settings.model_dump(), "koala_no_such_key": 1})
        bare = _undescribed(model)
        assert not bare, f"settings without a description: {', '.join(bare)}"

    async def test_definition_and_lrm_agree(self, under_test: LrmUnderTest) -> None:
        """An LRM can do no more than its definition says (it may find that it can do less)."""
        stated, actual = under_test.definition.capabilities, under_test.lrm.capabilities
        more = [f.name for f in fields(Capabilities) if getattr(actual, f.name) and not getattr(stated, f.name)]
        assert isinstance(under_test.lrm, Lrm)
        more += sorted(actual.slots - stated.slots)
        assert not more, f"capabilities that the PluginDefinition does not state: {', '.join(more)}"
        nameless = "it can submit and cannot find its submissions by name: an uncertain one would be sent again"
        assert actual.find_by_name or not actual.submit, nameless
        assert under_test.definition.name == under_test.definition.name.lower()
        assert under_test.definition.summary
        for variable in (under_test.lrm.array_index_variable, under_test.lrm.job_id_variable):
            assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable), f"{variable!r} is no environment variable"
        assert under_test.lrm.requests_per_poll >= 1

    async def test_version(self, trial: Trial) -> None:
        """The version is one line with a number in it."""
        version = await trial.lrm.version()
        assert re.search(r"\d", version), version
        assert version.splitlines() == [version.strip()]

    async def test_nodes_add_up(self, trial: Trial) -> None:
        """Node names are unique, numbers are possible, and at least the promised processors are there."""
        nodes = await trial.lrm.nodes()
        assert len({node.name for node in nodes}) == len(nodes)
        assert all(node.name and node.processors >= 0 and node.processors_used >= 0 for node in nodes)
        up = [node for node in nodes if node.state is NodeState.UP]
        assert sum(node.processors for node in up) >= trial.under_test.processors
        if trial.lrm.capabilities.observes_nodes:
            assert sum(node.processors_idle for node in up) >= trial.under_test.processors

    async def test_queues(self, trial: Trial) -> None:
        """Queue names are unique, at most one is the default, and nodes name only queues that exist."""
        queues = await trial.lrm.queues()
        names = {queue.name for queue in queues}
        assert queues
        assert len(names) == len(queues)
        assert sum(queue.default for queue in queues) <= 1
        assert all(queue.walltime_limit is None or queue.walltime_limit > 0 for queue in queues)
        assert max(queue.processors for queue in queues) >= trial.under_test.processors
        assert {name for node in await trial.lrm.nodes() for name in node.queues} <= names

    async def test_foreign_job_is_seen(self, trial: Trial) -> None:
        """A job of another user is listed, is not taken for ours, and its processors are not idle."""
        make, lrm = trial.under_test.foreign_job, trial.lrm
        if make is None:
            pytest.skip("the LRM under test offers no foreign job")

        async def idle() -> int:
            return sum(node.processors_idle for node in await lrm.nodes())

        before = await idle()
        async with make(1):
            running = [job for job in await lrm.jobs() if job.state is LrmJobState.RUNNING]
            assert sum(job.processors for job in running) >= 1
            # The ends of earlier tests' jobs may still be listed.
            ours = await lrm.jobs(name_prefix="kk")
            assert [job for job in ours if job.state is not LrmJobState.ENDED] == []
            if lrm.capabilities.observes_nodes:
                await trial.until(idle, lambda now: now == before - 1, what="one processor less is idle")
        if lrm.capabilities.observes_nodes:
            await trial.until(idle, lambda now: now == before, what="the processor is idle again")

    async def test_poll_stays_within_its_bound(self, trial: Trial) -> None:
        """One listing of nodes and one of jobs cost no more requests than the plugin states, whatever waits."""
        lrm, bound = trial.lrm, trial.lrm.requests_per_poll
        waits = lrm.capabilities.submit and lrm.capabilities.hold
        key = (await trial.submit(count=2, held=True)).key if waits else "koala"
        for _ in range(3):
            for list_jobs, most in (
                (partial(lrm.jobs, name_prefix=key), bound),
                (lrm.jobs_to_schedule, max(bound, lrm.requests_per_listing)),
            ):
                before = trial.requests()
                await lrm.nodes()
                await list_jobs()
                assert trial.requests() - before <= most

    async def test_check_is_content(self, trial: Trial) -> None:
        """``check`` reports at least one subject, and nothing to mend while the LRM is well."""
        results = await trial.lrm.check()
        assert results
        assert all(result.subject and result.found for result in results)
        assert [result for result in results if not result.ok] == []

    async def test_render_is_pure(self, trial: Trial) -> None:
        """Rendering asks no batch system, is repeatable, holds the whole script, and keeps it off the command line."""
        trial.need("submit")
        secret = secrets.token_hex(16)
        submission = trial.prepare(count=2, body=f": {secret}").submission
        before = trial.requests()
        rendered = trial.lrm.render(submission)
        assert trial.lrm.render(submission) == rendered
        assert trial.requests() == before
        body = submission.script.partition("\n")[2]
        assert body in rendered.script
        assert rendered.script.startswith("#!/bin/sh\n")
        assert rendered.command
        shown = [*rendered.command, *(text for pair in rendered.environment for text in pair)]
        assert not [text for text in shown if secret in text]

    async def test_render_names_the_submission(self, trial: Trial) -> None:
        """What is rendered carries the key, which is the only way to find the submission again."""
        trial.need("submit")
        submission = trial.prepare().submission
        rendered = trial.lrm.render(submission)
        environment = [text for pair in rendered.environment for text in pair]
        assert any(submission.key in text for text in (*rendered.command, rendered.script, *environment))


def _undescribed(model: type[BaseModel], path: str = "") -> list[str]:
    found: list[str] = []
    for name, field in model.model_fields.items():
        if not (field.description or "").strip():
            found.append(f"{path}{name}")
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += _undescribed(field.annotation, f"{path}{name}.")
    return found


# -- The base class ------------------------------------------------------------------------------------------


@pytest.mark.anyio
class LrmConformance(
    DescriptionTests, SubmissionTests, SlotTests, StrangerTests, LifeTests, ControlTests, FailureTests
):
    """Tests that every LRM plugin must pass.

    Inherit from this class and provide one fixture, ``under_test``::

        from koala_adapter.testing import LrmConformance, LrmUnderTest, new_context
        from my_plugin import PLUGIN, Settings

        class TestMyLrm(LrmConformance):
            @pytest.fixture
            async def under_test(self, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
                settings = Settings(...)                 # of a running LRM (or of a fake)
                context = new_context(tmp_path)          # records commands, allows many of them
                lrm = PLUGIN.factory(context, settings)
                await lrm.start()
                yield LrmUnderTest(
                    definition=PLUGIN, settings=settings, context=context, lrm=lrm, scratch=tmp_path,
                    processors=4,                        # idle now, and all available to us
                    unknown_id=LrmJobId("999999_1"),     # well-formed, but never submitted
                    foreign_job=..., namesake_job=...,   # optional: see LrmUnderTest
                    stop_lrm=..., start_lrm=...,         # optional: enables the tests of unavailability
                    patience=30,                         # seconds in which the LRM acts and shows it
                )
                await lrm.close()

    What the tests rely on:

    - ``scratch`` can be written by this process and by the jobs; jobs run as the user of this process.
    - The LRM has at least two idle processors and no other user. It may be shared by all tests (start
      it in a fixture of module scope, make only the ``Lrm`` per test): each removes what it has submitted.
    - Keep ``processors`` small (2 to 8): some tests fill them all.
    - The plugin sends each request through ``context.commands`` (``run``, or ``admit`` where it is no
      command): the tests of the bound count there.
    - With ``runs_jobs=False`` (a fake that never runs a script) the tests that need running jobs are skipped.
      For a capability that is not stated, the test that it works is skipped, the one that it is refused runs.
    - A plugin that cannot submit (no capability ``submit``) is tested with jobs that ``submitter``, another plugin's
      started ``Lrm`` on the same system, puts in; its ids must be those of the plugin under test.
    - An id that the LRM does not know (any more) raises LrmNotFoundError in ``hold``, ``release``,
      ``start_on``, ``suspend``, ``resume``, ``requeue``, ``signal`` and ``modify``, is no error in
      ``cancel``, and is left out by ``history``.
    - The tests run on asyncio. When trio is installed too, or ``under_test`` builds on asynchronous fixtures of a
      wider scope, have a fixture ``anyio_backend`` of session scope return ``"asyncio"`` in your ``conftest.py``.
    - If your pytest limits the time of a test, allow three times ``patience`` and ``unavailable_within``.

    A test that cannot hold for an LRM is overridden in the subclass by a test of the same name that shows
    what holds instead, and the plugin's documentation says so.
    """

    @pytest.fixture(autouse=True)
    def canary(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """Put a variable into our own environment, before the LRM under test is made."""
        value = secrets.token_hex(8)
        monkeypatch.setenv(CANARY, value)
        return value

    @pytest.fixture
    async def under_test(self) -> LrmUnderTest:
        """Give the LRM under test, started. To be provided by the subclass."""
        raise NotImplementedError

    @pytest.fixture
    async def trial(self, under_test: LrmUnderTest) -> AsyncIterator[Trial]:
        """Give a trial, and remove afterwards whatever it has submitted."""
        trial = Trial(under_test)
        yield trial
        await trial.close()

    @pytest.fixture
    async def live_trial(self, trial: Trial) -> Trial:
        """Give a trial whose jobs really run."""
        if not trial.under_test.runs_jobs:
            pytest.skip("this fake runs no jobs")
        return trial
