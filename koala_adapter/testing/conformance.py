# SPDX-License-Identifier: Apache-2.0
"""The base class that a plugin's tests inherit from: all conformance tests, and the fixtures they use."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from koala_adapter.testing.control import ControlTests
from koala_adapter.testing.description import DescriptionTests
from koala_adapter.testing.failures import FailureTests
from koala_adapter.testing.life import LifeTests
from koala_adapter.testing.strangers import StrangerTests
from koala_adapter.testing.submission import CANARY, SubmissionTests
from koala_adapter.testing.trial import Trial

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from koala_adapter.testing.trial import LrmUnderTest


@pytest.mark.anyio
class LrmConformance(DescriptionTests, SubmissionTests, StrangerTests, LifeTests, ControlTests, FailureTests):
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
    - The LRM has at least two idle processors and nobody else uses it. It may be shared by all tests (start
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
