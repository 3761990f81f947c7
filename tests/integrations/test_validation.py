"""What all callbacks share."""

from pathlib import Path

import pytest
import torch

from calibrant import losses
from calibrant.integrations.validation import Validation
from calibrant.metrics import Panel
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
    panel = Panel(2)
    panel.update(torch.stack([torch.zeros(60), scores], dim=1), target)
    expected = panel.compute()
    assert validation.finish().scalars == pytest.approx({"ece": expected.ece, "nll": expected.nll})


def test_what_cannot_be_measured() -> None:
    with pytest.raises(RuntimeError, match="there were no validation batches"):
        Validation().finish()
    with pytest.raises(ValueError, match='a loss with task="multilabel" has a prediction for each label'):
        Validation(losses.Focal(task="multilabel"))
