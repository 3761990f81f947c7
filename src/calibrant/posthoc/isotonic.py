"""Isotonic calibration."""

import torch
from torch import Tensor

from calibrant.extras import require
from calibrant.posthoc.piecewise import ClassMaps, lines


class IsotonicCalibration(ClassMaps):
    """The best non-decreasing map (Zadrozny and Elkan, KDD 2002), by scikit-learn's pool adjacent violators.

    One class against the rest, normalised; linear between the points, constant outside.

    Example:
        >>> from calibrant.posthoc import IsotonicCalibration
        >>> logits, target = [[4.0, 0.0]] * 8, [0] * 6 + [1] * 2  # 98% confident, correct in 6 of 8 cases
        >>> calibrator = IsotonicCalibration().fit(logits, target)
        >>> round(calibrator.predict_proba([[4.0, 0.0]])[0][0], 2)
        0.75
    """

    key = "isotonic"

    def _fit_map(self, probs: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        regression = require("sklearn.isotonic", "IsotonicCalibration").IsotonicRegression(y_min=0, y_max=1)
        regression.fit(probs.cpu().numpy(), own.double().cpu().numpy())
        found = (regression.X_thresholds_, regression.y_thresholds_)
        points, values = (torch.from_numpy(x.astype("float64")).to(probs.device) for x in found)
        return points, values

    def _evaluate(self, probs: Tensor) -> Tensor:
        return lines(probs, self.points_, self.values_)
