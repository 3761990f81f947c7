"""What every calibrator keeps to, and each against something independent."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from calibrant import functional as cal, posthoc
from calibrant.posthoc import CALIBRATORS
from calibrant.posthoc.spline import natural_spline
from golden_cases import cases
from processes import run_as_ranks

DENSE = "local-temperature"
every = pytest.mark.parametrize("key", CALIBRATORS)
flat = pytest.mark.parametrize("key", [key for key, entry in CALIBRATORS.items() if not entry.dense])
#: Those that minimise the NLL over a family that holds the identity.
OPTIMAL = ["temperature", "ets", "vector", "matrix", "dirichlet", DENSE]


def sample(n: int, k: int, sharpness: float, seed: int = 0, *, dense: bool = False) -> tuple[Tensor, Tensor]:
    """Logits that are ``sharpness`` times too large; as images if ``dense``."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n // 64, k, 8, 8) if dense else (n, k)
    logits = 2 * torch.randn(shape, generator=generator)
    probs = logits.softmax(1).movedim(1, -1)
    target = torch.multinomial(probs.reshape(-1, k), 1, generator=generator).view(probs.shape[:-1])
    return sharpness * logits, target


def for_key(key: str, n: int = 1920, k: int = 5, sharpness: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    return sample(n, k, sharpness, seed, dense=key == DENSE)


def create(key: str, epochs: int = 3) -> posthoc.Calibrator:
    return posthoc.create(key, **({"epochs": epochs} if key == DENSE else {}))


@every
@pytest.mark.parametrize("k", [2, 5])
def test_makes_overconfident_predictions_better(key: str, k: int) -> None:
    logits, target = for_key(key, k=k)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrator = create(key).fit(logits, target)
    log_probs = calibrator.transform(logits)
    assert log_probs.shape == logits.shape
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones_like(target, dtype=torch.float32), atol=1e-5, rtol=0)
    assert cal.nll(log_probs, target) < cal.nll(logits, target)
    assert cal.ece(log_probs, target) < cal.ece(logits, target) / 2
    new, labels = for_key(key, k=k, seed=1)
    assert cal.ece(calibrator.transform(new), labels) < cal.ece(new, labels) / 2


@every
@pytest.mark.parametrize("sharpness", [0.5, 0.7, 1.0, 3.0])
def test_never_worse_than_the_identity_on_its_own_data(key: str, sharpness: float) -> None:
    logits, target = for_key(key, 3200, 4, sharpness)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrator = create(key).fit(logits, target)
    before, after = cal.nll(logits, target), cal.nll(calibrator.transform(logits), target)
    assert after <= before + 1e-6
    mixed = any("alone would make the predictions it was fitted on worse" in str(w.message) for w in caught)
    assert mixed == (getattr(calibrator, "share_", None) is not None)
    assert not (mixed and key in OPTIMAL)


def test_the_share_is_the_best(tmp_path: Path) -> None:
    logits, target = sample(3000, 4, 1.0)
    with pytest.warns(UserWarning, match="alone would make .* its share is"):
        calibrator = posthoc.HistogramBinning(num_bins=3).fit(logits, target)
    share = float(calibrator.share_)
    assert 0 <= share < 1
    mixed = calibrator.predict_proba(logits.double())
    plain = logits.double().softmax(1)
    calibrator.share_ = None
    alone = calibrator.predict_proba(logits.double())
    torch.testing.assert_close(mixed, share * alone + (1 - share) * plain)
    grid = torch.stack([cal.nll((w * alone + (1 - w) * plain).log(), target) for w in torch.linspace(0, 1, 101).double()])
    assert abs(int(grid.argmin()) / 100 - share) <= 0.011
    calibrator.share_ = torch.tensor(share, dtype=torch.float64)
    calibrator.save(tmp_path / "saved")
    assert torch.equal(posthoc.load(tmp_path / "saved").transform(logits), calibrator.transform(logits))


