"""Optional dependencies: whatever the core can do without is imported through here."""

import contextlib
import importlib
import os
from collections.abc import Iterator
from types import ModuleType

#: The extra of calibrant that installs each package, by import name; empty for core dependencies.
EXTRAS = {
    "PIL": "vision",
    "jinja2": "",
    "jsonargparse": "",
    "lightning": "train",
    "matplotlib": "",
    "optuna": "tune",
    "plotly": "",
    "pyarrow": "",
    "ray": "ray",
    "rich": "",
    "safetensors": "",
    "segmentation_models_pytorch": "vision",
    "sklearn": "",
    "timm": "vision",
    "torchvision": "vision",
    "transformers": "hf",
    "yaml": "",
}
#: Names that packages are installed under, where they differ from the import names.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "comet_ml": "comet-ml",
    "segmentation_models_pytorch": "segmentation-models-pytorch",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def require(module: str, purpose: str) -> ModuleType:
    """Import ``module``, such as ``"sklearn.datasets"``, or raise an error that says how to install it.

    Args:
        module: Full name of the module.
        purpose: What needs it, as the subject of the sentence.
    """
    package = module.split(".", maxsplit=1)[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package:
            raise  # the package is installed, but something it needs is not
        extra = EXTRAS.get(package, "")
        more = f", or everything in calibrant's extra [{extra}]" if extra else ""
        cure = f"pip install {DISTRIBUTIONS.get(package, package)}{more}"
        raise ModuleNotFoundError(f"{purpose} needs {package}, which is not installed: {cure}", name=package) from None


@contextlib.contextmanager
def weights_only() -> Iterator[None]:
    """Restrict libraries that read weights or data with ``torch.load`` to unpickling tensors."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before, os.environ[name] = os.environ.get(name), "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
