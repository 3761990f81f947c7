"""``calibrant shift``: what becomes of accuracy and calibration on corrupted images?"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, networks, out, percent, progress, wrote

if TYPE_CHECKING:
    from rich.table import Table

    from calibrant.plots import ShiftCurves

EXAMPLE = """\
Measures each run on its own test images after corruptions of five severities, made on the fly with the strengths of
CIFAR-10-C (images of up to 64 pixels) or ImageNet-C. Where the published CIFAR-10-C or CIFAR-100-C lies in the data folder,
its files are read instead. Results go to shift.json of the run, after each corruption, so that the same command goes on
where it was interrupted; the curves go to shift.png.

corruptions: gaussian_noise, shot_noise, impulse_noise, gaussian_blur, contrast, brightness, fog, pixelate, jpeg_compression

example:
  calibrant train digits-lt --loss cals-alm --epochs 3 --out runs/clear
  calibrant shift runs/clear --corruptions gaussian_noise fog
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Measure runs on corrupted test images.\n\n" + EXAMPLE)
    options.add_argument("runs", nargs="+", metavar="RUN", help="Run folders.")
    options.option("--corruptions", nargs="+", metavar="NAME", help="Which ones; all if not given.")
    options.option("--severities", nargs="+", type=int, default=[1, 2, 3, 4, 5], help="Which ones, from 1 to 5.")
    options.option("--seed", type=int, default=0, help="Of the noise, the same for all runs.")
    options.run_options()
    options.option("--figure", metavar="FILE", help="Curves of all runs together.")
    return options


def run(config: Any) -> None:
    """Measure what is missing, show and draw."""
    from calibrant.predictions import InputError, input_errors, refuse_existing, replacing
    from calibrant.study import shift
    from calibrant.train import Run

    if config.figure:
        refuse_existing(config.figure, force=config.force)
    wrong = [severity for severity in config.severities if severity not in range(1, 6)]
    if wrong:
        raise InputError(f"--severities are from 1 to 5, got {wrong[0]}")
    folders = list(dict.fromkeys(Path(folder) for folder in config.runs))
    for folder in folders:
        Run.load(folder)
    load = networks(config.data.root, allow_code=config.allow_code)
    rows = {}
    for folder in folders:
        with progress(f"{folder.name}: corruptions", None) as bar:
            options: Any = {
                "severities": config.severities,
                "seed": config.seed,
                "root": config.data.root,
                "force": config.force,
            }
            with input_errors():
                rows[folder] = shift.measure_shift(
                    folder, load=load, corruptions=config.corruptions, advance=lambda _, total: bar(1, total), **options
                )
    names = [folder.name if len({f.name for f in folders}) == len(folders) else str(folder) for folder in folders]
    for name, (folder, found) in zip(names, rows.items(), strict=True):
        out.print(_severities(name, found))
        out.print(_corruptions(name, found))
        with replacing(folder / "shift.png", force=True) as temporary:
            _curves([name], [found]).save(temporary)
        wrote(folder / "shift.json")
        wrote(folder / "shift.png")
    if config.figure:
        with replacing(config.figure, force=config.force) as temporary:
            _curves(names, list(rows.values())).save(temporary)
        wrote(config.figure)


def _curves(names: list[str], found: list[dict[str, Any]]) -> "ShiftCurves":
    """Of one run before and after temperature scaling, of several before it."""
    from calibrant.plots import ShiftCurves
    from calibrant.study.shift import by_severity

    curves = [(name, one, "before") for name, one in zip(names, found, strict=True)]
    if len(curves) == 1:
        curves.append((f"{names[0]}, after temperature", found[0], "after"))
    accuracy, ece = ([list(by_severity(one, part, m).values()) for _, one, part in curves] for m in ("accuracy", "ece"))
    return ShiftCurves([name for name, _, _ in curves], list(by_severity(found[0], "before", "ece")), accuracy, ece)


def _severities(name: str, found: dict[str, Any]) -> "Table":
    from rich import box
    from rich.table import Table

    from calibrant.study.shift import by_severity

    kinds = len({record["corruption"] for record in found["results"]} - {"none"})
    title = f"{name}: means over {kinds} {found['source']} corruptions"
    columns = [("accuracy, %", "before", "accuracy"), ("ECE, %", "before", "ece"), ("NLL", "before", "nll")]
    columns += [("ECE, %, post T", "after", "ece"), ("NLL, post T", "after", "nll")]
    table = Table("severity", title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column, _, _ in columns:
        table.add_column(column, justify="right")
    parts = [by_severity(found, part, measure) for _, part, measure in columns]
    for severity in parts[0]:
        cells = [
            f"{values[severity]:.3f}" if measure == "nll" else percent(values[severity])
            for (_, _, measure), values in zip(columns, parts, strict=True)
        ]
        table.add_row("none" if severity == 0 else str(severity), *cells)
    return table


def _corruptions(name: str, found: dict[str, Any]) -> "Table":
    from rich import box
    from rich.table import Table

    severities = sorted({record["severity"] for record in found["results"]} - {0})
    title = f"{name}: ECE of each corruption and severity, in %"
    table = Table("corruption", *map(str, severities), title=title, title_justify="left", box=box.SIMPLE_HEAD)
    cells = {(record["corruption"], record["severity"]): record["before"]["ece"] for record in found["results"]}
    for kind in dict.fromkeys(record["corruption"] for record in found["results"]):
        if kind != "none":
            table.add_row(
                kind.replace("_", " "), *(percent(cells[kind, s]) if (kind, s) in cells else "" for s in severities)
            )
    return table
