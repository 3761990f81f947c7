"""A calibrated classifier in a plain PyTorch loop: handwritten digits with a long tail, cross-entropy against CALS-ALM.

    python examples/digits.py [--losses ce cals-alm] [--seeds 3] [--epochs 60] [--figure reliability.png]

Class 0 has 20 times as many training images as class 9. Per loss: test accuracy and expected calibration error, in percent.
"""

import argparse
import statistics

import torch
from torch import Tensor

from calibrant.data import digits
from calibrant.losses import METHODS, AdaptiveLoss, create
from calibrant.metrics import accuracy, ece
from calibrant.models import SmallCNN
from calibrant.plots import ReliabilityDiagram


def train(method: str, seed: int, epochs: int = 60) -> tuple[Tensor, Tensor]:
    """Train on the long tail and return logits and labels of the test images."""
    data = digits(imbalance=20, seed=seed)
    torch.manual_seed(seed)
    model = SmallCNN(num_classes=10)
    loss = create(method, num_classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        model.train()
        for batch in torch.randperm(len(data.train.y)).split(32):
            optimizer.zero_grad()
            loss(model(data.train.x[batch]), data.train.y[batch]).backward()
            optimizer.step()
        model.eval()
        if isinstance(loss, AdaptiveLoss):
            with torch.no_grad():
                loss.observe(model(data.validation.x), data.validation.y)
            loss.adapt()
    with torch.no_grad():
        return model(data.test.x), data.test.y


def summary(percents: list[float]) -> str:
    """Mean and standard deviation."""
    spread = f" +- {statistics.stdev(percents):.2f}" if len(percents) > 1 else ""
    return f"{statistics.mean(percents):5.2f} %{spread}"


def main() -> None:
    """Train every loss with every seed and print what comes out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", nargs="+", choices=list(METHODS), default=["ce", "cals-alm"], metavar="LOSS")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--figure", metavar="FILE", help="draw reliability diagrams of all seeds' test images together")
    arguments = parser.parse_args()
    print(f"digits, long tail 20:1, {arguments.seeds} seeds, {arguments.epochs} epochs, ECE with 15 bins of equal width")
    diagrams = []
    for method in arguments.losses:
        results = [train(method, seed, arguments.epochs) for seed in range(arguments.seeds)]
        eces = [100 * float(ece(*result)) for result in results]
        accuracies = [100 * float(accuracy(*result)) for result in results]
        print(f"{method:10s} ECE {summary(eces)}   accuracy {summary(accuracies)}")
        logits, target = (torch.cat(parts) for parts in zip(*results, strict=True))
        diagrams.append(ReliabilityDiagram.from_logits(logits, target, num_bins=10, name=METHODS[method].title))
    if arguments.figure:
        ReliabilityDiagram.side_by_side(diagrams).savefig(arguments.figure, dpi=130)


if __name__ == "__main__":
    main()
