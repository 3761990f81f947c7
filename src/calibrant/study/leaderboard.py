"""Several studies side by side: methods x data sets, and mean ranks with their intervals."""

import csv
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from calibrant.errors import InputError
from calibrant.files import read_text, write_text
from calibrant.losses import METHODS
from calibrant.metrics.panel import markdown_table
from calibrant.metrics.table import MEASURES, Measure
from calibrant.runs import StudyFolder, TuningFolder
from calibrant.study.tables import SAME

#: Name of cross-entropy after temperature scaling, which competes like a method of its own.
SCALED: Final = "ce + T"
#: Measures that methods are ranked by.
RANKED: Final = ("ece", "nll", "accuracy")
#: Resamples of the intervals of mean ranks.
RESAMPLES: Final = 10_000
#: Lines of a document between which the tables stand.
START: Final = "<!-- leaderboard: written by calibrant leaderboard, do not edit -->"
END: Final = "<!-- end of the leaderboard -->"

#: Values by measure, method and seed.
Runs = dict[str, dict[str, dict[int, float]]]


class Rank(NamedTuple):
    """The mean rank of a method.

    Attributes:
        mean: Mean over data sets of the mean over seeds; 1 is best.
        low: Lower end of its 95% interval.
        high: Upper end.
        data: Number of data sets.
    """

    mean: float
    low: float
    high: float
    data: int


