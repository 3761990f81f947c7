"""Optional dependencies: what the core does without is imported through here."""

import importlib
from types import ModuleType

#: The extra of calibrant that brings each package, by the name it is imported under.
EXTRAS = {
    "jinja2": "train",
    "jsonargparse": "train",
    "lightning": "train",
    "matplotlib": "train",
    "plotly": "train",
    "pyarrow": "train",
    "ray": "ray",
    "rich": "train",
    "safetensors": "train",
    "segmentation_models_pytorch": "vision",
    "sklearn": "train",
    "timm": "vision",
    "torchvision": "vision",
    "transformers": "hf",
}


def require(module: str, purpose: str) -> ModuleType:
    """Import ``module``, such as ``"sklearn.datasets"``, or say in one sentence how to get it.

    Args:
        module: Full name of the module.
        purpose: What needs it, the subject of the sentence.
    """
    package = module.split(".", maxsplit=1)[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package:
            raise  # the package is there, but something it needs is not
        raise ModuleNotFoundError(
            f"{purpose} needs {package}, which is not installed: pip install 'calibrant[{EXTRAS[package]}]'", name=package
        ) from None
