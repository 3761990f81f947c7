"""Every metric in one pass, in fixed memory

A panel measures accuracy, proper scores and every calibration error from sums over batches. Its state never grows, and
panels merge by addition: however the samples are spread over processes or files, the result is that of a single pass.
"""

# %% [markdown]
# ## Two processes
#
# A million predictions over ten classes in batches of 20,000. Two panels see half of them each, as two processes would.

# %%
import torch

from calibrant import functional, stats
from calibrant.metrics import Panel
from calibrant.plots import ReliabilityDiagram


def batches(seed):
    """The part of the data that one process sees; the network is overconfident where it is sure."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(25):
        logits = 3 * torch.randn(20_000, 10, generator=random)
        gumbel = -torch.log(-torch.log(torch.rand(logits.shape, generator=random)))
        target = (logits + gumbel).argmax(1)  # follows the softmax of the logits
        yield 0.4 * logits.abs() ** 1.5 * logits.sign(), target


panels, sizes = [Panel(num_classes=10), Panel(num_classes=10)], []
for seed, panel in enumerate(panels):
    for logits, target in batches(seed):
        panel.update(logits, target)
        sizes.append(sum(part.nbytes for part in panel.state.values()))
print(f"state: {sizes[0] / 1e6:.1f} MB after one batch, {sizes[-1] / 1e6:.1f} MB after the last")

halves = [panel.compute() for panel in panels]
panels[0].merge(panels[1])
merged = panels[0].compute()
print(f"samples after merging: {merged.samples:,}")

# %% [markdown]
# ## The same result as all at once
#
# Keep all logits, and measure them with the functions in `calibrant.functional`.

# %%
everything = [batch for seed in range(2) for batch in batches(seed)]
logits, target = (torch.cat(parts) for parts in zip(*everything, strict=True))
print(f"logits: {logits.nbytes / 1e6:.0f} MB")
for key in ("accuracy", "nll", "ece", "classwise_ece", "adaptive_ece", "debiased_ece", "aurc"):
    whole = float(getattr(functional, key)(logits, target))
    print(f"{key:14} panel {merged[key]:.8f}   all at once {whole:.8f}")

# %% [markdown]
# Means and errors in equal-width bins agree up to rounding: the panel keeps integer counts and float64 sums. Metrics that
# need sorted confidences, from the adaptive ECE on, use a fine grid instead and are off by far less than sampling noise.
#
# ## Everything else also works without the logits
#
# Intervals, results by class, and reliability diagrams come from the panel alone. In a training loop with torchmetrics, use
# `CalibrationPanel`: the same panel as a `torchmetrics.Metric`, which sums over processes automatically.

# %%
# alt: Reliability diagrams of both processes and of the merged panel: underconfident below 0.6, overconfident above.
print("debiased ECE:", stats.panel_intervals(merged)["debiased_ece"])
print("class 3:", {key: round(value, 3) for key, value in merged.classes[3]._asdict().items()})
names = ("process 0", "process 1", "merged")
results = zip((*halves, merged), names, strict=True)
figure = ReliabilityDiagram.side_by_side([ReliabilityDiagram.from_panel(*one) for one in results])
