"""``calibrant evaluate``: audit prediction files."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, check_measuring, open_file, out, progress, wrote

if TYPE_CHECKING:
    from calibrant.audit import Audit
    from calibrant.predictions import Predictions

EXAMPLE = """\
Predictions are an .npz with arrays logits (or probs) and target, a .csv, .tsv, .jsonl or .parquet with one column per class
and a label column, two .npy files, or a run folder. The first line of output says how a file was understood. Additional
files must contain the same samples, and are compared with the first. Nothing is written unless --out, --figure or --report
is given; existing files are replaced.

example:
  python -c "import numpy as np; r = np.random.default_rng(0); z = 3 * r.normal(size=(1000, 5)); \\
      np.savez('predictions.npz', logits=z, target=(z + r.gumbel(size=z.shape) * 2).argmax(1))"
  calibrant evaluate predictions.npz --figure reliability.png
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Audit prediction files.\n\n" + EXAMPLE)
    options.add_argument("files", nargs="+", metavar="FILE", help="Prediction files, or run folders.")
    options.reading_options()
    options.measuring_options()
    options.option(
        "--counts",
        metavar="FILE",
        help="File with training samples per class, one number per line: adds results for head, medium and tail classes.",
    )
    options.option("--worst", type=int, default=5, help="How many of the worst-calibrated classes to list.")
    options.option("--out", "--output", metavar="FILE", help="Write all results to a .json.")
    options.option("--report", metavar="FILE", help="Write a self-contained .html page.")
    return options


def run(config: Any) -> None:
    """Measure, print, write."""
    from calibrant import audit
    from calibrant.files import replacing, write_json

    check_measuring(config, config.out, config.report)
    files = [open_file(path, config) for path in config.files]
    counts = None if config.counts is None else read_counts(config.counts, files[0])
    options = {"num_bins": config.num_bins, "resamples": config.resamples, "seed": config.seed}
    audits: list[Audit] = []
    names = audit.short_names([Path(path) for path in config.files])
    for file, name in zip(files, names, strict=True):
        with progress(f"reading {name}", file.count()) as advance:
            audits.append(audit.audit(file, name, counts=counts, keep=len(files) > 1, advance=advance, **options))
    comparisons = [audit.compare(audits[0], other, **options) for other in audits[1:]]
    for table in audit.tables(audits, comparisons, worst=config.worst):
        out.print(table)
    for one in audits:
        out.print(one.verdict, markup=False)
        if math.isinf(one["nll"]):
            out.print(f"{one.name}: the NLL is infinite because a true class has probability 0.", markup=False)
    if config.out is not None:
        content = {"files": [one.to_dict() for one in audits], "comparisons": [c.to_dict() for c in comparisons]}
        write_json(config.out, content)
        wrote(config.out)
    if config.figure is not None:
        with replacing(config.figure, force=True) as temporary:
            audit.figure(audits).savefig(temporary)
        wrote(config.figure)
    if config.report is not None:
        from calibrant.report import Report

        Report(*audits).write(config.report, force=True)
        wrote(config.report)


def read_counts(path: str, file: "Predictions") -> list[int]:
    """Training samples of each class: one number per line, in class order or after the name of a class."""
    from calibrant.errors import InputError
    from calibrant.predictions.labels import LabelReader, text_of

    classes = file.num_classes
    try:
        if not Path(path).is_file() or Path(path).stat().st_size > 2**26:
            raise InputError(f"{path} must be a file with {classes} lines, one per class")
        lines = [line.replace(",", " ").split() for line in Path(path).read_text().splitlines() if line.strip(" ,")]
        rows = lines[1:] if len(lines) == classes + 1 else lines  # without a header
        counts = [int(row[-1]) for row in rows]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} must hold one integer per line, the number of training samples of each class ({error})"
        ) from error
    if len(counts) != classes:
        raise InputError(f"{path} has {len(counts)} counts, but there are {classes} classes")
    if min(counts) < 0 or max(counts) >= 2**63:
        raise InputError(f"{path} must hold sample counts, but has {min(counts) if min(counts) < 0 else max(counts)}")
    if any(len(row) == 1 for row in rows):
        return counts
    names = {str(text_of(" ".join(row[:-1]))): i for i, row in enumerate(rows)}
    if len(names) < classes:
        raise InputError(f"{path} names a class twice")
    place = LabelReader(path, classes, file.classes, ignore_index=-100).decide(names).numbers
    return [counts[i] for _, i in sorted((place[name], i) for name, i in names.items())]
