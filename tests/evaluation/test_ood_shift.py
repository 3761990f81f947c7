"""Runs on unknown and on corrupted data, through the command line, against scikit-learn and the runs' own metrics."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from calibrant.cli import main
from calibrant.cli.ood import parser
from calibrant.data import Images
from calibrant.evaluation import TrainedNetwork, ood, shift
from calibrant.report import Report
from calibrant.runs import RunFolder, ShiftRecord, ShiftResult
from trees import cifar, fashion_mnist, newsgroups


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert main(["train", "digits-lt", "--loss", "cals-alm", "--epochs", "4", "--quiet", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def never(folder: RunFolder) -> TrainedNetwork:
    raise AssertionError(f"{folder} was loaded again")


def ends(reference: Callable[..., float], labels: np.ndarray, scores: np.ndarray) -> tuple[float, float]:
    """Float32 may take two scores that nearly agree for equal or swap them: a measure rises with those of unknown data."""
    near = 2e-6 * float(np.abs(scores).max())
    low, high = (float(reference(labels, scores + step * labels)) for step in (-near, near))
    return low - 1e-12, high + 1e-12


def test_a_network_is_what_its_run_left(run: Path) -> None:
    trained = TrainedNetwork.load(run)
    logits, target = RunFolder(run).open().read_all()
    again = torch.cat([part for part, _ in trained.batches(trained.data.test)])
    assert torch.allclose(again, logits, atol=1e-5)
    assert torch.equal(trained.data.test.y, target)


def test_ood_measures_are_those_of_scikit_learn(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "roc.png"
    assert main(["ood", str(run), "--ood", "noise", "--figure", str(figure)]) == 0
    assert figure.stat().st_size > 10_000
    assert (run / "ood-noise.png").stat().st_size > 10_000
    text = capsys.readouterr().out
    found = json.loads((run / "ood.json").read_text())["noise"]
    known, unknown = ood.pair(run, "noise")
    labels = np.r_[np.zeros(len(known)), np.ones(len(unknown))]
    for part, temperature in (("before", 1.0), ("after", found["temperature"])):
        both = torch.cat([known, unknown]).double() / temperature
        probs = both.softmax(1)
        scores = {
            "entropy": -(probs * both.log_softmax(1)).sum(1),
            "max_prob": 1 - probs.amax(1),
            "energy": -both.logsumexp(1),
        }
        for name, values in scores.items():
            own = found[part][name]
            for key, reference in (("auroc", roc_auc_score), ("aupr", average_precision_score)):
                low, high = ends(reference, labels, values.numpy())
                assert low <= own[key] <= high
                assert high - low < 1e-3
            assert own["low"] <= own["auroc"] <= own["high"]
            assert f"{100 * own['auroc']:.2f}" in text
    again = ood.detect(run, "noise", load=never)
    assert again == RunFolder(run).ood()["noise"]
    assert asdict(again) == found


def test_a_corruption_as_unknown_data(run: Path) -> None:
    assert main(["ood", str(run), "--ood", "gaussian_noise:5", "contrast:5", "--limit", "50"]) == 0
    found = RunFolder(run).ood()
    assert [found[name].samples for name in ("gaussian_noise:5", "contrast:5")] == [50, 50]
    assert (run / "predictions/ood-contrast_5.npz").exists()


def test_unknown_data_of_another_root_or_name_is_not_taken_for_the_same(run: Path, tmp_path: Path) -> None:
    for number, place in enumerate(("a/b.npz", "c/b.npz", "a_b.npz")):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        np.savez(tmp_path / place, x=np.full((5 + number, 8, 8), 10 * number, dtype=np.uint8))
    for root, samples in (("a", 5), ("c", 6), ("a", 5)):  # and what changed since
        assert ood.detect(run, "b.npz", root=str(tmp_path / root)).samples == samples
    np.savez(tmp_path / "a/b.npz", x=np.zeros((9, 8, 8), dtype=np.uint8))
    assert ood.detect(run, "b.npz", root=str(tmp_path / "a")).samples == 9
    for name in ("a/b.npz", "a_b.npz"):
        ood.detect(run, name, root=str(tmp_path))
    assert [len(ood.pair(run, name)[1]) for name in ("a/b.npz", "a_b.npz")] == [9, 7]


def test_starting_over_forgets_what_was_measured(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shift", str(run), str(run), "--corruptions", "fog", "--severities", "1"]) == 0
    assert main(["ood", str(run), "--ood", "noise"]) == 0
    assert main(["shift", str(run), "--corruptions", "fog", "--seed", "1"]) == 2
    assert "holds results of generated images, seed 0; pass --force" in capsys.readouterr().err
    (run / "error.txt").write_text("it died once")
    command = ["train", "digits-lt", "--loss", "ce", "--epochs", "1", "--quiet", "--out", str(run)]
    assert main(command) == 2
    assert main([*command, "--force"]) == 0
    left = {path.name for path in run.iterdir()}
    assert left.isdisjoint({"shift.json", "shift.png", "ood.json", "ood-noise.png", "error.txt", "learned.npz"})
    assert not list((run / "predictions").glob("ood*"))


def test_data_that_changed_since_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    arrays = {f"{part}_x": random.integers(0, 256, (n, 8, 8)).astype(np.uint8) for part, n in (("train", 60), ("test", 20))}
    arrays |= {f"{part}_y": np.arange(n) % 2 for part, n in (("train", 60), ("test", 20))}
    np.savez(tmp_path / "own.npz", **arrays)
    run = tmp_path / "run"
    fields = ["--data.name", "npz", "--data.path", "own.npz", "--data.root", str(tmp_path), "--data.options", "{}"]
    fields += ["--data.validation", "0.2", "--epochs", "1", "--quiet", "--out", str(run)]
    assert main(["train", "digits-lt", *fields]) == 0
    assert main(["ood", str(run), "--ood", "noise"]) == 0
    np.savez(tmp_path / "own.npz", **{**arrays, "test_x": 255 - arrays["test_x"]})
    assert main(["ood", str(run), "--ood", "fog:1"]) == 2
    assert "was started on other data" in capsys.readouterr().err


def test_what_a_study_lacks_is_said_before_it_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newsgroups(tmp_path)
    out = str(tmp_path / "study")
    texts = ["compare", "newsgroups20", "--losses", "ce", "--data.root", str(tmp_path), "--data.options.vectors", "null"]
    assert main([*texts, "--shift", "--out", out]) == 2
    assert "corruptions apply to images; these samples are texts" in capsys.readouterr().err
    assert main(["compare", "digits-lt", "--losses", "ce", "--ood", "svhnn", "--out", out]) == 2
    assert "'svhnn' is not one of mnist" in capsys.readouterr().err
    assert not Path(out).exists()


def test_broken_data_is_said_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.csv").write_text("text,class\nhello,a\n")
    command = ["train", "newsgroups20", "--data.name", "texts", "--data.path", str(tmp_path / "own.csv")]
    assert main([*command, "--data.options", "{}", "--quiet", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "own.csv has no column 'label'; it has text, class" in error
    assert "Traceback" not in error


def test_means_over_severities_and_corruptions_by_hand() -> None:
    values = {("none", 0): 0.1, ("fog", 1): 0.2, ("fog", 2): 0.6, ("contrast", 1): 0.4}
    found = ShiftResult(0, "generated", [ShiftRecord(*key, 10, {"ece": v}, {"ece": 2 * v}) for key, v in values.items()])
    assert found.severities == [0, 1, 2]
    assert found.by_severity("before", "ece") == pytest.approx({0: 0.1, 1: 0.3, 2: 0.6})
    assert found.by_severity("after", "ece") == pytest.approx({0: 0.2, 1: 0.6, 2: 1.2})
    assert found.mean("before", "ece") == pytest.approx(0.4)
    assert found.mean("after", "ece") == pytest.approx(0.8)
    assert found.only({("none", 0), ("fog", 2)}).by_severity("before", "ece") == pytest.approx({0: 0.1, 2: 0.6})


def test_a_report_compares_what_all_runs_have(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    assert main(["shift", str(run), "--corruptions", "fog", "contrast", "--severities", "1", "5"]) == 0
    assert main(["shift", str(other), "--corruptions", "fog", "--severities", "1", "5"]) == 0
    fog = [record.before["ece"] for record in RunFolder(other).shift().results if record.severity]
    for method in Report(run, other).content["methods"]:
        assert method["values"]["shift_ece"]["mean"] == pytest.approx(np.mean(fog))
    (other / "shift.json").write_text((other / "shift.json").read_text().replace('"seed": 0', '"seed": 1'))
    assert "shift_ece" not in Report(run, other).content["methods"][0]["values"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ood", "RUN", "--ood", "nowhere"], "'nowhere' is not one of mnist"),
        (["ood", "RUN", "--ood", "svhn", "--data.root", "."], "pass --data.download to download it"),
        (["ood", "RUN", "--ood", "fog:9"], "from fog:1 to fog:5"),
        (["ood", "elsewhere", "--ood", "noise"], "is not a run folder"),
        (["shift", "RUN", "--corruptions", "rain"], "corruption must be one of gaussian_noise, shot_noise"),
        (["shift", "RUN", "--severities", "7"], "--severities must be from 1 to 5, got 7"),
        (["shift", "elsewhere"], "is not a run folder"),
        (["compare", "digits-lt", "--validation", "dirty"], "validation_set"),
    ],
)
def test_what_cannot_be_done_is_said(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run) if a == "RUN" else a for a in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], False), (["--data.download"], True), (["--data.download", "true"], True), (["--data.download", "false"], False)],
)
def test_downloads_have_to_be_asked_for(arguments: list[str], expected: bool) -> None:
    """As the message says that names what is missing, or with a value as in fields of recipes."""
    assert parser().parse_args(["run", "--ood", "svhn", *arguments]).data.download is expected


@pytest.mark.parametrize("command", [["ood", "--ood", "noise"], ["shift"]])
def test_a_broken_file_of_results_is_named(run: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (run / f"{command[0]}.json").write_text("{ broken")
    assert main([command[0], str(run), *command[1:]]) == 2
    assert f"{command[0]}.json is not valid JSON" in capsys.readouterr().err


def test_a_broken_checkpoint_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints/last.ckpt").write_bytes(b"nothing")
    assert main(["shift", str(run), "--corruptions", "fog"]) == 2
    assert "last.ckpt cannot be read" in capsys.readouterr().err


def test_shift_measures_and_goes_on(run: Path) -> None:
    assert main(["shift", str(run), "--corruptions", "contrast", "gaussian_noise", "--severities", "1", "5"]) == 0
    assert (run / "shift.png").stat().st_size > 10_000
    found = json.loads((run / "shift.json").read_text())
    metrics = json.loads((run / "metrics.json").read_text())
    clean = found["results"][0]
    assert (clean["corruption"], clean["severity"]) == ("none", 0)
    for part, name in (("before", "test"), ("after", "test_after_temperature")):
        for measure in ("accuracy", "ece", "nll"):
            assert clean[part][measure] == pytest.approx(metrics[name][measure], abs=1e-6)
    assert len(found["results"]) == 5
    trained = TrainedNetwork.load(run)
    dull = lambda x: (x - x.mean(dim=(2, 3), keepdim=True)) * 0.15 + x.mean(dim=(2, 3), keepdim=True)  # noqa: E731
    by_hand = torch.cat([logits for logits, _ in trained.batches(trained.data.test, dull)])
    worst = next(r for r in found["results"] if (r["corruption"], r["severity"]) == ("contrast", 5))
    right = (by_hand.argmax(1) == trained.data.test.y).double().mean()
    assert worst["before"]["accuracy"] == pytest.approx(float(right))
    assert worst["before"]["ece_low"] <= worst["before"]["ece"] <= worst["before"]["ece_high"]

    whole = RunFolder(run).shift()
    RunFolder(run).write_shift(replace(whole, results=whole.results[:3]))  # as if it had been interrupted
    done = []
    again = shift.measure_shift(
        run,
        corruptions=["contrast", "gaussian_noise"],
        severities=[1, 5],
        advance=lambda number, total: done.append((number, total)),
    )
    assert done == [(1, 2), (2, 2)]
    assert again == whole
    assert json.loads((run / "shift.json").read_text()) == found
    options = {"corruptions": ["contrast"], "severities": [5]}
    some = whole.only({("none", 0), ("contrast", 5)})
    assert len(some.results) == 2
    assert shift.measure_shift(run, load=never, **options) == some
    assert shift.measure_shift(run, **options, force=True) == some
    assert len(RunFolder(run).shift().results) == 5  # of the others, nothing is lost


def test_published_files_are_read_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_, **__: True)  # of the full set
    cifar(tmp_path, 10, train=100, test=40)
    fields = ["--data.root", str(tmp_path), "--data.validation", "20", "--model", "small-cnn", "--epochs", "1", "--quiet"]
    run = tmp_path / "run"
    assert main(["train", "cifar10-resnet50", *fields, "--batch_size", "32", "--out", str(run)]) == 0
    trained = TrainedNetwork.load(run)
    clear = trained.data.test.x.movedim(1, -1).numpy()
    levels = [clear // (1 + level) for level in range(5)]  # darker with each severity
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(trained.data.test.y.numpy(), 5))
    np.save(folder / "zoom_blur.npy", np.concatenate(levels))
    assert main(["shift", str(run), "--severities", "1", "3"]) == 0
    found = json.loads((run / "shift.json").read_text())
    assert found["source"] == "published"
    none, first, third = found["results"]
    assert first["corruption"] == third["corruption"] == "zoom_blur"
    assert first["before"] == pytest.approx(none["before"])
    part = Images(torch.from_numpy(levels[2]).movedim(-1, 1), trained.data.test.y)
    logits = torch.cat([own for own, _ in trained.batches(part)])
    assert third["before"]["nll"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, part.y)), rel=1e-5)
    assert third["before"]["nll"] != pytest.approx(none["before"]["nll"])
    names = {
        "zoom_blur:3": levels[2],
        "CIFAR-10-C/zoom_blur:5": levels[4],
        "CIFAR-10-C/zoom_blur.npy": np.concatenate(levels),
    }
    for name, images in names.items():  # as OOD data
        result = ood.detect(run, name)
        known, unknown = ood.pair(run, name)
        part = Images(torch.from_numpy(images).movedim(-1, 1), torch.zeros(len(images), dtype=torch.int64))
        torch.testing.assert_close(unknown, torch.cat([own for own, _ in trained.batches(part)]), rtol=1e-4, atol=1e-4)
        entropies = np.concatenate([scipy.stats.entropy(z.double().softmax(1).numpy(), axis=1) for z in (known, unknown)])
        low, high = ends(roc_auc_score, np.arange(len(entropies)) >= len(known), entropies)
        assert low <= result.before["entropy"].auroc <= high
        assert high - low < 0.01  # all known images are in the file, once
        assert result.samples == len(images)
    assert ood.detect(run, "zoom_blur:3", load=never) == ood.detect(run, "zoom_blur:3")  # which is not predicted again
    for name, message in {
        "zoom_blur:6": "a corruption has severities from zoom_blur:1 to zoom_blur:5; got 'zoom_blur:6'",
        "CIFAR-10-C/labels.npy": "images must be",
        "CIFAR-10-C/labels:1": "must hold uint8 images",
        "CIFAR-10-C/snow:1": "'CIFAR-10-C/snow:1' is not one of mnist",
    }.items():
        assert main(["ood", str(run), "--ood", name]) == 2
        assert message in capsys.readouterr().err
    whole = (folder / "zoom_blur.npy").read_bytes()
    np.save(folder / "short.npy", np.concatenate(levels)[:20])
    np.save(folder / "turned.npy", np.concatenate(levels).transpose(0, 3, 1, 2))
    (folder / "cut.npy").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.npy").write_bytes(b"")
    broken = {"short": "has 20 images, but there are 200 labels", "turned": "must hold uint8 images"}
    broken |= dict.fromkeys(("cut", "empty"), "cannot be read")
    for name, message in {**broken, "fog": "'fog' is not among the published files of"}.items():
        assert main(["shift", str(run), "--corruptions", name]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_with_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "compare",
        "digits-lt",
        "--losses",
        "adafocal",
        "--seeds",
        "1",
        "--epochs",
        "1",
        "--quiet",
        "--data.limit",
        "120",
    ]
    command += ["--ood", "noise", "--shift", "--validation", "clean", "noisy", "--out", str(tmp_path / "study")]
    assert main(command) == 0
    table = (tmp_path / "study/table.md").read_text()
    for title in ("AUROC, noise, %", "accuracy under shift, %", "ECE under shift, %, post T"):
        assert title in table
    assert "adafocal, validation=noisy" in table
    rows = json.loads((tmp_path / "study/study.json").read_text())["summaries"]
    for row, folder in zip(rows, ("adafocal,validation=clean-seed0", "adafocal,validation=noisy-seed0"), strict=True):
        own = RunFolder(tmp_path / "study" / folder)
        assert row["before"]["auroc:noise"] == [own.ood()["noise"].before["entropy"].auroc]
        assert row["after"]["shift_ece"] == [pytest.approx(own.shift().mean("after", "ece"))]
    capsys.readouterr()
    assert main(command) == 0  # nothing is done again
    assert (tmp_path / "study/table.md").read_text() == table


@pytest.mark.slow
def test_fashion_mnist_doubts_mnist(tmp_path: Path) -> None:
    root = Path(os.environ.get("CALIBRANT_DATA", ""))
    if not (root / "MNIST" / "raw").exists():
        pytest.skip("needs CALIBRANT_DATA with FashionMNIST and MNIST")
    command = [
        "compare",
        "fashion-mnist",
        "--losses",
        "ce",
        "--seeds",
        "1",
        "--epochs",
        "2",
        "--data.limit",
        "2000",
        "--quiet",
    ]
    assert main([*command, "--data.root", str(root), "--ood", "mnist", "--out", str(tmp_path / "study")]) == 0
    row = json.loads((tmp_path / "study/study.json").read_text())["summaries"][0]
    known, unknown = ood.pair(tmp_path / "study/ce-seed0", "mnist")
    assert (len(known), len(unknown)) == (2000, 10_000)
    doubt = [-(z.softmax(1) * z.log_softmax(1)).sum(1) for z in (known.double(), unknown.double())]
    labels = np.r_[np.zeros(2000), np.ones(10_000)]
    low, high = ends(roc_auc_score, labels, torch.cat(doubt).numpy())
    assert low <= row["before"]["auroc:mnist"][0] <= high
    assert high - low < 1e-4
    assert row["before"]["auroc:mnist"][0] > 0.5


def test_small_fashion_mnist_against_small_mnist(tmp_path: Path) -> None:
    fashion_mnist(tmp_path, 120, 30)
    fashion_mnist(tmp_path, 120, 30, name="MNIST")
    run = tmp_path / "run"
    fields = ["--epochs", "1", "--data.validation", "40", "--data.root", str(tmp_path), "--quiet", "--out", str(run)]
    assert main(["train", "fashion-mnist", *fields]) == 0
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path / "FashionMNIST", moved / "FashionMNIST")
    shutil.move(tmp_path / "MNIST", moved / "MNIST")
    shutil.rmtree(tmp_path / "FashionMNIST")
    assert main(["ood", str(run), "--ood", "mnist"]) == 2
    assert main(["ood", str(run), "--ood", "mnist", "--data.root", str(moved)]) == 0
    assert RunFolder(run).ood()["mnist"].samples == 30
