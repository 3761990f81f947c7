"""The table of measures: complete, consistent, and what everything else is made from."""

import string

import pytest
import torch
from test_modules import K, data

from calibrant import functional as cal, metrics, stats
from calibrant.errors import InputError
from calibrant.metrics import MEASURES, Measure
from calibrant.metrics.table import BY_FUNCTION, FUNCTIONS, measure, ranked

every_measure = pytest.mark.parametrize("record", MEASURES.values(), ids=lambda record: record.key)


@pytest.fixture(scope="module")
def result() -> metrics.PanelResult:
    panel = metrics.Panel(K, num_bins=11)
    panel.update(*data())
    return panel.compute()


@every_measure
def test_records_are_complete(record: Measure) -> None:
    assert MEASURES[record.key] is record is measure(record.key)
    assert record.title
    assert record.about
    assert record.rank in (1, 2, 3, 4)
    assert not record.part_of or record.part_of in MEASURES
    assert (record.estimate is None) == (record.on == "outside")
    assert record.function is None or getattr(cal, record.function.__name__) is record.function
    assert record.interval is None or record.estimate is not None
    assert record.interval != "normal" or record.on == "scores"
    assert record.label == (f"{record.title}, %" if record.percent else record.title)


def test_titles_and_functions_are_unique() -> None:
    titles = [record.title for record in MEASURES.values()]
    assert len(set(titles)) == len(titles)
    own = [record.function for record in MEASURES.values() if record.function is not None]
    assert len(set(own)) == len(own) == len(FUNCTIONS) == len(BY_FUNCTION)
    assert all(BY_FUNCTION[FUNCTIONS[name]].function.__name__ == name for name in FUNCTIONS)
    assert FUNCTIONS.keys() <= set(metrics.__all__)


@every_measure
def test_how_is_filled_in(record: Measure, result: metrics.PanelResult) -> None:
    fields = {name for _, name, _, _ in string.Formatter().parse(record.how) if name is not None}
    assert fields <= {"num_bins", *MEASURES}
    text = result.how(record)
    assert not set("{}") & set(text)
    assert ("11 " in text) == ("num_bins" in fields)


def test_how_may_mention_other_measures(result: metrics.PanelResult) -> None:
    found = int(metrics.estimators.sweep(result.sorted)[1])
    assert result.how(MEASURES["sweep_ece"]) == f"{found} equal-mass bins (chosen automatically), L1"
    assert result.sweep_bins == found


def test_every_interval_that_is_announced_is_given(result: metrics.PanelResult) -> None:
    images = stats.ImageBins(num_bins=11)
    logits, target = data(4 * 50)
    images.update(logits.view(4, 50, K).movedim(-1, 1), target.view(4, 50))
    of_samples, of_images = stats.panel_intervals(result, resamples=20), images.intervals(resamples=20)
    announced = {record.key: record.on for record in MEASURES.values() if record.interval is not None}
    assert of_samples.keys() == {key for key, on in announced.items() if on in stats.resampling.RESAMPLED}
    assert of_images.keys() == {key for key, on in announced.items() if on in ("bins", "predicted", "areas", "images")}
    assert announced.keys() == of_samples.keys() | of_images.keys()


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_ranks(rank: int, dense: bool) -> None:
    expected = [record for record in MEASURES.values() if record.rank <= rank and not (record.dense and not dense)]
    assert ranked(rank, dense=dense) == expected
    assert ({"mean_iou", "image_ece"} <= {record.key for record in expected}) == dense


def test_values_as_text() -> None:
    assert MEASURES["ece"].text(0.12345) == "12.35"
    assert MEASURES["ece"].text(0.12345, digits=1, sign="+") == "+12.3"
    assert MEASURES["nll"].text(0.12345) == "0.1235"
    assert MEASURES["nll"].text(float("nan")) == "-"


@every_measure
def test_estimates_work_on_resamples_alike(record: Measure, result: metrics.PanelResult) -> None:
    """Two copies, stacked in front, give the value twice."""
    if record.on not in ("bins", "sorted", "areas"):
        return
    source = getattr(result, record.on)
    if record.on == "areas":
        stacked = torch.stack([source, source], dim=1)
    elif record.on == "bins":
        stacked = type(source)(*(torch.stack([part, part]) for part in source))
    else:
        stacked = source._replace(**{name: torch.stack([getattr(source, name)] * 2) for name in ("counts", "correct")})
    found = record.evaluate(stacked, result.num_bins)
    assert found.shape == (2,)
    assert found.tolist() == pytest.approx([result[record.key]] * 2, rel=1e-9)


def test_lookup_by_key() -> None:
    found = measure("auroc:svhn")
    assert (found.key, found.title, found.higher, found.on) == ("auroc:svhn", "AUROC, svhn", True, "outside")
    with pytest.raises(InputError, match="measure must be one of accuracy, .*, got 'sweep-ece'; did you mean 'sweep_ece'"):
        measure("sweep-ece")
    with pytest.raises(InputError, match="got 'auroc'"):
        measure("auroc")
