"""Optional dependencies: what the core does without is imported through here."""

import importlib
from types import ModuleType

#: The extra of calibrant that brings each package, by the name it is imported under; empty for those of the core.
EXTRAS = {
    "PIL": "vision",
    "jinja2": "",
    "jsonargparse": "",
    "lightning": "train",
    "matplotlib": "",
    "plotly": "",
    "pyarrow": "",
    "ray": "ray",
    "rich": "",
    "safetensors": "",
    "segmentation_models_pytorch": "vision",
    "sklearn": "",
    "timm": "vision",
    "torchvision": "vision",
    "yaml": "",
}
#: Names that packages are installed under, where these are not the ones they are imported under.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "segmentation_models_pytorch": "segmentation-models-pytorch",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
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
        extra = EXTRAS.get(package, "")
        more = f", or everything that calibrant's extra [{extra}] brings" if extra else ""
        cure = f"pip install {DISTRIBUTIONS.get(package, package)}{more}"
        raise ModuleNotFoundError(f"{purpose} needs {package}, which is not installed: {cure}", name=package) from None