@dataclass(frozen=True)
class Leaderboard:
    """Methods compared over several data sets.

    On each data set and for each seed, methods are ranked among the core ones, which have runs on all data sets: a rank is
    one plus the number of core methods that are better, half of one for a tie. Ranks are averaged over seeds, then over
    data sets. Intervals resample data sets, and within them seeds. Cross-entropy after temperature scaling takes part as
    ``ce + T``.

    Attributes:
        data: By name of the data set, its runs.

    Example:
        >>> from calibrant.study import Leaderboard
        >>> ece = {"ce": {0: 0.08, 1: 0.09}, "mbls": {0: 0.03, 1: 0.10}}
        >>> board = Leaderboard({"digits": {"ece": ece}})
        >>> [round(board.ranks("ece")[name].mean, 1) for name in ("ce", "mbls")]
        [1.5, 1.5]
    """

    data: Mapping[str, Runs]

    @staticmethod
    def read(sources: Mapping[str, str | Path] | Sequence[str | Path]) -> "Leaderboard":
        """Read study folders, or their ``runs.csv``.

        Args:
            sources: Folders or files; by the name of the data set, or named like the folder.

        Raises:
            InputError: If one of them holds no runs, or they have fewer than two methods in common.
        """
        named = sources if isinstance(sources, Mapping) else {_name(Path(source)): source for source in sources}
        if not named or (not isinstance(sources, Mapping) and len(named) < len(sources)):
            raise InputError("a leaderboard needs studies with different names; pass NAME=FOLDER")
        board = Leaderboard({name: _read(Path(source)) for name, source in named.items()})
        common = [method for method in board.core if method != SCALED]
        if len(common) < 2:
            only = f"only {common[0]}" if common else "no method"
            raise InputError(f"the studies {', '.join(named)} have {only} in common; ranks need two")
        return board

    @property
    def methods(self) -> list[str]:
        """All methods, in the order of the table of losses; others come last."""
        found = dict.fromkeys(method for runs in self.data.values() for method in runs["ece"])
        order = {key: place for place, key in enumerate(["ce", SCALED, *(key for key in METHODS if key != "ce")])}
        return sorted(found, key=lambda method: order.get(method, len(order)))

    @property
    def core(self) -> list[str]:
        """Methods that have runs on all data sets."""
        return [method for method in self.methods if all(method in runs["ece"] for runs in self.data.values())]

    def ranks(self, key: str, seed: int = 0) -> dict[str, Rank]:
        """Mean rank of each method by a measure.

        Args:
            key: The measure.
            seed: Seed of the resampling.
        """
        random = np.random.default_rng(seed)
        by_data = {name: self._seed_ranks(runs[key], key) for name, runs in self.data.items() if key in runs}
        names = list(by_data)
        # The same data sets and seeds for all methods, so that intervals of differences could be formed.
        chosen = random.integers(len(names), size=(RESAMPLES, len(names)))
        drawn = {}  # by data set and method: means over resampled seeds
        for name, ranks in by_data.items():
            seeds = len(next(iter(ranks.values())))
            which = random.integers(seeds, size=(RESAMPLES, len(names), seeds))
            drawn[name] = {method: np.array(own)[which].mean(-1) for method, own in ranks.items()}
        found = {}
        for method in self.methods:
            have = [i for i, name in enumerate(names) if method in by_data[name]]
            if not have:
                continue
            mean = statistics.mean(statistics.mean(by_data[names[i]][method]) for i in have)
            values = np.full((RESAMPLES, len(names)), np.nan)
            for i in have:
                picked = chosen == i
                values[picked] = drawn[names[i]][method][picked]
            means = np.nanmean(values[~np.isnan(values).all(axis=1)], axis=1)
            low, high = np.quantile(means, [0.025, 0.975])
            found[method] = Rank(mean, float(low), float(high), len(have))
        return found

    def _seed_ranks(self, runs: Mapping[str, Mapping[int, float]], key: str) -> dict[str, list[float]]:
        """Ranks of the methods of a data set among the core ones, for each seed that all of these have."""
        core = [method for method in self.core if method in runs]
        seeds = _shared(runs, core)
        cost = _cost(MEASURES[key])
        found: dict[str, list[float]] = {}
        for method, own in runs.items():
            found[method] = []
            for seed in seeds:
                rivals = [cost(runs[other][seed]) for other in core if other != method]
                value = cost(own[seed] if seed in own else statistics.mean(own.values()))
                better = sum(rival < value for rival in rivals) + sum(rival == value for rival in rivals) / 2
                found[method].append(1 + better)
        return found

    def ordered(self, key: str = "ece") -> list[str]:
        """Methods by their mean rank, best first; the fewer data sets a method has runs on, the later it comes."""
        ranks = self.ranks(key)
        return sorted((m for m in self.methods if m in ranks), key=lambda m: (-ranks[m].data, ranks[m].mean))

    # Tables

    def rank_table(self, top: int | None = None) -> str:
        """Mean ranks by ECE, NLL and accuracy, in Markdown, best by NLL first."""
        keys = [key for key in RANKED if any(key in runs for runs in self.data.values())]
        ranks = {key: self.ranks(key) for key in keys}
        columns = ["method", *(f"rank by {MEASURES[key].title}" for key in keys), "data sets", "runs"]
        rows = []
        for method in self.ordered("nll" if "nll" in keys else keys[0])[:top]:
            cells = [f"{r.mean:.1f} [{r.low:.1f}, {r.high:.1f}]" for r in (ranks[key][method] for key in keys)]
            runs = sum(len(own["ece"].get(method, {})) for own in self.data.values())
            rows.append([f"`{method}`", *cells, str(ranks[keys[0]][method].data), str(runs)])
        return markdown_table(columns, rows)

    def value_table(self, key: str) -> str:
        """A measure of all methods on all data sets, mean and standard deviation over seeds, in Markdown.

        Behind each data set stands how many runs a method has there; where one has fewer, behind its own number.
        """
        record = MEASURES[key]
        having = [name for name, runs in self.data.items() if key in runs]
        best = {name: self._best(name, record) for name in having}
        most = {name: max(len(own) for own in self.data[name][key].values()) for name in having}
        rows = []
        for method in self.methods:
            cells = []
            for name in having:
                own = self.data[name][key].get(method)
                text = "" if own is None else _text(list(own.values()), record)
                text = f"**{text}**" if method in best[name] else text
                cells.append(text if own is None or len(own) == most[name] else f"{text} ({len(own)})")
            rows.append([f"`{method}`", *cells])
        return markdown_table(["method", *(f"{name} ({most[name]})" for name in having)], rows)

    def _best(self, name: str, record: Measure) -> list[str]:
        """The best methods on a data set; several if they are tied."""
        cost = _cost(record)
        means = {method: cost(statistics.mean(own.values())) for method, own in self.data[name][record.key].items()}
        return [method for method, mean in means.items() if round(mean - min(means.values()), SAME) == 0]

    def markdown(self, top: int | None = None) -> str:
        """Mean ranks, then a table for each measure; with ``top``, only the ranks of so many methods."""
        sets = len(self.data)
        every = f"all {sets} data sets" if sets > 1 else "the data set"
        about = (
            f"Mean rank (1 is best) among the {len(self.core)} methods run on {every}, with 95% intervals from resampling "
            "data sets and seeds. "
        )
        for name, runs in self.data.items():
            most, shared = max(len(runs["ece"][method]) for method in self.core), len(_shared(runs["ece"], self.core))
            if shared < most:
                about += f"On {name}, only the seeds that all of these methods share are used, {shared} of {most}. "
        if top is not None:
            return f"{about}Top {top} by NLL:\n\n{self.rank_table(top)}\n"
        rest = (
            "; methods missing from some data sets come last, those with the fewest at the end, each ranked against these "
            f"{len(self.core)} only"
            if len(self.core) < len(self.methods)
            else ""
        )
        parts = [f"{about}Best by NLL first{rest}.", self.rank_table()]
        for key in RANKED:
            if any(key in runs for runs in self.data.values()):
                label = MEASURES[key].label
                what = f"**{label[0].upper()}{label[1:]}**"
                about = f"{what}, mean ± standard deviation over seeds (number of seeds in brackets):"
                parts += [about, self.value_table(key)]
        return "\n\n".join(parts) + "\n"

    def __str__(self) -> str:
        return self.markdown()

    def write_into(self, path: str | Path, top: int | None = None) -> None:
        """Replace the leaderboard of a document, between its two marks; with ``top``, only the ranks of so many methods.

        Raises:
            InputError: If it has none.
        """
        if not Path(path).is_file():
            raise InputError(f"{path} is not a file: a leaderboard is written into an existing one")
        text = read_text(Path(path))
        if text.count(START) > 1:
            raise InputError(f"{path} has more than one place for a leaderboard; leave one")
        if text.count(START) != 1 or text.count(END) != 1 or text.index(START) > text.index(END):
            raise InputError(f"{path} has no place for a leaderboard: put it between the lines {START!r} and {END!r}")
        before, after = text[: text.index(START)], text[text.index(END) :]
        write_text(path, f"{before}{START}\n\n{self.markdown(top)}\n{after}")


