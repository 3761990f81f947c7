"""Accuracy settles, calibration does not

A network that has stopped improving keeps getting more confident. Cross-entropy rewards this: once a training sample is
classified correctly, the only way to lower its loss is a higher confidence.
"""

# %% [markdown]
# ## A small network on handwritten digits
#
# Scikit-learn's digits, cut down to a long tail: the rarest class has 4 training images. 700 test images are held out.

# %%
import matplotlib.pyplot as plt
import torch

from calibrant import functional
from calibrant.data import create
from calibrant.losses import CrossEntropy
from calibrant.models import SmallCNN

data = create("digits").long_tailed(20)
x, y = data.train.x.float(), data.train.y
test_x, test_y = data.test.x.float(), data.test.y
print(data)

# %% [markdown]
# ## Train, and look at the test set after every epoch

# %%
torch.manual_seed(0)
model, loss = SmallCNN(num_classes=10), CrossEntropy()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
curves = {"accuracy": [], "confidence": [], "ece": [], "nll": []}
for epoch in range(60):
    for batch in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        loss(model(x[batch]), y[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        logits = model(test_x)
    curves["accuracy"].append(float(functional.accuracy(logits, test_y)))
    curves["confidence"].append(float(logits.softmax(1).amax(1).mean()))
    curves["ece"].append(float(functional.ece(logits, test_y)))
    curves["nll"].append(float(functional.nll(logits, test_y)))
print({name: round(values[-1], 3) for name, values in curves.items()})

# %% [markdown]
# Accuracy is flat after about twenty epochs. Mean confidence is not: it moves away from accuracy, and the expected
# calibration error is roughly the gap between the two. The negative log-likelihood, the training loss measured on test
# images, is lowest early on and then rises.

# %%
# alt: Two panels over 60 epochs. Left: mean confidence keeps rising above accuracy, which is flat. Right: ECE and NLL rise.
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.plot(curves["accuracy"], label="accuracy")
left.plot(curves["confidence"], label="mean confidence")
left.set(xlabel="epoch", ylim=(0.5, 1))
left.legend()
right.plot(curves["ece"], color="C3", label="ECE")
right.set(xlabel="epoch", ylabel="ECE")
other = right.twinx()
other.plot(curves["nll"], color="C2", label="NLL")
other.set(ylabel="NLL")
right.legend(handles=[right.lines[0], other.lines[0]])
