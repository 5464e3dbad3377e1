# SPDX-License-Identifier: Apache-2.0
"""Each experiment runs, reports its findings and repeats itself byte for byte."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from koala_adapter.cli.koala import koala
from koala_adapter.errors import EXIT_CONFIGURATION, SimulationError
from koala_adapter.report.figures import Drawing, Figure, Series, check_matplotlib, draw, thinned
from koala_adapter.report.page import Finding, Heading, Result, Table, figure_csv, result_json, shown
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.metrics import Steps
from koala_experiments import placement, vjm
from koala_experiments.framework import (
    Comparison,
    Experiment,
    Options,
    Setting,
    experiment_names,
    load_experiment,
    write_experiment,
)
from koala_experiments.malleable import AS_SET, RIGID, Conditions, Variant, conditions_of, means_over, run_variant
from koala_experiments.maui import ALL_POLICIES, BESTFIT, FIRSTFIT, GREEDY, METACLUSTER, Measured, result, spread

# -- Experiments are found, run with their settings, and written as pages that can be believed and sent.


LINES = Figure(
    name="lines",
    title="Lines",
    x_label="time (s)",
    y_label="jobs",
    series=[
        Series(label="one", x=[0, 1, 2], y=[1, 2, 3], low=[0, 1, 2], high=[2, 3, 4]),
        Series(label="two", x=[0, 1], y=[3, 1]),
    ],
    caption="A <caption>.",
)
BARS = Figure(
    name="bars",
    title="Bars",
    x_label="trace",
    y_label="wait (s)",
    kind="bars",
    categories=["a rather long name", "b"],
    series=[Series(label="one", y=[1, 2]), Series(label="two", y=[2, 1])],
)


def sample(options: Options) -> Result:
    """Return one of everything."""
    return Result(
        findings=[
            Finding(claim="It <is> so", outcome=f"{options.seeds} times", holds=True, margin="1 %"),
            Finding(claim="It is not", outcome="no", holds=False),
            Finding(claim="Who knows", outcome="nobody", holds=None),
        ],
        figures=[LINES, BARS],
        tables=[Table(name="rows", title="Rows", columns=("trace", "wait (s)"), rows=[("a", 1.25), ("b", None)])],
        notes=["A & B."],
    )


SAMPLE = Experiment(
    name="sample",
    summary="A sample.",
    paper="Nobody, 2000.",
    run=sample,
    seeds=3,
    settings=(Setting(name="speed", default="1", meaning="how fast"), Setting(name="load", default="", meaning="much")),
)


WITH_SPEED = SAMPLE.options(settings={"speed": "2"})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the sample once for all who look at its files: drawing takes its time."""
    directory = tmp_path_factory.mktemp("written")
    assert write_experiment(directory, SAMPLE, WITH_SPEED, sample(WITH_SPEED)) == directory / "index.html"
    return directory


