# SPDX-License-Identifier: Apache-2.0
"""``koala experiment``: the published evaluations, each with one command."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from koala_adapter.cli.display import FittingTable
from koala_adapter.cli.session import EXIT_INTERRUPTED, command_body, json_option, pass_session
from koala_adapter.cli.simulate import progress_display, told
from koala_adapter.report.figures import check_matplotlib
from koala_adapter.report.page import tally
from koala_adapter.scheduler.knownpolicies import OWN
from koala_experiments.framework import ALSO, experiment_names, load_experiment, write_experiment

if TYPE_CHECKING:
    from koala_adapter.cli.session import Session
    from koala_adapter.report.page import Finding


VERDICTS = {True: "[green]holds[/]", False: "[red]does not hold[/]", None: "[yellow]cannot tell[/]"}
OUT = click.Path(path_type=Path, file_okay=False)


@click.group()
def experiment() -> None:
    r"""Repeat the published evaluations.

    \b
    Examples:
      koala experiment list
      koala experiment run koala-pwa --seeds 30
    """


@experiment.command(name="list")
@json_option
@pass_session
@command_body
def list_experiments(session: Session, as_json: bool) -> None:
    r"""List the experiments, with their settings.

    \b
    Example:
      koala experiment list
    """
    found = [load_experiment(name) for name in experiment_names()]
    if as_json:
        session.print_json([
            {
                "name": one.name,
                "summary": one.summary,
                "paper": one.paper,
                "seeds": one.seeds,
                "settings": [
                    {"name": setting.name, "default": setting.default, "meaning": setting.meaning}
                    for setting in one.settings
                ],
            }
            for one in found
        ])  # fmt: skip
        return
    table = FittingTable()
    table.add_column("experiment", no_wrap=True)
    table.add_column("seeds", justify="right")
    table.add_column("what it repeats")
    for one in found:
        table.add_row(one.name, str(one.seeds), escape(one.summary))
        for setting in one.settings:
            meaning = setting.meaning.rstrip(".") + (f". Default: {setting.default}." if setting.default else ".")
            table.add_row("", "", f"[dim]--set {setting.name}=... {escape(meaning)}[/]")
    session.console.print(table)


@experiment.command()
@click.argument("name", metavar="NAME")
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="Repetitions. Default: that of the experiment.")
@click.option("--seed", type=int, metavar="S", default=0, show_default=True, help="The first seed.")
@click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, help="A setting of the experiment.")
@click.option(
    "--processes", type=click.IntRange(min=1), metavar="N", help="Simulations side by side. Default: one for each core."
)
@click.option("--out", type=OUT, metavar="DIR", help="Directory for page, figures and data. Default: experiments/NAME.")
@json_option
@pass_session
@command_body
def run(
    session: Session, name: str, seeds: int | None, seed: int, settings: tuple[str, ...], processes: int | None,
    out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    r"""Run an experiment and write a page about it.

    The page sets each claim of the paper beside what came out; data and figures
    stand beside it.

    \b
    Example:
      koala experiment run vjm-deadlock --out results
    """
    chosen = load_experiment(name)
    check_matplotlib()
    values = {one.partition("=")[0]: one.partition("=")[2] for one in settings}
    directory = out or Path("experiments") / name
    with progress_display(session.moving) as display:
        options = chosen.options(
            seeds=seeds,
            seed=seed,
            settings=values,
            processes=processes or os.cpu_count() or 1,
            progress=told(display),
            policies=session.policies if values.get(ALSO) else OWN,
        )
        directory.mkdir(parents=True, exist_ok=True)  # what cannot be written to is better told before a long run
        try:
            result = chosen.run(options)
        except KeyboardInterrupt:
            session.remark("interrupted: an experiment is judged as a whole, so there is nothing to show")
            raise SystemExit(EXIT_INTERRUPTED) from None
    page = write_experiment(directory, chosen, options, result)
    if as_json:
        session.print_json({
            "experiment": name,
            "page": str(page),
            "findings": [asdict(one) for one in result.findings],
            "notes": list(result.notes),
        })  # fmt: skip
        return
    for finding in result.findings:
        session.console.print(*finding_lines(finding), sep="\n", soft_wrap=True)
    for note in result.notes:
        session.remark(note)
    session.console.print(f"of the claims {tally(result.findings)}; the page is {escape(str(page))}")


def finding_lines(finding: Finding) -> list[str]:
    """Return the lines that show a claim with its result."""
    margin = f" ({escape(finding.margin)})" if finding.margin else ""
    return [f"{VERDICTS[finding.holds]}{margin}: {escape(finding.claim)}", f"  {escape(finding.outcome)}"]
