"""Networks have the parameters of those the papers trained."""

import json

import pytest
import torch
from torch import nn

from calibrant import models
from calibrant.models.gpool_cnn import running_maximum
from golden_cases import FOLDER, cases

COUNTS = json.loads((FOLDER / "arch_counts.json").read_text())
PAPERS = {
    "resnet50": "resnet50_cifar",
    "resnet110": "resnet110_cifar",
    "wrn26-10": "wide_resnet26_10_cifar",
    "densenet121": "densenet121_cifar",
    "tiny-resnet50": "resnet50_tiny",
}


@pytest.mark.parametrize("name", PAPERS)
def test_parameters_are_those_of_the_released_code(name: str) -> None:
    expected = COUNTS[PAPERS[name]]
    with torch.device("meta"):
        network = models.create(name, 200 if name == "tiny-resnet50" else 10)
    parameters = list(network.parameters())
    assert sum(p.numel() for p in parameters) == expected["params"]
    assert len(parameters) == expected["n_tensors"]
    assert sum(isinstance(m, nn.Conv2d) for m in network.modules()) == expected["conv_layers"]
    assert sum(isinstance(m, nn.BatchNorm2d) for m in network.modules()) == expected["bn_layers"]


@pytest.mark.parametrize(("name", "expected"), [("resnet20", 269_722), ("resnet32", 464_154)])
def test_small_residual_networks_are_he_et_als(name: str, expected: int) -> None:
    assert sum(p.numel() for p in models.create(name, 10).parameters()) == expected


@pytest.mark.parametrize("name", ["small-cnn", "mlp", "resnet20", "resnet32", "densenet121"])
@pytest.mark.parametrize("channels", [1, 3])
def test_forward(name: str, channels: int) -> None:
    network = models.create(name, 7, channels)
    logits = network(torch.randn(2, channels, 32, 32))
    assert logits.shape == (2, 7)
    logits.sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize(("name", "side", "stride"), [("resnet50", 32, 8), ("wrn26-10", 32, 4), ("tiny-resnet50", 64, 8)])
def test_stages_halve_the_image(name: str, side: int, stride: int) -> None:
    with torch.device("meta"):
        network = models.create(name, 10)
        features = network.stages(network.stem(torch.empty(1, 3, side, side)))
    assert features.shape[-1] == side // stride


def test_timm_by_name() -> None:
    network = models.create("timm:resnet18", 5, 1)
    assert network(torch.randn(2, 1, 64, 64)).shape == (2, 5)
    with pytest.raises(ValueError, match="timm cannot make 'resnet18x'.*did you mean"):
        models.create("timm:resnet18x", 5)


def test_bad_names() -> None:
    with pytest.raises(ValueError, match="model must be one of small-cnn, mlp.*did you mean 'resnet50'"):
        models.create("resnet5O", 10)
    with pytest.raises(
        ValueError, match="model small-cnn takes no option 'depth'; its options are num_classes, channels, width"
    ):
        models.create("small-cnn", 10, depth=3)


@pytest.mark.parametrize("case", cases("arch"), ids=lambda case: case.id)
def test_gpool_cnn_is_the_released_one(case) -> None:
    network = models.GPoolCNN(20, torch.zeros(3, 100)).double()
    trained = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
    assert sum(p.numel() for _, p in trained) == COUNTS["gpool_cnn"]["params"] == 247_316
    assert [name.split(".")[0] for name, _ in trained[::2]] == ["conv1", "conv2", "conv3", "fc1", "fc2"]
    with torch.no_grad():
        for k, (_, p) in enumerate(trained):
            p.copy_((0.08 * torch.sin(0.61803398875 * torch.arange(1, p.numel() + 1, dtype=torch.float64) + k)).view_as(p))
        case.check(network.from_vectors(case["embeddings"]), "logits_f64")


def test_gpool_cnn_reads_word_numbers() -> None:
    vectors = torch.randn(50, 8)
    network = models.GPoolCNN(4, vectors)
    tokens = torch.randint(50, (3, 30))
    torch.testing.assert_close(network(tokens), network.from_vectors(vectors[tokens]))
    assert not network.embedding.weight.requires_grad
    free = models.GPoolCNN(4, vocabulary=50, dim=8)
    assert free.embedding.weight.requires_grad
    assert not free.embedding.weight[0].any()


@pytest.mark.parametrize("length", [5, 6, 40])
def test_running_maximum(length: int) -> None:
    x = torch.randn(2, 3, length)
    assert torch.equal(running_maximum(x), nn.functional.max_pool1d(x, 5, stride=1))
