"""The embedded check: a long-tailed problem on which the point of the package shows."""

import importlib.util
from pathlib import Path

import pytest
import torch

from calibrant.data import digits
from calibrant.metrics import accuracy, ece

path = Path(__file__).parents[1] / "examples" / "digits.py"
spec = importlib.util.spec_from_file_location("digits_example", path)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)


def test_digits_have_a_long_tail() -> None:
    data = digits(imbalance=20)
    counts = data.train.y.bincount()
    assert counts.tolist() == [round(int(counts[0]) * 20 ** (-k / 9)) for k in range(10)]
    assert counts[0] == 20 * counts[9] + 4  # 84 and 4, rounded
    assert data.test.y.bincount().tolist() == [70] * 10
    assert data.validation.y.bincount().tolist() == [20] * 10
    parts = torch.cat([part.x.flatten(1) for part in data])
    everything = digits(validation=0, test=0)
    assert len(everything.train.y) == 1740
    assert len(parts.unique(dim=0)) == len(parts)  # no image is in two parts
    assert data.train.x.shape[1:] == (1, 8, 8)
    assert 0 <= data.train.x.min() <= data.train.x.max() <= 1


def test_digits_are_seeded() -> None:
    assert torch.equal(digits(20, seed=1).train.x, digits(20, seed=1).train.x)
    assert not torch.equal(digits(20, seed=1).train.x, digits(20, seed=2).train.x)


def test_cals_halves_the_calibration_error_of_cross_entropy() -> None:
    results = {method: [example.train(method, seed) for seed in range(3)] for method in ("ce", "cals-alm")}
    means = {
        method: (sum(float(ece(*r)) for r in runs) / 3, sum(float(accuracy(*r)) for r in runs) / 3)
        for method, runs in results.items()
    }
    assert means["cals-alm"][0] < means["ce"][0] / 2
    assert means["cals-alm"][1] >= means["ce"][1]


def test_example_from_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("sys.argv", ["digits.py", "--losses", "ce", "adafocal", "--seeds", "2", "--epochs", "1"])
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["digits,", "ce", "adafocal"]
    assert all("ECE" in line and "accuracy" in line for line in lines[1:])
