# SPDX-License-Identifier: Apache-2.0
"""The skeleton of docs/plugins.md passes the conformance kit on a fake, as a third party's plugin would be tested."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.model import LrmJobId, LrmJobState, NodeState
from koala_adapter.testing import LrmConformance, LrmUnderTest, new_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import ModuleType

    from koala_adapter.model import BatchKey
    from koala_adapter.plugin import PluginDefinition

ROOT = Path(__file__).parent.parent
SKELETON = ROOT / "examples" / "plugin" / "koala_tinyq.py"


def load_skeleton() -> ModuleType:
    """Import the example, which is no part of any package."""
    spec = importlib.util.spec_from_file_location("koala_tinyq", SKELETON)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["koala_tinyq"] = module
    spec.loader.exec_module(module)
    return module


tinyq = load_skeleton()


class TestTinyq(LrmConformance):
    """The skeleton on a fake that lists jobs but never runs them."""

    @pytest.fixture
    async def under_test(self, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Make a server (a directory) and a command for it."""
        server = tmp_path / "server"
        server.mkdir()
        command = tmp_path / "tinyq"
        program = shlex.join([sys.executable, "-S", str(ROOT / "tests" / "tinyq.py")])
        command.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        command.chmod(0o755)
        plugin: PluginDefinition = tinyq.PLUGIN
        settings = plugin.settings.model_validate({"command": str(command), "server": str(server)})
        context = new_context(tmp_path)
        lrm = plugin.factory(context, settings)
        await lrm.start()

        async def stop_lrm() -> None:
            server.rename(tmp_path / "away")

        async def start_lrm() -> None:
            (tmp_path / "away").rename(server)

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
            definition=plugin,
            settings=settings,
            context=context,
            lrm=lrm,
            scratch=tmp_path,
            processors=4,
            unknown_id=LrmJobId("999999.1"),
            real=False,
            runs_jobs=False,
            namesake_job=namesake_job,
            stop_lrm=stop_lrm,
            start_lrm=start_lrm,
            patience=120,
            poll_interval=0.05,
        )
        await lrm.close()


def test_banners_are_no_ids() -> None:
    """Only a line that is a number is an id; none or two leave the outcome unknown."""
    assert tinyq.parse_submitted("Welcome to 2026\n17\nbye 3\n", 2) == ("17.1", "17.2")
    for text in ("", "submitted 17\n", "17\n18\n"):
        with pytest.raises(LrmUnavailableError):
            tinyq.parse_submitted(text, 1)


def test_unknown_words_are_unknown() -> None:
    """States that the tables do not have become UNKNOWN, with the LRM's own word kept."""
    (job,) = tinyq.parse_jobs("1|1|k|dreaming|u|\n")
    assert (job.state, job.raw_state) == (LrmJobState.UNKNOWN, "dreaming")
    (node,) = tinyq.parse_nodes("t1|asleep|4|1\n")
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
    assert type(tinyq.COMPLAINTS.error(complaint, action="submission")) is error
