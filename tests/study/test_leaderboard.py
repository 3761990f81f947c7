"""Methods over several data sets: ranks by brute force, their intervals, and the documents they are written into."""

import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from calibrant.cli import main
from calibrant.errors import InputError
from calibrant.metrics.table import MEASURES
from calibrant.study import Leaderboard, Study
from calibrant.study.leaderboard import END, START

ROOT = Path(__file__).parents[2]


def board(seed: int = 0, methods: int = 4, seeds: int = 3, data: int = 3) -> Leaderboard:
    random = np.random.default_rng(seed)
    names = ["ce", "ls", "fl", "mbls", "cals-alm"][:methods]
    return Leaderboard(
        {
            f"data{d}": {
                key: {name: {s: float(random.integers(5)) / 10 for s in range(seeds)} for name in names}
                for key in ("ece", "nll", "accuracy")
            }
            for d in range(data)
        }
    )


@pytest.mark.parametrize(("key", "seed"), list(product(["ece", "accuracy"], range(3))))
def test_ranks_by_brute_force(key: str, seed: int) -> None:
    """With ties, whose ranks are averaged; a higher accuracy is better, a higher error is not."""
    some = board(seed)
    higher = MEASURES[key].higher
    for method, rank in some.ranks(key).items():
        means = []
        for runs in some.data.values():
            places = []
            for s in range(3):
                ordered = sorted((own[s] for own in runs[key].values()), reverse=higher)
                first = ordered.index(runs[key][method][s]) + 1
                places.append(first + (ordered.count(runs[key][method][s]) - 1) / 2)
            means.append(np.mean(places))
        assert rank.mean == pytest.approx(np.mean(means))
        assert rank.low <= rank.mean <= rank.high
        assert rank.data == 3


def test_the_interval_is_that_of_data_sets_and_seeds() -> None:
    """Of one seed each, the mean over data sets has the standard error that resampling them gives."""
    ranks = [1, 1, 2, 2, 1, 2, 1, 2, 1, 1]
    first = {f"d{i}": {"ece": {"ce": {0: 0.1}, "ls": {0: 0.05 if rank == 1 else 0.2}}} for i, rank in enumerate(ranks)}
    found = Leaderboard(first).ranks("ece")["ls"]
    draws = np.random.default_rng(1).choice(ranks, (100_000, 10)).mean(1)
    assert found.mean == 1.4
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])), abs=0.051)
    # One data set: only its seeds are resampled.
    seeds = {"ce": dict.fromkeys(range(6), 0.1), "ls": {s: 0.05 if s < 3 else 0.2 for s in range(6)}}
    alone = Leaderboard({"d": {"ece": seeds}}).ranks("ece")["ls"]
    assert (alone.low, alone.mean, alone.high) == pytest.approx((1.17, 1.5, 1.83), abs=0.01)


def test_methods_that_are_missing_somewhere_are_ranked_among_those_that_are_not() -> None:
    runs = {
        "a": {"ece": {"ce": {0: 0.3}, "ls": {0: 0.2}, "nacl": {0: 0.1}}},
        "b": {"ece": {"ce": {0: 0.3}, "ls": {0: 0.4}}},
    }
    some = Leaderboard(runs)
    assert some.core == ["ce", "ls"]
    found = some.ranks("ece")
    assert (found["ce"].mean, found["ls"].mean) == (1.5, 1.5)  # nacl takes nobody's rank
    assert (found["nacl"].mean, found["nacl"].data) == (1.0, 1)
    assert some.ordered() == ["ce", "ls", "nacl"]
    # A first place on one data set does not come before a last one on two.
    runs["b"]["ece"]["fl"] = {0: 0.5}
    assert Leaderboard({**runs, "c": runs["b"]}).ordered() == ["ce", "ls", "fl", "nacl"]


def test_a_diverged_run_loses() -> None:
    found = Leaderboard({"a": {"ece": {"ce": {0: 0.9}, "ls": {0: math.nan}}}}).ranks("ece")
    assert (found["ce"].mean, found["ls"].mean) == (1.0, 2.0)


def test_no_shared_seed_is_refused() -> None:
    with pytest.raises(InputError, match="no seed is shared by ce, ls"):
        Leaderboard({"a": {"ece": {"ce": {0: 0.9}, "ls": {1: 0.1}}}}).ranks("ece")