def _name(path: Path) -> str:
    return path.parent.name if path.suffix == ".csv" else path.name


def _read(path: Path) -> Runs:
    """The runs of a study, by measure, method and seed."""
    file = path if path.suffix == ".csv" else StudyFolder(path).run_table
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if TuningFolder(path).there:
        raise InputError(f"{path} is a search; name the study of its best options, {next(iter(path.glob('best-*')), path)}")
    if not file.is_file():
        raise InputError(f"{path} holds no {file.name}, the metrics of every run; calibrant compare writes it")
    rows = list(csv.DictReader(read_text(file).splitlines()))
    if not rows or not {"method", "seed", "ece"} <= set(rows[0]) or not any(row["ece"] for row in rows):
        raise InputError(f"{file} should have the columns method, seed, ece and others, and a row for each run")
    found: Runs = {}
    try:
        for key in (key for key in RANKED if any(row.get(key) for row in rows)):
            for row in rows:
                values = found.setdefault(key, {})
                values.setdefault(row["method"], {})[int(row["seed"])] = float(row[key] or "nan")  # empty if it failed
                if row["method"] == "ce" and f"{key}_after_temperature" in row:
                    scaled = float(row[f"{key}_after_temperature"] or "nan")
                    values.setdefault(SCALED, {})[int(row["seed"])] = scaled
    except (ValueError, TypeError) as error:
        raise InputError(f"{file} cannot be read ({error})") from error
    return found


def _shared(runs: Mapping[str, Mapping[int, float]], core: Sequence[str]) -> list[int]:
    """The seeds that all of the core methods have."""
    seeds = sorted(set.intersection(*(set(runs[method]) for method in core)))
    if not seeds:
        raise InputError(f"no seed is shared by {', '.join(core)}")
    return seeds


def _cost(record: Measure) -> Callable[[float], float]:
    """Makes a value one of which less is better; NaN, of a run that failed, loses against everything."""
    sign = -1 if record.higher else 1
    return lambda value: math.inf if math.isnan(value) else sign * value


def _text(values: Sequence[float], record: Measure) -> str:
    """Mean and standard deviation of the runs that did not fail."""
    digits = 1 if record.percent else 3
    done = [value for value in values if not math.isnan(value)]
    if not done:
        return "failed"
    mean = record.text(statistics.mean(done), digits=digits)
    spread = f" ± {record.text(statistics.stdev(done), digits=digits)}" if len(done) > 1 else ""
    return f"{mean}{spread}{f' ({len(values) - len(done)} failed)' if len(done) < len(values) else ''}"
