# SPDX-License-Identifier: Apache-2.0
"""Figures of experiments and replays, drawn as PNG and SVG: the same bytes for the same values.

Drawing needs matplotlib (the extra ``figures``), which is imported only when a figure is drawn. The values of a
figure, :class:`Series` and :class:`Figure`, stand at the end.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Literal

from koala_adapter.errors import SimulationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.typing import RcKeyType


# -- Drawing -------------------------------------------------------------------------------------------------

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Told apart also by people who do not see all colours, after Okabe and Ito (2008)."""
DASHES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE: dict[RcKeyType, object] = {
    "svg.hashsalt": "koala",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "path.simplify_threshold": 0.3,
}
SIZE = (6.4, 4.4)
"""Inches."""
RESOLUTION = 130
"""Dots per inch of the PNG."""
MOST_POINTS = 1500
"""More of a line cannot be told apart at this size; the data file has all of them."""
LEGEND_WIDTH = 75
"""Characters that fit in one line of a legend."""
LONG_NAME = 12
"""Categories longer than this, or more than `MANY_NAMES`, are written at an angle."""
MANY_NAMES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure drawn as PNG and SVG."""

    png: bytes
    svg: bytes


def check_matplotlib() -> None:
    """Raise SimulationError when matplotlib is missing or broken, so that this is known before a long run."""
    hint = "install it with: pip install 'koala-adapter[figures]'"
    if importlib.util.find_spec("matplotlib") is None:
        raise SimulationError("drawing figures needs matplotlib, which is not installed", hint=hint)
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise SimulationError(
            f"drawing figures needs matplotlib, which cannot be loaded: {error}", hint=hint
        ) from error


def draw(figure: Figure) -> Drawing:
    """Return a figure as PNG and SVG."""
    import matplotlib.figure  # noqa: PLC0415 - optional, and slow to load

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # and not what a file of the user says
        matplotlib.rcParams.update(STYLE)
        canvas = matplotlib.figure.Figure(figsize=SIZE, layout="constrained")
        _fill(canvas, figure)
        return Drawing(png=_saved(canvas, "png"), svg=_saved(canvas, "svg"))


def _saved(canvas: Canvas, kind: str) -> bytes:
    buffer = io.BytesIO()
    # Without these the files would tell when and by which version they were made, and differ each time.
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    canvas.savefig(buffer, format=kind, dpi=RESOLUTION, metadata=metadata)
    return buffer.getvalue()


def _fill(canvas: Canvas, figure: Figure) -> None:
    axes = canvas.add_subplot()
    axes.set_title(figure.title, loc="left", wrap=True)
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
    if figure.x_log and any(value > 0 for series in figure.series for value in series.x):
        axes.set_xscale("log")
    if figure.y_log and any(value > 0 for series in figure.series for value in series.y):
        axes.set_yscale("log")
    if figure.kind == "bars":
        _bars(axes, figure)
    elif figure.kind == "timeline":
        _timeline(axes, figure)
    else:
        _lines(axes, figure)
    from_zero = not figure.y_log and figure.kind != "timeline"
    if figure.x_range is not None:
        axes.set_xlim(*figure.x_range)
    if figure.y_range is not None:
        axes.set_ylim(*figure.y_range)
    elif from_zero and not any(value < 0 for series in figure.series for value in series.y):
        axes.set_ylim(bottom=0)
    labels = [series.label for series in figure.series]
    if len(labels) > 1:
        widest = max(len(label) for label in labels) + 6
        most = max(1, min(len(labels), LEGEND_WIDTH // widest))
        rows = -(-len(labels) // most)
        canvas.legend(loc="outside lower center", ncols=-(-len(labels) // rows))


def _lines(axes: Axes, figure: Figure) -> None:
    for series, colour, dash, mark in _styled(figure.series):
        x, y = thinned(series.x), thinned(series.y)
        few = len(x) <= len(COLOURS) * 3
        if figure.kind == "step":
            axes.step(x, y, where="post", color=colour, linestyle=dash, label=series.label, linewidth=1.5)
        elif series.low:
            errors = _errors(series)
            axes.errorbar(
                series.x, series.y, yerr=errors, color=colour, linestyle=dash, marker=mark, markersize=4,
                capsize=3, linewidth=1.5, label=series.label,
            )  # fmt: skip
        else:
            marker = mark if few else ""
            axes.plot(
                x, y, color=colour, linestyle=dash, marker=marker, markersize=4, linewidth=1.5, label=series.label
            )


def _bars(axes: Axes, figure: Figure) -> None:
    places = range(len(figure.categories))
    width = 0.8 / max(1, len(figure.series))
    for number, (series, colour, _, _) in enumerate(_styled(figure.series)):
        shift = (number - (len(figure.series) - 1) / 2) * width
        axes.bar(
            [place + shift for place in places], series.y, width * 0.94, color=colour, label=series.label,
            yerr=_errors(series) if series.low else None, capsize=3,
        )  # fmt: skip
    at_an_angle = len(figure.categories) > MANY_NAMES or any(len(name) > LONG_NAME for name in figure.categories)
    axes.set_xticks(list(places), list(figure.categories))
    if at_an_angle:
        axes.tick_params(axis="x", labelrotation=25.0)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
    axes.grid(visible=False, axis="x")


def _timeline(axes: Axes, figure: Figure) -> None:
    for series, colour, _, _ in _styled(figure.series):
        lengths = [end - begin for begin, end in zip(series.x, series.high, strict=True)]
        axes.barh(
            list(series.y), lengths, 0.8, left=list(series.x), color=colour, edgecolor="white", label=series.label
        )
    axes.set_yticks(range(len(figure.categories)), list(figure.categories))
    axes.set_ylim(len(figure.categories) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def _styled(series: Sequence[Series]) -> Iterator[tuple[Series, str, str, str]]:
    return zip(series, cycle(COLOURS), cycle(DASHES), cycle(MARKS), strict=False)


def _errors(series: Series) -> list[list[float]]:
    return [
        [max(0.0, y - low) for y, low in zip(series.y, series.low, strict=True)],
        [max(0.0, high - y) for y, high in zip(series.y, series.high, strict=True)],
    ]


def thinned(values: Sequence[float], most: int = MOST_POINTS) -> Sequence[float]:
    """Return at most ``most`` values, evenly spaced, with the first and the last."""
    if len(values) <= most:
        return values
    step = (len(values) - 1) / (most - 1)
    return [values[round(index * step)] for index in range(most)]


# -- Values of a figure --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line or one set of bars of a figure."""

    label: str
    y: Sequence[float]
    """NaN where there is no value: nothing is drawn there."""
    x: Sequence[float] = ()
    """As many as ``y``; empty for bars, which stand at the categories of the figure."""
    low: Sequence[float] = ()
    """Lower ends of the confidence intervals; empty when there are none."""
    high: Sequence[float] = ()
    """Upper ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Data, title and axes of a figure."""

    name: str
    """Stem of its files."""
    title: str
    x_label: str
    """With the unit."""
    y_label: str
    """With the unit."""
    series: Sequence[Series]
    kind: Literal["line", "step", "bars", "timeline"] = "line"
    """``step``: each value holds until the next x. ``line`` joins the values. ``timeline``: a bar from x to ``high`` in
    row y."""
    categories: Sequence[str] = ()
    """Names along the x axis, for bars; names of the rows from 0, for a timeline."""
    caption: str = ""
    x_log: bool = False
    y_log: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    """None: from 0, or from what is there on a logarithmic axis."""
