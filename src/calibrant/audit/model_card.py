"""An audit as a section of a Hugging Face model card."""

import math
from typing import Any, Final

from calibrant import __version__
from calibrant.audit.record import Audit
from calibrant.extras import require
from calibrant.metrics.panel import markdown_table
from calibrant.metrics.table import Measure

#: Measures in a card.
CARD: Final = ("accuracy", "mean_iou", "debiased_ece", "ece", "nll")


def card(audit: Audit, *, dataset: str, task: str, figure: str) -> str:
    """A model card: metadata (``model-index``) as YAML front matter, then a section on calibration.

    Args:
        audit: The audit; its name becomes the model's.
        dataset: Name of the data set.
        task: Hugging Face task, such as ``"text-classification"``.
        figure: Path of the reliability diagram, relative to the card.

    Example:
        >>> import os, tempfile
        >>> import numpy
        >>> from calibrant.audit import audit, card
        >>> path = os.path.join(tempfile.mkdtemp(), "predictions.npz")
        >>> numpy.savez(path, logits=[[4.0, 0.0]] * 80, target=[0] * 60 + [1] * 20)
        >>> text = card(audit(path, "my-model"), dataset="my-data", task="image-classification", figure="reliability.png")
        >>> print(text[:36])
        ---
        model-index:
        - name: my-model
    """
    records = [record for record in audit.shown(3) if record.key in CARD]
    result = {
        "task": {"type": task},
        "dataset": {"name": dataset, "type": dataset},
        "metrics": [_metric(audit, record) for record in records if math.isfinite(audit[record.key])],
    }
    index = {"model-index": [{"name": audit.name, "results": [result]}]}
    metadata = require("yaml", "a model card").safe_dump(index, sort_keys=False, allow_unicode=True)
    level = next(iter(audit.intervals.values())).level
    rows = [[record.label, audit.text(record), audit.how.get(record.key, "")] for record in records]
    table = markdown_table(["metric", f"value, {100 * level:.0f}% interval", "how"], rows)
    what = "pixels" if audit.dense else "samples"
    measured = f"Measured on {audit.samples:,} {what} of {dataset} with calibrant {__version__}."
    parts = ["## Calibration", audit.verdict, table, f"![Reliability diagram]({figure})", measured]
    return f"---\n{metadata}---\n\n" + "\n\n".join(parts) + "\n"


def _metric(audit: Audit, record: Measure) -> dict[str, Any]:
    """A metric of the model index; what the Hub has no field for, such as the interval, goes into its ``args``."""
    interval = audit.intervals.get(record.key)
    arguments: dict[str, Any] = {}
    if record.on in ("bins", "sorted"):
        arguments["num_bins"] = audit.num_bins
    if interval is not None:
        arguments |= {"interval": [round(interval.low, 5), round(interval.high, 5)], "level": interval.level}
    found: dict[str, Any] = {"type": record.key, "name": record.title, "value": round(audit[record.key], 5)}
    return found | ({"args": arguments} if arguments else {})
