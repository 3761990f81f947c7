"""``calibrant list`` prints its tables as they are."""

import re
from dataclasses import replace

import pytest

from calibrant.cli import main
from calibrant.data import CORRUPTIONS, DATA
from calibrant.losses import METHODS
from calibrant.metrics import MEASURES
from calibrant.models import MODELS
from calibrant.posthoc import CALIBRATORS

TEXTS = {
    "losses": {entry.key: entry.title for entry in METHODS.values()},
    "calibrators": {entry.key: entry.title for entry in CALIBRATORS.values()},
    "metrics": {record.key: record.about for record in MEASURES.values()},
    "models": {entry.key: entry.title for entry in MODELS.values()},
    "data": {entry.key: entry.title for entry in DATA.values()},
    "corruptions": {entry.key: entry.title for entry in CORRUPTIONS.values()},
}


def listed(what: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["list", what]) == 0
    return re.sub(r"\s+", " ", capsys.readouterr().out)


@pytest.mark.parametrize("what", TEXTS)
def test_every_text_is_printed_whole(what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = listed(what, capsys)
    for key, about in TEXTS[what].items():
        assert re.search(rf" {re.escape(key)} .*{re.escape(about)}", text), key


def test_brackets_stay(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    formula = "sum over [bins] of |C - A| [/] N"
    monkeypatch.setitem(MEASURES, "odd", replace(MEASURES["ece"], key="odd", about=formula))  # type: ignore[arg-type]
    assert formula in listed("metrics", capsys)
