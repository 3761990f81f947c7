"""Bins of training and validation samples over epochs, against NumPy on the samples themselves."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant.metrics import BinRecorder, EpochBins, epochs
from calibrant.plots import BinCurves
from calibrant.runs import Run, RunFolder
from calibrant.train import fit
from calibrant.train.predictor import Predictor
from calibrant.train.preparing import prepare


def brute_force(values: np.ndarray, correct: np.ndarray, edges: list[float]) -> list[tuple[int, float, float]]:
    """Samples, mean and accuracy of the bins (lower, upper], sample by sample."""
    found: list[list[int]] = [[] for _ in range(len(edges) + 1)]
    for i, value in enumerate(values):
        found[sum(value > edge for edge in edges)].append(i)
    mean = lambda own, array: float(np.mean(array[own])) if own else np.nan  # noqa: E731
    return [(len(own), mean(own, values), mean(own, correct)) for own in found]


def quantiles(values: np.ndarray, bins: int) -> list[float]:
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, k * len(ordered) // bins)] for k in range(1, bins)]


def outcomes(logits: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shares = np.exp(logits.astype(float) - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return shares.max(1), shares[np.arange(len(target)), target], (shares.argmax(1) == target).astype(float)


def check(bins: EpochBins, row: int, data: dict[str, Any], *, tolerance: float = 1e-5, moved: int = 0) -> None:
    """All kinds of bins of a row are those of the samples; with ``moved``, a few may lie in a neighbouring bin."""
    number = bins.num_bins
    top = outcomes(*data["validation"])[0]
    for place, (part, label, binning) in enumerate(epochs.SERIES):
        highest, true, correct = outcomes(*data[part])
        values = highest if label == "top" else true
        edges = quantiles(top if binning == "common" else values, number)
        want = brute_force(values, correct, edges)
        np.testing.assert_allclose(bins.edges[row, place], edges, atol=tolerance)
        np.testing.assert_allclose(bins.counts[row, place], [count for count, _, _ in want], atol=moved)
        np.testing.assert_allclose(bins.confidence[row, place], [mean for _, mean, _ in want], atol=tolerance)
        np.testing.assert_allclose(bins.accuracy[row, place], [mean for _, _, mean in want], atol=max(1e-6, moved / 20))


def random(samples: int, scale: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return scale * generator.normal(size=(samples, 4)).astype(np.float32), generator.integers(4, size=samples)


@pytest.mark.parametrize("waiting", [2**22, 100])
def test_bins_are_those_of_the_samples(waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "WAITING", waiting)
    recorder, rows, given = BinRecorder(num_bins=5), [], []
    for epoch in range(2):
        data = {"train": random(331, 1 + epoch, epoch), "validation": random(97, 2, 10 + epoch)}
        given.append(data)
        for part, (logits, target) in data.items():
            for some in np.array_split(np.arange(len(target)), 7):
                getattr(recorder, part)(torch.tensor(logits[some]), torch.tensor(target[some]))
        rows.append(recorder.take())
    bins = EpochBins.from_rows(rows, [1, 2])
    assert bins.epochs.tolist() == [1, 2]
    for row, data in enumerate(given):
        check(bins, row, data)
    own = bins.of("train", label="true", binning="common")
    np.testing.assert_allclose(own.error, own.confidence - own.accuracy)
    np.testing.assert_array_equal(own.edges, bins.of("validation").edges)


def test_many_samples_are_added_up_on_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "EXACT", 150)
    monkeypatch.setattr(epochs, "WAITING", 200)
    recorder = BinRecorder(num_bins=5)
    data = {"train": random(2000, 2, 0), "validation": random(500, 2, 1)}
    for part, (logits, target) in data.items():
        for some in np.array_split(np.arange(len(target)), 7):
            getattr(recorder, part)(torch.tensor(logits[some]), torch.tensor(target[some]))
    check(EpochBins.from_rows([recorder.take()], [1]), 0, data, tolerance=1e-3, moved=3)


def test_ignored_samples_overflows_and_nothing_at_all() -> None:
    recorder = BinRecorder(num_bins=3, ignore_index=255)
    logits, target = map(torch.tensor, random(60, 2, 0))
    target[::2] = 255
    logits[1] = torch.inf  # no softmax
    recorder.train(logits, target)
    row = EpochBins.from_rows([recorder.take()], [1])
    assert row.of("train").counts.sum() == 29
    assert np.isnan(row.of("validation").confidence).all()
    assert row.of("validation").counts.sum() == 0
    recorder.train(logits, target)
    recorder.forget()
    assert recorder.take()["counts"].sum() == 0


def test_of_images_an_even_grid_of_pixels_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "PIXELS", 100)
    recorder = BinRecorder(num_bins=3)
    logits, target = torch.randn(2, 4, 20, 30), torch.randint(4, (2, 20, 30))
    recorder.validation(logits, target)
    recorder.train(logits, target)
    some = logits[:, :, ::4, ::4].movedim(1, -1).reshape(-1, 4).numpy(), target[:, ::4, ::4].reshape(-1).numpy()
    check(EpochBins.from_rows([recorder.take()], [1]), 0, {"train": some, "validation": some})


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose network does not move: its training samples can be measured again."""
    fields: dict[str, Any] = {
        "batch_size": 50,
        "data.limit": 200,
        "model": "mlp",
        "epochs": 2,
        "optimizer.lr": 1e-12,
        "num_bins": 4,
        "validate_every": 0.5,
    }
    found = fit("digits", tmp_path_factory.mktemp("still") / "run", quiet=True, **fields)
    assert found is not None
    return found


