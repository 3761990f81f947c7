"""What all callbacks share."""

from pathlib import Path

import pytest
import torch
from sklearn.metrics import log_loss

from calibrant import functional, losses
from calibrant.integrations.validation import Validation
from processes import run_as_ranks

PROCESS = """
import sys
import torch
from torch import distributed as dist
from calibrant import losses
from calibrant.integrations.validation import Validation

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
torch.manual_seed(0)
logits, target = 3 * torch.randn(50, 4), torch.randint(4, (50,))
validation = Validation(losses.CALSALM(num_classes=4, margin=1.0))
if rank == 0:  # an evaluation set smaller than the number of processes
    validation.update(logits, target)
torch.save(validation.finish().scalars, f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


def test_a_process_without_samples_gets_the_result_of_all(tmp_path: Path) -> None:
    assert run_as_ranks(PROCESS, tmp_path) == [0, 0]
    torch.manual_seed(0)
    validation = Validation(losses.CALSALM(num_classes=4, margin=1.0))
    validation.update(3 * torch.randn(50, 4), torch.randint(4, (50,)))
    expected = validation.finish().scalars
    assert expected["multipliers_max"] > 1e-6
    for rank in range(2):
        assert torch.load(tmp_path / f"{rank}.pt") == pytest.approx(expected)


def test_single_scores_of_two_classes() -> None:
    scores, target = 3 * torch.randn(60), torch.randint(2, (60,))
    validation = Validation(losses.Focal(task="binary"), metrics=["ece", "nll"])
    validation.update(scores, target)
    expected = {"ece": float(functional.ece(scores, target, task="binary")), "nll": log_loss(target, scores.sigmoid())}
    assert validation.finish().scalars == pytest.approx(expected)


def test_several_labels() -> None:
    logits, target = 3 * torch.randn(60, 4), torch.randint(2, (60, 4))
    validation = Validation(losses.CALSALM(num_classes=2, task="multilabel"), metrics=["ece", "classwise_ece"])
    validation.update(logits, target)
    found = validation.finish()
    assert found.scalars["ece"] == pytest.approx(float(functional.ece(logits.flatten(), target.flatten(), task="binary")))
    each = functional.per_label(functional.ece, logits, target)
    assert found.scalars["classwise_ece"] == pytest.approx(sum(each) / 4)
    assert found.panel.samples == 240


def test_what_cannot_be_measured() -> None:
    with pytest.raises(RuntimeError, match="there were no validation batches"):
        Validation().finish()
