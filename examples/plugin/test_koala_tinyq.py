# SPDX-License-Identifier: Apache-2.0
"""The plugin passes the conformance kit on a fake of its batch system, ``tinyq.py``.

pip install 'koala-adapter[test]' -e . && pytest
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from koala_tinyq import COMPLAINTS, PLUGIN, TinyqLrm, TinyqSettings, parse_jobs, parse_nodes, parse_submitted

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.model import LrmJobId, LrmJobState, NodeState
from koala_adapter.testing import LrmConformance, LrmUnderTest, new_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from koala_adapter.model import BatchKey

FAKE = Path(__file__).with_name("tinyq.py")


class TestTinyq(LrmConformance):
    """All tests of the kit are inherited; here is what they need to know."""

    runs_jobs = True
    """False: what needs running jobs is skipped."""

    @pytest.fixture
    async def under_test(self, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Make a server, which is a directory, and the command for it."""
        server, away = tmp_path / "server", tmp_path / "away"
        server.mkdir()
        command = tmp_path / "tinyq"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{FAKE}" "$@"\n')
        command.chmod(0o755)
        settings = TinyqSettings(command=str(command), server=str(server))
        context = new_context(tmp_path)
        lrm = TinyqLrm(context, settings)
        await lrm.start()

        async def stop_lrm() -> None:
            server.rename(away)

        async def start_lrm() -> None:
            if away.exists():  # it is also called for one that is up
                away.rename(server)

        @asynccontextmanager
        async def namesake_job(name: BatchKey, count: int) -> AsyncIterator[None]:
            options = ("--name", name, "--array", str(count), "--seconds", "60", "--output", "/dev/null")
            environment = {"TINYQ_SERVER": str(server), "USER": "nobody"}
            script = b"#!/bin/sh\n"
            await context.commands.run([str(command), "submit", *options], stdin=script, environment=environment)
            listed = await lrm.jobs(name_prefix=name)
            yield
            await lrm.cancel([job.id for job in listed if job.user == "nobody"])

        yield LrmUnderTest(
            definition=PLUGIN,
            settings=settings,
            context=context,
            lrm=lrm,
            scratch=tmp_path,
            processors=4,
            unknown_id=LrmJobId("999999.1"),
            real=False,
            runs_jobs=self.runs_jobs,
            namesake_job=namesake_job,
            stop_lrm=stop_lrm,
            start_lrm=start_lrm,
            patience=120,
            poll_interval=0.05,
        )
        await lrm.close()


def test_banners_are_no_ids() -> None:
    """Only a line that is a number is an id; none or two leave the outcome unknown."""
    assert parse_submitted("Welcome to 2026\n17\nbye 3\n", 2) == ("17.1", "17.2")
    for text in ("", "submitted 17\n", "17\n18\n"):
        with pytest.raises(LrmUnavailableError):
            parse_submitted(text, 1)


def test_unknown_words_are_unknown() -> None:
    """States that the tables do not have become UNKNOWN, with the LRM's own word kept."""
    (job,) = parse_jobs("1|1|k|dreaming|u|\n")
    assert (job.state, job.raw_state) == (LrmJobState.UNKNOWN, "dreaming")
    (node,) = parse_nodes("t1|asleep|4|1\n")
    assert (node.state, node.processors_idle) == (NodeState.UNKNOWN, 0)


@pytest.mark.parametrize(
    ("complaint", "error"),
    [
        ("tinyq: cannot connect to server", LrmUnavailableError),
        ("request TIMED OUT", LrmUnavailableError),
        ("no such job: 7", LrmNotFoundError),
        ("no such queue: x", LrmRejectedError),
    ],
)
def test_complaints(complaint: str, error: type[Exception]) -> None:
    """The text of a complaint decides which of the four errors it is."""
    assert type(COMPLAINTS.error(complaint, action="submission")) is error
