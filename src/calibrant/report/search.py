"""A search over hyper-parameters, as a figure and for the page."""

import math
from typing import Any

from calibrant.metrics.table import measure
from calibrant.plots import SearchPlot
from calibrant.runs import TuningResult


def search_plot(result: TuningResult) -> SearchPlot:
    """The score of each trial that is done against each option."""
    done = [trial for trial in result.trials if trial.state == "done"]
    options = {name: [trial.options.get(name) for trial in done] for name in result.space}
    log = [name for name, text in result.space.items() if text.startswith("log:")]
    ends = {name: text.removeprefix("log:").split("..") for name, text in result.space.items()}
    ranges = {name: (float(own[0]), float(own[1])) for name, own in ends.items() if len(own) == 2}
    return SearchPlot(result.by, [trial.score for trial in done], options, log, ranges)


def search_plain(result: TuningResult) -> dict[str, Any]:
    """The search as plain Python types, for the page."""
    figure, record = search_plot(result), measure(result.by)
    columns, rows = result.cells()
    return {
        "title": result.title,
        "label": record.label,
        "scores": [record.scale * score if math.isfinite(score) else None for score in figure.scores],
        "best": figure.best,
        "numbers": [trial.number for trial in result.trials if trial.state == "done"],
        "options": [
            {"name": name, "values": values, "log": name in figure.log, "range": figure.ranges.get(name)}
            for name, values in figure.options.items()
        ],
        "winner": result.winner,
        "columns": columns,
        "rows": rows,
        "learned": result.learned,
        "scored": result.scored,
    }
