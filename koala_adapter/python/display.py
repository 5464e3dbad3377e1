# SPDX-License-Identifier: Apache-2.0
"""A job as a person sees it from Python: in one line, and as a table that a notebook keeps up to date."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.api.reports import ComponentReport, JobReport

HEADINGS = ("component", "cluster", "held", "hosts")
MOST_HOSTS = 4
"""Hosts of a component that are named."""


class Shown(Protocol):
    """Something that a notebook shows and that can be shown anew in its place."""

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        """Show this instead."""


def one_line(report: JobReport) -> str:
    """Return where a job stands, in one line without times, so that it changes only when the job does."""
    parts = [f"{c.name} {c.held} of {c.processors} on {c.cluster or '-'}{in_hold(c)}" for c in report.components]
    text = f"job {report.id} {report.state.value}"
    if report.sweep is not None and report.sweep.total:
        tenths = 10 * (report.sweep.done + report.sweep.failed) // report.sweep.total
        parts.append(f"{10 * tenths} % of {report.sweep.total} tasks")
    return text if report.outcome else f"{text}: {', '.join(parts)}"


def in_hold(component: ComponentReport) -> str:
    """Return what of a component is in hold in its batch system, and who holds it; nothing when nothing is."""
    said = ", ".join(f"{one.placeholders} in hold there: {one.holder} {one.reason}".rstrip() for one in component.holds)
    return f" ({said})" if said else ""


def mimebundle(report: JobReport) -> dict[str, str]:
    """Return a job in the forms from which a notebook chooses."""
    return {"text/plain": one_line(report), "text/html": as_html(report)}


def as_html(report: JobReport) -> str:
    """Return a job as a table."""
    head = f"job <b>{_escaped(report.id)}</b> {_escaped(report.name)}: <b>{_escaped(report.state.value)}</b>"
    said = report.explanation if report.outcome is None else report.outcome.detail
    titles = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
    rows = "".join(_row(report, component) for component in report.components)
    note = f"<div>{_escaped(said)}</div>" if said else ""
    return f"<div>{head}</div><table><tr>{titles}</tr>{rows}</table>{note}"


def _row(report: JobReport, component: ComponentReport) -> str:
    held = component.processors if report.launched_at is not None else component.held
    bar = f'<progress max="{component.processors}" value="{held}"></progress> {held} of {component.processors}'
    hosts = ", ".join(component.hosts[:MOST_HOSTS]) + (" …" if len(component.hosts) > MOST_HOSTS else "")
    cells = (_escaped(component.name), _escaped(component.cluster or "-"), bar, _escaped(hosts))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def show_reports(reports: Iterable[JobReport]) -> JobReport:
    """Show a job at each change; return its last report."""
    last: JobReport | None = None
    shown: Shown | None = None
    said = ""
    notebook = in_notebook()
    for last in reports:
        if notebook:
            if shown is None:
                shown = _begun(mimebundle(last))
            else:
                shown.update(mimebundle(last), raw=True)
        elif (line := one_line(last)) != said:
            said = line
            print(line, file=sys.stderr, flush=True)
    if last is None:
        raise AssertionError("a watch gives at least one report")
    return last


def in_notebook() -> bool:
    """Tell whether this program is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def _begun(bundle: dict[str, str]) -> Shown:
    from importlib import import_module

    shown: Shown = import_module("IPython.display").display(bundle, raw=True, display_id=True)
    return shown


def _escaped(text: str) -> str:
    from html import escape  # a terminal needs none

    return escape(text)
