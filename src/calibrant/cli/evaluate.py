"""``calibrant evaluate``: audit files of predictions."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, open_file, out, progress, wrote

if TYPE_CHECKING:
    from calibrant.audit import Audit

EXAMPLE = """\
The predictions are an .npz with arrays logits (or probs) and target, a .csv or .parquet with one column per class and a
column label, or a run folder. Several files of the same samples are compared with the first.

example:
  python -c "import numpy as np; r = np.random.default_rng(0); z = 3 * r.normal(size=(1000, 5)); \\
      np.savez('predictions.npz', logits=z, target=(z + r.gumbel(size=z.shape) * 2).argmax(1))"
  calibrant evaluate predictions.npz --figure reliability.png
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Audit files of predictions.\n\n" + EXAMPLE)
    options.add_argument("files", nargs="+", metavar="FILE", help="Predictions: .npz, .csv, .parquet or a run folder.")
    options.reading_options()
    options.measuring_options()
    options.option(
        "--counts", metavar="FILE", help="Training samples of each class, one number a line: adds head, medium, tail."
    )
    options.option("--worst", type=int, default=5, help="How many of the worst calibrated classes to list.")
    options.option("--output", metavar="FILE", default="metrics.json", help="Where all figures go.")
    options.option("--report", metavar="FILE", help="A self-contained .html page.")
    options.option("--force", action="store_true", help="Replace files that exist.")
    return options


def run(config: Any) -> None:
    """Measure, print, write."""
    from calibrant import audit
    from calibrant.predictions import InputError, refuse_existing, replacing

    for path in (config.output, config.figure, config.report):
        if path is not None:
            refuse_existing(path, force=config.force)
    if config.num_bins < 1 or config.resamples < 2:
        raise InputError("--num-bins must be at least 1 and --resamples at least 2")
    files = [open_file(path, config) for path in config.files]
    counts = None if config.counts is None else read_counts(config.counts, files[0].num_classes)
    options = {"num_bins": config.num_bins, "resamples": config.resamples, "seed": config.seed}
    audits: list[Audit] = []
    names = audit.short_names([Path(path) for path in config.files])
    for file, name in zip(files, names, strict=True):
        with progress(f"reading {name}", file.count()) as advance:
            audits.append(audit.measure(file, name, counts=counts, keep=len(files) > 1, advance=advance, **options))
    comparisons = [audit.compare(audits[0], other, **options) for other in audits[1:]]
    for table in audit.tables(audits, comparisons, worst=config.worst):
        out.print(table)
    for one in audits:
        out.print(one.verdict)
    content = {"files": [one.to_dict() for one in audits], "comparisons": [c.to_dict() for c in comparisons]}
    with replacing(config.output, force=config.force) as temporary:
        temporary.write_text(json.dumps(content, indent=1))
    wrote(config.output)
    if config.figure is not None:
        with replacing(config.figure, force=config.force) as temporary:
            audit.figure(audits).savefig(temporary)
        wrote(config.figure)
    if config.report is not None:
        from calibrant.report import write_report

        write_report(config.report, audits, force=config.force)
        wrote(config.report)


def read_counts(path: str, classes: int) -> list[int]:
    """Numbers of training samples: one a line, the last of each line if there are several columns."""
    from calibrant.predictions import InputError

    try:
        lines = [line for line in Path(path).read_text().splitlines() if line.strip()]
        cells = [line.replace(",", " ").split()[-1] for line in lines]
        if len(cells) == classes + 1:  # a header
            cells = cells[1:]
        counts = [int(cell) for cell in cells]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} must hold one whole number a line, the training samples of each class ({error})"
        ) from error
    if len(counts) != classes or min(counts) < 0:
        raise InputError(f"{path} has {len(counts)} counts, but there are {classes} classes")
    return counts