def test_the_experiments_are_listed_without_the_code_of_a_service() -> None:
    """Also those that run one begin with it only when they are run."""
    program = (
        "import sys\n"
        "from koala_experiments.framework import experiment_names, load_experiment\n"
        "assert [load_experiment(name) for name in experiment_names()]\n"
        "print([name for name in sys.modules if name.startswith('koala_adapter.service')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_defaults_are_filled_in() -> None:
    options = SAMPLE.options(settings={"speed": "2"}, seed=5)
    assert options.settings == {"speed": "2", "load": ""}
    assert list(options.all_seeds) == [5, 6, 7]
    assert list(SAMPLE.options(seeds=1).all_seeds) == [0]


def test_a_page_sets_claim_beside_result(written: Path) -> None:
    """Verdicts, notes, figures and tables are on one page, which needs nothing else, and how to get it again."""
    text = (written / "index.html").read_text(encoding="utf-8")
    assert "1 of 3 hold, 1 cannot be told" in text
    assert re.search(r"<td>It &lt;is&gt; so</td><td>3 times</td><td[^>]*>holds</td><td>1 %</td>", text)
    assert re.search(r"<td>It is not</td><td>no</td><td[^>]*>does not hold</td>", text)
    assert re.search(r"<td>Who knows</td><td>nobody</td><td[^>]*>cannot tell</td>", text)
    assert "<li>A &amp; B.</li>" in text
    assert "A &lt;caption&gt;." in text
    assert text.count("data:image/svg+xml;base64,") == 2
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert "<code>koala experiment run sample --seeds 3 --set speed=2</code>" in text


def test_the_command_of_a_page_is_one_for_a_shell(tmp_path: Path) -> None:
    options = SAMPLE.options(settings={"speed": "very fast"}, seed=2)
    write_experiment(tmp_path, SAMPLE, options, Result(findings=()))
    command = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["command"]
    assert shlex.split(command)[4:] == ["--seeds", "3", "--seed", "2", "--set", "speed=very fast"]


def test_data_is_written_beside_the_page(written: Path) -> None:
    """Every figure is there as PNG, SVG and CSV, every table as CSV, the findings as JSON."""
    assert (written / "figures" / "bars.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (written / "figures" / "lines.svg").read_bytes()
    assert (written / "data" / "rows.csv").read_text(encoding="utf-8") == "trace,wait (s)\na,1.25\nb,\n"
    assert (written / "data" / "lines.csv").read_text(encoding="utf-8") == figure_csv(LINES)
    assert figure_csv(LINES).splitlines()[:2] == ["series,x,y,low,high", "one,0,1,0,2"]
    assert figure_csv(BARS).splitlines()[1] == "one,a rather long name,1,,"
    content = json.loads((written / "result.json").read_text(encoding="utf-8"))
    assert [finding["holds"] for finding in content["findings"]] == [True, False, None]
    assert content["tables"]["rows"][1] == {"trace": "b", "wait (s)": None}


def test_long_lines_on_logarithmic_axes_are_drawn() -> None:
    series = [Series(label="one", x=range(1, 5001), y=range(1, 5001))]
    figure = Figure(name="x", title="x", x_label="x", y_label="y", series=series, x_log=True, y_log=True)
    assert draw(figure).png.startswith(b"\x89PNG")


def test_thinning_keeps_both_ends() -> None:
    assert thinned([1, 2, 3], 3) == [1, 2, 3]
    assert thinned(range(101), 5) == [0, 25, 50, 75, 100]


@pytest.mark.parametrize(
    ("cell", "text"),
    [(None, "-"), ("x", "x"), (1234567, "1,234,567"), (2.0, "2"), (0.123456, "0.1235"), (98765.432, "98,765.4")],
)
def test_numbers_as_people_read_them(cell: str | float | None, text: str) -> None:
    assert shown(cell) == text


def measured(trace: str, policy: str, wait: float, slowdown: float, *, short: float, waiting: float = 0.5) -> Measured:
    """Return the outcome of one simulation."""
    return Measured(
        trace=trace, policy=policy, exact=True, jobs=9, wait=wait, slowdown=slowdown, bounded=1, short=short, run=1,
        utilization=0.5, waiting=waiting,
    )  # fmt: skip


def like_the_paper(*, metacluster: float = 2.0) -> list[Measured]:
    """Return outcomes of which each claim of the paper holds, but for what is asked to be otherwise."""
    return [
        measured("DAS2-fs3", FIRSTFIT, 100, 2, short=0.97),
        measured("DAS2-fs3", BESTFIT, 105, 4, short=0.97),
        measured("DAS2-fs3", GREEDY, 100, 2, short=0.97),
        measured("DAS2-fs3", METACLUSTER, 110, 8, short=0.97),
        measured("CTC-SP2", FIRSTFIT, 100, 4, short=0.57),
        measured("CTC-SP2", BESTFIT, 105, 6, short=0.57),
        measured("CTC-SP2", GREEDY, 100, 4, short=0.57),
        measured("CTC-SP2", METACLUSTER, 98, metacluster, short=0.57),
    ]


def test_claims_hold_when_the_numbers_say_so() -> None:
    """With numbers as in the paper all six claims hold; with one number otherwise the one claim fails, and says so."""
    assert [finding.holds for finding in result(like_the_paper(), ()).findings] == [True] * 6
    findings = result(like_the_paper(metacluster=5), ()).findings
    assert [finding.holds for finding in findings] == [True] * 5 + [False]
    assert "slowdown +25.0 %" in findings[5].margin


def test_a_trace_on_which_nobody_waits_cannot_tell() -> None:
    """Equal numbers of a trace that hardly makes anybody wait refute nothing, and the page says why."""
    quiet = [measured("NASA-iPSC", policy, 4, 1, short=0.87, waiting=0.0006) for policy in ALL_POLICIES]
    whole = result([*like_the_paper(), *quiet], ["a note"])
    assert [finding.holds for finding in whole.findings] == [True] * 6
    assert whole.notes[1].startswith("On NASA-iPSC at most 0.06 % of the jobs wait")
    busy = [measured("NASA-iPSC", policy, 4, 1, short=0.87) for policy in ALL_POLICIES]
    assert not result([*like_the_paper(), *busy], ()).findings[3].holds
    silent = [replace(one, waiting=0) for one in like_the_paper()]
    assert [finding.holds for finding in result(silent, ()).findings][3:] == [None, None, None]


def test_maui_backfill_without_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces that are not there are left out or replaced by models, and notes say which and where to get them."""
    monkeypatch.setattr("koala_adapter.report.page.draw", lambda _: Drawing(png=b"", svg=b"<svg/>"))
    words = ["experiment", "run", "maui-backfill", "--seeds", "1", "--set", "jobs=300", "--set", f"traces={tmp_path}"]
    result = CliRunner().invoke(koala, [*words, "--out", str(tmp_path / "out"), "--processes", "1", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert len(report["findings"]) == 6
    notes = " ".join(report["notes"])
    assert "NASA-iPSC is not on this machine and left out: get it from https://www.cs.huji.ac.il" in notes
    assert "DAS2-fs3 is not on this machine and is replaced by model:das2-fs3" in notes
    rows = (tmp_path / "out" / "data" / "exact.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + 2 * 4


def test_experiments_are_listed() -> None:
    """For people as a table, for programs as JSON with all settings."""
    listed = CliRunner().invoke(koala, ["experiment", "list"]).stdout
    found = json.loads(CliRunner().invoke(koala, ["experiment", "list", "--json"]).stdout)
    assert "maui-backfill" in experiment_names()
    assert [one["name"] for one in found] == experiment_names()
    assert all(one["name"] in listed for one in found)
    assert all(set(one) == {"name", "summary", "paper", "seeds", "settings"} for one in found)
    assert all(one["summary"].endswith(".") and one["paper"] and one["seeds"] >= 1 for one in found)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nothing", "there is no experiment nothing there is deadline, "),
        ("maui-backfill --set speed=3", "has no setting speed there is traces, jobs"),
        ("maui-backfill --seeds 0", "0 is not in the range"),
        ("maui-backfill --set jobs=-3", "allowed is a whole number from 1"),
        ("placement --set jobs=1.5", "jobs is '1.5'"),
        ("placement --set local=2", "allowed is a number from 0 to 1"),
        ("vjm-deadlock --set run", "run is ''"),
        ("vjm-deadlock --set life=nan", "life is 'nan'"),
        ("vjm-selection --set interval=inf", "allowed is a number from 1"),
        ("koala-pra --set background=1.5", "allowed is a number from 0 to 0.95"),
        ("koala-pra --set cost=-1", "cost is '-1'"),
        ("koala-pra --set poll=soon", "poll is 'soon'"),
        ("koala-pra --set delay=nan", "delay is 'nan'"),
        ("deadline --set monitor-interval=0", "monitor-interval"),
        ("placement --set also=luck", "also: there is no policy 'luck' of that kind"),
        ("deadline --set deadline-factor=3-1", "deadline-factor is '3-1'"),
        ("deadline --set deadline-factor=x", "deadline-factor is 'x'"),
    ],
)
def test_wrong_runs_are_refused(words: str, message: str) -> None:
    result = CliRunner().invoke(koala, ["experiment", "run", *words.split()])
    assert result.exit_code in {2, EXIT_CONFIGURATION}
    assert message in " ".join(result.output.split())
    assert "defect" not in result.output


def test_where_nothing_can_be_written_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Options] = []

    def tells(options: Options) -> Result:
        ran.append(options)
        return Result(
            findings=[Finding(claim="It [is] so", outcome="Once.", holds=True, margin="1 %")], notes=["Well."]
        )

    loaded = replace(SAMPLE, run=tells)
    monkeypatch.setattr("koala_experiments.commands.load_experiment", lambda _: loaded)
    (tmp_path / "file").touch()
    words = ["experiment", "run", "sample", "--out"]
    result = CliRunner().invoke(koala, [*words, str(tmp_path / "file" / "below")])
    assert result.exit_code == 1
    assert "Not a directory" in result.output
    assert not ran
    shown = CliRunner().invoke(koala, [*words, str(tmp_path / "below")])
    assert shown.exit_code == 0
    assert ran
    assert shown.stdout.startswith("holds (1 %): It [is] so\n  Once.\nof the claims 1 of 1 hold")
    assert "Well." in shown.stderr


def test_an_interrupted_experiment_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: Options) -> Result:
        raise KeyboardInterrupt

    loaded = replace(SAMPLE, run=interrupted)
    monkeypatch.setattr("koala_experiments.commands.load_experiment", lambda _: loaded)
    result = CliRunner().invoke(koala, ["experiment", "run", "sample", "--out", str(tmp_path)])
    assert result.exit_code == 130
    assert "interrupted: an experiment is judged as a whole" in result.output
    assert not list(tmp_path.iterdir())


def test_a_model_cannot_tell_of_a_trace() -> None:
    """Where a model stands in for the only trace that a claim is about, the claim is neither held nor refuted."""
    stand_in = [replace(one, modelled=one.trace == "DAS2-fs3") for one in like_the_paper()]
    findings = result(stand_in, ()).findings
    assert [finding.holds for finding in findings] == [True, True, None, True, None, True]
    assert "cannot tell of the trace itself" in findings[2].outcome
    assert "cannot tell of the traces themselves" in findings[4].outcome


def test_matplotlib_that_cannot_be_loaded_is_told_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, or there and broken: how to install it, and no defect of koala."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SimulationError, match="matplotlib, which cannot be loaded"):
        check_matplotlib()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SimulationError, match="matplotlib, which is not installed"):
        check_matplotlib()


SMALLEST = (
    ("deadline", {"hours": "1", "deadline-factor": "1000", "monitor-interval": "86400"}),
    ("maui-backfill", {"jobs": "1", "traces": "/nowhere"}),
    ("maui-backfill", {"jobs": "200", "traces": "/nowhere"}),
    ("placement", {"jobs": "1"}),
    ("placement", {"jobs": "3"}),
    ("koala-pra", {"delay": "3600", "cost": "3600", "poll": "3600"}),
    ("vjm-deadlock", {"run": "1", "life": "1"}),
    ("vjm-selection", {"jobs": "1"}),
)
"""Experiments with settings at the ends of what is allowed."""
NIGHTLY = (
    ("deadline", {"hours": "1"}),
    ("maui-backfill", {"jobs": "4000", "traces": "/nowhere"}),
    ("koala-pra", {"background": "0.95", "threshold": "30"}),
    ("koala-pwa", {"background": "0.95", "threshold": "30"}),
    ("koala-pwa", {"delay": "3600", "cost": "3600", "poll": "3600"}),
)
"""More of them, which take longer: of each, another one is run by day."""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
@pytest.mark.parametrize(
    ("name", "settings"), [*SMALLEST, *(pytest.param(*one, marks=pytest.mark.nightly) for one in NIGHTLY)]
)
def test_experiments_end_with_a_result_at_their_smallest(name: str, settings: dict[str, str], seed: int) -> None:
    experiment = load_experiment(name)
    found = experiment.run(experiment.options(seeds=1, seed=seed, settings=settings))
    assert found.findings
    numbers_are_finite(found)


def numbers_are_finite(found: Result) -> None:
    """Check that nothing of a result is infinite or no number, in its JSON, its tables or its figures."""

    def refuse(word: str) -> None:
        pytest.fail(f"{word} in the JSON of the result")

    json.loads(result_json(Heading(title="t", lead="l", command="c"), found), parse_constant=refuse)
    numbers = [cell for table in found.tables for row in table.rows for cell in row if isinstance(cell, float)]
    assert all(math.isfinite(number) for number in numbers)
    assert "nan" not in "".join(figure_csv(figure) for figure in found.figures)


@pytest.mark.filterwarnings("error")
def test_figures_without_values_are_drawn() -> None:
    for values, y_log in (([math.nan, math.nan], False), ([math.nan, 2.0], True), ([0.0, 0.0], True)):
        figure = replace(BARS, y_log=y_log, series=[Series(label="one", y=values)])
        assert draw(figure).svg.startswith(b"<?xml")
    assert figure_csv(replace(BARS, series=[Series(label="one", y=[math.nan, 2.0])])).splitlines()[1] == (
        "one,a rather long name,,,"
    )


def test_a_selection_in_which_no_job_was_started() -> None:
    """Clusters that are full all the time leave gaps, and no claim is told."""
    nothing = vjm.SelectionOutcome(waits=(), clusters=None, held=None, hand_backs=0, exchanges=0, unfinished=1)
    found = vjm.selection_result(Comparison({variant: [nothing] for variant in vjm.SELECTION_VARIANTS}), ())
    assert {one.holds for one in found.findings} == {None}
    assert {row[1] for row in found.tables[0].rows} == {None}
    assert "nan" not in "".join(figure_csv(figure) for figure in found.figures)


def test_placement_on_clusters_that_are_full() -> None:
    nothing = placement.Outcome(None, None, None, None, None, spread=0.0, moved=None)
    found = placement.comparison(Comparison({policy: [nothing] for policy in placement.POLICIES}), ())
    assert {one.holds for one in found.findings} == {None}
    assert list(found.tables[0].rows[0][1:]) == [None] * 6 + [0.0]
    assert "nan" not in "".join(figure_csv(figure) for figure in found.figures)


def test_a_spread_over_nothing_is_no_agreement() -> None:
    values = {
        policy: replace(measured("a", policy, 5.0 if policy == METACLUSTER else 0.0, 2.0, short=1.0), waiting=0.5)
        for policy in ALL_POLICIES
    }
    assert spread(values, lambda one: one.wait) == math.inf
    assert spread(values, lambda one: one.slowdown) == 0


# -- The experiments koala-pra and koala-pwa: what is worked out of a run, the six figures, and refused settings.


USED = Steps(times=[0.0, 10.0, 15.0], values=[2, 6, 0])
"""2 processors for 10 s, then 6 for 5 s."""


def test_used_processors_are_averaged_over_time() -> None:
    """20 processor-seconds in the first 10 s, 30 in the next 10, nothing after; half of all in the middle."""
    assert means_over(USED, [10.0, 20.0, 30.0]) == [2.0, 3.0, 0.0]
    assert means_over(USED, [5.0, 12.5]) == [2.0, 25.0 / 7.5]


def test_a_record_of_rigid_jobs_is_known_beforehand() -> None:
    """Half FT (120 s) and half GADGET-2 (600 s) on 2 processors: 360 s on average, no messages, nobody waits."""
    record = run_variant(Variant(RIGID, "W'm"), 1, approach=Approach.PWA, conditions={AS_SET: Conditions()})
    assert (record.average_processors, record.maximum_processors, record.messages) == (2.0, 2.0, 0)
    assert record.execution == pytest.approx(360.0)
    assert record.wait == pytest.approx(0.0)
    assert record.jobs == {}


def test_a_detailed_record_has_every_job_and_the_whole_time() -> None:
    """300 values of each kind; the timelines end with nothing used and with all messages."""
    record = run_variant(Variant("egs", "Wm"), 1, approach=Approach.PRA, conditions={AS_SET: Conditions()})
    assert {len(values) for values in record.jobs.values()} == {300}
    assert record.used_over_time[-1] == 0.0
    assert record.messages_over_time[-1] == record.messages > 0


def test_the_experiment_gives_the_six_parts_of_the_figure() -> None:
    """Parts a to f, each with the four combinations, distributions up to 100 %; five claims are judged.

    Local users ask for nearly all that the threshold, the highest that is allowed, leaves to koala.
    """
    experiment = load_experiment("koala-pwa")
    result = experiment.run(experiment.options(seeds=1, settings={"background": "0.95", "threshold": "30"}))
    numbers_are_finite(result)
    assert [figure.name for figure in result.figures] == [f"figure-8{part}" for part in "abcdef"]
    for figure in result.figures:
        labels = [series.label for series in figure.series]
        assert labels == ["FPSMA/W'm", "FPSMA/W'mr", "EGS/W'm", "EGS/W'mr"]
        assert all(len(series.x) == len(series.y) for series in figure.series)
    for figure in result.figures[:4]:
        assert all(list(series.y) == sorted(series.y) and series.y[-1] == 100.0 for series in figure.series)
    assert len(result.findings) == 5
    assert all(finding.holds is not None for finding in result.findings)
    policies, conditions = result.tables
    assert len(policies.rows) == 12
    assert len(conditions.rows) == 20


def test_settings_become_conditions() -> None:
    experiment = load_experiment("koala-pra")
    given = {"background": "0.5", "threshold": "4", "delay": "10", "cost": "5", "poll": "15"}
    found = conditions_of(experiment.options(settings=given))
    assert found == Conditions(background=0.5, threshold=4, delay=10.0, cost=5.0, poll=15.0)
