# SPDX-License-Identifier: Apache-2.0
"""Reading with pyslurm, in a child process for each listing, and with the commands from the first trouble on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_slurm.controller import release_of
from koala_slurm.listing import ENVIRONMENT, parse_row
from koala_slurm.nodes import merge_nodes, parse_node

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from koala_adapter.model import LrmJob, Node
    from koala_slurm.client import SlurmCommands
    from koala_slurm.reading import Reader

T = TypeVar("T")

PROGRAM = Path(__file__).with_name("pyslurm_reader.py")


def reader_command(what: str, user: str = "") -> tuple[str, ...]:
    """Return the command line of the child; -P keeps our modules from passing for those that pyslurm imports."""
    return (sys.executable, "-P", str(PROGRAM), what, *((user,) if user else ()))


def parse_answer(output: str) -> tuple[str, tuple[tuple[str, ...], ...]]:
    """Return the version of pyslurm and the rows that a child printed. Raises LrmUnavailableError for anything else."""
    try:
        answer = json.loads(output)
        version = str(answer["version"])
        rows = tuple(tuple(str(value) for value in row) for row in answer.get("rows", ()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LrmUnavailableError(f"the pyslurm reader printed no answer: {output[:200]!r}") from error
    return version, rows


async def probe(commands: SlurmCommands, slurm_version: str) -> tuple[bool, str]:
    """Tell whether pyslurm can be used here, and why (not), as a sentence for ``koala check``."""
    result = await commands.run(reader_command("version"), environment=ENVIRONMENT)
    if result.returncode != 0:
        return False, "not installed" if "No module named" in result.complaint else f"unusable: {result.complaint}"
    try:
        version, _ = parse_answer(result.text)
    except LrmUnavailableError as error:
        return False, f"unusable: {error.message}"
    if release_of(version) != release_of(slurm_version):
        return False, f"{version} is not made for Slurm {slurm_version}"
    return True, f"{version} reads nodes and jobs"


class PyslurmReader:
    """Reads with pyslurm; the first failure makes it read with the commands for good, and says so."""

    requests = 3

    def __init__(
        self, commands: SlurmCommands, fallback: Reader, *, cluster: str, reserved_is_up: bool = False
    ) -> None:
        """``fallback`` reads with the commands; ``cluster`` is for the log."""
        self._commands = commands
        self._fallback = fallback
        self._cluster = cluster
        self._reserved_is_up = reserved_is_up
        self.trouble = ""
        """Why pyslurm is not used any more; empty while it is."""

    async def nodes(self) -> tuple[Node, ...]:
        """Return all nodes, each once."""

        async def read() -> tuple[Node, ...]:
            rows = await self._rows("nodes")
            return merge_nodes(parse_node(row, reserved_is_up=self._reserved_is_up) for row in rows)

        return await self._either(read, self._fallback.nodes)

    async def jobs(self, *, user: str = "") -> tuple[LrmJob, ...]:
        """Return all jobs, or all of one user."""

        async def read() -> tuple[LrmJob, ...]:
            return tuple(job for row in await self._rows("jobs", user) for job in parse_row(row))

        return await self._either(read, lambda: self._fallback.jobs(user=user))

    async def _either(self, read: Callable[[], Awaitable[T]], fallback: Callable[[], Awaitable[T]]) -> T:
        if not self.trouble:
            try:
                return await read()
            except LrmError as error:
                self.trouble = error.message
                import structlog  # noqa: PLC0415 - every command that reads the site imports this module

                structlog.get_logger().warning(
                    "pyslurm is not used any more, squeue and sinfo are", cluster=self._cluster, why=self.trouble
                )
        return await fallback()

    async def _rows(self, what: str, user: str = "") -> tuple[tuple[str, ...], ...]:
        result = await self._commands.run(reader_command(what, user), environment=ENVIRONMENT)
        if result.returncode != 0:
            raise LrmUnavailableError(f"the pyslurm reader ended with {result.returncode}: {result.complaint}")
        return parse_answer(result.text)[1]
