"""What CALS-ALM learns, and how it survives a restart

CALS-ALM has one multiplier per class, a penalty weight for logits too far below the largest. It learns these weights
from validation images, and keeps them in its `state_dict`, so a resumed run ends exactly where an uninterrupted one would
have.
"""

# %% [markdown]
# ## Train on a long tail
#
# The largest class has 84 training images, the smallest 4.

# %%
import torch

from calibrant.data import create
from calibrant.losses import CALSALM
from calibrant.models import SmallCNN
from calibrant.plots import MultiplierPath

data = create("digits").long_tailed(20)
x, y = data.train.x, data.train.y
shown = {f"digit {k}, {data.train_counts[k]} images": k for k in (0, 2, 4, 9)}


def start():
    """A new network, its optimizer and its loss."""
    model = SmallCNN(num_classes=10)
    return model, torch.optim.Adam(model.parameters(), lr=2e-3), CALSALM(num_classes=10)


def train(model, optimizer, loss, epochs):
    """Train, and let the loss adapt after each epoch."""
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            loss.observe(model(data.validation.x), data.validation.y)
        loss.adapt()


# %% [markdown]
# After 20 of 50 epochs, save everything that changes: weights, optimizer, loss, and the state of the random number generator
# that shuffles the data.

# %%
torch.manual_seed(0)
model, optimizer, loss = start()
train(model, optimizer, loss, epochs=20)
parts = {"model": model, "optimizer": optimizer, "loss": loss}
states = {name: part.state_dict() for name, part in parts.items()}
torch.save({**states, "random": torch.get_rng_state()}, "checkpoint.pt")
train(model, optimizer, loss, epochs=30)
print("multipliers of the digits 0 to 9:", [round(value, 3) for value in loss.multipliers.tolist()])

# %%
# alt: Multipliers over 50 epochs: digit 0 peaks first, near epoch 10, digit 9 last; in the end all are small and close.
axes = MultiplierPath.from_loss(loss, shown).plot()

# %% [markdown]
# Nothing happens as long as the logits are close together. Then they spread, for the largest class first, and the multiplier
# of that class rises until they are pulled back; classes in the tail follow later. Once the network complies, the
# multipliers shrink to a level that holds the logits in place. In the end they are not ordered by class size: the early
# epochs are where the classes differ.
#
# ## Resume from the checkpoint
#
# Start over with new objects, load, and train the remaining epochs. Without the state of the loss, training would continue
# with multipliers near 0, in effect with plain cross-entropy, until the next call to `adapt`.

# %%
saved = torch.load("checkpoint.pt")
resumed = start()
for part, name in zip(resumed, ("model", "optimizer", "loss"), strict=True):
    part.load_state_dict(saved[name])
torch.set_rng_state(saved["random"])
train(*resumed, epochs=30)
print("same multipliers:", torch.equal(loss.multipliers, resumed[2].multipliers))
print("same network:", torch.equal(model(data.test.x), resumed[0](data.test.x)))

# %%
# alt: Multipliers of the whole run and of the run resumed at epoch 20: from there on the curves and final bars are the same.
paths = {}
for title, own in {"whole run": loss, "resumed after epoch 20": resumed[2]}.items():
    history = own.history()
    path = MultiplierPath.from_history(history["epoch"], history["multipliers"], data.classes)
    paths[title] = [path]
figure = MultiplierPath.side_by_side(paths)
