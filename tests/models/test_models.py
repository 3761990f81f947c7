"""Networks have the parameters of those the papers trained."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from calibrant import models
from calibrant.models.gpool_cnn import largest_of_convolution, running_maximum
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
    network = models.create(name, 7, channels=channels)
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


@pytest.mark.parametrize("name", models.MODELS)
def test_every_network_is_listed_with_its_name(name: str) -> None:
    entry = models.MODELS[name]
    assert entry.key == name
    assert entry.title
    assert entry.load() is getattr(models, entry.name)
    assert entry.name in models.__all__


def test_what_networks_need_of_their_inputs() -> None:
    assert models.needs(models.create("small-cnn", 10)) == models.Needs(padding_words=1, side_multiple=1)
    assert models.needs(models.create("gpool-cnn", 4, vocabulary=50, dim=8)) == models.Needs(21, 1)
    assert models.needs(models.create("smp:Unet", 3, encoder="resnet18")) == models.Needs(1, 32)


def test_timm_by_name() -> None:
    network = models.create("timm:resnet18", 5, channels=1)
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
    network = models.GPoolCNN(20, vectors=torch.zeros(3, 100)).double()
    trained = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
    assert sum(p.numel() for _, p in trained) == COUNTS["gpool_cnn"]["params"] == 247_316
    assert [name.split(".")[0] for name, _ in trained[::2]] == ["conv1", "conv2", "conv3", "fc1", "fc2"]
    with torch.no_grad():
        for k, (_, p) in enumerate(trained):
            p.copy_((0.08 * torch.sin(0.61803398875 * torch.arange(1, p.numel() + 1, dtype=torch.float64) + k)).view_as(p))
        case.check(network.from_vectors(case["embeddings"]), "logits_f64")


def test_gpool_cnn_reads_word_numbers() -> None:
    vectors = torch.randn(50, 8)
    network = models.GPoolCNN(4, vectors=vectors)
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


def test_gradient_of_the_running_maximum() -> None:
    shape = (2, 3, 17)
    x = torch.randperm(102).double().view(shape).div(7).requires_grad_()  # all different, by more than gradcheck moves them
    assert torch.autograd.gradcheck(running_maximum, x)
    weight = torch.randn(2, 3, 13, dtype=torch.float64)
    own, theirs = (
        torch.autograd.grad((weight * pooled).sum(), x)[0]
        for pooled in (running_maximum(x), nn.functional.max_pool1d(x, 5, stride=1))
    )
    torch.testing.assert_close(own, theirs, rtol=0, atol=1e-14)
    assert (theirs != 0).sum() > 20


@pytest.mark.parametrize("values", [1, 2, 3])
def test_gradient_of_the_running_maximum_where_values_are_equal(values: int) -> None:
    """All of it goes to the first place of the maximum, written out with loops; nothing is lost or counted twice."""
    x = torch.randint(values, (2, 3, 20)).double().requires_grad_()
    weight = torch.rand(2, 3, 16, dtype=torch.float64) + 0.5
    own = torch.autograd.grad((weight * running_maximum(x)).sum(), x)[0]
    expected = torch.zeros_like(x)
    for i in range(2):
        for j in range(3):
            for t in range(16):
                window = x[i, j, t : t + 5].tolist()
                expected[i, j, t + window.index(max(window))] += weight[i, j, t]
    torch.testing.assert_close(own, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(own.sum((1, 2)), weight.sum((1, 2)))


@pytest.mark.parametrize("biased", [True, False])
def test_gradients_of_the_largest_of_a_convolution(biased: bool) -> None:
    """Those of autograd through all words, also where several channels have their maximum in the same window."""
    given = [torch.randn(3, 4, 30), torch.randn(6, 4, 5), *([torch.randn(6)] if biased else [])]
    x, weight, bias = [*(tensor.double().requires_grad_() for tensor in given), None][:3]
    found = largest_of_convolution(x, weight, bias)
    dense = nn.functional.conv1d(x, weight, bias).amax(dim=2)
    torch.testing.assert_close(found, dense, rtol=0, atol=0)
    upstream = torch.randn_like(dense)
    wanted = [tensor for tensor in (x, weight, bias) if tensor is not None]
    torch.testing.assert_close(torch.autograd.grad(found, wanted, upstream), torch.autograd.grad(dense, wanted, upstream))


def test_the_running_maximum_of_many_texts_is_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(7, 3, 40, requires_grad=True)
    weight = torch.randn(7, 3, 36)
    expected = nn.functional.max_pool1d(x, 5, stride=1)
    gradient = torch.autograd.grad((weight * expected).sum(), x)[0]
    for most in (1, 120, 240, 300, 10_000):  # numbers of a piece: one text, one, two, two, all
        monkeypatch.setattr("calibrant.models.gpool_cnn.CACHED", most)
        found = running_maximum(x)
        assert torch.equal(found, expected)
        torch.testing.assert_close(torch.autograd.grad((weight * found).sum(), x)[0], gradient)


# Segmentation


@pytest.mark.parametrize(("name", "channels"), [("Unet", 1), ("DeepLabV3Plus", 3)])
def test_smp_by_name(name: str, channels: int) -> None:
    network = models.create(f"smp:{name}", 5, channels=channels, encoder="resnet18").eval()
    assert type(network).__name__ == name
    with torch.no_grad():
        assert network(torch.randn(2, channels, 64, 32)).shape == (2, 5, 64, 32)
    assert sum(p.numel() for p in network.get_submodule("encoder").parameters()) == 11_176_512 - (3 - channels) * 64 * 49


def test_options_of_smp_are_passed_on() -> None:
    options = {"encoder": "resnet18", "encoder_depth": 3, "decoder_channels": [16, 8, 4]}
    network = models.create("smp:Unet", 2, **options)
    assert network(torch.randn(2, 3, 8, 8)).shape == (
        2,
        2,
        8,
        8,
    )  # with five halvings, sides would have to be multiples of 32
    head = network.get_submodule("segmentation_head.0")
    assert isinstance(head, nn.Conv2d)
    assert head.in_channels == 4
    with pytest.raises(ValueError, match="segmentation_models_pytorch cannot make Unet with these options"):
        models.create("smp:Unet", 2, encoder="resnet18", encoder_depth=3, decoder_channels=[16, 8])


@pytest.mark.parametrize(
    ("name", "encoder", "message"),
    [
        ("Unett", "resnet18", "segmentation_models_pytorch must be one of .*DeepLabV3, .* got 'Unett'; did you mean 'Unet'"),
        ("unet", "resnet18", "got 'unet'; did you mean 'Unet'"),
        ("Unet", "resnet81", "cannot make Unet with the encoder 'resnet81': .*resnet18.*; did you mean 'resnet18'"),
        ("Unet", "tu-resnet1888", "cannot make Unet with these options .Unknown model .resnet1888"),
    ],
)
def test_bad_names_of_smp(name: str, encoder: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.create(f"smp:{name}", 3, encoder=encoder)


def test_options_that_smp_would_pass_over_are_refused() -> None:
    with pytest.raises(ValueError, match="smp:DeepLabV3 takes no option 'encodr'; its options are encoder, pretrained, .*"):
        models.create("smp:DeepLabV3", 3, encodr="resnet18")
    with pytest.raises(ValueError, match="cannot make DeepLabV3 with these options .* output stride 8 or 16, got 7"):
        models.create("smp:DeepLabV3", 3, encoder="resnet18", pretrained="imagenet", encoder_output_stride=7)


def test_encoder_weights_come_from_a_file(tmp_path: Path) -> None:
    torch.manual_seed(1)
    source = models.create("smp:Unet", 3, encoder="resnet18")
    weights = source.get_submodule("encoder").state_dict()
    torch.save(weights, tmp_path / "encoder.pt")
    torch.manual_seed(2)
    found = models.create("smp:DeepLabV3Plus", 7, encoder="resnet18", pretrained=str(tmp_path / "encoder.pt"))
    for key, value in found.get_submodule("encoder").state_dict().items():
        assert torch.equal(value, weights[key]), key
    with pytest.raises(ValueError, match="encoder.pt does not hold the weights of the encoder resnet34"):
        models.create("smp:Unet", 3, encoder="resnet34", pretrained=str(tmp_path / "encoder.pt"))


@pytest.mark.parametrize(
    "content", [b"", b"not weights at all", b"PK\x03\x04 a zip cut short"], ids=["empty", "text", "zip"]
)
def test_broken_files_of_weights_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.pt").write_bytes(content)
    with pytest.raises(ValueError, match="broken.pt does not hold the weights of the encoder resnet18"):
        models.create("smp:Unet", 3, encoder="resnet18", pretrained=str(tmp_path / "broken.pt"))


def test_files_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    for number, content in enumerate(([1, 2], {"state_dict": {}}, torch.zeros(3))):
        torch.save(content, tmp_path / f"{number}.pt")
        with pytest.raises(ValueError, match=f"{number}.pt does not hold the weights of the encoder resnet18"):
            models.create("smp:Unet", 3, encoder="resnet18", pretrained=str(tmp_path / f"{number}.pt"))


def test_weights_that_cannot_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # else it tries for half a minute
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="the weights 'imagenet' of resnet18 could not be downloaded .*pass a file with"):
        models.create("smp:Unet", 3, encoder="resnet18", pretrained="imagenet")
    with pytest.raises(ValueError, match="the weights file nofile.pt does not exist"):
        models.create("smp:Unet", 3, encoder="resnet18", pretrained="nofile.pt")
