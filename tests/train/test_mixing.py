"""Mixup, CutMix and RegMixup: the mixtures themselves, what is trained on, and restarts."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from calibrant import losses
from calibrant.data import create
from calibrant.data.texts import Texts
from calibrant.errors import InputError
from calibrant.recipes import Data, LossChoice, Recipe
from calibrant.report import Report
from calibrant.train import fit
from calibrant.train.engine import Module
from calibrant.train.mixing import Mixer


def recipe(loss: str = "mbls", **options: object) -> Recipe:
    settings = {"epochs": 2, "batch_size": 25, "data": Data(limit=75), "loss": LossChoice(loss), "seed": 3}
    return Recipe(name="mixing", **{**settings, **options})


def batch() -> tuple[Tensor, Tensor]:
    return torch.rand(40, 1, 8, 8), torch.arange(40) % 10


@pytest.mark.parametrize("mixing", ["mixup", "cutmix", "regmixup"])
def test_mixtures_are_what_their_labels_say(mixing: str) -> None:
    """Each image is mixed with the one before it, by the shares of its soft target."""
    mixer = Mixer.of(recipe(mixing=mixing), 10)
    x, y = batch()
    shares_seen = set()
    for step in range(5):
        mixed, soft = mixer(x, y, 0, step, 0)
        share = soft[torch.arange(40), y]
        torch.testing.assert_close(soft.sum(1), torch.ones(40))
        torch.testing.assert_close(soft[torch.arange(40), y.roll(1)], 1 - share)
        if mixing == "cutmix":
            own = (mixed == x).float().mean(dim=(1, 2, 3))
            torch.testing.assert_close(own, share)
            assert ((mixed == x) | (mixed == x.roll(1, 0))).all()
        else:
            torch.testing.assert_close(mixed, share[0] * x + (1 - share[0]) * x.roll(1, 0))
        shares_seen.add(round(float(share[0]), 6))
    assert len(shares_seen) > 1


def test_shares_follow_the_beta_distribution() -> None:
    x, y = batch()

    def spread(**options: object) -> Tensor:
        mixer = Mixer.of(recipe(**options), 10)
        return torch.stack([mixer(x, y, 0, step, 0)[1][0, 0] for step in range(300)]).var()

    for options, alpha in (
        ({"mixing": "mixup"}, 1.0),
        ({"mixing": "regmixup"}, 10.0),
        ({"mixing": "mixup", "mixing_alpha": 4.0}, 4.0),
    ):
        assert float(spread(**options)) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.25)


def test_random_numbers_depend_on_seed_epoch_step_and_process_alone() -> None:
    x, y = batch()
    mixer = Mixer.of(recipe(mixing="mixup"), 10)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = mixer(x, y, 1, 2, 0)[1]
    assert torch.equal(torch.get_rng_state(), before)  # dropout goes on as if nothing was mixed
    torch.rand(7)
    assert torch.equal(mixer(x, y, 1, 2, 0)[1], first)
    others = [(1, 3, 0), (2, 2, 0), (1, 2, 1)]
    assert not any(torch.equal(mixer(x, y, *other)[1], first) for other in others)
    assert not torch.equal(Mixer.of(recipe(mixing="mixup", seed=4), 10)(x, y, 1, 2, 0)[1], first)


@pytest.mark.parametrize("mixing", ["mixup", "regmixup"])
def test_the_loss_of_a_step(mixing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """RegMixup: the loss of the batch plus that of the mixture, as in its paper with a weight of 1."""
    torch.manual_seed(0)
    network, loss = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), losses.Focal()
    module = Module(recipe(mixing=mixing), network, loss, create("digits"))
    x, y = batch()
    mixed, soft = module.mixer(x, y, 0, 4, 0)
    monkeypatch.setattr(Module, "current_epoch", 0)
    expected = loss(network(mixed), soft) + (loss(network(x), y) if mixing == "regmixup" else 0)
    torch.testing.assert_close(module._mixed_loss(x, y, 4), expected)


@pytest.mark.parametrize(("mixing", "loss"), [("mixup", "cals-alm"), ("cutmix", "mmce"), ("regmixup", "adafocal")])
def test_a_resumed_run_is_the_same(tmp_path: Path, mixing: str, loss: str) -> None:
    mine = recipe(loss, mixing=mixing)
    whole = fit(mine, tmp_path / "whole", quiet=True)
    step = Module.training_step

    def interrupted(self: Module, item: tuple[Tensor, Tensor, int], batch_idx: int) -> Tensor:
        if self.current_epoch == 1 and batch_idx:
            raise RuntimeError("the power is out")
        return step(self, item, batch_idx)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Module, "training_step", interrupted)
        with pytest.raises(RuntimeError, match="the power is out"):
            fit(mine, tmp_path / "parts", quiet=True)
    parts = fit(mine, tmp_path / "parts", quiet=True)
    assert whole is not None
    assert parts is not None
    assert torch.equal(whole.folder.open().read_all()[0], parts.folder.open().read_all()[0])
    assert Report(whole.folder).html()  # with or without confidences of training samples


def test_as_an_augmentation_of_its_own() -> None:
    mine = recipe(augmentation="cutmix")
    assert (mine.mixing, mine.augmentation) == ("cutmix", "none")
    with pytest.raises(InputError, match="augmentation cutmix and mixing mixup exclude each other"):
        recipe(augmentation="cutmix", mixing="mixup")
    with pytest.raises(ValueError, match="mixing must be one of 'none', 'mixup'"):
        recipe(mixing="blend").check()
    with pytest.raises(ValueError, match="mixing_alpha must be more than 0"):
        recipe(mixing="mixup", mixing_alpha=0.0).check()


def test_only_images_are_mixed() -> None:
    part = create("digits").train
    part.check_augmentation("crop-flip", "mixup")
    with pytest.raises(ValueError, match="mixing mixup does not apply to texts"):
        Texts.check_augmentation(object.__new__(Texts), "none", "mixup")