def test_a_run_keeps_the_bins_of_what_it_trained_on(still: Run) -> None:
    bins = still.folder.bins()
    assert bins is not None
    assert bins.epochs.tolist() == [0.5, 1, 1.5, 2]
    prepared = prepare(still.recipe)
    weights = torch.load(still.folder.checkpoint("last"), weights_only=True)["state_dict"]
    prepared.network.load_state_dict({name.removeprefix("network."): value for name, value in weights.items()})
    predictor = Predictor(still.recipe, prepared.data, prepared.network.eval(), prepared.loss, torch.device("cpu"))
    trained = [array.numpy() for array in predictor.in_order(prepared.data.train)]
    validated = [array.numpy() for array in still.folder.open("validation").read_all()]
    assert bins.of("train").counts.sum(axis=1).tolist() == [100] * 4  # each validation sees the batches before it
    top, _, correct = outcomes(*validated)
    want = brute_force(top, correct, quantiles(top, 4))
    np.testing.assert_allclose(bins.of("validation").confidence[0], [mean for _, mean, _ in want], atol=1e-4)
    np.testing.assert_allclose(bins.of("validation").accuracy[0], [mean for _, _, mean in want], atol=0.03)
    for label, values in zip(("top", "true"), outcomes(*trained)[:2], strict=True):
        own = bins.of("train", label=label)
        mean = np.nansum(own.counts[:2] * own.confidence[:2]) / own.counts[:2].sum()
        assert mean == pytest.approx(values.mean(), abs=1e-4)


def test_the_adaptive_error_of_the_history_is_that_of_the_bins(still: Run) -> None:
    bins = still.folder.bins()
    assert bins is not None
    own = bins.of("validation")
    errors = (own.counts * np.abs(own.error)).sum(axis=1) / own.counts.sum(axis=1)
    assert [row["adaptive_ece"] for row in still.folder.history()] == pytest.approx(errors.tolist(), abs=0.02)


def test_older_runs_have_no_bins(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).bins() is None
    np.savez(tmp_path / "bins.npz", other=np.zeros(3))
    with pytest.raises(Exception, match="bins.npz cannot be read; delete it"):
        RunFolder(tmp_path).bins()


def test_curves_hold_the_means_over_runs() -> None:
    generator = torch.Generator().manual_seed(0)

    def run(length: int) -> EpochBins:
        recorder, rows = BinRecorder(num_bins=5), []
        for _ in range(length):
            for part in ("train", "validation"):
                logits = torch.randn(60, 3, generator=generator)
                getattr(recorder, part)(logits, torch.randint(3, (60,), generator=generator))
            rows.append(recorder.take())
        return EpochBins.from_rows(rows, range(1, length + 1))

    runs = {"ce": [run(3), run(4)], "fl": [run(3)]}
    gammas = {"fl": np.arange(15.0).reshape(3, 5)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curves = BinCurves.from_bins(runs, rows=["error", "all", "labels", "edges", "gamma"], gammas=gammas)
    assert (curves.names, curves.bins, curves.epochs) == (["ce", "fl"], [0, 2, 4], [[1, 2, 3]] * 2)
    first, second = (own.of("validation").error for own in runs["ce"])
    np.testing.assert_allclose(curves.rows["error"]["validation"][0][1], (first[:, 2] + second[:3, 2]) / 2, rtol=1e-6)
    alone = runs["fl"][0]
    np.testing.assert_allclose(curves.rows["all"]["accuracy"][1][2], alone.of("validation").accuracy[:, 4])
    train = alone.of("train", label="true", binning="common").confidence[:, 0]
    np.testing.assert_allclose(curves.rows["all"]["train"][1][0], train)
    own = alone.of("train", label="top", binning="independent").confidence[:, 0]
    independent = BinCurves.from_bins(runs, rows=["confidence"], label="top", binning="independent")
    np.testing.assert_allclose(independent.rows["confidence"]["train"][1][0], own)
    assert curves.rows["edges"]["lower"][1][0] == [0, 0, 0]
    assert curves.rows["edges"]["upper"][1][2] == [1, 1, 1]
    assert curves.rows["gamma"]["gamma"][1] == [[0, 5, 10], [2, 7, 12], [4, 9, 14]]
    ax = curves.plot()
    drawn = [own for own in ax.child_axes if own.get_visible()]
    assert len(drawn) == 15
    np.testing.assert_allclose(
        drawn[1].lines[0].get_ydata(), 100 * np.array(curves.rows["error"]["validation"][0][1]), rtol=1e-6
    )


def test_tokens_and_volumes_are_samples_too() -> None:
    """With any number of spatial dimensions, and every n-th place along each of them where there are many."""
    for shape in ((7,), (4, 3), (2, 3, 2)):
        logits, target = torch.randn(5, 3, *shape), torch.randint(3, (5, *shape))
        dense, flat = BinRecorder(num_bins=3), BinRecorder(num_bins=3)
        for recorder, z, y in ((dense, logits, target), (flat, logits.movedim(1, -1).reshape(-1, 3), target.reshape(-1))):
            recorder.train(z, y)
            recorder.validation(z, y)
        found, expected = dense.take(), flat.take()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, equal_nan=True)
    recorder = BinRecorder(num_bins=1)
    recorder.validation(torch.zeros(1, 2, 3 * epochs.PIXELS), torch.zeros(1, 3 * epochs.PIXELS, dtype=torch.long))
    assert epochs.PIXELS // 2 < int(recorder.take()["counts"][0].sum()) <= epochs.PIXELS
