"""Audits from Python: what they measure, compare, say and show, and that they survive JSON."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from calibrant import functional as cal, stats
from calibrant.audit import Audit, audit, compare, figure, short_names, tables
from calibrant.errors import InputError
from calibrant.files import finite
from calibrant.metrics import MEASURES
from calibrant.predictions import open_predictions

N, K = 400, 4
FAST = {"resamples": 20}


def samples(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    logits = 4 * random.normal(size=(N, K))
    return torch.from_numpy(logits), torch.from_numpy((logits / 2 + random.gumbel(size=(N, K))).argmax(1))


Z, Y = samples()


def save(path: Path, logits: torch.Tensor = Z, target: torch.Tensor = Y, **more: np.ndarray) -> Path:
    np.savez(path, logits=logits.numpy(), target=target.numpy(), **more)
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    counts = {"train_counts": np.array([500, 50, 50, 5]), "classes": np.array(["ant", "[b]bee[/b]", "cat", "<dog>"])}
    return save(tmp_path_factory.mktemp("audit") / "mine.npz", **counts)


@pytest.fixture(scope="module")
def found(file: Path) -> Audit:
    return audit(file)


def test_measures_are_those_of_the_functions(file: Path, found: Audit) -> None:
    assert (found.name, found.source, found.samples, found.num_bins) == ("mine", str(file), N, 15)
    for key in ("accuracy", "nll", "ece", "mce", "classwise_ece"):
        assert found[key] == pytest.approx(float(MEASURES[key].function(Z, Y)), abs=1e-6), key
    for key in ("adaptive_ece", "debiased_ece", "sweep_ece", "smooth_ece", "aurc"):
        assert found[key] == pytest.approx(float(MEASURES[key].function(Z, Y)), abs=2e-3), key
    assert found["brier"] == pytest.approx(float(cal.brier_score(Z, Y)))
    assert found["error"] == pytest.approx(1 - found["accuracy"])
    assert set(found.how) <= set(found.values) <= set(MEASURES)
    assert "15 " in found.how["ece"]
    assert not found.dense
    assert not {"mean_iou", "foreground_iou"} & set(found.values)
    assert sum(found.bins.counts) == N
    assert found.bins.statistics().correct.sum() == pytest.approx(N * found["accuracy"])
    exact = stats.calibration_test(Z, Y)
    assert found.test.p_value == pytest.approx(exact.p_value, abs=0.01)


def test_classes_and_groups(found: Audit) -> None:
    assert [row.name for row in found.classes] == ["ant", "[b]bee[/b]", "cat", "<dog>"]
    for k, row in enumerate(found.classes):
        own = k == Y
        assert row.samples == int(own.sum())
        assert row.accuracy == pytest.approx(float(cal.accuracy(Z[own], Y[own])))
        assert row.ece == pytest.approx(float(cal.ece(Z[own], Y[own])))
    assert sum(row.classwise_ece for row in found.classes) / K == pytest.approx(found["classwise_ece"])
    assert list(found.groups) == ["head", "medium", "tail"]
    medium = (Y == 1) | (Y == 2)
    assert found.groups["medium"].samples == int(medium.sum())
    assert found.groups["medium"].nll == pytest.approx(float(cal.nll(Z[medium], Y[medium])))


def test_options(file: Path, found: Audit) -> None:
    halved = audit(open_predictions(file), "halved", transform=lambda z: z / 2, num_bins=10, counts=[5, 5, 5, 5], **FAST)
    assert halved.name == "halved"
    assert halved["ece"] == pytest.approx(float(cal.ece(Z / 2, Y, num_bins=10)))
    assert halved["accuracy"] == found["accuracy"]
    assert [group.samples for group in halved.groups.values()] == [0, 0, N]
    steps: list[int] = []
    again = audit(file, advance=steps.append, seed=1, **FAST)
    assert sum(steps) == N
    assert again.values == found.values
    assert again.intervals["ece"] != found.intervals["ece"]
    assert again.kept is None


def test_an_audit_survives_json(found: Audit, tmp_path: Path) -> None:
    content = json.loads(json.dumps(finite(found.to_dict()), allow_nan=False))
    assert content["ece"] == found["ece"]
    assert content["how"] == found.how
    again = Audit.from_dict(content)
    assert again == found
    assert again.intervals["ece"] == found.intervals["ece"]
    assert again.verdict == found.verdict
    few = audit(save(tmp_path / "few.npz", Z[Y < 3], Y[Y < 3]), **FAST)
    content = json.loads(json.dumps(finite(few.to_dict()), allow_nan=False))
    assert content["classes"][3]["accuracy"] is None
    again = Audit.from_dict(content)
    assert math.isnan(again.classes[3].accuracy)
    assert finite(again.to_dict()) == finite(few.to_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": "many"}, "here.samples: expected int, got 'many'"),
        ({"ece": "much"}, "here.ece: expected a number, got 'much'"),
        ({"bins": {"counts": [1]}}, "here.bins: confidence is missing"),
        ({"intervals": {"ece": {"value": 1}}}, "here.intervals.ece: low is missing"),
        ({"classes": [3]}, r"here.classes\[0\]: expected an object, got 3"),
    ],
)
def test_broken_audits_are_refused_by_place(found: Audit, change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Audit.from_dict({**found.to_dict(), **change}, "here")
    with pytest.raises(InputError, match="here: expected an object, got list"):
        Audit.from_dict([], "here")


def test_verdicts(found: Audit, tmp_path: Path) -> None:
    interval = found.intervals["debiased_ece"]
    ends = f"95% interval {100 * interval.low:.1f} to {100 * interval.high:.1f}"
    off = f"confidence is off by {100 * found['debiased_ece']:.1f} points on average ({ends})"
    assert found.verdict == f"mine: {off}; the model is overconfident. Chance alone does not explain this (p < 0.001)."
    timid = audit(save(tmp_path / "timid.npz", Z / 5), **FAST)
    assert "the model is underconfident. Chance alone does not explain this (p = 0.0" in timid.verdict
    calm = audit(save(tmp_path / "calm.npz", Z / 2), resamples=200)
    assert calm.test.p_value > 0.05
    assert calm.verdict.endswith(f"These 400 samples are consistent with perfect calibration (p = {calm.test.p_value:.2f}).")
    assert replace(found, test=None).verdict.endswith("the model is overconfident.")


def test_segmented_images(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    logits = torch.from_numpy(3 * random.normal(size=(6, 3, 9, 8)))
    target = (logits / 2 + torch.from_numpy(random.gumbel(size=logits.shape))).argmax(1)
    found = audit(save(tmp_path / "d.npz", logits, target, train_counts=np.array([500, 50, 5])), keep=True, **FAST)
    assert found.dense
    assert found["mean_iou"] == pytest.approx(float(cal.mean_iou(logits, target)))
    assert found["image_ece"] == pytest.approx(float(cal.per_image(cal.ece, logits, target)))
    assert (found.test, found.kept, found.groups) == (None, None, {})  # pixels are not independent, nor counted by class
    assert Audit.from_dict(found.to_dict()) == found


def test_nothing_to_measure(tmp_path: Path) -> None:
    save(tmp_path / "p.npz", Z, torch.full_like(Y, -100))
    with pytest.raises(InputError, match="p.npz: every sample has the ignored label -100; there is nothing to measure"):
        audit(tmp_path / "p.npz")


# Comparisons


def test_comparisons_are_paired(file: Path, tmp_path: Path) -> None:
    first, second = audit(file, keep=True, **FAST), audit(save(tmp_path / "half.npz", Z / 2), keep=True, **FAST)
    assert first == audit(file, **FAST)  # what is kept is no part of what was found
    assert len(first.kept.labels) == N
    found = compare(first, second, resamples=500)
    assert (found.first, found.second) == ("mine", "half")
    exact = stats.compare("ece", Z, Z / 2, Y)
    assert found.measures["ece"].difference == pytest.approx(exact.difference, rel=1e-5)
    assert found.measures["ece"].low == pytest.approx(exact.low, abs=0.01)
    assert found.measures["nll"].difference == pytest.approx(first["nll"] - second["nll"], rel=1e-5)
    assert (found.measures["accuracy"].difference, found.measures["accuracy"].p_value) == (0, 1)
    assert found.to_dict()["measures"]["ece"]["difference"] == found.measures["ece"].difference
    _, difference, ends, p = next(row for row in found.rows() if row[0].startswith("ECE"))
    assert difference == f"{100 * found.measures['ece'].difference:+.2f}"
    assert ends.count("+") + ends.count("-") == 2
    assert p == "< 0.001" or float(p) == pytest.approx(found.measures["ece"].p_value, abs=5e-4)


def test_what_cannot_be_compared(file: Path, tmp_path: Path) -> None:
    first = audit(file, keep=True, **FAST)
    other = audit(save(tmp_path / "other.npz", Z, (Y + 1) % K), keep=True, **FAST)
    with pytest.raises(InputError, match="mine.npz and .*other.npz have different labels, .* evaluate the files one at a"):
        compare(first, other)
    assert compare(first, audit(file, **FAST)).measures == {}  # which did not keep its samples


# Showing


def shown(*audits: Audit, comparisons: tuple = (), worst: int = 5) -> str:
    console = Console(width=200, file=io.StringIO())
    for table in tables(audits, comparisons, worst=worst):
        console.print(table)
    return console.file.getvalue()


def test_tables_and_pages(found: Audit, file: Path, tmp_path: Path) -> None:
    ece = f"{100 * found['ece']:.2f} [{100 * found.intervals['ece'].low:.2f}, {100 * found.intervals['ece'].high:.2f}]"
    assert found.text(MEASURES["ece"]) == ece
    assert repr(found).startswith(f"Audit(mine, 400 samples: accuracy, % {100 * found['accuracy']:.2f} [")
    text = shown(found)
    for expected in (
        ece,
        "head (",
        "[b]bee[/b]",
        "<dog>",
        "consistency resampling",
        found.how["ece"],
        "400 samples, 4 classes",
    ):
        assert expected in text
    assert "Worst-calibrated classes" not in shown(found, worst=0)
    page = found._repr_html_()
    assert ece in page
    assert "mine: 400 samples" in page
    first, second = audit(file, keep=True, **FAST), audit(save(tmp_path / "half.npz", Z / 2), keep=True, **FAST)
    both = shown(first, second, comparisons=(compare(first, second, **FAST),))
    assert "Paired differences on the same samples" in both
    assert "mine - half" in both
    assert "mine: ECE" in both  # of the groups that its file knows
    assert "half: ECE" not in both
    assert "mine: ECE" in shown(second, first)
    assert "consistency resampling" not in both  # there is no room to say how
    figure([first, second]).savefig(tmp_path / "f.png")
    assert (tmp_path / "f.png").stat().st_size > 10_000


def test_names_are_as_long_as_they_have_to_be() -> None:
    paths = [Path(name) for name in ("runs/a/test.npz", "runs/b/test.npz")]
    assert short_names(paths) == ["a/test", "b/test"]
    assert short_names(paths[:1]) == ["test"]
    assert short_names([Path("a.npz"), Path("b.csv")]) == ["a", "b"]
    assert short_names([Path("x/a.npz")] * 2) == ["a (1)", "a (2)"]


def test_an_audit_with_a_bin_missing_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", logits=np.eye(4) * 3, target=np.arange(4))
    content = json.loads(json.dumps(audit(tmp_path / "some.npz", resamples=20).to_dict()))
    del content["bins"]["counts"][3]
    with pytest.raises(InputError, match="audit.bins: expected 15 bins, got 14, 15"):
        Audit.from_dict(content)
