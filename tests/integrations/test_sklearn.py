"""Estimators, scorers and the display, checked by scikit-learn's own checks and data."""

import pickle
import re
import warnings

import numpy as np
import pytest
from matplotlib import pyplot as plt
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.metrics import log_loss, make_scorer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from calibrant import functional, posthoc
from calibrant.integrations.sklearn import CalibratedClassifier, ReliabilityDisplay, ScoreCalibrator, measure, scorer

METHODS = [key for key, entry in posthoc.CALIBRATORS.items() if not entry.dense]
NAMES = np.array(["setosa", "versicolor", "virginica"])


@pytest.fixture(scope="module")
def iris() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return x[order], NAMES[y[order]]


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_the_classifier_passes_every_check(method: str) -> None:
    """All methods do; two of the fast ones are checked each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(CalibratedClassifier(GaussianNB(), method=method, cv=2), on_fail=None)
    assert not [result["check_name"] for result in found if result["status"] == "failed"]
    assert len(found) > 40


#: Their data are no scores of the classes: most have another number of columns, and the last is about accuracy.
NOT_SCORES = {
    *("check_estimators_overwrite_params", "check_estimators_fit_returns_self", "check_readonly_memmap_input"),
    *("check_n_features_in_after_fitting", "check_positive_only_tag_during_fit", "check_estimators_dtypes"),
    *("check_dtype_object", "check_pipeline_consistency", "check_estimators_nan_inf", "check_estimators_pickle"),
    *("check_classifiers_classes", "check_classifiers_train"),
}


def test_the_calibrator_passes_the_checks_whose_columns_are_classes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(ScoreCalibrator(), on_fail=None)
    failed = [result for result in found if result["status"] == "failed"]
    assert {result["check_name"] for result in failed} == NOT_SCORES
    for result in failed:
        cause, messages = result["exception"], []
        while cause is not None:
            messages.append(str(cause))
            cause = cause.__cause__ or cause.__context__
        no_scores = any(re.match(r"scores must have \d+ columns, one for each class", text) for text in messages)
        assert no_scores or result["check_name"] == "check_classifiers_train", result


@pytest.mark.parametrize("method", METHODS)
def test_every_calibrator_as_an_estimator(method: str, iris: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = iris
    scores = LogisticRegression(C=0.1).fit(x[:50], y[:50]).decision_function(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few samples for methods with many parameters
        estimator = clone(ScoreCalibrator(method)).fit(scores[:100], y[:100])
        plain = posthoc.create(method).fit(scores[:100], np.searchsorted(NAMES, y[:100]))
        pipeline = make_pipeline(ScoreCalibrator(method)).fit(scores[:100], y[:100])
    probs = estimator.predict_proba(scores[100:])
    np.testing.assert_allclose(probs, plain.predict_proba(scores[100:]), atol=1e-6)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-6)
    assert set(estimator.predict(scores[100:])) <= set(NAMES)
    np.testing.assert_array_equal(pipeline.predict_proba(scores[100:]), probs)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(estimator)).predict_proba(scores[100:]), probs)  # noqa: S301


def test_temperature_is_that_of_scikit_learn() -> None:
    x, y = load_digits(return_X_y=True)
    network = LogisticRegression(C=100, max_iter=50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = CalibratedClassifier(network, cv=3).fit(x[:600], y[:600])
        theirs = CalibratedClassifierCV(network, method="temperature", cv=3, ensemble=False).fit(x[:600], y[:600])
    np.testing.assert_allclose(own.predict_proba(x[600:900]), theirs.predict_proba(x[600:900]), atol=2e-3)
    before, after = (log_loss(y[600:900], model.predict_proba(x[600:900])) for model in (own.estimator_, own))
    assert after < 0.8 * before


@pytest.mark.parametrize(
    ("classifier", "response"),
    [
        (LinearSVC(), "decision_function"),
        (GaussianNB(), "predict_log_proba"),
        (RandomForestClassifier(20, random_state=0), "predict_log_proba"),  # some are minus infinity
        (make_pipeline(StandardScaler(), LogisticRegression()), "predict_proba"),
    ],
    ids=lambda part: type(part).__name__ if not isinstance(part, str) else part,
)
@pytest.mark.parametrize("classes", [2, 3])
def test_prefit_and_cross_validated(classifier: object, response: str, classes: int, iris: tuple) -> None:
    x, y = iris
    x, y = (x, y) if classes == 3 else (x[y != "setosa"], y[y != "setosa"])
    fitted = clone(classifier).fit(x[:60], y[:60])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="divide by zero")  # scikit-learn's logarithm of 0
        prefit = CalibratedClassifier(fitted, cv="prefit", response_method=response).fit(x[60:], y[60:])
        crossed = CalibratedClassifier(classifier, response_method=response).fit(x, y)
        for model in (prefit, crossed):
            assert list(model.classes_) == list(NAMES[-classes:])
            probs = model.predict_proba(x)
            assert probs.shape == (len(x), classes)
            np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-6)
            assert model.score(x, y) > 0.6
    assert prefit.estimator_ is fitted


def test_scorers_know_the_classes_of_the_classifier(iris: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = iris
    model = GaussianNB().fit(x, y)
    probs, codes = model.predict_proba(x), np.searchsorted(NAMES, y)
    for key in ("ece", "debiased_ece", "nll"):
        expected = getattr(functional, key)(probs, codes, probs=True)
        assert scorer(key)(model, x, y) == pytest.approx(-expected)
        theirs = make_scorer(measure, response_method="predict_proba", greater_is_better=False, key=key)
        assert theirs(model, x, y) == pytest.approx(-expected)
    assert scorer("nll")(model, x, y) == pytest.approx(-log_loss(y, probs))
    assert scorer("accuracy")(model, x, y) == model.score(x, y)
    part = y != "versicolor"  # a fold without one of the classes
    assert scorer("nll")(model, x[part], y[part]) == pytest.approx(-log_loss(y[part], probs[part], labels=NAMES))
    two = (y == "virginica") | (y == "versicolor")
    binary = GaussianNB().fit(x[two], y[two])
    theirs = make_scorer(measure, response_method="predict_proba", greater_is_better=False, num_bins=10)
    assert theirs(binary, x[two], y[two]) == pytest.approx(scorer("ece", num_bins=10)(binary, x[two], y[two]))
    assert repr(scorer("ece", num_bins=10)) == "scorer('ece', num_bins=10)"


def test_search_over_calibrators(iris: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = iris
    grid = {"method": ["temperature", "histogram"], "estimator__var_smoothing": [1e-9, 1e-2]}
    search = GridSearchCV(CalibratedClassifier(GaussianNB(), cv=2), grid, scoring=scorer("brier"), cv=2).fit(x, y)
    assert search.best_score_ == search.cv_results_["mean_test_score"].max()
    assert (cross_val_score(search.best_estimator_, x, y, scoring=scorer("ece"), cv=2) <= 0).all()


def test_display(iris: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = iris
    model = GaussianNB().fit(x, y)
    _, ax = plt.subplots()
    display = ReliabilityDisplay.from_estimator(model, x, y, num_bins=10, ax=ax)
    assert display.ax_ is ax
    assert display.figure_ is ax.figure
    assert ax.get_title() == "GaussianNB"
    assert display.diagram.ece == pytest.approx(-scorer("ece", num_bins=10)(model, x, y))
    again = ReliabilityDisplay.from_predictions(y, model.predict_proba(x), num_bins=10)
    assert again.diagram.counts == display.diagram.counts


def test_columns_follow_classes_as_given() -> None:
    rng = np.random.default_rng(0)
    scores = 3 * rng.normal(size=(200, 3))
    y = np.array(["c", "a", "b"])[(scores + rng.gumbel(size=scores.shape) * 2).argmax(axis=1)]
    given = ScoreCalibrator(classes=["c", "a", "b"]).fit(scores, y)
    ordered = ScoreCalibrator().fit(scores[:, [1, 2, 0]], y)
    np.testing.assert_allclose(given.predict_proba(scores)[:, [1, 2, 0]], ordered.predict_proba(scores[:, [1, 2, 0]]))
    assert (given.predict(scores) == ordered.predict(scores[:, [1, 2, 0]])).all()


def test_bad_input(iris: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = iris
    probs = GaussianNB().fit(x, y).predict_proba(x)
    with pytest.raises(ValueError, match="probs: row 0 .* if these are logits, pass them directly"):
        measure(y, np.log(probs) - 1)
    with pytest.raises(ValueError, match="not to 1|not a probability"):
        ScoreCalibrator(probs=True).fit(SVC().fit(x, y).decision_function(x), y)
    with pytest.raises(ValueError, match="scores must have 3 columns, one for each class, got 4"):
        ScoreCalibrator().fit(x, y)
    with pytest.raises(ValueError, match="y_prob has 3 classes, but y_true has 2; if not all classes occur, pass labels="):
        measure(y[y != "setosa"], probs[y != "setosa"])
    with pytest.raises(
        ValueError, match="y has the label .*'versicolor'.*, which is not one of the classes setosa, virginica"
    ):
        ScoreCalibrator(classes=["setosa", "virginica"]).fit(x[:, :2], y)
    with pytest.raises(ValueError, match="key must be one of .*, got 'eceX'; did you mean 'ece'"):
        scorer("eceX")
    with pytest.raises(TypeError, match="Perceptron has no predict_proba, so there are no scores to calibrate"):
        CalibratedClassifier(Perceptron(), response_method="predict_proba").fit(x, y)
    with pytest.raises(ValueError, match="calibrator must be one of .*, got 'platts'; did you mean 'platt'"):
        CalibratedClassifier(GaussianNB(), method="platts").fit(x, y)
