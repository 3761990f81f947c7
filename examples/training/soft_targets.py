"""A majority vote hides what the annotators disagree on

Where annotators disagree, the majority label tells the network to be certain of something uncertain. Every loss also takes
soft targets, such as the fractions of the votes, from which the network learns how much the classes overlap.
"""

# %% [markdown]
# ## Five annotators
#
# Three classes that overlap. Each annotator sees a sample and votes for each class with its true probability, so close calls
# get mixed votes.

# %%
import torch

from calibrant import functional
from calibrant.losses import CrossEntropy, MbLS
from calibrant.models import MLP
from calibrant.plots import ReliabilityDiagram

torch.manual_seed(0)
centres = torch.tensor([[0.0, 1.2], [-1.0, -0.6], [1.0, -0.6]])


def draw(size):
    """Points in the plane, and the fractions of five votes on each."""
    x = centres[torch.randint(3, (size,))] + 0.9 * torch.randn(size, 2)
    true = (-torch.cdist(x, centres).square() / (2 * 0.9**2)).softmax(1)
    return x, torch.distributions.Multinomial(5, true).sample() / 5


x, votes = draw(300)
test_x, test_votes = draw(4000)
unanimous = (votes.amax(1) == 1).float().mean()
print(f"unanimous: {unanimous:.0%} of {len(x)} training samples")
print("votes on the first five:", (5 * votes[:5]).int().tolist())

# %% [markdown]
# ## Train on the majority, or on the votes
#
# Soft targets are floating-point tensors with the shape of the logits; the loss becomes the expected loss over labels drawn
# from them.

# %%
runs = {
    "majority, cross-entropy": (CrossEntropy(), votes.argmax(1)),
    "majority, MbLS": (MbLS(), votes.argmax(1)),
    "votes, cross-entropy": (CrossEntropy(), votes),
    "votes, MbLS": (MbLS(), votes),
}
logits = {}
for name, (loss, target) in runs.items():
    torch.manual_seed(0)
    model = MLP(3, inputs=2, hidden=[64, 64])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss(model(x[batch]), target[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        logits[name] = model(test_x)

# %% [markdown]
# ## Measure against the votes
#
# Metrics take soft targets, too: a prediction is correct with the probability that the votes give it.

# %%
for name, found in logits.items():
    accuracy = functional.accuracy(found, test_votes)
    ece, nll = functional.ece(found, test_votes), functional.nll(found, test_votes)
    print(f"{name:24} accuracy {accuracy:.1%}   ECE {ece:.1%}   NLL {nll:.2f}")

# %% [markdown]
# Accuracy is the same in all four runs: majority labels are good enough for classification. But networks trained on them are
# overconfident by about ten points, and the margin of MbLS does not help, since it knows nothing about where the classes
# overlap. With the votes, either loss is close to calibrated.
#
# Reliability diagrams need hard labels, since their intervals account for sampling noise in the labels. Use one random vote
# per sample.

# %%
# alt: Four reliability diagrams. Those trained on the majority lie far below the diagonal, those trained on votes along it.
label = torch.distributions.Categorical(test_votes).sample()
diagrams = [ReliabilityDiagram.from_logits(z, label, name) for name, z in logits.items()]
figure = ReliabilityDiagram.side_by_side(diagrams)