def test_from_studies_to_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    study = Study("digits", losses=["ce", "ls"], seeds=2, out="study", epochs=1, **{"data.limit": 60})
    study.run()
    result = study.save()
    read = Leaderboard.read({"digits": "study"})
    for key in ("ece", "nll", "accuracy"):
        for method in ("ce", "ls"):
            own = result[method].values(key)
            assert list(read.data["digits"][key][method].values()) == pytest.approx(own, rel=1e-5)
        assert list(read.data["digits"][key]["ce + T"].values()) == pytest.approx(
            result["ce"].values(key, "after"), rel=1e-5
        )
    assert read == Leaderboard.read({"digits": "study/runs.csv"})
    assert read.methods == ["ce", "ce + T", "ls"]

    document = tmp_path / "README.md"
    document.write_text(f"# Ours\n\n{START}\nold\n{END}\n\nThe end.\n")
    assert main(["leaderboard", "digits=study", "--into", "README.md"]) == 0
    text = document.read_text()
    assert text.startswith("# Ours\n")
    assert text.endswith("The end.\n")
    assert "old" not in text
    assert read.rank_table() in text
    read.write_into(document)
    assert document.read_text() == text
    assert main(["leaderboard", "study", "--out", "table.md"]) == 0
    assert main(["leaderboard", "study", "--out", "table.md"]) == 2
    assert main(["leaderboard", "study", "--out", "table.md", "--force"]) == 0
    assert (tmp_path / "table.md").read_text().startswith("Mean rank (1 is best) among the 3 methods run on the data set,")
    assert main(["leaderboard", "study"]) == 0
    assert "| `ce + T` |" in capsys.readouterr().out
    assert main(["leaderboard", "study", "--top", "2"]) == 0
    text = capsys.readouterr().out
    assert "Top 2 by NLL:" in text
    assert len(re.findall(r"^\| `", text, re.MULTILINE)) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["."], "holds no runs.csv"),
        (["a=one.csv"], "the studies a have only ce in common; ranks need two"),
        (["a=good.csv", "--into", "none.md"], "none.md is not a file"),
        (["a=good.csv", "--into", "twice.md"], "twice.md has more than one place for a leaderboard"),
        (["a=x.csv", "a=x.csv"], "two studies are named a; pass NAME=FOLDER"),
        (["a=x.csv"], "should have the columns method, seed, ece and others"),
        (["a=y.csv"], "y.csv cannot be read"),
        (["a=good.csv", "--into", "plain.md"], "plain.md has no place for a leaderboard"),
        (["a=good.csv", "--top", "0"], "--top must be at least 1, got 0"),
    ],
)
def test_what_is_no_study_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, words, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("a,b\n1,2\n")
    Path("y.csv").write_text("method,seed,ece\nce,zero,0.1\n")
    Path("one.csv").write_text("method,seed,ece\nce,0,0.1\n")
    Path("good.csv").write_text("method,seed,ece\nce,0,0.1\nls,0,0.2\n")
    Path("twice.md").write_text(f"{START}\n{END}\n" * 2)
    Path("plain.md").write_text("# Ours\n")
    assert main(["leaderboard", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_failed_loses(tmp_path: Path) -> None:
    """Its line in runs.csv is empty; by accuracy, of which more is better, it comes last as well."""
    lines = [
        "method,seed,ece,accuracy",
        "ce,0,0.1,0.7",
        "ce,1,0.1,0.7",
        "fl,0,0.05,0.9",
        "fl,1,,",
        "ls,0,0.2,0.6",
        "ls,1,0.2,0.6",
    ]
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n")
    found = Leaderboard.read({"digits": tmp_path / "runs.csv"})
    for key in ("ece", "accuracy"):
        assert {name: rank.mean for name, rank in found.ranks(key).items()} == {"ce": 1.5, "fl": 2.0, "ls": 2.5}
    assert "| `fl` | 5.0 (1 failed) |" in found.value_table("ece")
    (tmp_path / "runs.csv").write_text("\n".join([*lines[:3], "fl,0,,", "fl,1,,"]) + "\n")
    assert "| `fl` | failed |" in Leaderboard.read({"digits": tmp_path / "runs.csv"}).markdown()


def test_seeds_that_not_all_have_are_named(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("method,seed,ece\nce,0,0.1\nce,1,0.1\nfl,1,0.2\n")
    (tmp_path / "other.csv").write_text("method,seed,ece\nls,0,0.1\n")
    text = Leaderboard.read({"digits": tmp_path / "runs.csv"}).markdown()
    assert "| method | digits (2) |" in text
    assert "| `ce` | **10.0 ± 0.0** |" in text
    assert "| `fl` | 20.0 (1) |" in text
    assert "On digits, only the seeds that all of these methods share are used, 1 of 2." in text
    with pytest.raises(InputError, match="the studies a, b have no method in common; ranks need two"):
        Leaderboard.read({"a": tmp_path / "runs.csv", "b": tmp_path / "other.csv"})


@pytest.mark.parametrize(("document", "top"), [("studies/README.md", None), ("README.md", 8)])
def test_our_own_is_in_step_with_the_studies(tmp_path: Path, document: str, top: int | None) -> None:
    """As `make leaderboard` writes it."""
    named = re.search("^STUDIES := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named
    copy = tmp_path / "copy.md"
    copy.write_text((ROOT / document).read_text())
    Leaderboard.read([ROOT / "studies" / name for name in named[1].split()]).write_into(copy, top)
    assert copy.read_text() == (ROOT / document).read_text()


def test_tables_of_our_studies_are_small() -> None:
    assert all(path.stat().st_size < 200_000 for path in (ROOT / "studies").rglob("*.csv"))
