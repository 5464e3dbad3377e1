# SPDX-License-Identifier: Apache-2.0
"""What ``koala schedule`` shows while it orders a queue or watches how it is ordered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
from pydantic import TypeAdapter

from koala_adapter.cli import ordertext
from koala_adapter.cli.tables import seconds
from koala_adapter.ordering.entries import JobEvent
from koala_adapter.ordering.shadow import ShadowReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.status import Status

    from koala_adapter.cli.session import Session
    from koala_adapter.ordering.explanations import Overview
    from koala_adapter.ordering.queuemeter import QueueMeter

HAPPENING = TypeAdapter(JobEvent)
SHADOW_REPORT = TypeAdapter(ShadowReport)


class OrderScreen:
    """Shows what goes on: lines of what happened, and on a terminal where the queue stands."""

    def __init__(self, session: Session, cluster: str, meter: QueueMeter, *, as_json: bool) -> None:
        """Nothing is shown yet."""
        self._session = session
        self.cluster = cluster
        self.meter = meter
        self._as_json = as_json
        self._status: Status | None = None
        self._failing = False

    def __enter__(self) -> None:
        """Begin the status line, if there is a terminal."""
        console = self._session.moving
        if console.is_terminal and not self._as_json:
            self._status = console.status("looking")
            self._status.start()

    def __exit__(self, *_: object) -> None:
        """End it."""
        if self._status is not None:
            self._status.stop()

    def tell(self, happened: Sequence[JobEvent]) -> None:
        """Show what happened, and count it."""
        self.meter.tell(happened)
        for one in happened:
            if self._as_json:
                click.echo(HAPPENING.dump_json(one).decode())
            else:
                self._session.console.print(
                    ordertext.line(one), style=ordertext.style(one), markup=False, soft_wrap=True
                )

    def show(self, text: str) -> None:
        """Show where things stand."""
        if self._status is not None:
            self._status.update(text)

    def show_report(self, report: ShadowReport) -> None:
        """Show where a shadow stands."""
        ours, theirs = (seconds(wait) for wait in (report.mean_wait_ours, report.mean_wait_theirs))
        self.show(f"{self.cluster}: {report.jobs} jobs, mean wait {ours} with this policy, {theirs} as it is")

    def trouble(self, why: str) -> None:
        """Say that the batch system does not answer, or does again."""
        if why or self._failing:
            self._session.remark(f"{self.cluster} does not answer: {why}" if why else f"{self.cluster} answers again")
        self._failing = bool(why)

    def farewell(self, found: Overview) -> None:
        """Say what becomes of the jobs when nobody schedules any more."""
        running, waiting = found.running, found.starting + found.waiting + found.left_out
        self._session.remark(
            f"koala schedules {self.cluster} no more; jobs that run on: {running}, "
            f"that wait until it is started again: {waiting}"
        )

    def conclude(self, report: ShadowReport) -> None:
        """Print the report of a shadow."""
        if self._as_json:
            click.echo(json.dumps({"kind": "report", **SHADOW_REPORT.dump_python(report, mode="json")}))
        else:
            for line in ordertext.shadow_report(report):
                self._session.console.print(line, markup=False, soft_wrap=True)
