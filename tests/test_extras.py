"""What is not installed is not needed until it is used, and then named together with its cure."""

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
panel = calibrant.metrics.Panel(num_classes=3)
panel.update(logits, target)
panel.compute().to_dict()
loaded = {name.split(".")[0] for name in sys.modules} & BLOCKED
assert not loaded, loaded
"""

MODULES = """
import torch
import calibrant.metrics
panel = calibrant.metrics.CalibrationPanel(num_classes=3)
panel.update(5 * torch.eye(3), torch.tensor([0, 1, 2]))
assert panel.compute().accuracy == 1
"""

MISSING = """
try:
    {statement}
except ModuleNotFoundError as error:
    print(error)
"""


def run(code: str, without: set[str]) -> str:
    blocked = BLOCKED.format(blocked=without) + f"BLOCKED = {without!r}\n"
    result = subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_core_works_with_torch_and_numpy_alone() -> None:
    run(CORE, {*EXTRAS, "torchmetrics", "transformers"})


def test_metrics_of_torchmetrics_need_no_extra() -> None:
    extras = {package for package, extra in EXTRAS.items() if extra} - {"PIL"}  # which matplotlib brings
    run(MODULES, {*extras, "transformers"})


@pytest.mark.parametrize(
    ("statement", "what", "package", "extra"),
    [
        ("import calibrant.data; calibrant.data.digits()", "calibrant.data.digits needs sklearn", "scikit-learn", ""),
        ("import calibrant.plots", "calibrant.plots needs matplotlib", "matplotlib", ""),
        ("import calibrant.train", "calibrant.train needs lightning", "lightning", "train"),
        ("import calibrant.models as m; m.create('timm:x', 2)", "the model timm:x needs timm", "timm", "vision"),
    ],
)
def test_what_is_missing_is_named_with_its_cure(statement: str, what: str, package: str, extra: str) -> None:
    more = f", or everything in calibrant's extra [{extra}]" if extra else ""
    printed = run(MISSING.format(statement=statement), set(EXTRAS))
    assert printed == f"{what}, which is not installed: pip install {package}{more}\n"


def test_the_command_line_names_what_it_misses() -> None:
    code = "from calibrant.cli import main\nsys.stderr = sys.stdout\nassert main(['list']) == 2"
    assert run(code, {"rich"}) == "calibrant: the command line needs rich, which is not installed: pip install rich\n"
    code = "from calibrant.cli import main\nsys.stderr = sys.stdout\nassert main(['train', 'digits', '--quiet']) == 2"
    assert run(code, {"lightning"}).startswith("calibrant: calibrant.train needs lightning, which is not installed: pip ins")


def test_a_broken_dependency_is_not_mistaken_for_a_missing_extra(tmp_path, monkeypatch) -> None:
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").write_text("import something_that_timm_needs")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ModuleNotFoundError, match="No module named 'something_that_timm_needs'"):
        require("timm", "this test")
