"""Calibrating the probability of an event

Will it rain, will the customer leave: one probability per sample, judged over the whole range from 0 to 1. Naive Bayes
counts the same evidence several times and pushes its probabilities to both ends; calibrators for events bring them back.
"""

# %% [markdown]
# ## An overconfident forecast
#
# Most of the twenty features repeat information in the others, but naive Bayes treats them as independent. It is trained on
# 1,000 samples, calibrated on another 1,000 and tested on 7,000.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from sklearn.naive_bayes import GaussianNB

from calibrant import functional
from calibrant.plots import ReliabilityDiagram
from calibrant.posthoc import create

sizes = {"n_samples": 9000, "n_features": 20, "n_informative": 4, "n_redundant": 12}
x, y = make_classification(**sizes, weights=[0.7], class_sep=0.7, random_state=0)
train, held, test = slice(1000), slice(1000, 2000), slice(2000, None)
before = GaussianNB().fit(x[train], y[train]).predict_proba(x)[:, 1]
print(f"the event happens in {y[test].mean():.0%} of the test samples")

# %% [markdown]
# ## Four calibrators
#
# A single score per sample is the probability of an event: say so with `task="binary"`, and `probs=True` if it is a probability. Metrics and
# figures take the same two arguments.

# %%
event = {"probs": True, "task": "binary"}
methods = {
    "temperature": "temperature",
    "beta": "beta calibration",
    "isotonic": "isotonic",
    "venn-abers": "Venn-Abers",
}
fitted = {title: create(key).fit(before[held], y[held], **event) for key, title in methods.items()}
after = {title: one.predict_proba(before[test], **event) for title, one in fitted.items()}
after = {"naive Bayes": before[test], **after}
for title, probs in after.items():
    ece, nll = functional.ece(probs, y[test], **event), functional.nll(probs, y[test], **event)
    print(f"{title:17} ECE {ece:.1%}   NLL {nll:.2f}   from {probs.min():.3f} to {probs.max():.3f}")

# %%
# alt: Four reliability diagrams. Naive Bayes is too low on the left and far too high on the right; the others fit.
shown = ("naive Bayes", *list(fitted)[1:])
diagrams = [ReliabilityDiagram.from_logits(after[name], y[test], name, **event) for name in shown]
figure = ReliabilityDiagram.side_by_side(diagrams)

# %% [markdown]
# Beta, isotonic and Venn-Abers calibration remove nearly all of the error; 1,000 samples are enough for each. Temperature
# scaling leaves more than half of it.
#
# ## What they learned
#
# Each is a curve from the old probability to the new one.

# %%
# alt: Curves from old to new probability: temperature passes through 0.5, the others lie well below it, two as steps.
grid = np.linspace(0.001, 0.999, 999)
figure, ax = plt.subplots(figsize=(4.6, 3.6), layout="constrained")
for title, one in fitted.items():
    ax.plot(grid, one.predict_proba(grid, **event), label=title)
ax.plot([0, 1], [0, 1], ":", color="grey")
ax.set(xlabel="probability given by naive Bayes", ylabel="calibrated probability")
ax.legend()

# %% [markdown]
# Temperature scaling leaves 0.5 where it is, but naive Bayes says 0.5 where the event happens in about a third of the cases.
# Beta calibration is a smooth curve with three parameters. Isotonic and Venn-Abers assume only that the curve never falls,
# and climb in steps. Venn-Abers stays further from 0 and 1 than the others: useful where being sure and wrong is expensive.
