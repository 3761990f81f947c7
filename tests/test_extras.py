"""The core needs torch, torchmetrics and numpy; what is missing beyond is named together with its cure."""

import subprocess
import sys

import pytest

from calibrant.extras import EXTRAS, require

# Both the module and its metadata are hidden, as where it was never installed: torchmetrics asks the metadata whether to
# import matplotlib.
BLOCKED = """
import importlib.abc, importlib.metadata, sys

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

distribution = importlib.metadata.distribution

def hide(name):
    if name in {blocked!r}:
        raise importlib.metadata.PackageNotFoundError(name)
    return distribution(name)

sys.meta_path.insert(0, Block())
importlib.metadata.distribution = hide
"""

CORE = """
import torch
import calibrant, calibrant.losses, calibrant.functional, calibrant.metrics, calibrant.stats
import calibrant.data, calibrant.models, calibrant.posthoc, calibrant.predictions
loss = calibrant.losses.CALSALM(num_classes=3)
logits, target = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 1, 2, 0, 1])
loss(logits, target).backward()
loss.observe(logits, target)
loss.adapt()
calibrant.stats.bootstrap("ece", logits, target, resamples=20)
calibrant.posthoc.TemperatureScaling().fit(logits, target).transform(logits.detach())
panel = calibrant.metrics.CalibrationPanel(num_classes=3)
panel.update(logits, target)
panel.compute().to_dict()
loaded = {name.split(".")[0] for name in sys.modules} & BLOCKED
assert not loaded, loaded
"""

MISSING = """
try:
    {statement}
except ModuleNotFoundError as error:
    print(error)
"""


def run(code: str) -> str:
    blocked = BLOCKED.format(blocked=set(EXTRAS)) + f"BLOCKED = {set(EXTRAS)!r}\n"
    result = subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_core_works_without_any_extra() -> None:
    run(CORE)


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("import calibrant.data; calibrant.data.digits()", "calibrant.data.digits needs sklearn, which"),
        ("import calibrant.plots", "calibrant.plots needs matplotlib, which"),
    ],
)
def test_missing_extra_is_named_with_its_cure(statement: str, sentence: str) -> None:
    printed = run(MISSING.format(statement=statement))
    assert printed == f"{sentence} is not installed: pip install 'calibrant[train]'\n"


def test_a_broken_dependency_is_not_mistaken_for_a_missing_extra(tmp_path, monkeypatch) -> None:
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").write_text("import something_that_timm_needs")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ModuleNotFoundError, match="No module named 'something_that_timm_needs'"):
        require("timm", "this test")


def test_every_extra_is_declared() -> None:
    from importlib.metadata import requires

    declared = " ".join(requires("calibrant") or [])
    distributions = {"sklearn": "scikit-learn", "segmentation_models_pytorch": "segmentation-models-pytorch"}
    for package, extra in EXTRAS.items():
        name = distributions.get(package, package)
        assert any(line.startswith(name) and f'extra == "{extra}"' in line for line in requires("calibrant") or []), declared
