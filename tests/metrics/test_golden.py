"""Every metric against the authors' released code and against independent float64 evaluations."""

import itertools

import numpy as np
import pytest
import torch

from calibrant import functional as cal
from golden_cases import Case, cases


def of(*methods: str) -> list[Case]:
    return [case for case in cases("metric", "metric_edge") if case.method in methods]


def loss_of_least_confident(case: Case) -> float:
    """Upper bound of what AdaECE changes by counting the least confident sample(s), which the released code drops."""
    confidence = case["logits"].softmax(1).amax(1)
    return 2 * float((confidence <= confidence.min() + 1e-12).sum()) / len(confidence)


@pytest.mark.parametrize("case", of("ece/adaece/classwise_ece"), ids=lambda case: case.id)
def test_ece_family(case: Case) -> None:
    logits, labels = case["logits"], case["labels"]
    for bins in (10, 15):
        case.check(cal.ece(logits, labels, num_bins=bins), f"ece_{bins}_ref64")
        case.check(cal.ece(logits, labels, num_bins=bins), f"ece_fn_{bins}", atol=1e-7)
        case.check(cal.ece(logits.float(), labels, num_bins=bins), f"ece_{bins}", rtol=1e-4, atol=1e-6)
        case.check(cal.classwise_ece(logits, labels, num_bins=bins), f"cece_allK_{bins}_ref64")
        case.check(cal.classwise_ece(logits.float(), labels, num_bins=bins), f"cece_allK_{bins}_ref64", rtol=1e-4, atol=1e-6)
        ours, released = float(cal.adaptive_ece(logits, labels, num_bins=bins)), float(case[f"adaece_{bins}_ref64"])
        assert ours == pytest.approx(with_dropped(case, bins), abs=1e-10)
        assert abs(ours - released) <= loss_of_least_confident(case)
        if int(labels.max()) == logits.shape[1] - 1:  # then the released class range is ours
            case.check(cal.classwise_ece(logits, labels, num_bins=bins), f"cece_{bins}_ref64")


def with_dropped(case: Case, num_bins: int) -> float:
    """AdaECE with the papers' edges, in numpy, the first bin closed below."""
    s = case["logits"].softmax(1)
    confidence, prediction = (x.numpy() for x in s.max(1))
    correct = (prediction == case["labels"].numpy()).astype(float)
    n = len(confidence)
    edges = np.interp(np.linspace(0, n, num_bins + 1), np.arange(n), np.sort(confidence))
    edges[0] = -1
    total = 0.0
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return total


@pytest.mark.parametrize("case", of("ece_debias"), ids=lambda case: case.id)
def test_debiased(case: Case) -> None:
    logits, labels = case["logits"], case["labels"]
    for binning, short in (("width", "ew"), ("mass", "em")):
        for bins in (15, 30):
            case.check(
                cal.debiased_ece(logits, labels, num_bins=bins, binning=binning, norm=2), f"l2_debiased_{short}_{bins}"
            )
            ours = cal.debiased_ece(logits, labels, num_bins=bins, binning=binning, norm=1)
            assert 0 <= ours <= 1  # also where the released code raises, because a bin has fewer than two samples
            if f"l1_debiased_exact_{short}_{bins}" in case:
                exact = case[f"l1_debiased_exact_{short}_{bins}"].clamp(min=0)
                torch.testing.assert_close(ours, exact, **case.tolerance["float64"])
                mean, spread = case[f"l1_debiased_mc_{short}_{bins}"]
                assert abs(float(exact - mean.clamp(min=0))) <= 5 * float(spread)
    case.check(cal.ece(logits, labels, num_bins=15), "l1_plugin_ew_15")


@pytest.mark.parametrize("case", of("ece_sweep"), ids=lambda case: case.id)
def test_sweep(case: Case) -> None:
    logits, labels = case["logits"], case["labels"]
    for binning, short in (("width", "ew"), ("mass", "em")):
        for norm in (1, 2):
            case.check(cal.sweep_ece(logits, labels, binning=binning, norm=norm), f"{short}_ece_sweep_norm{norm}")


@pytest.mark.parametrize("case", of("all calibration metrics"), ids=lambda case: case.id)
def test_edges(case: Case) -> None:
    """Dyadic probabilities that lie on the edges of bins exactly."""
    logits, labels = cal.from_probs(case["probs"]), case["labels"]
    for bins in (4, 8):
        case.check(cal.ece(logits, labels, num_bins=bins), f"ece_{bins}")
        case.check(cal.ece(logits, labels, num_bins=bins), f"ece_fn_{bins}")
        case.check(cal.ece(logits, labels, num_bins=bins), f"vc_l1_ew_{bins}")
        case.check(cal.debiased_ece(logits, labels, num_bins=bins, binning="mass", norm=2), f"vc_l2_debiased_em_{bins}")


SEGMENTATION = of("segmentation ece/aece/cece/miou")


@pytest.mark.parametrize("case", SEGMENTATION, ids=lambda case: case.id)
def test_segmentation(case: Case) -> None:
    batches = [(case[f"logits_{i}"], case[f"labels_{i}"]) for i in range(case.params["num_batches"])]
    logits, labels = torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches])
    ignore = {"ignore_index": case.params["ignore_index"]}
    ece, adaece, _, cece = case["pooled_ref64"]
    assert float(cal.ece(logits, labels, **ignore)) == pytest.approx(float(ece), abs=1e-9)
    assert float(cal.classwise_ece(logits, labels, **ignore)) == pytest.approx(float(cece), abs=1e-9)
    assert float(cal.adaptive_ece(logits, labels, **ignore)) == pytest.approx(
        float(adaece), abs=2 / len(labels[labels != 255])
    )
    case.check(cal.mean_iou(logits, labels, rule="released", **ignore), "miou_official", rtol=1e-9, atol=1e-9)
    case.check(cal.mean_iou(logits, labels, **ignore), "miou_all21_nanmean", rtol=1e-9, atol=1e-9)
    # The papers' evaluation: each update by itself, then the plain mean; with batches of one, each image by itself.
    by_update = torch.stack([torch.stack([m(*b, **ignore) for b in batches]).mean() for m in (cal.nll, cal.ece)])
    torch.testing.assert_close(by_update, case["cals_default"][:2], **case.tolerance["float64"])
    if all(len(b[1]) == 1 for b in batches):
        for metric, value in ((cal.nll, case["cals_default"][0]), (cal.ece, case["cals_default"][1])):
            per_image = cal.per_image(metric, logits, labels, **ignore)
            torch.testing.assert_close(per_image, value, **case.tolerance["float64"])


@pytest.mark.parametrize("case", of("ood_auroc"), ids=lambda case: case.id)
def test_ood(case: Case) -> None:
    known, unknown = case["in_logits"], case["out_logits"]
    case.check(cal.ood_auroc(known, unknown), "auroc_entropy")
    case.check(cal.ood_auroc(known, unknown, score="max_prob"), "auroc_confidence")
    case.check(cal.ood_auroc(known, unknown), "mbls_auc_ent")
    case.check(cal.ood_auroc(known.float(), unknown.float(), score="max_prob"), "mbls_auc_conf")
