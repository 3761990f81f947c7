"""``calibrant apply``: calibrate a prediction file."""

from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, open_file, progress, protect_runs, wrote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calibrant.predictions import Chunk

EXAMPLE = """\
Applies a calibrator saved by calibrant calibrate and writes the calibrated predictions: log-probabilities, which serve as
logits, or with --as probs the probabilities themselves. Labels are copied if there are any.

example:
  calibrant apply calibrator test.npz --output calibrated.npz
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Calibrate a prediction file with a saved calibrator.\n\n" + EXAMPLE)
    options.add_argument("calibrator", metavar="CALIBRATOR", help="Folder of a saved calibrator.")
    options.add_argument("file", metavar="FILE", help="Predictions: an .npz, .csv or .parquet file, or a run folder.")
    options.add_argument("--output", "-o", metavar="FILE", required=True, help="The .npz to write.")
    options.option("--as", metavar="KIND", type=str, default="logits", help="What to write: logits or probs.")
    options.reading_options()
    options.option("--force", action="store_true", help="Replace the file if it exists.")
    return options


def run(config: Any) -> None:
    """Transform a few rows at a time."""
    from calibrant import posthoc
    from calibrant.errors import InputError, input_errors
    from calibrant.files import refuse_existing
    from calibrant.predictions import write_npz

    kind = config["as"]
    if kind not in ("logits", "probs"):
        raise InputError(f"--as must be logits or probs, got {kind}")
    if not config.output.endswith(".npz"):
        raise InputError(f"--output {config.output} must end in .npz")
    with input_errors():
        calibrator = posthoc.load(config.calibrator)
    file = open_file(config.file, config)
    protect_runs(config.output)
    refuse_existing(config.output, force=config.force)
    if file.num_classes != calibrator.num_classes:
        raise InputError(
            f"{file.path} has {file.num_classes} classes, but {config.calibrator} was fitted on {calibrator.num_classes}"
        )
    if posthoc.CALIBRATORS[calibrator.key].dense and len(file.shape) != 2:
        raise InputError(f"{config.calibrator} is for dense predictions (N, K, H, W), but {file.path} is not dense")
    rows = file.count()
    with progress(f"calibrating {file.path.name}", rows) as advance:

        def transformed() -> "Iterator[Chunk]":
            for chunk in file.chunks():
                yield chunk._replace(logits=calibrator.transform(chunk.logits))
                advance(len(chunk.logits))

        counts = file.train_counts
        write_npz(
            config.output, transformed(), rows, kind=kind, classes=file.classes, train_counts=counts, force=config.force
        )
    wrote(config.output)
