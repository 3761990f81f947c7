"""``calibrant ood``: is a run's network less confident on data unlike its training data?"""

from typing import TYPE_CHECKING, Any

from calibrant.cli.console import Parser, check_outputs, networks, out, percent, progress, wrote

if TYPE_CHECKING:
    from rich.table import Table

    from calibrant.runs import OODResult, Stage

EXAMPLE = """\
Runs the network of each run on out-of-distribution (OOD) data and measures how well the network's uncertainty separates it
from the run's test samples: area under the ROC curve (AUROC) with its 95% interval, fraction of OOD samples accepted when
95% of the test samples are (FPR95), and area under the precision-recall curve (AUPR). Scores are entropy, maximum softmax
probability and energy, before and after temperature scaling. Results go to ood.json in the run folder, logits to
predictions/ood-NAME.npz, curves to ood-NAME.png; finished work is not repeated.

OOD data: mnist, fashion-mnist, cifar10, cifar100, svhn (their test sets, converted to the network's size and channels),
noise (Gaussian), fog:5 (the run's own test images, corrupted; see calibrant shift), CIFAR-10-C/fog:5 (the published images
in the data folder, which fog:5 also uses for a run on CIFAR-10), a folder of images, an .npz with an array x, or an .npy.
For a text run, a folder or .csv of texts.

example:
  calibrant train digits-lt --loss cals-alm --epochs 20 --out runs/known
  calibrant ood runs/known --ood noise gaussian_noise:5
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Measure out-of-distribution detection.\n\n" + EXAMPLE)
    options.add_argument("runs", nargs="+", metavar="RUN", help="Run folders.")
    options.option("--ood", nargs="+", metavar="NAME", required=True, help="OOD data, by name or path.")
    options.run_options()
    options.option("--limit", type=int, help="Maximum number of OOD samples.")
    options.option(
        "--data.download", type=bool, nargs="?", const=True, default=False, help="Let torchvision download missing data."
    )
    options.option(
        "--figure",
        metavar="FILE",
        help="Plot the ROC curves of all runs together, with entropy as the score, for the first OOD data set.",
    )
    return options


def run(config: Any) -> None:
    """Predict what is missing, then print and plot."""
    from calibrant.evaluation.ood import curves, detect, pair
    from calibrant.files import replacing
    from calibrant.plots import ROC
    from calibrant.runs import STAGES, Run

    check_outputs(config)
    runs = [Run.load(folder) for folder in dict.fromkeys(config.runs)]
    load = networks(config.data.root, allow_code=config.allow_code)
    options = {"root": config.data.root, "limit": config.limit, "download": config.data.download, "force": config.force}
    for name in config.ood:
        results = []
        for one in runs:
            with progress(f"{one.folder.name}: {name}", None) as advance:
                results.append(detect(one.folder, name, load=load, advance=advance, **options))
            with replacing(one.folder.ood_figure(name), force=True) as temporary:
                curves(one.folder, name).save(temporary)
        names = [f"{one.recipe.name}, {one.folder.name}" for one in runs]
        for stage in STAGES:
            title = f"Test samples against {results[0].samples:,} OOD samples of {name}, %, {stage} temperature scaling"
            out.print(_table(title, names, results, stage))
        for one in runs:
            wrote(one.folder.ood_figure(name))
    for one in runs:
        wrote(one.folder.ood_file)
    if config.figure:
        pairs = {one.folder.name: pair(one.folder, config.ood[0]) for one in runs}
        with replacing(config.figure, force=True) as temporary:
            ROC.from_logits(pairs, title=f"test against {config.ood[0]}, by entropy").save(temporary)
        wrote(config.figure)


def _table(title: str, runs: list[str], results: "list[OODResult]", stage: "Stage") -> "Table":
    from calibrant.audit.tables import add_row, plain_table

    table = plain_table(title, "run", ["score", "AUROC", "FPR95", "AUPR"])
    table.columns[1].justify = "left"
    for name, result in zip(runs, results, strict=True):
        for i, (score, found) in enumerate(result.at(stage).items()):
            area = f"{percent(found.auroc)} [{percent(found.low)}, {percent(found.high)}]"
            entries = (area, percent(found.fpr95), percent(found.aupr))
            add_row(table, name if i == 0 else "", score.replace("_", " "), *entries)
    return table
