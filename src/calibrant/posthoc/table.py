"""The table of calibrators."""

from dataclasses import dataclass
from typing import Final

from calibrant.registry import Entry, table


@dataclass(frozen=True)
class CalibratorEntry(Entry):
    """A row of the table of calibrators.

    Attributes:
        paper: Where it was published.
        preserves_accuracy: Whether the predicted class never changes.
        dense: Whether it is for dense predictions only.

    Example:
        >>> from calibrant.posthoc import CALIBRATORS
        >>> CALIBRATORS["ets"].title, CALIBRATORS["ets"].paper, CALIBRATORS["ets"].preserves_accuracy
        ('ensemble temperature scaling', 'Zhang et al., ICML 2020', True)
    """

    paper: str
    preserves_accuracy: bool = False
    dense: bool = False


def _calibrator(key: str, path: str, title: str, paper: str, *, keeps: bool = False, dense: bool = False) -> CalibratorEntry:
    return CalibratorEntry(key, f"calibrant.posthoc.{path}", title, paper, keeps, dense)


#: Every calibrator by its key, as on the command line.
CALIBRATORS: Final = table(
    _calibrator("temperature", "temperature:TemperatureScaling", "temperature scaling", "Guo et al., ICML 2017", keeps=True),
    _calibrator(
        "ets", "ensemble:EnsembleTemperatureScaling", "ensemble temperature scaling", "Zhang et al., ICML 2020", keeps=True
    ),
    _calibrator("vector", "linear:VectorScaling", "vector scaling", "Guo et al., ICML 2017"),
    _calibrator("matrix", "linear:MatrixScaling", "matrix scaling", "Guo et al., ICML 2017"),
    _calibrator("svs", "structured:StructuredVectorScaling", "structured vector scaling", "Berta et al., AISTATS 2026"),
    _calibrator("sms", "structured:StructuredMatrixScaling", "structured matrix scaling", "Berta et al., AISTATS 2026"),
    _calibrator("dirichlet", "linear:DirichletCalibration", "Dirichlet calibration", "Kull et al., NeurIPS 2019"),
    _calibrator("platt", "platt:PlattScaling", "Platt scaling", "Platt, 1999"),
    _calibrator("beta", "beta:BetaCalibration", "beta calibration", "Kull et al., AISTATS 2017"),
    _calibrator("histogram", "histogram:HistogramBinning", "histogram binning", "Zadrozny and Elkan, ICML 2001"),
    _calibrator("isotonic", "isotonic:IsotonicCalibration", "isotonic calibration", "Zadrozny and Elkan, KDD 2002"),
    _calibrator("venn-abers", "venn_abers:VennAbers", "Venn-Abers calibration", "Vovk et al., NeurIPS 2015"),
    _calibrator("bbq", "bbq:BBQ", "Bayesian binning into quantiles", "Naeini et al., AAAI 2015"),
    _calibrator("spline", "spline:SplineCalibration", "spline calibration", "Gupta et al., ICLR 2021", keeps=True),
    _calibrator(
        "local-temperature",
        "local:LocalTemperatureScaling",
        "local temperature scaling",
        "Ding et al., ICCV 2021",
        keeps=True,
        dense=True,
    ),
)
