"""Audit a CSV of predictions

Predictions often arrive as a table: an identifier, columns of rounded probabilities, a label by name. An audit reads it as
is and says whether the confidence can be trusted, with intervals and a test.
"""

# %% [markdown]
# ## A typical table
#
# Reviews classified by someone else's model: 500 to calibrate on, 1,500 to test on. The review number is ignored.

# %%
import textwrap
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console

from calibrant.audit import audit, compare, figure, tables
from calibrant.posthoc import TemperatureScaling
from calibrant.predictions import open_predictions

torch.manual_seed(0)
names = ["negative", "neutral", "positive"]
for path, size in {"validation.csv": 500, "test.csv": 1500}.items():
    logits = torch.tensor([2.0, 1.0, 2.0]) * torch.randn(size, 3)
    labels = torch.distributions.Categorical(logits=logits).sample()
    probs = (1.6 * logits).softmax(1).numpy().round(3)
    table = pd.DataFrame(probs, columns=[f"prob_{name}" for name in names])
    table.insert(0, "review", range(7000, 7000 + size))
    table["sentiment"] = [names[k] for k in labels]
    table.to_csv(path, index=False)
print("\n".join(Path("test.csv").read_text().splitlines()[:4]))

# %% [markdown]
# ## How it was read, and the verdict
#
# Only the label column has to be named, since `sentiment` could be anything.

# %%
file = open_predictions("test.csv", label="sentiment")
print(textwrap.fill(file.understood(), 100))
before = audit(file, "as delivered", keep=True)
print(textwrap.fill(before.verdict, 100))

# %%
console = Console(width=100)
for found in tables([before], worst=0):
    console.print(found)

# %% [markdown]
# The NLL is infinite: somewhere the true class was rounded to a probability of 0. Three decimals are not enough for that
# score; save logits, or more digits.
#
# ## What temperature scaling would change
#
# Fit it on the other file, and audit the test file again through the calibrator.

# %%
logits, labels = open_predictions("validation.csv", label="sentiment").read_all()
calibrator = TemperatureScaling().fit(logits, labels)
after = audit(file, f"T = {calibrator.temperature_:.2f}", transform=calibrator.transform, keep=True)
print(textwrap.fill(after.verdict, 100))
print("ECE before - after:", compare(before, after).measures["ece"])

# %%
# alt: Two reliability diagrams: below the diagonal as delivered, on it after temperature scaling.
audits = (before, after)
canvas = figure(audits)

# %% [markdown]
# The model is overconfident, and one parameter fixes it: after temperature scaling, 1,500 reviews show no sign of
# miscalibration. The interval for the difference comes from a paired bootstrap, on the same reviews before and after.
#
# On the command line, `calibrant evaluate test.csv --label sentiment --report audit.html` writes all of this to a page, and
# `calibrant apply` writes a calibrated copy of a table with all other columns unchanged.
