"""``calibrant calibrate``: fit post-hoc calibrators and measure them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, open_file, out, progress, wrote

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.posthoc import Calibrator
    from calibrant.predictions import Predictions

EXAMPLE = """\
Fits on validation predictions, which the network was not trained on, and measures before and after on test predictions. The
calibrator goes to a folder that calibrant apply and calibrant.posthoc.load read.

example:
  python -c "import numpy as np; r = np.random.default_rng(0); z = 3 * r.normal(size=(2000, 5)); \\
      y = (z + r.gumbel(size=z.shape) * 2).argmax(1); \\
      [np.savez(n, logits=z[s], target=y[s]) for n, s in (('validation.npz', slice(1000)), ('test.npz', slice(1000, None)))]"
  calibrant calibrate validation.npz test.npz --method temperature vector --out calibrators
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Fit post-hoc calibrators and measure them.\n\n" + EXAMPLE)
    options.add_argument("validation", metavar="VALIDATION", help="Predictions to fit on; a run folder's validation part.")
    options.add_argument("test", metavar="TEST", help="Predictions to measure on; a run folder's test part.")
    options.option(
        "--method",
        nargs="+",
        default=["temperature"],
        metavar="METHOD",
        help="temperature, ets, vector, matrix, dirichlet, platt, histogram, isotonic, bbq, spline, local-temperature "
        "(dense predictions); all; or auto, the best by cross-validated NLL on the validation predictions.",
    )
    options.reading_options()
    options.measuring_options()
    options.option("--folds", type=int, default=5, help="Folds of auto's cross-validation.")
    options.option("--out", metavar="FOLDER", default="calibrator", help="Where calibrators and metrics.json go.")
    options.option("--same-data", action="store_true", help="Allow measuring on the data that was fitted: optimistic.")
    options.option("--force", action="store_true", help="Replace what exists.")
    return options


def run(config: Any) -> None:
    """Fit, measure, print, write."""
    from calibrant import audit
    from calibrant.predictions import replacing

    _refuse_existing(config)
    fitting, testing, methods = _open(config)
    logits, target = _read(fitting, testing, config)
    scores = None
    if config.method == ["auto"]:
        scores = _cross_validate(methods, logits, target, config)
        methods = _explain(scores, config.folds)
    fitted = _fit(methods, logits, target, config.ignore_index)
    options = {"num_bins": config.num_bins, "resamples": config.resamples, "seed": config.seed}
    audits = []
    for name, transform in [("before", None), *((key, c.transform) for key, c in fitted.items())]:
        with progress(f"measuring {name}", testing.count()) as advance:
            one = audit.measure(testing, name, transform=transform, keep=not testing.shape, advance=advance, **options)
            audits.append(one)
    comparisons = [audit.compare(audits[0], other, **options) for other in audits[1:]]
    for table in audit.tables(audits, comparisons, worst=0):
        out.print(table)
    for key, calibrator in fitted.items():
        out.print(f"{key}: {_describe(calibrator)}", markup=False)
    folder = Path(config.out)
    for key, calibrator in fitted.items():
        place = folder if len(fitted) == 1 else folder / key
        calibrator.save(place, force=config.force)
        wrote(place)
    content = {
        "fitted_on": str(fitting.path),
        "same_data": bool(config.same_data),
        "cross_validated_nll": scores,
        "files": [one.to_dict() for one in audits],
        "comparisons": [comparison.to_dict() for comparison in comparisons],
    }
    with replacing(folder / "metrics.json", force=config.force) as temporary:
        temporary.write_text(json.dumps(content, indent=1))
    wrote(folder / "metrics.json")
    if config.figure is not None:
        with replacing(config.figure, force=config.force) as temporary:
            audit.figure(audits).savefig(temporary)
        wrote(config.figure)


def _refuse_existing(config: Any) -> None:
    from calibrant.predictions import refuse_existing

    folder = Path(config.out)
    if not folder.is_dir() or any(folder.iterdir()):
        refuse_existing(folder, force=config.force)
    if config.figure is not None:
        refuse_existing(config.figure, force=config.force)


def _open(config: Any) -> "tuple[Predictions, Predictions, list[str]]":
    from calibrant.predictions import InputError

    fitting, testing = open_file(config.validation, config, "validation"), open_file(config.test, config, "test")
    if (fitting.num_classes, len(fitting.shape)) != (testing.num_classes, len(testing.shape)):
        files = (fitting, testing)
        kinds = [f"{file.path} has {file.num_classes} classes{' of pixels' if file.shape else ''}" for file in files]
        raise InputError(f"{kinds[0]}, {kinds[1]}; they have to be the same")
    return fitting, testing, _methods(config.method, dense=bool(fitting.shape))


