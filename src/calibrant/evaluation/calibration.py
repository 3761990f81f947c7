"""Fitting calibrators on held-out predictions, selecting one, and measuring their effect."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from calibrant.audit import Audit, PairedComparison, audit, compare
from calibrant.errors import InputError, lookup
from calibrant.metrics import nll
from calibrant.posthoc import CALIBRATORS, Calibrator, create
from calibrant.predictions import Predictions


def possible(*, dense: bool) -> list[str]:
    """Keys of the calibrators for plain or dense predictions."""
    return [key for key, entry in CALIBRATORS.items() if dense or not entry.dense]


def check_methods(methods: Sequence[str], *, dense: bool) -> list[str]:
    """Keys of calibrators without duplicates; ``["all"]`` stands for all that apply.

    Raises:
        InputError: If one is unknown, or does not apply to such predictions.
    """
    if list(methods) == ["all"]:
        return possible(dense=dense)
    if {"all", "auto"} & set(methods):
        raise InputError("`calibrator` all and auto stand alone, without other names")
    for key in methods:
        if lookup(key, CALIBRATORS, "calibrator").dense and not dense:
            raise InputError(f"calibrator {key} is for dense predictions (N, K, H, W) only")
    return list(dict.fromkeys(methods))


def fit_all(
    methods: Sequence[str],
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    temperature: Mapping[str, Any] | None = None,
    advance: Callable[[], Any] = lambda: None,
) -> dict[str, Calibrator]:
    """Fit several calibrators on the same held-out predictions.

    Args:
        methods: Keys of calibrators.
        logits: ``(N, K)`` or ``(N, K, *spatial)``.
        target: Labels, ``(N,)`` or ``(N, *spatial)``.
        ignore_index: Label of samples or pixels to ignore.
        temperature: Options of temperature scaling, such as ``{"criterion": "ece"}``.
        advance: Called after each fit, for a progress bar.
    """
    fitted = {}
    for key in methods:
        options = (temperature or {}) if key == "temperature" else {}
        fitted[key] = create(key, **options).fit(logits, target, ignore_index=ignore_index)
        advance()
    return fitted


def cross_validate(
    methods: Sequence[str],
    logits: Tensor,
    target: Tensor,
    *,
    folds: int = 5,
    seed: int = 0,
    ignore_index: int = -100,
    temperature: Mapping[str, Any] | None = None,
    advance: Callable[[], Any] = lambda: None,
) -> dict[str, float]:
    """Mean NLL of held-out folds, for each calibrator and for ``"none"``.

    Args:
        methods: Keys of calibrators.
        logits: ``(N, K)`` or ``(N, K, *spatial)``.
        target: Labels, ``(N,)`` or ``(N, *spatial)``.
        folds: Number of folds; for dense predictions, whole images are held out.
        seed: Seed of the split into folds.
        ignore_index: Label of samples or pixels to ignore.
        temperature: Options of temperature scaling, such as ``{"criterion": "ece"}``.
        advance: Called after each fit, for a progress bar.
    """
    if not 2 <= folds <= len(logits):
        raise InputError(f"`folds` must be between 2 and the number of samples, {len(logits)}; got {folds}")
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(seed))
    parts = [part for part in order.tensor_split(folds) if bool((target[part] != ignore_index).any())]
    totals = dict.fromkeys(["none", *methods], 0.0)
    weight = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, held in enumerate(parts):
            rest = torch.cat([part for j, part in enumerate(parts) if j != i]) if len(parts) > 1 else held
            count = int((target[held] != ignore_index).sum())
            weight += count
            totals["none"] += count * float(nll(logits[held], target[held], ignore_index=ignore_index))
            given: Any = {"ignore_index": ignore_index, "temperature": temperature, "advance": advance}
            for key, calibrator in fit_all(methods, logits[rest], target[rest], **given).items():
                new = calibrator.transform(logits[held])
                totals[key] += count * float(nll(new, target[held], ignore_index=ignore_index))
    return {key: total / weight for key, total in totals.items()}


@dataclass(frozen=True)
class CalibrationResult:
    """Predictions before and after each of several calibrators.

    Attributes:
        audits: Audits of the test predictions, before calibration first.
        comparisons: Before calibration against each calibrator.
    """

    audits: list[Audit]
    comparisons: list[PairedComparison] = field(default_factory=list)


def measure_all(
    fitted: dict[str, Calibrator],
    testing: Predictions,
    *,
    progress: Callable[[str], Callable[[int], Any]] = lambda name: lambda rows: None,  # noqa: ARG005
    **options: Any,
) -> CalibrationResult:
    """Audit test predictions before and after each calibrator.

    Args:
        fitted: Fitted calibrators by key.
        testing: The test predictions.
        progress: Given the name of what is measured, returns a function to call with the number of rows read.
        **options: Options of :func:`calibrant.audit.audit`.
    """
    steps: list[tuple[str, Any]] = [
        ("before", None),
        *((key, partial(one.transform, probs=False)) for key, one in fitted.items()),
    ]
    audits = [
        audit(testing, name, transform=transform, keep=not testing.shape, advance=progress(name), **options)
        for name, transform in steps
    ]
    return CalibrationResult(audits, [compare(audits[0], other, **options) for other in audits[1:]])


def same_predictions(fitting: Predictions, testing: Predictions, logits: Tensor, target: Tensor) -> bool:
    """Whether two files hold the same predictions; ``logits`` and ``target`` are those of the first."""
    if fitting.path.resolve() == testing.path.resolve():
        return True
    if fitting.shape != testing.shape or fitting.count() != testing.count():
        return False
    for chunk in testing.chunks():
        rows = slice(chunk.start, chunk.start + len(chunk.logits))
        if chunk.target is None or not torch.equal(chunk.target, target[rows]):
            return False
        if not torch.equal(chunk.logits, logits[rows]):
            return False
    return True
