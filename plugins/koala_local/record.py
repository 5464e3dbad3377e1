# SPDX-License-Identifier: Apache-2.0
"""One job of a local cluster, as the daemon keeps it, stores it and tells it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from koala_adapter.errors import ProtocolError
from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState
from koala_local.layout import QUEUE

if TYPE_CHECKING:
    from koala_local.protocol import Fields, Json


class Ending(StrEnum):
    """Why the daemon ends a job's processes."""

    CANCEL = "cancel"
    WALLTIME = "walltime"
    REQUEUE = "requeue"


END_OF = {Ending.CANCEL: EndReason.CANCELLED, Ending.WALLTIME: EndReason.WALLTIME}
OCCUPYING = frozenset({LrmJobState.STARTING, LrmJobState.RUNNING, LrmJobState.SUSPENDED, LrmJobState.ENDING})
"""States in which a job holds its processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One element of a submission; it needs one processor."""

    number: int
    """Number of the submission, from 1, never used again."""
    index: int
    """Index within the submission, from 1."""
    name: str
    user: str
    walltime: int
    """Seconds."""
    output_directory: str
    submitted_at: float
    state: LrmJobState
    node: str = ""
    """The node where it runs or ran; before that, the node that was chosen for it, if any."""
    pid: int | None = None
    """Process id and process group of the running script."""
    birth: str = ""
    """Identity of that process beyond its id, which the system uses again."""
    starts: int = 0
    """How often it was started; more than once when it was requeued."""
    started_at: float | None = None
    """Time of day, as people and the listing are told it; `ended_at` likewise."""
    started_since_boot: float | None = None
    """The same on the clock that nobody sets: its walltime is counted from there."""
    ended_at: float | None = None
    ending: Ending | None = None
    end: EndReason | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    """Why it waits or ended, for people."""

    @property
    def id(self) -> LrmJobId:
        """``NUMBER_INDEX``."""
        return LrmJobId(f"{self.number}_{self.index}")

    @property
    def ends_at(self) -> float | None:
        """End of the walltime while the job runs; time of the end afterwards."""
        if self.ended_at is not None or self.started_at is None:
            return self.ended_at
        return self.started_at + self.walltime

    def to_json(self) -> dict[str, Json]:
        """Return what `from_json` reads."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, values: Fields) -> Self:
        """Read what `to_json` wrote. Raises ProtocolError."""
        ending, end = values.optional_text("ending"), values.optional_text("end")
        try:
            return cls(
                number=values.integer("number"),
                index=values.integer("index"),
                name=values.text("name"),
                user=values.text("user"),
                walltime=values.integer("walltime"),
                output_directory=values.text("output_directory"),
                submitted_at=values.number("submitted_at"),
                state=LrmJobState(values.text("state")),
                node=values.text("node"),
                pid=values.optional_integer("pid"),
                birth=values.text("birth"),
                starts=values.integer("starts"),
                started_at=values.optional_number("started_at"),
                started_since_boot=values.optional_number("started_since_boot"),
                ended_at=values.optional_number("ended_at"),
                ending=Ending(ending) if ending else None,
                end=EndReason(end) if end else None,
                exit_code=values.optional_integer("exit_code"),
                signal=values.optional_integer("signal"),
                reason=values.text("reason"),
            )
        except ValueError as error:
            raise ProtocolError(f"not a job: {error}") from error

    def to_lrm_job(self) -> LrmJob:
        """Return the job in the words of the plugin contract."""
        occupying = self.state in OCCUPYING or self.state is LrmJobState.ENDED
        return LrmJob(
            id=self.id,
            name=self.name,
            state=self.state,
            user=self.user,
            processors=1,
            array_index=self.index,
            nodes=(self.node,) if occupying and self.node else (),
            queue=QUEUE,
            reason=self.reason,
            end=self.end,
            exit_code=self.exit_code,
            signal=self.signal,
            submitted_at=self.submitted_at,
            started_at=self.started_at,
            ends_at=self.ends_at,
            raw_state=self.state.value,
            walltime=self.walltime,
            hold=HoldOwner.USER if self.state is LrmJobState.HELD else None,
            layout=((self.node, 1),) if occupying and self.node else (),
        )
