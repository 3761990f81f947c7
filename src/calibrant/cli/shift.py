"""``calibrant shift``: do accuracy and calibration hold up on corrupted images?"""

from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, check_outputs, networks, out, percent, progress, wrote

if TYPE_CHECKING:
    from rich.table import Table

    from calibrant.runs import ShiftResult

EXAMPLE = """\
Evaluates each run on its own test images, corrupted at five severities. Corruptions are generated on the fly with the
strengths of CIFAR-10-C (images of up to 64 pixels) or ImageNet-C; if the published CIFAR-10-C or CIFAR-100-C is in the data
folder, its files are used instead. Results go to shift.json in the run folder after each corruption, so the same command
resumes after an interruption; curves go to shift.png.

corruptions: gaussian_noise, shot_noise, impulse_noise, gaussian_blur, contrast, brightness, fog, pixelate, jpeg_compression

example:
  calibrant train digits-lt --loss cals-alm --epochs 20 --out runs/clear
  calibrant shift runs/clear --corruptions gaussian_noise fog
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Evaluate runs on corrupted test images.\n\n" + EXAMPLE)
    options.add_argument("runs", nargs="+", metavar="RUN", help="Run folders.")
    options.option("--corruptions", nargs="+", metavar="NAME", help="Corruptions; all if not given.")
    options.option("--severities", nargs="+", type=int, default=[1, 2, 3, 4, 5], help="Severities, from 1 to 5.")
    options.option("--seed", type=int, default=0, help="Seed of the corruptions, the same for all runs.")
    options.run_options()
    options.option("--figure", metavar="FILE", help="Plot the curves of all runs together.")
    return options


def run(config: Any) -> None:
    """Measure what is missing, then print and plot."""
    from calibrant.evaluation.shift import curves, measure_shift
    from calibrant.files import replacing
    from calibrant.runs import RunFolder

    check_outputs(config)
    folders = [RunFolder(folder) for folder in dict.fromkeys(config.runs)]
    for folder in folders:
        folder.require_finished()
    load = networks(config.data.root, allow_code=config.allow_code)
    options = {"severities": config.severities, "seed": config.seed, "root": config.data.root, "force": config.force}
    alike = len({folder.name for folder in folders}) < len(folders)
    results: dict[str, ShiftResult] = {}
    for folder in folders:
        name = str(folder) if alike else folder.name
        with progress(f"{folder.name}: corruptions", None) as bar:

            def advance(_: int, total: int, bar: Any = bar) -> None:
                bar(1, total)

            results[name] = measure_shift(folder, load=load, corruptions=config.corruptions, advance=advance, **options)
    for folder, (name, result) in zip(folders, results.items(), strict=True):
        out.print(_severities(name, result))
        out.print(_corruptions(name, result))
        with replacing(folder.shift_figure, force=True) as temporary:
            curves({name: result}).save(temporary)
        wrote(folder.shift_file)
        wrote(folder.shift_figure)
    if config.figure:
        with replacing(config.figure, force=True) as temporary:
            curves(results).save(temporary)
        wrote(config.figure)


def _severities(name: str, result: "ShiftResult") -> "Table":
    from calibrant.audit.tables import add_row, plain_table
    from calibrant.metrics.table import MEASURES

    kinds = len({record.corruption for record in result.results} - {"none"})
    columns: list[tuple[Any, Any]] = [("before", key) for key in ("accuracy", "ece", "nll")]
    columns += [("after", key) for key in ("ece", "nll")]
    headings = [MEASURES[key].label + (", post T" if stage == "after" else "") for stage, key in columns]
    table = plain_table(f"{name}: means over {kinds} {result.source} corruptions", "severity", headings)
    values = [result.by_severity(stage, key) for stage, key in columns]
    for severity in result.severities:
        entries = [
            MEASURES[key].text(own[severity], digits=2 if MEASURES[key].percent else 3)
            for (_, key), own in zip(columns, values, strict=True)
        ]
        add_row(table, "none" if severity == 0 else str(severity), *entries)
    return table


def _corruptions(name: str, result: "ShiftResult") -> "Table":
    from calibrant.audit.tables import add_row, plain_table

    severities = [severity for severity in result.severities if severity]
    table = plain_table(f"{name}: ECE by corruption and severity, %", "corruption", [str(s) for s in severities])
    values = {record.key: record.before["ece"] for record in result.results}
    for kind in dict.fromkeys(record.corruption for record in result.results):
        if kind != "none":
            entries = [percent(values[kind, s]) if (kind, s) in values else "" for s in severities]
            add_row(table, kind.replace("_", " "), *entries)
    return table
