"""Temperature scaling, and how many validation samples it needs

Dividing all logits by one parameter, the temperature, removes most of the overconfidence without changing a single
predicted class. It has to be fitted on samples the network was not trained on; a hundred will do, ten will not.
"""

# %% [markdown]
# ## An overconfident network
#
# Digits with few training images, and 600 validation images to fit the temperature on.

# %%
import warnings

import matplotlib.pyplot as plt
import torch

from calibrant import functional
from calibrant.data import create
from calibrant.losses import CrossEntropy
from calibrant.models import SmallCNN
from calibrant.plots import ReliabilityDiagram
from calibrant.posthoc import TemperatureScaling

data = create("digits", validation=60, test=70).long_tailed(20)
x, y = data.train.x, data.train.y
print(data)
torch.manual_seed(0)
model, loss = SmallCNN(num_classes=10), CrossEntropy()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(60):
    for batch in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        loss(model(x[batch]), y[batch]).backward()
        optimizer.step()
with torch.no_grad():
    held, logits = model(data.validation.x), model(data.test.x)

# %% [markdown]
# ## Before and after
#
# The temperature minimises the negative log-likelihood of the validation images. `transform` returns log-probabilities.

# %%
# alt: Reliability diagrams before and after: far below the diagonal in every bin, then close to it.
calibrator = TemperatureScaling().fit(held, data.validation.y)
after = calibrator.transform(logits)
print(calibrator)
for name, found in {"before": logits, "after": after}.items():
    accuracy = functional.accuracy(found, data.test.y)
    ece, nll = functional.ece(found, data.test.y), functional.nll(found, data.test.y)
    print(f"{name:7} accuracy {accuracy:.1%}   ECE {ece:.1%}   NLL {nll:.2f}")
diagrams = [
    ReliabilityDiagram.from_logits(logits, data.test.y, "before"),
    ReliabilityDiagram.from_logits(after, data.test.y, "after"),
]
figure = ReliabilityDiagram.side_by_side(diagrams)

# %% [markdown]
# ## How many validation samples?
#
# Fit it again on random subsets of the validation set, 50 of each size.

# %%
sizes = [10, 20, 50, 100, 200]
temperatures, errors = {}, {}
for size in sizes:
    fits = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # if all ten samples are right, T hits its bound
        for _ in range(50):
            some = torch.randperm(len(held))[:size]
            fits.append(TemperatureScaling().fit(held[some], data.validation.y[some]))
    temperatures[size] = torch.stack([fit.temperature_ for fit in fits])
    found = [functional.ece(fit.transform(logits), data.test.y) for fit in fits]
    errors[size] = 100 * torch.stack(found)

# %%
# alt: Box plots of temperature and test ECE by validation samples: wide for 10, narrow for 100; ECE before is near 18.
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.boxplot(temperatures.values(), tick_labels=sizes, whis=(5, 95), showfliers=False)
right.boxplot(errors.values(), tick_labels=sizes, whis=(5, 95), showfliers=False)
left.set(xlabel="validation samples", ylabel="temperature", ylim=(0, 5))
right.axhline(100 * functional.ece(logits, data.test.y), color="C3", linestyle=":", label="before")
right.set(xlabel="validation samples", ylabel="test ECE, %", ylim=(0, 28))
right.legend()

# %% [markdown]
# With ten samples the temperature is unreliable: now and then the network ends up worse calibrated than before. A hundred
# samples bring most of the gain, and twice as many change little: there is only one parameter to learn.
