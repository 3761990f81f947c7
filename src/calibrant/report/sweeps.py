"""Sweeps over numeric options of a study, as figures."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from calibrant.metrics.table import measure
from calibrant.plots.sweeps import Scale, Sweep, SweepMap
from calibrant.runs import StudyResult, Summary

#: Measures that are drawn.
SWEPT = ("ece", "adaptive_ece", "accuracy", "nll", "mean_iou")


class Line(NamedTuple):
    """Runs that differ in numeric options only.

    Attributes:
        name: The method, with its other options.
        rows: The values of the numeric options, and the results.
    """

    name: str
    rows: list[tuple[dict[str, float], Summary]]

    def swept(self) -> dict[str, list[float]]:
        """Options that take several values, with the values."""
        found = {name: sorted({options[name] for options, _ in self.rows}) for name in self.rows[0][0]}
        return {name: points for name, points in found.items() if len(points) > 1}


def sweeps(result: StudyResult) -> dict[str, Sweep | SweepMap]:
    """Figures of a study's numeric options, by file name; methods without options are drawn for comparison.

    One option is drawn as lines, two as a heat map for each method. With three or more, the one with the most values is on
    the x-axis, with a line for each combination of the others.
    """
    keys = [key for key in SWEPT if all(key in row.before for row in result.summaries)]
    alone, drawn, maps = list[Line](), dict[str, list[Line]](), list[SweepMap]()
    for line in _lines(result):
        swept = line.swept()
        if not swept:
            alone += [Line(row.method, [(options, row)]) for options, row in line.rows]
        elif len(swept) == 2:
            maps.append(_map(line, swept, keys))
        else:
            option = max(swept, key=lambda name: len(swept[name]))
            drawn.setdefault(option, []).extend(_divide(line, option))
    named: dict[str, Sweep | SweepMap] = {
        f"sweep-{option}": _sweep(option, own, alone, keys) for option, own in drawn.items()
    }
    named |= {f"sweep-{own.name}": own for own in maps}
    return {"sweep": next(iter(named.values()))} if len(named) == 1 else named


def _lines(result: StudyResult) -> list[Line]:
    """The methods of a study, without their numeric options."""
    jobs = {job.method: job for job in result.jobs}
    texts: dict[str, set[str]] = {}
    for job in jobs.values():
        for name, text in job.options.items():
            texts.setdefault(name, set()).add(text)
    numeric = {name for name, own in texts.items() if all(_number(text) is not None for text in own)}
    found: dict[str, Line] = {}
    for row in result.summaries:
        job = jobs[row.method]
        words = [f"{name}={text}" for name, text in job.options.items() if name not in numeric]
        line = ", ".join([job.base or row.method, *words])  # older files have no base
        values = {name: float(text) for name, text in job.options.items() if name in numeric}
        found.setdefault(line, Line(line, [])).rows.append((values, row))
    return list(found.values())


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number != number else number  # noqa: PLR0124 - NaN


def _divide(line: Line, option: str) -> list[Line]:
    """A line for each combination of the options other than the one that is drawn."""
    found: dict[str, Line] = {}
    others = [name for name in line.swept() if name != option]
    for options, row in line.rows:
        name = ", ".join([line.name, *(f"{other}={options[other]:g}" for other in others)])
        found.setdefault(name, Line(name, [])).rows.append((options, row))
    return list(found.values())


def _sweep(option: str, lines: Sequence[Line], alone: Sequence[Line], keys: Sequence[str]) -> Sweep:
    ordered = [sorted(line.rows, key=lambda pair: pair[0][option]) for line in lines]
    points = [[options[option] for options, _ in rows] for rows in ordered]
    rows = [*ordered, *(line.rows for line in alone)]
    values = {key: [[row.values(key) for _, row in own] for own in rows] for key in keys}
    return Sweep(option, [line.name for line in (*lines, *alone)], [*points, *([] for _ in alone)], values)


def _map(line: Line, swept: Mapping[str, list[float]], keys: Sequence[str]) -> SweepMap:
    down, across = sorted(swept, key=lambda name: len(swept[name]))
    at = {(options[down], options[across]): row for options, row in line.rows}
    values = {
        key: [[at[y, x].values(key) if (y, x) in at else [] for x in swept[across]] for y in swept[down]] for key in keys
    }
    loss = line.name.partition(",")[0].rpartition(": ")[2]
    names = [option.removeprefix(f"{loss}.") for option in (down, across)]
    return SweepMap(line.name, names, [swept[down], swept[across]], values)


def plain(figure: Sweep | SweepMap) -> dict[str, Any]:
    """A figure as the page shows it: values in the units of the measures, and places and labels on the axes."""
    scales = {key: measure(key).scale for key in figure.values}
    measures = [
        {
            "title": measure(key).label,
            "more": measure(key).higher,
            "values": [[[scales[key] * value for value in group] for group in row] for row in rows],
        }
        for key, rows in figure.values.items()
    ]
    if isinstance(figure, SweepMap):
        labels = [[f"{point:g}" for point in own] for own in figure.points]
        return {"map": True, "name": figure.name, "options": figure.options, "labels": labels, "measures": measures}
    scale = Scale.of(point for own in figure.points for point in own)
    return {
        "map": False,
        "option": figure.option,
        "names": figure.names,
        "places": [scale.places(own) for own in figure.points],
        "ticks": scale.places(scale.points),
        "labels": [f"{point:g}" for point in scale.points],
        "log": scale.kind == "log",
        "measures": measures,
    }
