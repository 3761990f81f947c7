"""``calibrant card``: calibration in a model card."""

import os
from pathlib import Path
from typing import Any

from calibrant.cli.console import Parser, check_measuring, open_file, progress, wrote

EXAMPLE = """\
Writes a model card section for Hugging Face: metadata (model-index) with accuracy, ECE, debiased ECE and NLL with intervals,
a summary, a table and the reliability diagram, which is saved as an image next to it. Use it as a
starting point for your README.md, or paste the metadata and the section into an existing one.

example:
  python -c "import numpy as np; r = np.random.default_rng(0); z = 3 * r.normal(size=(1000, 5)); \\
      np.savez('predictions.npz', logits=z, target=(z + r.gumbel(size=z.shape) * 2).argmax(1))"
  calibrant card predictions.npz --model my-model --dataset my-data
"""


def parser() -> Parser:
    """Options of the command."""
    options = Parser(description="Write a model card section.\n\n" + EXAMPLE)
    options.add_argument("source", metavar="SOURCE", help="A run folder or a prediction file.")
    options.option("--out", "--output", metavar="FILE", default="card.md", help="The card to write, an .md file.")
    options.option("--model", metavar="NAME", help="Name of the model; by default the name of the folder or file.")
    options.option("--dataset", metavar="NAME", help="Name of the data set; by default taken from the run or the file.")
    options.option(
        "--task",
        metavar="TYPE",
        help="Hugging Face task, such as text-classification; image-classification or image-segmentation if not given.",
    )
    options.reading_options()
    options.measuring_options()
    options.option("--force", action="store_true", help="Replace the files if they exist.")
    return options


def run(config: Any) -> None:
    """Measure and write."""
    from calibrant import audit
    from calibrant.errors import InputError
    from calibrant.files import refuse_existing, replacing, write_text
    from calibrant.runs import RunFolder

    path = Path(config.out)
    if path.suffix != ".md":
        raise InputError(f"`out` must end in .md, got {config.out}")
    check_measuring(config, config.out)
    picture = Path(config.figure) if config.figure is not None else path.with_name(f"{path.stem}-reliability.png")
    for file in (path, picture):
        refuse_existing(file, force=config.force)
    source, folder = Path(config.source).resolve(), RunFolder(config.source)
    predictions = open_file(config.source, config)
    name = source.name if source.is_dir() else source.stem
    dataset = config.dataset or (folder.recipe().data.name if source.is_dir() and folder.started else name)
    with progress(f"reading {source.name}", predictions.count()) as advance:
        options = {"num_bins": config.num_bins, "resamples": config.resamples, "seed": config.seed}
        found = audit.audit(predictions, config.model or name, advance=advance, **options)
    task = config.task or ("image-segmentation" if found.dense else "image-classification")
    place = Path(os.path.relpath(picture, path.parent)).as_posix()
    text = audit.card(found, dataset=dataset, task=task, figure=place)
    with replacing(picture, force=True) as temporary:
        audit.figure([found]).savefig(temporary)
    wrote(picture)
    write_text(path, text)
    wrote(path)
