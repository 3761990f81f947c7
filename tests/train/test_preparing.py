"""Networks as they are trained: their memory layout, and the memory that training takes."""

from pathlib import Path

import pytest
import torch
from torch import nn

from calibrant.recipes import Recipe
from calibrant.train import fit
from calibrant.train.preparing import Prepared, prepare
from own_code import Flat

CPU = not torch.cuda.is_available() and not torch.backends.mps.is_available()


def prepared(**fields: object) -> Prepared:
    return prepare(Recipe.load("digits", **fields))


def is_channels_last(network: nn.Module) -> bool:
    weight = next(module.weight for module in network.modules() if isinstance(module, nn.Conv2d) and module.in_channels > 1)
    return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()


@pytest.mark.skipif(not CPU, reason="chosen by itself only on a CPU")
def test_images_are_channels_last_on_a_cpu() -> None:
    assert is_channels_last(prepared().network)


def test_a_network_from_elsewhere_keeps_its_layout(tmp_path: Path) -> None:
    """Many call ``view``, which needs channels first."""
    network = Flat()
    fit("digits", tmp_path / "run", model=network, epochs=1, quiet=True, **{"data.limit": 60})
    assert not is_channels_last(network)
    asked = Recipe.load("digits", model={"name": "own_code.Flat", "channels_last": True})
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        prepare(asked, allow_code=True)


@pytest.mark.parametrize("wanted", [False, True])
def test_the_layout_can_be_chosen(wanted: bool) -> None:
    assert is_channels_last(prepared(model={"channels_last": wanted}).network) is wanted


def test_the_layout_changes_nothing_but_rounding() -> None:
    """Nor does it make another run of it: it may change when a run is resumed."""
    first, last = (prepared(model={"name": "resnet20", "channels_last": way}).network.eval() for way in (False, True))
    x = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(last(x), first(x), rtol=1e-4, atol=1e-5)
    ways = [Recipe.load("digits", model={"channels_last": way}) for way in (None, True)]
    assert ways[0].difference(ways[1]) == ""


def test_networks_without_images_have_no_layout() -> None:
    network = prepared(model={"name": "mlp", "channels_last": True}).network
    assert all(p.is_contiguous() for p in network.parameters())


def test_memory_grows_with_the_batch_as_counted_by_hand() -> None:
    """Every layer of an MLP keeps its input, but for the first, whose input is the batch itself."""
    small, large = (prepared(model="mlp", batch_size=size) for size in (1, 101))
    widths = [module.in_features for module in small.network.modules() if isinstance(module, nn.Linear)]
    weights = sum(p.numel() for p in small.network.parameters())
    assert (large.memory - small.memory) / 100 == 4 * sum(widths[1:])
    assert small.memory == 16 * weights + 4 * sum(widths[1:])
