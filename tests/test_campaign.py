"""A small campaign of damaged and made-up files; python tests/campaign.py makes a larger one."""

from pathlib import Path

import numpy as np
import pytest

import campaign
from campaign import Campaign


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return Campaign(tmp_path_factory.mktemp("campaign") / "here", seed=0)


@pytest.mark.parametrize(
    ("kind", "trials"), [("recipe", 40), ("run", 24), ("interrupted", 12), ("study", 10), ("calibrator", 40)]
)
def test_the_same_numbers_or_a_sentence(whole: Campaign, kind: str, trials: int) -> None:
    whole.failures.clear()
    whole.run(trials, (kind,))
    assert not whole.failures, "\n\n".join(whole.failures)
    assert sum(number for text, number in whole.counts.items() if text.startswith(f"{kind}: a sentence")) > trials // 8


def test_a_campaign_notices(whole: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback, a changed number, a file outside, an exit code of its own."""

    def broken(*_: object) -> int:
        raise KeyError("zebra")

    def littering(*_: object) -> int:
        Path("../litter").write_text("")
        return 0

    for main, said in ((broken, "KeyError"), (littering, "outside of the folder"), (lambda _: 1, "exit code 1")):
        whole.failures.clear()
        with monkeypatch.context() as patch:
            patch.setattr(campaign, "main", main)
            whole.run(1, ("run",))
        assert said in "".join(whole.failures)
        (whole.place / "litter").unlink(missing_ok=True)
    whole.failures.clear()
    with monkeypatch.context() as patch:  # predictions that are other ones, and yet a whole file
        patch.setattr(campaign, "change_file", other_predictions)
        patch.setattr(campaign, "RUN_COMMANDS", campaign.RUN_COMMANDS[1:2])
        whole.run(1, ("run",))
    assert "instead of" in "".join(whole.failures)
    whole.failures.clear()


def other_predictions(folder: Path, *_: object) -> campaign.Change:
    path = folder / "predictions" / "test.npz"
    with np.load(path) as found:
        arrays = dict(found)
    np.savez(path, **{**arrays, "logits": 2 * arrays["logits"]})
    return campaign.Change("other predictions", same=True)
