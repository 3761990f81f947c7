"""``calibrant calibrate``: fit post-hoc calibrators and evaluate them."""

import math
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, check_measuring, open_file, out, progress, protect_runs, wrote

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.posthoc import Calibrator
    from calibrant.predictions import Predictions

#: Proper scores whose relative change is printed.
SCORES = ("nll", "brier")
#: Calibrators whose differences are still printed.
MANY = 4

EXAMPLE = """\
Fits calibrators on validation predictions, which the network was not trained on, and evaluates test predictions before and
after calibration. Calibrators are saved to --out, for calibrant apply and calibrant.posthoc.load.

example:
  python -c "import numpy as np; r = np.random.default_rng(0); z = 3 * r.normal(size=(2000, 5)); \\
      y = (z + r.gumbel(size=z.shape) * 2).argmax(1); \\
      [np.savez(n, logits=z[s], target=y[s]) for n, s in (('validation.npz', slice(1000)), ('test.npz', slice(1000, None)))]"
  calibrant calibrate validation.npz test.npz --method temperature vector --out calibrators
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Fit post-hoc calibrators and evaluate them.\n\n" + EXAMPLE)
    options.add_argument("validation", metavar="VALIDATION", help="Predictions to fit on: a file, or a run folder.")
    options.add_argument("test", metavar="TEST", help="Predictions to evaluate on: a file, or a run folder.")
    options.option(
        "--method",
        nargs="+",
        default=["temperature"],
        metavar="METHOD",
        help="Calibrators (see calibrant list calibrators). 'all' ranks every calibrator by cross-validated NLL on the "
        "validation predictions; 'auto' uses only the best.",
    )
    options.option(
        "--temperature",
        metavar="CRITERION",
        default="nll",
        help="What temperature scaling minimises: nll, or ece on the grid 0.1, 0.2, ..., 10.",
    )
    options.reading_options()
    options.option("--test-label", metavar="NAME", help="Like --label, but for TEST, if it differs.")
    options.measuring_options()
    options.option("--folds", type=int, default=5, help="Cross-validation folds for --method all and auto.")
    options.option("--out", metavar="FOLDER", default="calibrator", help="Folder for calibrators and metrics.json.")
    options.option(
        "--same-data",
        action="store_true",
        help="Allow evaluation on the data the calibrators were fitted on; results are optimistic.",
    )
    options.option("--force", action="store_true", help="Replace existing files.")
    return options


def run(config: Any) -> None:
    """Fit, measure, print, write."""
    from calibrant import audit
    from calibrant.checks import one_of
    from calibrant.errors import input_errors
    from calibrant.evaluation.calibration import cross_validate, fit_all, measure_all
    from calibrant.files import replacing, write_json
    from calibrant.metrics import MEASURES

    check_measuring(config)
    with input_errors():
        one_of("`temperature`", config.temperature, ("nll", "ece"))
    fitting, testing = _open(config)
    methods = _methods(config, dense=bool(fitting.shape))
    _refuse_existing(config)
    logits, target = _read(fitting, testing, config)
    temperature = {"criterion": config.temperature, "num_bins": config.num_bins}
    options: Any = {"ignore_index": config.ignore_index, "temperature": temperature}
    scores = None
    if config.method in (["auto"], ["all"]):
        with progress("cross-validating", config.folds * len(methods)) as advance:
            chosen = {"folds": config.folds, "seed": config.seed}
            scores = cross_validate(methods, logits, target, advance=advance, **chosen, **options)
        best = _explain(scores, config.folds)
        methods = best if config.method == ["auto"] else sorted(methods, key=lambda key: (scores or {})[key])
        if not methods:
            out.print("no calibrator was saved")
    with progress("fitting", len(methods)) as advance:
        fitted = fit_all(methods, logits, target, advance=advance, **options)
    options = {"num_bins": config.num_bins, "resamples": config.resamples, "seed": config.seed}
    with ExitStack() as bars:

        def bar(name: str) -> Any:
            return bars.enter_context(progress(f"measuring {name}", testing.count()))

        result = measure_all(fitted, testing, progress=bar, **options)
    # The differences between many are in metrics.json, where nobody has to scroll past them.
    for table in audit.tables(result.audits, result.comparisons if len(methods) <= MANY else [], worst=0):
        out.print(table)
    before, *after = result.audits
    for (key, calibrator), own in zip(fitted.items(), after, strict=True):
        names = [name for name in SCORES if math.isfinite(before[name])]
        gains = [f"{MEASURES[name].title} {own[name] / before[name] - 1:+.1%}" for name in names]
        out.print("; ".join([f"{key}: {_describe(calibrator)}", ", ".join(gains)]), markup=False)
    folder = Path(config.out)
    for key, calibrator in fitted.items():
        place = folder if len(fitted) == 1 else folder / key
        calibrator.save(place, force=config.force)
        wrote(place)
    content = {
        "fitted_on": str(fitting.path),
        "same_data": bool(config.same_data),
        "cross_validated_nll": scores,
        "files": [one.to_dict() for one in result.audits],
        "comparisons": [comparison.to_dict() for comparison in result.comparisons],
    }
    write_json(folder / "metrics.json", content)
    wrote(folder / "metrics.json")
    if config.figure is not None:
        with replacing(config.figure, force=True) as temporary:
            audit.figure(result.audits).savefig(temporary)
        wrote(config.figure)


def _refuse_existing(config: Any) -> None:
    from calibrant.files import refuse_existing

    folder = Path(config.out)
    if not folder.is_dir() or any(folder.iterdir()):
        refuse_existing(folder, force=config.force)
    protect_runs(str(folder / "metrics.json"))


def _open(config: Any) -> "tuple[Predictions, Predictions]":
    from calibrant.errors import InputError

    fitting = open_file(config.validation, config, "validation")
    testing = open_file(config.test, config, "test", **({"label": config.test_label} if config.test_label else {}))
    if fitting.label_file is not None and fitting.label_file == testing.label_file and not config.same_data:
        raise InputError(
            f"{fitting.path} and {testing.path} would both take their labels from {fitting.label_file}; name those of the "
            "test predictions with --test-label"
        )
    for file in (fitting, testing):
        if said := file.lift_zeros():
            out.print(said, markup=False, soft_wrap=True)
    if (fitting.num_classes, len(fitting.shape)) != (testing.num_classes, len(testing.shape)):
        files = (fitting, testing)
        kinds = [f"{file.path} has {file.num_classes} classes{' of pixels' if file.shape else ''}" for file in files]
        raise InputError(f"{kinds[0]}, but {kinds[1]}; they must match")
    if fitting.classes and testing.classes and fitting.classes != testing.classes:
        pairs = zip(fitting.classes, testing.classes, strict=True)
        k, (first, second) = next((k, pair) for k, pair in enumerate(pairs) if pair[0] != pair[1])
        raise InputError(
            f"class {k} is {first!r} in {fitting.path}, but {second!r} in {testing.path}; give both the same classes in the "
            "same order; for tables, use `columns`"
        )
    return fitting, testing


def _methods(config: Any, *, dense: bool) -> list[str]:
    from calibrant.evaluation.calibration import check_methods

    return check_methods(["all"] if config.method == ["auto"] else config.method, dense=dense)


def _read(fitting: "Predictions", testing: "Predictions", config: Any) -> "tuple[Tensor, Tensor]":
    from calibrant.errors import InputError
    from calibrant.evaluation.calibration import same_predictions

    with progress(f"reading {fitting.path.name}", None):
        logits, target = fitting.read_all()
    if not bool((target != config.ignore_index).any()):
        raise InputError(f"{fitting.path}: every sample has the ignored label {config.ignore_index}; nothing to fit")
    if not config.same_data and same_predictions(fitting, testing, logits, target):
        raise InputError(
            f"{fitting.path} and {testing.path} hold the same predictions: fitting and evaluating on the same data flatters "
            "the calibrator; split them, or pass --same-data"
        )
    return logits, target


def _explain(scores: dict[str, float], folds: int) -> list[str]:
    """Print the scores and the chosen method; return it, or an empty list if none helps."""
    from calibrant.audit.tables import add_row, plain_table

    table = plain_table(f"Held-out NLL of the validation predictions, {folds} folds", "method", ["NLL", "gain, %"])
    for key, value in sorted(scores.items(), key=lambda item: item[1]):
        gain = "" if key == "none" or math.isinf(scores["none"]) else f"{100 * (1 - value / scores['none']):.1f}"
        add_row(table, key, f"{value:.4f}", gain)
    out.print(table)
    # Equal to all digits shown: the first in the table of calibrators, which starts with the simplest
    lowest = min(scores.values())
    tied = [key for key, value in scores.items() if value - lowest < 5e-5]
    chosen = tied[0]
    others = sorted(value for key, value in scores.items() if key not in tied)
    lead = f", tied with {', '.join(tied[1:])}" if len(tied) > 1 else f" by {others[0] - lowest:.4f}" if others else ""
    out.print(f"best: {chosen}, which has the lowest held-out NLL{lead}")
    if chosen == "none":
        return []
    return [chosen]


def _describe(calibrator: "Calibrator") -> str:
    from calibrant.posthoc import CALIBRATORS

    keeps = "never changes the predicted class" if calibrator.preserves_accuracy else "may change the predicted class"
    learned = calibrator.summary()
    if calibrator.key == "temperature":
        learned += f", by {str(calibrator.criterion).upper()}"
    return f"{CALIBRATORS[calibrator.key].title}, {keeps}" + (f"; {learned}" if learned else "")
