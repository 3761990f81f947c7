"""``calibrant ood``: does a run's network doubt what it was not trained on?"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, networks, out, percent, progress, wrote

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLE = """\
Predicts unknown data with the network of each run and measures how well its uncertainty tells them from the run's own
test samples: area under the ROC curve (AUROC) with its 95 % interval, share of the unknown taken for known when 95 % of the
known are (FPR95), area under the precision-recall curve (AUPR); for the entropy, the largest probability and the energy,
before and after temperature scaling. Results go to ood.json of the run, logits to predictions/ood-NAME.npz, the curves to
ood-NAME.png; what is there is not done again.

Unknown data: mnist, fashion-mnist, cifar10, cifar100, svhn (their test parts, made of the network's size and colours),
noise (Gaussian), fog:5 (the run's own test images, corrupted; see calibrant shift), a folder of images, or an .npz with an
array x. For a run on texts, a folder or csv of texts.

example:
  calibrant train digits-lt --loss cals-alm --epochs 3 --out runs/known
  calibrant ood runs/known --ood noise gaussian_noise:5
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Detect out-of-distribution samples.\n\n" + EXAMPLE)
    options.add_argument("runs", nargs="+", metavar="RUN", help="Run folders.")
    options.option("--ood", nargs="+", metavar="NAME", default=[], help="Unknown data, by name or path; must be given.")
    options.run_options()
    options.option("--limit", type=int, help="At most so many unknown samples.")
    options.option("--data.download", type=bool, default=False, help="Let torchvision download what is missing.")
    options.option("--figure", metavar="FILE", help="ROC curves of all runs by entropy, for the first of the unknown data.")
    return options


def run(config: Any) -> None:
    """Predict what is missing, show and draw."""
    from calibrant.plots import ROC
    from calibrant.predictions import InputError, input_errors, refuse_existing, replacing
    from calibrant.study import ood
    from calibrant.train import Run

    if not config.ood:
        raise InputError("say which unknown data to tell apart: --ood noise, --ood mnist, --ood FOLDER ...")
    if config.figure:
        refuse_existing(config.figure, force=config.force)
    folders = list(dict.fromkeys(Path(folder) for folder in config.runs))
    runs = [Run.load(folder) for folder in folders]
    load = networks(config.data.root, allow_code=config.allow_code)
    for name in config.ood:
        rows = []
        for folder in folders:
            with progress(f"{folder.name}: {name}", None) as advance:
                options: Any = {
                    "root": config.data.root,
                    "limit": config.limit,
                    "download": config.data.download,
                    "force": config.force,
                }
                with input_errors():
                    rows.append(ood.detect(folder, name, load=load, advance=advance, **options))
            known, unknown = ood.pair(folder, name)
            temperature = rows[-1]["temperature"]
            pairs = {score.replace("_", " "): (known, unknown) for score in ood.SCORES}
            pairs["entropy after temperature"] = known / temperature, unknown / temperature
            file = folder / f"{ood.predictions_file(folder, name).stem}.png"
            with replacing(file, force=True) as temporary:
                ROC.from_logits(pairs, [*ood.SCORES, "entropy"], f"test against {name}").save(temporary)
        names = [f"{r.metrics['recipe']}, {f.name}" for r, f in zip(runs, folders, strict=True)]
        for part, words in (("before", "before temperature scaling"), ("after", "after it")):
            title = f"Known test samples against {rows[0]['samples']:,} of {name}, in %, {words}"
            out.print(_table(title, names, rows, part))
        for folder in folders:
            wrote(folder / f"{ood.predictions_file(folder, name).stem}.png")
    for folder in folders:
        wrote(folder / "ood.json")
    if config.figure:
        pairs = {folder.name: ood.pair(folder, config.ood[0]) for folder in folders}
        with replacing(config.figure, force=config.force) as temporary:
            ROC.from_logits(pairs, title=f"test against {config.ood[0]}, by entropy").save(temporary)
        wrote(config.figure)


def _table(title: str, runs: list[str], rows: list[dict[str, Any]], part: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table("run", title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("score", no_wrap=True)
    for column in ("AUROC", "FPR95", "AUPR"):
        table.add_column(column, justify="right", no_wrap=True)
    for run_name, row in zip(runs, rows, strict=True):
        for i, (score, found) in enumerate(row[part].items()):
            area = f"{percent(found['auroc'])} \\[{percent(found['low'])}, {percent(found['high'])}]"
            cells = (area, percent(found["fpr95"]), percent(found["aupr"]))
            table.add_row(run_name if i == 0 else "", score.replace("_", " "), *cells)
    return table