@given(seed=st.integers(0, 10**6), k=st.integers(2, 6), sharpness=st.floats(0.2, 5))
@settings(max_examples=25, deadline=None)
def test_the_predicted_class_stays_where_it_is_promised(seed: int, k: int, sharpness: float) -> None:
    for key, entry in CALIBRATORS.items():
        if not entry.preserves_accuracy:
            continue
        logits, target = for_key(key, 192, k, sharpness, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibrator = create(key, epochs=1).fit(logits, target)
        new, _ = for_key(key, 192, k, sharpness, seed + 1)
        assert torch.equal(calibrator.transform(new).argmax(1), new.argmax(1)), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("key", ["spline", "temperature", "ets"])
def test_a_lead_of_one_digit_is_kept(key: str, dtype: torch.dtype) -> None:
    logits, target = for_key(key, 192, 2, 0.25, 422)
    calibrator = posthoc.create(key).fit(logits, target)
    if key == "temperature":
        calibrator.temperature_ = torch.tensor(900.0, dtype=torch.float64)
    close = torch.tensor([[0.018, 0.018], [0.018, 0.018]], dtype=dtype)
    close[0, 1] = torch.tensor(0.018, dtype=dtype) * (1 + 2 * torch.finfo(dtype).eps)
    assert calibrator.transform(close).argmax(1).tolist() == [1, 0]


def test_promises_about_accuracy() -> None:
    keeps = {key for key, entry in CALIBRATORS.items() if entry.preserves_accuracy}
    assert keeps == {"temperature", "ets", "spline", DENSE}


@every
def test_the_table_says_what_the_classes_say(key: str) -> None:
    entry, calibrator = CALIBRATORS[key], posthoc.create(key)
    assert type(calibrator) is entry.load() is getattr(posthoc, entry.name)
    assert (calibrator.key, calibrator.preserves_accuracy) == (key, entry.preserves_accuracy)
    assert entry.dense == (key == DENSE)
    assert entry.title
    assert entry.paper


def test_created_by_key() -> None:
    assert posthoc.create("histogram", num_bins=7, binning="width").options == {"num_bins": 7, "binning": "width"}
    with pytest.raises(
        ValueError, match="calibrator must be one of temperature, .*, got 'isotonik'; did you mean 'isotonic'"
    ):
        posthoc.create("isotonik")


# The same for arrays, images, parts that are ignored, probabilities of 0


@every
def test_array_in_array_out(key: str) -> None:
    logits, target = for_key(key, 640)
    arrays = create(key).fit(logits.numpy(), target.numpy().astype(np.uint8))
    tensors = create(key).fit(logits, target)
    for method in ("transform", "predict_proba"):
        result = getattr(arrays, method)(logits.numpy())
        assert isinstance(result, np.ndarray)
        np.testing.assert_array_equal(result, getattr(tensors, method)(logits).numpy())
    np.testing.assert_allclose(arrays.predict_proba(logits.numpy()), np.exp(arrays.transform(logits.numpy())), rtol=1e-5)


@flat
def test_pixels_are_samples_and_ignored_ones_are_not(key: str) -> None:
    logits, target = sample(640, 4, 2.0, dense=True)
    void = torch.rand(target.shape, generator=torch.Generator().manual_seed(5)) < 0.3
    dense = create(key).fit(logits, target.masked_fill(void, 255), ignore_index=255)
    as_rows = logits.movedim(1, -1)[~void]
    plain = create(key).fit(as_rows, target[~void])
    for name in plain.learned:
        torch.testing.assert_close(getattr(dense, name), getattr(plain, name), rtol=1e-5, atol=1e-6)
    expected = plain.transform(logits.movedim(1, -1).reshape(-1, 4)).view(10, 8, 8, 4).movedim(-1, 1)
    torch.testing.assert_close(dense.transform(logits), expected, rtol=1e-4, atol=1e-5)


def test_local_temperature_leaves_void_pixels_out() -> None:
    logits, target = sample(640, 4, 2.0, dense=True)
    void = torch.zeros_like(target, dtype=torch.bool)
    void[:, :, 4:] = True
    labels = [target.masked_fill(void, 255), ((target + 1) % 4).where(void, target).masked_fill(void, 255)]
    first, second = (posthoc.LocalTemperatureScaling(epochs=2).fit(logits, y, ignore_index=255) for y in labels)
    assert torch.equal(first.transform(logits), second.transform(logits))
    temperatures = first.temperatures(logits)
    assert temperatures.shape == (10, 1, 8, 8)
    assert temperatures.std() > 0


def test_local_temperature_finds_where_a_network_is_too_sure() -> None:
    logits, target = sample(64 * 40, 4, 1.0, dense=True)
    sharp = torch.where(logits[:, :1] > 0, 3.0, 1.0)  # too sure in a place that the logits tell
    local = posthoc.LocalTemperatureScaling(epochs=30).fit(logits * sharp, target)
    plain = posthoc.TemperatureScaling().fit(logits * sharp, target)
    assert cal.nll(local.transform(logits * sharp), target) < cal.nll(plain.transform(logits * sharp), target) - 0.01
    temperatures = local.temperatures(logits * sharp)
    assert temperatures[sharp == 3].mean() > 1.5 * temperatures[sharp == 1].mean()


@flat
def test_probabilities_of_zero(key: str) -> None:
    logits, target = sample(800, 4, 2.0)
    probs = logits.softmax(1)
    probs = torch.where((probs < 0.01) & (target[:, None] != torch.arange(4)), 0, probs)
    logits = cal.from_probs(probs / probs.sum(1, keepdim=True))
    assert logits.isneginf().any()
    calibrator = create(key).fit(logits, target)
    assert calibrator.transform(logits).exp().isfinite().all()
    assert cal.nll(calibrator.transform(logits), target).isfinite()


@every
def test_half_precision_and_double(key: str) -> None:
    logits, target = for_key(key, 640)
    calibrator = create(key).fit(logits, target)
    expected = calibrator.transform(logits)
    assert calibrator.transform(logits.half()).dtype == torch.float32
    off = (calibrator.transform(logits.half()) - expected).abs() > 0.05 + 0.05 * expected.abs()
    assert off.double().mean() < 0.03  # maps with steps jump
    assert calibrator.transform(logits.double()).dtype == torch.float64
    torch.testing.assert_close(calibrator.transform(logits.double()), expected.double(), rtol=1e-4, atol=1e-4)


# Files and networks


@every
def test_saved_and_loaded(key: str, tmp_path: Path) -> None:
    logits, target = for_key(key, 640)
    calibrator = create(key).fit(logits, target)
    calibrator.save(tmp_path / "deep" / "saved")
    assert sorted(p.name for p in (tmp_path / "deep" / "saved").iterdir()) == ["calibrator.json", "state.safetensors"]
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["saved"]
    loaded = posthoc.load(tmp_path / "deep" / "saved")
    assert type(loaded) is type(calibrator)
    assert loaded.options == calibrator.options
    assert torch.equal(loaded.transform(logits), calibrator.transform(logits))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    logits, target = sample(200, 3, 2.0)
    calibrator = posthoc.TemperatureScaling().fit(logits, target)
    calibrator.save(tmp_path / "a")
    with pytest.raises(FileExistsError, match="already exists; pass `force=True` to replace it"):
        calibrator.save(tmp_path / "a")
    calibrator.save(tmp_path / "a", force=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("...")
    with pytest.raises(FileExistsError, match="already exists; choose another name"):
        calibrator.save(tmp_path / "other", force=True)
    assert (tmp_path / "other" / "thesis.tex").exists()


def test_what_is_no_calibrator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not hold a calibrator"):
        posthoc.load(tmp_path)
    logits, target = sample(200, 3, 2.0)
    posthoc.TemperatureScaling().fit(logits, target).save(tmp_path / "a")
    options = json.loads((tmp_path / "a" / "calibrator.json").read_text())
    (tmp_path / "a" / "calibrator.json").write_text(json.dumps(options | {"calibrator": "os.system"}))
    with pytest.raises(ValueError, match="does not hold a calibrator"):
        posthoc.load(tmp_path / "a")
    with pytest.raises(RuntimeError, match="not fitted yet"):
        posthoc.VectorScaling().save(tmp_path / "b")


@every
def test_wrapped_network_exports(key: str) -> None:
    logits, target = for_key(key, 640)
    calibrator = create(key).fit(logits, target)
    torch.manual_seed(0)
    network = nn.Conv2d(3, 5, 1) if key == DENSE else nn.Linear(3, 5)
    x = torch.randn(6, 3, 8, 8) if key == DENSE else torch.randn(6, 3)
    wrapped = calibrator.wrap(network.eval())
    torch.testing.assert_close(wrapped(x).detach(), calibrator.transform(network(x).detach()))
    program = torch.export.export(wrapped, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    other = torch.cat([x, x])[:9] + 0.1
    torch.testing.assert_close(program.module()(other), wrapped(other))


# Bad input


@flat
def test_bad_input(key: str) -> None:
    logits, target = sample(200, 3, 2.0)
    calibrator = create(key)
    with pytest.raises(RuntimeError, match="not fitted yet; call fit"):
        calibrator.transform(logits)
    with pytest.raises(ValueError, match="target has value 7 but logits have 3 classes"):
        calibrator.fit(logits, target + 5)
    with pytest.raises(ValueError, match="nothing to fit"):
        calibrator.fit(logits, torch.full_like(target, -100))
    with pytest.raises(ValueError, match="row 3 has no softmax"):
        calibrator.fit(logits.index_fill(0, torch.tensor([3]), torch.nan), target)
    with pytest.raises(TypeError, match="logits cannot be converted to an array"):
        calibrator.fit([[1.0, 2.0], [3.0]], target)
    calibrator.fit(logits, target)
    with pytest.raises(ValueError, match="logits have 4 classes .* was fitted on 3"):
        calibrator.transform(torch.zeros(2, 4))


def test_local_temperature_needs_images() -> None:
    with pytest.raises(ValueError, match="for dense predictions .* use TemperatureScaling"):
        posthoc.LocalTemperatureScaling().fit(*sample(200, 3, 2.0))


# Temperature


@pytest.mark.parametrize("case", [case for case in cases("posthoc") if "logits" in case], ids=lambda case: case.id)
def test_golden_temperatures(case) -> None:
    logits, target = torch.from_numpy(case.arrays["logits"]), torch.from_numpy(case.arrays["labels"])
    best = float(case.arrays["T_nll_optimum_ref64"])
    for values, tolerance in ((logits.double(), 1e-8), (logits, 1e-5)):
        assert float(posthoc.TemperatureScaling().fit(values, target).temperature_) == pytest.approx(best, rel=tolerance)
    scaled = posthoc.TemperatureScaling().fit(logits, target).transform(logits.double())
    assert float(cal.nll(scaled, target)) == pytest.approx(float(case.arrays["nll_at_optimum_ref64"]), rel=1e-9)
    by_ece = posthoc.TemperatureScaling(criterion="ece").fit(logits.double(), target)
    assert float(by_ece.temperature_) == pytest.approx(float(case.arrays["T_grid100_ece"]), abs=1e-6)


@pytest.mark.parametrize(
    "case", [case for case in cases("posthoc") if case.method == "beta_calibration"], ids=lambda case: case.id
)
def test_golden_beta_calibration(case) -> None:
    calibrator = posthoc.BetaCalibration(form=case.params["parameters"])
    calibrator.fit(case["cal_probs"], case["cal_labels"], probs=True, task="binary")
    found = calibrator.predict_proba(case["test_probs_in"], probs=True, task="binary")
    torch.testing.assert_close(found, case["test_probs_ref64"], rtol=0, atol=1e-6)
    case.check(found, "test_probs")
    for name, value in (("a_ref64", calibrator.slopes_[0, 0]), ("b_ref64", calibrator.slopes_[1, 0])):
        torch.testing.assert_close(value, case[name], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(calibrator.intercept_[0], case["c_ref64"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "case", [case for case in cases("posthoc") if case.method in ("svs", "sms")], ids=lambda case: case.id
)
def test_golden_structured_scaling(case) -> None:
    names = {"lambda_intercept": "intercept", "lambda_diagonal": "diagonal", "lambda_off_diagonal": "off_diagonal"}
    names |= {"rho": "rho", "tau": "tau"}
    options = {own: case.params[name] for name, own in names.items() if name in case.params}
    calibrator = posthoc.create(case.method, **options).fit(case["cal_logits"], case["cal_labels"])
    found = calibrator.predict_proba(case["test_logits"])
    torch.testing.assert_close(found, case["test_probs_ref64"], rtol=0, atol=1e-6)
    case.check(found, "test_probs")
    weight = case["v_ref64" if case.method == "svs" else "W_ref64"]
    torch.testing.assert_close(calibrator.weight_, weight, rtol=0, atol=1e-5)
    torch.testing.assert_close(calibrator.bias_, case["b_ref64"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "case", [case for case in cases("posthoc") if case.method == "venn_abers"], ids=lambda case: case.id
)
def test_golden_venn_abers(case) -> None:
    if "cal_logits" in case:
        multiclass = {"one_vs_one": "one-vs-one", "one_vs_all": "one-vs-rest"}[case.params["multiclass"]]
        calibrator = posthoc.VennAbers(multiclass=multiclass).fit(case["cal_logits"], case["cal_labels"])
        found = calibrator.predict_proba(case["test_logits"])
    else:
        given, digits = case["cal_probs"], case.params["precision"]
        given = given if digits is None else given.round(decimals=digits)
        calibrator = posthoc.VennAbers().fit(given, case["cal_labels"], probs=True, task="binary")
        found = calibrator.predict_proba(case["test_probs_in"], probs=True, task="binary")
    torch.testing.assert_close(found, case["test_probs_ref64"], rtol=0, atol=1e-12)


def test_venn_abers_is_isotonic_regression_with_one_more_sample() -> None:
    random = np.random.default_rng(0)
    scores, own = random.integers(1, 40, 120) / 40, random.random(120)
    own = own < scores**2
    calibrator = posthoc.VennAbers().fit(scores, own, probs=True, task="binary")
    tried = np.concatenate([np.unique(scores), random.random(30)])
    expected = []
    for score in tried:
        bounds = []
        for label in (0, 1):
            regression = IsotonicRegression()
            regression.fit(np.append(scores, score), np.append(own, label))
            bounds.append(float(regression.predict([score])[0]))
        expected.append(bounds[1] / (1 - bounds[0] + bounds[1]))
    found = calibrator.predict_proba(tried, probs=True, task="binary")
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_one_vs_one_needs_every_pair() -> None:
    logits, target = sample(60, 4, 1.0)
    with pytest.raises(ValueError, match="needs samples of every pair of classes"):
        posthoc.VennAbers(multiclass="one-vs-one").fit(logits, target.clamp(max=1))


@pytest.mark.parametrize("true", [0.05, 0.3, 1.0, 4.0, 60.0])
def test_temperature_against_a_fine_grid(true: float) -> None:
    logits, target = sample(3000, 6, true, seed=3)
    found = float(posthoc.TemperatureScaling().fit(logits, target).temperature_)
    grid = torch.linspace(0.9, 1.1, 201, dtype=torch.float64) * found
    nll = torch.stack([cal.nll(logits.double() / t, target) for t in grid])
    assert abs(int(nll.argmin()) - 100) <= 1
    assert found == pytest.approx(true, rel=0.1)


def test_temperature_of_many_samples_starts_from_a_few() -> None:
    logits, target = sample(40_000, 3, 2.5)
    many = posthoc.TemperatureScaling().fit(logits.double(), target).temperature_
    batches = [(a.double(), b) for a, b in zip(logits.split(1234), target.split(1234), strict=True)]
    assert float(posthoc.TemperatureScaling().fit_batches(batches).temperature_) == pytest.approx(float(many), rel=1e-6)


PROCESS = """
import sys
import torch.distributed as dist
from calibrant.posthoc import TemperatureScaling
from test_calibrators import sample

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
logits, target = sample(1000, 4, 2.0)
part = slice(700) if rank == 0 else slice(700, None)
batches = list(zip(logits[part].split(300), target[part].split(300)))
with open(f"{folder}/{rank}.txt", "w") as file:
    file.write(repr(float(TemperatureScaling().fit_batches(batches).temperature_)))
dist.destroy_process_group()
"""


def test_two_processes_find_one_temperature(tmp_path: Path) -> None:
    assert run_as_ranks(PROCESS, tmp_path) == [0, 0]
    found = [float((tmp_path / f"{rank}.txt").read_text()) for rank in range(2)]
    expected = float(posthoc.TemperatureScaling().fit(*sample(1000, 4, 2.0)).temperature_)
    assert found[0] == found[1] == pytest.approx(expected, rel=1e-5)


def test_batches_have_to_be_readable_twice() -> None:
    logits, target = sample(100, 3, 2.0)
    with pytest.raises(TypeError, match="several times; pass a list"):
        posthoc.TemperatureScaling().fit_batches(pair for pair in [(logits, target)])
    with pytest.raises(ValueError, match="nothing to fit"):
        posthoc.TemperatureScaling().fit_batches([])


def test_temperatures_without_an_optimum_end_at_bounds() -> None:
    logits, target = sample(100, 3, 1.0)
    with pytest.warns(UserWarning, match="beyond the bound of 0.001: every prediction is correct"):
        right = posthoc.TemperatureScaling().fit(logits, logits.argmax(1))
    assert float(right.temperature_) == 1e-3
    with pytest.warns(UserWarning, match="beyond the bound of 1000: the labels are unrelated"):
        wrong = posthoc.TemperatureScaling().fit(logits, logits.argmin(1))
    assert float(wrong.temperature_) == 1e3
    with pytest.warns(UserWarning, match="do not distinguish the classes; the temperature stays at 1"):
        flat = posthoc.TemperatureScaling().fit(torch.zeros(10, 3), target[:10])
    assert float(flat.temperature_) == 1


def test_huge_logits() -> None:
    logits, target = sample(500, 4, 1.0)
    found = float(posthoc.TemperatureScaling().fit(500 * logits, target).temperature_)
    assert found == pytest.approx(500 * float(posthoc.TemperatureScaling().fit(logits, target).temperature_), rel=1e-4)


# The others against scikit-learn and brute force


def test_isotonic_is_scikit_learns() -> None:
    logits, target = sample(500, 2, 2.0)
    probs = logits.double().softmax(1)[:, 1].numpy()
    reference = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(probs, target.numpy())
    calibrator = posthoc.IsotonicCalibration().fit(logits, target)
    new = sample(400, 2, 3.0, seed=1)[0]
    expected = reference.predict(new.double().softmax(1)[:, 1].numpy()).clip(1 / 502, 1 - 1 / 502)
    np.testing.assert_allclose(calibrator.predict_proba(new.double())[:, 1].numpy(), expected, atol=1e-12)


def test_isotonic_is_the_best_ascending_map() -> None:
    """Pool adjacent violators against its minimax formula: max over starts of min over ends of the mean between."""
    logits, target = sample(60, 2, 2.0)
    probs, order = logits.double().softmax(1)[:, 1].sort()
    y = target[order].double()
    running = torch.cat([torch.zeros(1, dtype=torch.float64), y.cumsum(0)])
    mean = [[(running[j + 1] - running[i]) / (j + 1 - i) for j in range(i, 60)] for i in range(60)]
    best = torch.tensor([max(min(mean[i][j - i] for j in range(k, 60)) for i in range(k + 1)) for k in range(60)])
    found = posthoc.IsotonicCalibration().fit(logits, target).predict_proba(logits[order].double())[:, 1]
    torch.testing.assert_close(found, best.double().clamp(1 / 62, 1 - 1 / 62), atol=1e-6, rtol=0)
    assert probs.numel() == 60


def test_isotonic_of_many_classes_is_one_against_the_rest() -> None:
    logits, target = sample(500, 4, 2.0)
    probs = logits.double().softmax(1).numpy()
    columns = [
        IsotonicRegression(y_min=0, y_max=1).fit(probs[:, k], target.numpy() == k).predict(probs[:, k]) for k in range(4)
    ]
    expected = np.stack(columns, axis=1).clip(1 / 502)
    found = posthoc.IsotonicCalibration().fit(logits, target).predict_proba(logits.double().numpy())
    np.testing.assert_allclose(found, expected / expected.sum(1, keepdims=True), atol=1e-12)


def test_platt_is_scikit_learns_sigmoid() -> None:
    logits, target = sample(800, 2, 2.0)
    odds = (logits[:, 1] - logits[:, 0]).double().numpy()
    reference = _SigmoidCalibration().fit(odds, target.numpy())
    found = posthoc.PlattScaling().fit(logits, target)
    assert float(found.slope_) == pytest.approx(-reference.a_, rel=1e-3)
    assert float(found.intercept_) == pytest.approx(-reference.b_, rel=1e-3, abs=1e-3)
    np.testing.assert_allclose(found.predict_proba(logits.double())[:, 1].numpy(), reference.predict(odds), atol=1e-3)


def test_platt_of_many_classes_is_one_against_the_rest() -> None:
    logits, target = sample(800, 4, 2.0)
    probs = logits.double().softmax(1).numpy()
    odds = np.log(probs / (1 - probs))
    columns = [_SigmoidCalibration().fit(odds[:, k], (target == k).numpy()).predict(odds[:, k]) for k in range(4)]
    expected = np.stack(columns, axis=1)
    found = posthoc.PlattScaling().fit(logits, target).predict_proba(logits.double().numpy())
    np.testing.assert_allclose(found, expected / expected.sum(1, keepdims=True), atol=2e-3)


def test_log_odds_of_certain_predictions() -> None:
    logits = torch.tensor([[400.0, 0.0, -3.0]], dtype=torch.float64)
    calibrator = posthoc.PlattScaling().fit(*sample(300, 3, 2.0))
    assert calibrator.transform(logits).isfinite().all()


def test_dirichlet_without_penalty_is_logistic_regression() -> None:
    logits, target = sample(2000, 4, 2.0)
    features = logits.double().log_softmax(1).numpy()
    reference = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(features, target.numpy())
    found = posthoc.DirichletCalibration(off_diagonal=0, intercept=0).fit(logits, target)
    np.testing.assert_allclose(found.predict_proba(logits.double().numpy()), reference.predict_proba(features), atol=1e-4)


def test_matrix_is_at_the_minimum_of_its_objective() -> None:
    logits, target = sample(900, 4, 2.0)
    found = posthoc.MatrixScaling(off_diagonal=2.0, intercept=0.5).fit(logits, target)
    weight, bias = found.weight_.clone().requires_grad_(), found.bias_.clone().requires_grad_()
    objective = nn.functional.cross_entropy(logits.double() @ weight.T + bias, target)
    beside = [weight[i, j] ** 2 for i in range(4) for j in range(4) if i != j]
    objective = objective + 2.0 * sum(beside) / 12 + 0.5 * (bias**2).sum() / 4
    objective.backward()
    assert weight.grad.abs().max() < 1e-5
    assert bias.grad.abs().max() < 1e-5


def test_vector_is_at_the_minimum_of_its_objective() -> None:
    logits, target = sample(900, 4, 2.0)
    found = posthoc.VectorScaling().fit(logits, target)
    weight, bias = found.weight_.clone().requires_grad_(), found.bias_.clone().requires_grad_()
    nn.functional.cross_entropy(logits.double() * weight + bias, target).backward()
    assert weight.grad.abs().max() < 1e-5
    assert bias.grad.abs().max() < 1e-5


@pytest.mark.parametrize("key", ["vector", "matrix", "dirichlet", "svs", "sms"])
@pytest.mark.parametrize("gap", [40.0, 1000.0])
def test_saturated_logits(key: str, gap: float) -> None:
    """A network that is right in 19 of 20 cases, and so sure that its softmax is 0 or 1 in double precision."""
    generator = torch.Generator().manual_seed(0)
    predicted = torch.randint(2, (2000,), generator=generator)
    logits = torch.zeros(2000, 2)
    logits[torch.arange(2000), predicted] = gap * (1 + torch.rand(2000, generator=generator))
    target = torch.where(torch.rand(2000, generator=generator) < 0.05, 1 - predicted, predicted)
    accuracy = float((predicted == target).float().mean())
    found = posthoc.create(key).fit(logits, target).predict_proba(logits).amax(dim=1)
    assert float(found.mean()) == pytest.approx(accuracy, abs=0.01)


@pytest.mark.parametrize("method", [posthoc.MatrixScaling, posthoc.DirichletCalibration])
def test_too_few_samples_for_a_matrix(method) -> None:
    logits, target = sample(50, 10, 2.0)
    with pytest.warns(UserWarning, match="fits 110 parameters to 50 samples"):
        method().fit(logits, target)


@pytest.mark.parametrize("binning", ["mass", "width"])
def test_histogram_by_loops(binning) -> None:
    logits, target = sample(307, 3, 2.0)
    probs = logits.double().softmax(1)
    found = posthoc.HistogramBinning(num_bins=7, binning=binning).fit(logits, target)
    new = sample(50, 3, 2.0, seed=1)[0].double().softmax(1)
    expected = torch.zeros(50, 3, dtype=torch.float64)
    for k in range(3):
        ranked = probs[:, k].sort().values
        edges = [b / 7 if binning == "width" else float(ranked[-(-b * 307 // 7) - 1]) for b in range(1, 7)]
        place = [sum(float(p) > edge for edge in edges) for p in probs[:, k]]
        for i in range(50):
            b = sum(float(new[i, k]) > edge for edge in edges)
            members = [bool(target[j] == k) for j in range(307) if place[j] == b]
            ends = [0.0, *edges, 1.0]
            expected[i, k] = max(sum(members) / len(members) if members else (ends[b] + ends[b + 1]) / 2, 1 / 309)
    torch.testing.assert_close(found.predict_proba(new.log()), expected / expected.sum(1, keepdim=True), atol=1e-9, rtol=0)


def test_bbq_by_loops() -> None:
    from math import exp, lgamma

    logits, target = sample(60, 2, 2.0)
    probs = logits.double().softmax(1)[:, 1].sort().values.tolist()
    labels = target[logits.double().softmax(1)[:, 1].argsort()].tolist()
    new = sample(40, 2, 2.0, seed=1)[0].double().softmax(1)
    root = 60 ** (1 / 3)
    weights, predictions = [], []
    for size in range(max(1, int(root / 10)), min(int(10 * root), 60) + 1):
        cuts = sorted({min(max(-(-b * 60 // size), 1), 59) for b in range(1, size)})
        ends = [0, *cuts, 60]
        borders = [0.0, *((probs[c - 1] + probs[c]) / 2 for c in cuts), 1.0]
        bins, evidence = len(ends) - 1, 0.0
        values = []
        for b in range(bins):
            n, m = ends[b + 1] - ends[b], sum(labels[ends[b] : ends[b + 1]])
            middle = (borders[b] + borders[b + 1]) / 2
            alpha, beta = 2 / bins * middle, 2 / bins * (1 - middle)
            evidence += lgamma(2 / bins) - lgamma(n + 2 / bins)
            evidence += lgamma(m + alpha) - lgamma(alpha) + lgamma(n - m + beta) - lgamma(beta)
            values.append((m + alpha) / (n + 2 / bins))
        weights.append(evidence)
        predictions.append([values[sum(float(p) > e for e in borders[1:-1])] for p in new[:, 1]])
    shares = [exp(w - max(weights)) for w in weights]
    expected = [sum(s * p[i] for s, p in zip(shares, predictions, strict=True)) / sum(shares) for i in range(40)]
    found = posthoc.BBQ().fit(logits, target).predict_proba(new.log())[:, 1]
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64).clamp(1 / 62, 1 - 1 / 62), atol=1e-9, rtol=0
    )


def test_spline_basis_is_natural_and_cubic() -> None:
    from scipy.interpolate import CubicSpline

    knots = torch.linspace(0, 1, 6, dtype=torch.float64)
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    basis, slopes = natural_spline(t, knots)
    at_knots, _ = natural_spline(knots, knots)
    y = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    coefficients = torch.linalg.solve(at_knots, y)  # through given values there is exactly one natural spline
    reference = CubicSpline(knots.numpy(), y.numpy(), bc_type="natural")
    np.testing.assert_allclose((basis @ coefficients).numpy(), reference(t.numpy()), atol=1e-10)
    np.testing.assert_allclose((slopes @ coefficients).numpy(), reference(t.numpy(), 1), atol=1e-9)


def test_spline_gives_the_accuracy_at_each_confidence() -> None:
    logits, target = sample(40_000, 10, 2.0)
    calibrated = posthoc.SplineCalibration().fit(logits, target).transform(logits)
    assert cal.ece(calibrated, target) < 0.01
    assert cal.ece(logits, target) > 0.1
    assert torch.equal(calibrated.argsort(dim=1), logits.argsort(dim=1))
    confidence, order = logits.double().softmax(1).amax(1).sort()
    right = (logits.argmax(1) == target).double()[order].view(40, 1000).mean(1)  # accuracy around each confidence
    assert (calibrated.exp().amax(1).double()[order].view(40, 1000).mean(1) - right).abs().mean() < 0.015
    assert confidence[0] < 0.3


def test_ensemble_weights_by_brute_force() -> None:
    logits, target = sample(600, 4, 2.0)
    noisy = torch.rand(600, generator=torch.Generator().manual_seed(2)) < 0.2
    target = torch.where(noisy, torch.randint(4, (600,), generator=torch.Generator().manual_seed(3)), target)
    found = posthoc.EnsembleTemperatureScaling().fit(logits.double(), target)
    assert float(found.weights_.sum()) == pytest.approx(1)
    scaled, plain = ((logits.double() / t).softmax(1).gather(1, target[:, None])[:, 0] for t in (found.temperature_, 1.0))
    steps = torch.linspace(0, 1, 101, dtype=torch.float64)
    w1, w2 = torch.meshgrid(steps, steps, indexing="ij")
    allowed = w1 + w2 <= 1 + 1e-12
    mixed = w1[allowed][:, None] * scaled + w2[allowed][:, None] * plain + (1 - w1 - w2)[allowed][:, None] / 4
    best = -mixed.clamp(min=1e-300).log().mean(1).max()
    assert cal.nll(found.transform(logits.double()), target) <= best + 1e-9
