"""The commands that train, as a user calls them."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import yaml

import trees
from calibrant.cli import main
from calibrant.data import CORRUPTIONS, DATA
from calibrant.losses import METHODS
from calibrant.metrics import MEASURES
from calibrant.models import MODELS
from calibrant.posthoc import CALIBRATORS
from calibrant.recipes import RECIPES, Recipe


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    trees.fashion_mnist(root)
    trees.cifar(root, 10)
    trees.cifar(root, 100)
    trees.tiny_imagenet(root, train=8)
    trees.imagenet(root)
    trees.newsgroups(root)
    trees.vectors(root / "glove" / "glove.6B.100d.txt", ["puck", "orbit"], dim=100)
    trees.voc(root, {"train": 5, "val": 3}, named=False)
    trees.voc(root, {"train": 4, "val": 2, "test": 2}, name="camvid")
    return root


EXPECTED = [
    "digits", "digits-lt", "fashion-mnist", "fashion-mnist-lt", "cifar10-resnet20", "cifar10-lt-resnet32",
    "tiny-imagenet-resnet50",
    *(f"{data}-{net}" for data in ("cifar10", "cifar100") for net in ("resnet50", "resnet110", "wrn26-10", "densenet121")),
    *(f"{data}-{net}" for data in ("imagenet", "imagenet-lt") for net in ("resnet50", "swinv2t")),
    "imagenet-resnet50-adafocal", "newsgroups20", "newsgroups20-cals", "voc2012-deeplabv3", "camvid-deeplabv3",
]  # fmt: skip


def test_all_recipes_are_shipped() -> None:
    assert list(RECIPES) == sorted(EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_every_recipe_runs(data: Path, here: Path, capsys, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_, **__: True)  # of the full set
    small = {"tiny-imagenet-resnet50": "2", "fashion-mnist": "30", "fashion-mnist-lt": "30", "imagenet": "0.2"}
    held = small.get(name, "30" if name.startswith("cifar") else None)
    fields = [] if held is None else ["--data.validation", held]
    fields += ["--trainer.precision", "32"] if name.startswith("imagenet") else []
    if name.endswith("deeplabv3"):
        fields += ["--data.size", "32"]
    if name.startswith("imagenet"):
        fields += ["--data.size", "64"]
    if name.endswith("swinv2t"):
        assert Recipe.load(name).data.size == timm.get_pretrained_cfg("swinv2_tiny_window8_256").input_size[-1]
        fields += ["--model.options.img_size", "64"]
    if name == "voc2012-deeplabv3":
        fields += ["--data.longest", "48", "--model.options.pretrained", "null"]  # there is no network in a test
    command = ["train", name, "--dry-run", "--data.root", str(data), "--batch_size", "2", "--eval_batch_size", "2"]
    assert main([*command, "--loss", "cals-alm", "--data.workers", "0", *fields]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"^{name}: [\d,]+ train, [\d,]+ validation, [\d,]+ test samples of \d+ classes", text)
    assert re.search(r": [\d,]+ parameters; loss cals-alm", text)
    assert re.search(r"about [\d.]+ (hours|minutes|seconds) on this machine", text)
    assert not list(here.iterdir())


def test_train_resolves_trains_and_reports(here: Path, capsys) -> None:
    command = ["train", "digits-lt", "--loss", "mbls", "--loss.margin", "6", "--epochs", "2", "--seed", "3", "--quiet"]
    assert main([*command, "--optimizer.lr=0.001", "--out", "runs/a"]) == 0
    text = capsys.readouterr().out
    assert "digits-lt, mbls, seed 3: test, last checkpoint, epoch 2 of 2" in text
    assert "wrote runs/a" in text
    recipe = yaml.safe_load((here / "runs/a/recipe.yaml").read_text())
    assert recipe["loss"] == {"name": "mbls", "options": {"margin": 6}}
    assert recipe["optimizer"]["lr"] == 0.001
    assert recipe["data"]["long_tail"] == {"ratio": 20, "kind": "exp"}
    assert main(["evaluate", "runs/a", "--output", "m.json", "--resamples", "20"]) == 0
    metrics = json.loads((here / "runs/a/metrics.json").read_text())
    assert json.loads((here / "m.json").read_text())["files"][0]["ece"] == pytest.approx(metrics["test"]["ece"])
    assert main(["calibrate", "runs/a", "runs/a", "--resamples", "20"]) == 0
    assert list(metrics["test"]["groups"]) == ["head", "medium", "tail"]


def test_a_recipe_of_ones_own(here: Path, capsys) -> None:
    x = np.stack([trees.image(k % 4, 16) for k in range(60)])
    np.savez("mine.npz", train_x=x, train_y=np.arange(60) % 4, test_x=x[:20], test_y=np.arange(20) % 4)
    (here / "mine.yaml").write_text(
        "data: {name: npz, path: mine.npz, validation: 0.2}\nmodel: {name: mlp, options: {hidden: [16]}}\n"
        "optimizer: {name: adam, lr: 0.01}\nepochs: 2\nbatch_size: 16\n"
    )
    assert main(["train", "mine.yaml", "--quiet"]) == 0
    assert (here / "runs/mine/ce-seed0/metrics.json").exists()
    capsys.readouterr()
    (here / "mine.yaml").write_text("data: {nmae: npz}\n")
    assert main(["train", "mine.yaml", "--quiet"]) == 2
    assert "recipe mine: data.nmae is not a field of a recipe; did you mean --data.name?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digit-lt"], "there is no recipe 'digit-lt', and no such file; did you mean 'digits-lt'?"),
        (["digits-lt", "--epochs", "many"], "recipe digits-lt: epochs: expected int, got 'many'"),
        (["digits-lt", "--loss", "zebra"], "loss.name must be one of ce, ls, ecp"),
        (["digits-lt", "--loss", "ls", "--loss.margin", "3"], "loss.margin is not known; allowed are loss.alpha"),
        (["digits-lt", "--optimizer", "lbfgs"], "optimizer.name: expected one of 'sgd', 'adam', 'adamw', got 'lbfgs'"),
        (["digits-lt", "--optimizer.rate", "3"], "optimizer.rate is not a field of a recipe; did you mean --optimizer.lr?"),
        (["digits-lt", "--trainer.device", "2"], "trainer.device is not known; did you mean 'devices'?"),
        (["digits-lt", "--model", "os.system"], "is code outside calibrant, which runs only with --allow-code"),
        (["fashion-mnist"], "fashion-mnist is not in data: expected torchvision's layout, FashionMNIST/raw"),
        (["digits-lt", "--optimizer", "sgd", "--optimizer.lr", "1e12"], "the last good checkpoint is kept in"),
    ],
)
@pytest.mark.usefixtures("here")
def test_what_goes_wrong_is_said_in_a_sentence(capsys, arguments: list[str], message: str) -> None:
    assert main(["train", *arguments, "--quiet"]) == 2
    text = capsys.readouterr().err
    assert message in text
    assert "Traceback" not in text


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert main(["train", "digits", "--data.limit", "30", "--epochs", "1", "--quiet", "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ood", "run", "--ood", "noise", "--limit", "0"], "--limit must be at least 1"),
        (["ood", "run", "--ood", "noise", "--figure", "x.xyz"], "--figure must end in .png, .pdf or .svg"),
        (["ood", "run", "--ood", "/dev/zero"], "no folder, .npz or .npy of that name exists"),
        (["shift", "run", "--severities", "9"], "--severities must be from 1 to 5, got 9"),
        (["shift", "run", "--figure", "x.xyz"], "--figure must end in .png, .pdf or .svg"),
        (["train", "digits", "--threads", "0"], "--threads must be at least 1"),
        (["train", "digits", "--data", "npz"], "it needs --data.path"),
        (["train", "digits", "--data", "npz", "--data.path", "run/recipe.yaml"], "run/recipe.yaml is not an .npz"),
        (["report", "run", "--output", "pipe"], "pipe is not a file that can be replaced"),
    ],
)
def test_arguments_that_cannot_work(here: Path, finished: Path, capsys, arguments: list[str], message: str) -> None:
    shutil.copytree(finished, here / "run")
    os.mkfifo(here / "pipe")
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert message in text
    assert "Traceback" not in text


def test_compare_trains_only_what_is_missing(here: Path, capsys) -> None:
    command = [
        "compare",
        "digits-lt",
        "--epochs",
        "1",
        "--data.limit",
        "60",
        "--seeds",
        "2",
        "--out",
        "study",
        "--quiet",
        "--losses",
        "ce",
        "mbls",
    ]
    assert main(command) == 0
    text = capsys.readouterr().out
    times = {path: path.stat().st_mtime_ns for path in here.rglob("metrics.json")}
    assert {path.parent.name for path in times} == {"ce-seed0", "ce-seed1", "mbls-seed0", "mbls-seed1"}
    assert main([*command, "cals-alm"]) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    rows = list(csv.DictReader((here / "study/table.csv").open()))
    assert [row["method"] for row in rows] == ["ce", "mbls", "cals-alm"]
    eces = [json.loads((here / f"study/ce-seed{s}/metrics.json").read_text())["test"]["ece"] for s in (0, 1)]
    assert float(rows[0]["ece_mean"]) == pytest.approx(np.mean(eces))
    assert float(rows[0]["ece_std"]) == pytest.approx(np.std(eces, ddof=1))
    assert f"{100 * np.mean(eces):.2f} ± {100 * np.std(eces, ddof=1):.2f}" in text
    assert (here / "study/table.md").read_text().startswith("digits-lt: 60 test samples, 2 seeds, 1 epoch, 15 bins")


@pytest.mark.usefixtures("here")
def test_one_failure_does_not_stop_the_others(capsys) -> None:
    command = ["compare", "digits-lt", "--epochs", "1", "--seeds", "1", "--quiet", "--losses", "ce", "ls", "--out", "s"]
    (Path("s") / "ce-seed0").mkdir(parents=True)
    (Path("s") / "ce-seed0" / "note.txt").write_text("not a run")
    assert main(command) == 0
    done = capsys.readouterr()
    assert "ls " in done.out
    assert "ce, seed 0 failed: s/ce-seed0 exists and is not a run folder" in done.err


LISTED = {
    "recipes": list(EXPECTED),
    "losses": list(METHODS),
    "calibrators": list(CALIBRATORS),
    "metrics": list(MEASURES),
    "models": [*MODELS, "timm:NAME", "smp:NAME"],
    "data": list(DATA),
    "corruptions": list(CORRUPTIONS),
}


@pytest.mark.parametrize("what", LISTED)
def test_list(data: Path, capsys, what: str) -> None:
    assert main(["list", what, "--data.root", str(data)]) == 0
    text = capsys.readouterr().out
    names = [line.split()[0] for line in text.splitlines() if re.match(r"  \S", line)][1:]  # below the heading
    assert names == (sorted(LISTED[what]) if what == "recipes" else LISTED[what])
    if what == "recipes":
        there = {line.split()[0]: line.split()[-1] for line in text.splitlines() if re.match(r"  \w+", line)}
        assert there["digits-lt"] == there["fashion-mnist"] == there["cifar10-resnet50"] == "yes"
        assert main(["list", "recipes", "--data.root", str(data / "nowhere")]) == 0
        assert re.search(r"fashion-mnist .* no ", capsys.readouterr().out)


@pytest.mark.usefixtures("here")
def test_list_gives_an_overview(capsys) -> None:
    assert main(["list"]) == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if re.match(r"  \w", line)][1:]
    assert rows == [[kind, str(len(names))] for kind, names in LISTED.items()]
    assert main(["list", "zebras"]) == 2
    assert "WHAT must be one of recipes, losses, calibrators" in capsys.readouterr().err
    assert main(["list", "recipe"]) == 2
    assert "did you mean 'recipes'?" in capsys.readouterr().err


# Real data


@pytest.fixture(scope="module")
def real() -> Path:
    root = Path(os.environ.get("CALIBRANT_DATA", ""))
    if not (root / "arrays" / "cifar10.npz").exists():
        pytest.skip("needs CALIBRANT_DATA with arrays/cifar10.npz and FashionMNIST")
    return root


def test_fashion_mnist_from_its_idx_files(real: Path, tmp_path: Path) -> None:
    command = ["train", "fashion-mnist", "--loss", "cals-alm", "--epochs", "2", "--data.limit", "1500", "--quiet"]
    command += ["--batch_size", "32", "--optimizer.lr", "0.003"]  # an accuracy of about 0.75
    assert main([*command, "--data.root", str(real), "--out", str(tmp_path / "run")]) == 0
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["test"]["accuracy"] > 0.65
    assert metrics["test"]["classes"][9]["name"] == "Ankle boot"


@pytest.mark.slow
def test_long_tailed_cifar10_from_an_npz(real: Path, tmp_path: Path) -> None:
    command = ["train", "cifar10-lt-resnet32", "--loss", "mbls", "--epochs", "1", "--data.limit", "100", "--quiet"]
    command += ["--data", "npz", "--data.path", "arrays/cifar10.npz", "--data.root", str(real), "--batch_size", "32"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["parameters"] == 464_154
    assert metrics["test"]["samples"] == 100
    counts = json.loads((tmp_path / "run/environment.json").read_text())["train_counts"]
    assert counts[0] > 20 * counts[9]


def test_the_demo_of_the_makefile() -> None:
    root = Path(__file__).parents[2]
    text = subprocess.run(["make", "--dry-run", "demo"], cwd=root, capture_output=True, text=True, check=True).stdout  # noqa: S607
    assert "calibrant compare digits-lt --losses ce ls fl mbls cals-alm adafocal --seeds 3" in text
    assert sys.version_info >= (3, 10)
