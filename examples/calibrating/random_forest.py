"""Random forests are underconfident

The votes of a forest's trees are spread out even where it is nearly always right, so its confidence is too low. With
calibrant's scikit-learn wrapper, any classifier can be given any calibrator, without a separate validation set.
"""

# %% [markdown]
# ## The forest
#
# Scikit-learn's digits, as a table of 64 pixel values per image: 500 images for training, the rest for testing.

# %%
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

from calibrant.integrations.sklearn import CalibratedClassifier, ReliabilityDisplay, measure

x, y = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(x, y, train_size=500, random_state=0)
forest = RandomForestClassifier(50, random_state=0).fit(train_x, train_y)

# %% [markdown]
# ## Calibrate it
#
# `CalibratedClassifier` fits the calibrator on out-of-fold scores, so that no tree is judged on samples it was trained on,
# and the forest itself on all of the data. It is a classifier like any other, for pipelines and grid searches. The scores
# are `predict_proba` here: logarithms of a forest's probabilities would be infinite wherever no tree votes for a class.

# %%
models = {"forest": forest}
for method in ("temperature", "isotonic", "dirichlet"):
    model = CalibratedClassifier(forest, method=method, response_method="predict_proba", cv=5)
    models[method] = model.fit(train_x, train_y)
for name, model in models.items():
    probs = model.predict_proba(test_x)
    accuracy, ece, nll = (measure(test_y, probs, key=key) for key in ("accuracy", "ece", "nll"))
    print(f"{name:12} accuracy {accuracy:.1%}   ECE {ece:.1%}   NLL {nll:.2f}")

# %%
# alt: Three reliability diagrams. The forest is far above the diagonal from 0.3 to 0.9; the calibrated ones are close to it.
with plt.rc_context({"font.size": 8}):
    figure, axes = plt.subplots(1, 3, figsize=(8, 3.6), layout="constrained")
    for ax, name in zip(axes, ("forest", "temperature", "isotonic"), strict=True):
        ReliabilityDisplay.from_estimator(models[name], test_x, test_y, name=name, ax=ax)

# %% [markdown]
# Where the forest gives a class more than 50%, it is nearly always right, at 60% as well as at 90%. Each calibrator cuts its
# ECE to about a tenth. Temperature scaling is enough and has the lowest NLL. Dirichlet calibration fits about a hundred
# parameters to 500 samples and loses accuracy.
