"""``calibrant apply``: calibrate a prediction file."""

from functools import partial
from typing import Any

from calibrant.cli.console import Parser, open_file, out, progress, protect_runs, wrote

EXAMPLE = """\
Applies a calibrator saved by calibrant calibrate and writes the calibrated predictions in the format they came in, with all
other columns unchanged, or as an .npz. Logits become log-probabilities, which serve as logits; probabilities stay
probabilities, unless --as says otherwise.

example:
  calibrant apply calibrator test.npz --out calibrated.npz
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Calibrate a prediction file with a saved calibrator.\n\n" + EXAMPLE)
    options.add_argument("calibrator", metavar="CALIBRATOR", help="Folder of a saved calibrator.")
    options.add_argument("file", metavar="FILE", help="A prediction file, or a run folder.")
    options.add_argument(
        "--out",
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="The file to write, with the extension of FILE, or .npz.",
    )
    options.option("--as", metavar="KIND", type=str, help="What to write: logits or probs; as in FILE if not given.")
    options.reading_options()
    options.option("--force", action="store_true", help="Replace the file if it exists.")
    return options


def run(config: Any) -> None:
    """Transform a few rows at a time."""
    from calibrant import posthoc
    from calibrant.errors import InputError, input_errors
    from calibrant.files import refuse_existing
    from calibrant.predictions import check_output, rewrite

    kind = config["as"]
    if kind not in (None, "logits", "probs"):
        raise InputError(f"--as must be logits or probs, got {kind}")
    with input_errors():
        calibrator = posthoc.load(config.calibrator)
    file = open_file(config.file, config, labels=False)
    if said := file.lift_zeros():
        out.print(said, markup=False, soft_wrap=True)
    check_output(file, config.out)
    protect_runs(config.out)
    refuse_existing(config.out, force=config.force)
    if file.num_classes != calibrator.num_classes:
        raise InputError(
            f"{file.path} has {file.num_classes} classes, but {config.calibrator} was fitted on {calibrator.num_classes}"
        )
    if posthoc.CALIBRATORS[calibrator.key].dense and len(file.shape) != 2:
        raise InputError(f"{config.calibrator} is for segmentation (N, K, H, W), but {file.path} holds no pixels")
    with progress(f"calibrating {file.path.name}", None) as advance:
        transform = partial(calibrator.transform, probs=False)
        rewrite(file, config.out, transform, kind=kind, force=config.force, advance=advance)
    wrote(config.out)