def _read(fitting: "Predictions", testing: "Predictions", config: Any) -> "tuple[Tensor, Tensor]":
    from calibrant.predictions import InputError

    with progress(f"reading {fitting.path.name}", None):
        logits, target = fitting.load()
    if not bool((target != config.ignore_index).any()):
        raise InputError(f"{fitting.path}: every sample is labelled {config.ignore_index} and left out; nothing to fit")
    if not config.same_data and _same(fitting, testing, logits, target):
        raise InputError(
            f"{fitting.path} and {testing.path} hold the same predictions: fitting and measuring on the same data flatters "
            "the calibrator; split them, or say --same-data"
        )
    return logits, target


def _methods(wanted: list[str], *, dense: bool) -> list[str]:
    from calibrant.posthoc import METHODS
    from calibrant.predictions import InputError

    possible = [key for key in METHODS if dense or key != "local-temperature"]
    if wanted in (["all"], ["auto"]):
        return possible
    for key in wanted:
        if key not in METHODS:
            raise InputError(f"--method {key} is not known; choose from {', '.join(possible)}, or say all or auto alone")
        if key not in possible:
            raise InputError(f"--method {key} is for dense predictions (N, K, H, W) only")
    return list(dict.fromkeys(wanted))


def _fit(methods: list[str], logits: "Tensor", target: "Tensor", ignore_index: int) -> "dict[str, Calibrator]":
    from calibrant.posthoc import METHODS

    fitted = {}
    with progress("fitting", len(methods)) as advance:
        for key in methods:
            fitted[key] = METHODS[key]().fit(logits, target, ignore_index=ignore_index)
            advance()
    return fitted


def _cross_validate(methods: list[str], logits: "Tensor", target: "Tensor", config: Any) -> dict[str, float]:
    """Mean NLL of held-out folds, for each method and for none."""
    import warnings

    import torch

    from calibrant.metrics import nll
    from calibrant.posthoc import METHODS
    from calibrant.predictions import InputError

    if not 2 <= config.folds <= len(logits):
        raise InputError(f"--folds must be between 2 and the number of samples, {len(logits)}; got {config.folds}")
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(config.seed))
    folds = [part for part in order.tensor_split(config.folds) if bool((target[part] != config.ignore_index).any())]
    totals = dict.fromkeys(["none", *methods], 0.0)
    weight = 0
    with progress("cross-validating", len(folds) * len(methods)) as advance, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, held in enumerate(folds):
            rest = torch.cat([fold for j, fold in enumerate(folds) if j != i]) if len(folds) > 1 else held
            count = int((target[held] != config.ignore_index).sum())
            weight += count
            totals["none"] += count * float(nll(logits[held], target[held], ignore_index=config.ignore_index))
            for key in methods:
                calibrator = METHODS[key]().fit(logits[rest], target[rest], ignore_index=config.ignore_index)
                new = calibrator.transform(logits[held])
                totals[key] += count * float(nll(new, target[held], ignore_index=config.ignore_index))
                advance()
    return {key: total / weight for key, total in totals.items()}


def _explain(scores: dict[str, float], folds: int) -> list[str]:
    """Print the scores and which method is chosen; return it, or nothing if none helps."""
    from rich import box
    from rich.table import Table

    table = Table("method", "NLL", title=f"Held-out NLL of the validation predictions, {folds} folds", box=box.SIMPLE_HEAD)
    table.columns[1].justify = "right"
    for key, value in sorted(scores.items(), key=lambda item: item[1]):
        table.add_row(key, f"{value:.4f}")
    out.print(table)
    chosen = min(scores, key=lambda key: scores[key])
    others = sorted(value for key, value in scores.items() if key != chosen)
    ahead = f", {others[0] - scores[chosen]:.4f} less than the next" if others else ""
    if chosen == "none":
        out.print(f"chosen: none, for every calibrator makes the held-out NLL worse{ahead}; no calibrator is written")
        return []
    out.print(f"chosen: {chosen}, for it has the lowest held-out NLL{ahead}")
    return [chosen]


def _same(fitting: Any, testing: Any, logits: "Tensor", target: "Tensor") -> bool:
    """Whether both hold the same predictions, looking at the first rows and at the number of all."""
    import torch

    if fitting.path.resolve() == testing.path.resolve():
        return True
    if fitting.shape != testing.shape or fitting.count() != testing.count():
        return False
    for chunk in testing.chunks():
        rows = slice(chunk.start, chunk.start + len(chunk.logits))
        if (
            chunk.target is None
            or not torch.equal(chunk.target, target[rows])
            or not torch.equal(chunk.logits, logits[rows])
        ):
            return False
    return True


def _describe(calibrator: "Calibrator") -> str:
    keeps = "never changes the predicted class" if calibrator.preserves_accuracy else "may change the predicted class"
    learned = ", ".join(
        f"{name} = {float(value):.4f}"
        for name in calibrator.learned
        if (value := getattr(calibrator, name)).dim() == 0 and name != "floor_"
    )
    return f"{calibrator.title}, {keeps}" + (f"; {learned}" if learned else "")
