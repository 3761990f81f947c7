"""scikit-learn: calibrators as estimators, a classifier that calibrates another, scorers, and a display.

Everything follows scikit-learn's conventions: labels of any type, ``classes_``, ``clone``, pipelines, searches.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import cross_val_predict
from sklearn.utils import get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from calibrant import posthoc
from calibrant.errors import lookup
from calibrant.metrics.table import MEASURES
from calibrant.plots import ReliabilityDiagram
from calibrant.posthoc.base import ZERO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from typing_extensions import Self

#: Methods of classifiers that give scores, in order of preference.
RESPONSES = ("decision_function", "predict_log_proba", "predict_proba")


class ScoreCalibrator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A calibrator whose features are the scores of a classifier: one column per class, in the order of ``classes_``.

    Args:
        method: Key of the calibrator in :data:`calibrant.posthoc.CALIBRATORS`.
        options: Its options.
        probs: Whether the scores are probabilities; otherwise they are logits, or a decision function.
        classes: The classes in the order of the columns; by default the sorted labels passed to ``fit``.

    With two classes, a single column may hold the score of the second.

    Attributes:
        classes_: The classes.
        calibrator_: The fitted :class:`calibrant.posthoc.Calibrator`.
        n_features_in_: Number of columns.

    Example:
        >>> from calibrant.integrations.sklearn import ScoreCalibrator
        >>> scores, y = [[4.0, 0.0]] * 8, ["cat"] * 6 + ["dog"] * 2  # 98% confident, correct in 6 of 8 cases
        >>> ScoreCalibrator("temperature").fit(scores, y).predict_proba([[4.0, 0.0]]).round(2).tolist()
        [[0.75, 0.25]]
    """

    def __init__(
        self,
        method: str = "temperature",
        *,
        options: Mapping[str, Any] | None = None,
        probs: bool = False,
        classes: Any = None,
    ) -> None:
        self.method, self.options, self.probs, self.classes = method, options, probs, classes

    def fit(self, X: Any, y: Any) -> "Self":  # noqa: N803
        """Learn from held-out scores."""
        scores, labels = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(labels)
        self.classes_ = np.unique(labels) if self.classes is None else np.asarray(self.classes)
        _check_columns(scores, self.classes_)
        codes = _codes(labels, self.classes_)
        self.calibrator_ = posthoc.create(self.method, **(self.options or {}))
        self.calibrator_.fit(scores, codes, **self._given(scores))
        return self

    def predict_log_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Logarithms of the calibrated probabilities, ``(N, K)``."""
        check_is_fitted(self)
        scores = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        given = self._given(scores)
        found: np.ndarray = self.calibrator_.transform(scores, **given)
        if found.shape[1] == 1:  # log-odds of the second of two classes
            found = -np.logaddexp(0, np.hstack([found, -found]))
        return found

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Calibrated probabilities, ``(N, K)``."""
        found: np.ndarray = np.exp(self.predict_log_proba(X))
        return found

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The most probable class."""
        places = self.predict_log_proba(X).argmax(axis=1)
        found: np.ndarray = self.classes_[places]
        return found

    def _given(self, scores: np.ndarray) -> Any:
        return {"probs": self.probs, "task": "binary" if scores.shape[1] == 1 else "multiclass"}


class CalibratedClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with calibrated probabilities: any scikit-learn classifier with any calibrator.

    With ``cv``, the calibrator is fitted on out-of-fold scores, and the classifier on all data; with ``cv="prefit"``, the
    classifier is used as it is, and the calibrator is fitted on the data passed to ``fit``, which the classifier must not
    have seen.

    Args:
        estimator: The classifier.
        method: Key of the calibrator in :data:`calibrant.posthoc.CALIBRATORS`.
        options: Its options.
        cv: Number of folds, a splitter, or ``"prefit"``.
        response_method: Where scores come from: ``"decision_function"``, ``"predict_log_proba"`` or ``"predict_proba"``;
            ``"auto"`` picks the first that the classifier has.

    Attributes:
        estimator_: The fitted classifier.
        calibrator_: The fitted :class:`ScoreCalibrator`.
        classes_: The classes.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from calibrant.integrations.sklearn import CalibratedClassifier
        >>> x, y = load_iris(return_X_y=True)
        >>> model = CalibratedClassifier(GaussianNB(), method="temperature").fit(x, y)
        >>> bool(model.calibrator_.calibrator_.temperature_ > 1), model.predict_proba(x).shape  # it was overconfident
        (True, (150, 3))
    """

    def __init__(
        self,
        estimator: Any,
        *,
        method: str = "temperature",
        options: Mapping[str, Any] | None = None,
        cv: Any = 5,
        response_method: str = "auto",
    ) -> None:
        self.estimator, self.method, self.options, self.cv = estimator, method, options, cv
        self.response_method = response_method

    def fit(self, X: Any, y: Any) -> "Self":  # noqa: N803
        """Fit the classifier, unless it is prefit, and the calibrator."""
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        response = self._response()
        prefit = isinstance(self.cv, str) and self.cv == "prefit"
        if prefit:
            check_is_fitted(self.estimator)
            self.estimator_ = self.estimator
            scores = getattr(self.estimator_, response)(X)
        else:
            self.estimator_ = clone(self.estimator).fit(X, y)
            scores = cross_val_predict(self.estimator, X, y, cv=self.cv, method=response)
        self.classes_ = self.estimator_.classes_
        probs = response == "predict_proba"
        calibrator = ScoreCalibrator(self.method, options=self.options, probs=probs, classes=self.classes_)
        self.calibrator_ = calibrator.fit(_columns(scores), y)
        if hasattr(self.estimator_, "n_features_in_"):
            self.n_features_in_ = self.estimator_.n_features_in_
        if hasattr(self.estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.estimator_.feature_names_in_
        return self

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Calibrated probabilities, ``(N, K)``."""
        scores = self._scores(X)
        return self.calibrator_.predict_proba(scores)

    def predict_log_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Logarithms of the calibrated probabilities, ``(N, K)``."""
        scores = self._scores(X)
        return self.calibrator_.predict_log_proba(scores)

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The most probable class."""
        scores = self._scores(X)
        return self.calibrator_.predict(scores)

    def _scores(self, X: Any) -> np.ndarray:  # noqa: N803
        check_is_fitted(self)
        with np.errstate(divide="ignore"):  # forests take the logarithm of 0
            return _columns(getattr(self.estimator_, self._response())(X))

    def _response(self) -> str:
        wanted = RESPONSES if self.response_method == "auto" else (self.response_method,)
        for name in wanted:
            if name in RESPONSES and hasattr(self.estimator, name):
                return name
        raise TypeError(
            f"{type(self.estimator).__name__} has no {' or '.join(wanted)}, so there are no scores to calibrate; "
            f"response_method must be auto, {', '.join(RESPONSES)}"
        )

    def __sklearn_tags__(self) -> Any:
        """The classifier's tags about its input."""
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        tags.classifier_tags.multi_class = get_tags(self.estimator).classifier_tags.multi_class
        return tags


def _columns(scores: np.ndarray) -> np.ndarray:
    """Scores with a class dimension, and a finite logarithm of 0."""
    found = np.asarray(scores, dtype=np.float64)
    found = found[:, np.newaxis] if found.ndim == 1 else found
    return np.where(found == -np.inf, ZERO, found)


def _check_columns(scores: np.ndarray, classes: np.ndarray) -> None:
    expected = f"{len(classes)} columns, one for each class" + (", or 1" if len(classes) == 2 else "")
    if len(classes) < 2:
        raise ValueError(f"calibration needs samples of at least 2 classes, but y has only one class, {classes[0]!r}")
    if scores.shape[1] != len(classes) and not (len(classes) == 2 and scores.shape[1] == 1):
        raise ValueError(
            f"scores must have {expected}, got {scores.shape[1]}; if a class does not occur in y, pass classes=; if they "
            'are those of an SVC, give it decision_function_shape="ovr"'
        )


def _codes(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Positions of labels among the classes."""
    order = np.argsort(classes)
    found: np.ndarray = order[np.searchsorted(classes, labels, sorter=order).clip(max=len(classes) - 1)]
    unknown = classes[found] != labels
    if unknown.any():
        known = ", ".join(map(str, classes))
        raise ValueError(f"y has the label {labels[unknown][0]!r}, which is not one of the classes {known}")
    return found


# Scorers


def measure(y_true: Any, y_prob: Any, *, key: str = "ece", labels: Any = None, **options: Any) -> float:
    """A metric of predicted probabilities, with arguments in scikit-learn's order, for ``make_scorer``.

    Args:
        y_true: Labels of any kind.
        y_prob: Probabilities ``(N, K)``, or ``(N,)`` for the second of two classes.
        key: Key of the measure, such as ``"ece"``, ``"debiased_ece"``, ``"nll"`` or ``"brier"``.
        labels: The classes in the order of the columns; by default the sorted labels in ``y_true``.
        **options: Options of the measure, such as ``num_bins``.

    Example:
        >>> from sklearn.metrics import make_scorer
        >>> from calibrant.integrations.sklearn import measure
        >>> round(measure(["no"] * 6 + ["yes"] * 2, [0.02] * 8), 2)
        0.23
        >>> scorer = make_scorer(measure, response_method="predict_proba", greater_is_better=False, key="nll")
    """
    return float(_function(key)(*_read(y_true, y_prob, labels), probs=True, **options))


def _read(y_true: Any, y_prob: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of all classes, and positions of the labels among them."""
    probs, true = _columns(y_prob), np.asarray(y_true)
    probs = np.hstack([1 - probs, probs]) if probs.shape[1] == 1 else probs
    classes = np.unique(true) if labels is None else np.asarray(labels)
    if len(classes) != probs.shape[1]:
        raise ValueError(
            f"y_prob has {probs.shape[1]} classes, but y_true has {len(classes)}; if not all classes occur, pass labels="
        )
    return probs, _codes(true, classes)


class scorer:  # noqa: N801 - called like make_scorer
    """A scorer for ``cross_val_score``, ``GridSearchCV`` and so on; larger is better, so errors are negated.

    Unlike ``make_scorer(measure, ...)``, it knows all classes of the classifier, even those absent from a fold.

    Args:
        key: Key of the measure, such as ``"ece"``, ``"debiased_ece"``, ``"nll"`` or ``"brier"``.
        **options: Options of the measure, such as ``num_bins``.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.model_selection import cross_val_score
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from calibrant.integrations.sklearn import scorer
        >>> bool((cross_val_score(GaussianNB(), *load_iris(return_X_y=True), scoring=scorer("ece")) < 0).all())
        True
    """

    def __init__(self, key: str = "ece", **options: Any) -> None:
        _function(key)
        self.key, self.options = key, options

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:  # noqa: N803
        """Score a fitted classifier."""
        value = measure(y, estimator.predict_proba(X), key=self.key, labels=estimator.classes_, **self.options)
        return value if MEASURES[self.key].higher else -value

    def __repr__(self) -> str:
        return f"scorer({', '.join([repr(self.key), *(f'{name}={value!r}' for name, value in self.options.items())])})"


def _function(key: str) -> Any:
    known = {name: record.function for name, record in MEASURES.items() if record.function is not None}
    return lookup(key, known, "key")


class ReliabilityDisplay:
    """A reliability diagram of the predicted class, with the interface of scikit-learn's displays.

    Args:
        diagram: The diagram.

    Attributes:
        ax_: The axes, after :meth:`plot`.
        figure_: The figure, after :meth:`plot`.

    Example:
        >>> from calibrant.integrations.sklearn import ReliabilityDisplay
        >>> display = ReliabilityDisplay.from_predictions(["no"] * 6 + ["yes"] * 2, [0.02] * 8, name="overconfident")
        >>> round(display.diagram.ece, 2)
        0.23
    """

    def __init__(self, diagram: ReliabilityDiagram) -> None:
        self.diagram = diagram

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,  # noqa: N803
        y: Any,
        *,
        num_bins: int = 15,
        name: str | None = None,
        ax: "Axes | None" = None,
    ) -> "Self":
        """Draw the diagram of a fitted classifier with ``predict_proba``."""
        name = type(estimator).__name__ if name is None else name
        probs, labels = estimator.predict_proba(X), estimator.classes_
        return cls.from_predictions(y, probs, labels=labels, num_bins=num_bins, name=name, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: Any,
        *,
        labels: Any = None,
        num_bins: int = 15,
        name: str = "",
        ax: "Axes | None" = None,
    ) -> "Self":
        """Draw the diagram of predicted probabilities; arguments are those of :func:`measure`."""
        probs, codes = _read(y_true, y_prob, labels)
        display = cls(ReliabilityDiagram.from_logits(probs, codes, name, num_bins=num_bins, probs=True))
        display.plot(ax=ax)
        return display

    def plot(self, ax: "Axes | None" = None, **options: Any) -> "Self":
        """Draw; options are those of :meth:`calibrant.plots.ReliabilityDiagram.plot`."""
        self.ax_: Axes = self.diagram.plot(ax, **options)
        self.figure_: Figure = self.ax_.figure  # type: ignore[assignment]
        return self
