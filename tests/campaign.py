"""Files that are damaged, cut short or made up: the same numbers or one sentence, never a traceback, nothing outside.

A trial copies something that works (a run, a run that was interrupted, a study, a calibrator, a recipe), changes it at
random, and calls a command on it. All of it follows from the seed. The tests make a small campaign; a larger one:

    python tests/campaign.py --trials 2000 --seed 1
"""

import argparse
import collections
import contextlib
import hashlib
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import load_file, save_file

from calibrant import posthoc
from calibrant.cli import main
from calibrant.recipes import Data, Model, Optimizer, Recipe

#: Values that stand where others are expected.
STRANGE: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        7,
        0.5,
        -0.5,
        1e-30,
        1e308,
        10**6,
        10**12,
        10**30,
        -(10**30),
        float("nan"),
        float("inf"),
    ),
    *("", "x", "0", "nan", "../../x", "/etc/passwd", "[bold]x[/bold]", "[/]", "a\0b", "é" * 40, "x" * 3000, "os.system"),
    *([], [None], [[]], [1, 2, 3], [0.5] * 9, {}, {"a": 1}, {"class_path": "os.system"}, {"name": "ce"}, [1, "x", {}]),
)
#: A recipe that takes a moment.
RECIPE = Recipe(
    name="campaign",
    data=Data(limit=40),
    model=Model("mlp", {"hidden": [4]}),
    loss="cals-alm",
    optimizer=Optimizer("adam", lr=1e-2),
    epochs=2,
    batch_size=16,
    select="nll",
)
RECIPES: tuple[dict[str, Any], ...] = (
    {"epochs": 1, "data": {"limit": 20}, "model": {"name": "small-cnn", "options": {"width": 4}}, "loss": "mbls"},
    {"epochs": 1, "data": {"name": "npz", "path": "own.npz"}, "model": {"name": "mlp", "options": {"hidden": [4]}}},
    {"epochs": 1, "data": {"name": "texts", "path": "texts.csv", "validation": 0.3}, "model": {"name": "gpool-cnn"}},
    {
        "epochs": 1,
        "data": {"limit": 20, "long_tail": {"ratio": 5, "kind": "exp"}, "validation_set": "noisy"},
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True},
        "schedule": {"name": "cosine", "warmup": 1, "milestones": [1]},
        "augmentation": "crop-flip",
        "trainer": {"gradient_clip_val": 2.0, "logger": "csv", "precision": "32-true"},
        "methods": {"mbls": {"margin": 6}},
        "loss": {"name": "adafocal", "options": {"num_bins": 5}},
    },
)


# Changes


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values inside a nested one."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from nodes(inner, (*path, key))


def change_value(value: Any, random: Random) -> str:
    """Change a nested value somewhere; what was done."""
    paths = list(nodes(value))
    if not paths:
        return "nothing"
    *above, last = random.choice(paths)
    inside = value
    for key in above:
        inside = inside[key]
    how = random.randrange(8)
    if how == 0:
        del inside[last]
        return f"without {(*above, last)}"
    if how == 1 and isinstance(inside, dict):
        inside[random.choice(["zebra", "", "1", str(last).upper()])] = inside.pop(last)
        return f"another key than {(*above, last)}"
    same = [other for other in STRANGE if isinstance(other, int | float) is isinstance(inside[last], int | float)]
    if how < 6 and isinstance(inside[last], int | float) and not isinstance(inside[last], bool):
        value = inside[last]
        inside[last] = random.choice([-value, value * 10**6, value + 0.5, value + 1, value - 1, str(value), *same])
    elif how < 5 and isinstance(inside[last], str):
        inside[last] = random.choice([other for other in STRANGE if isinstance(other, str)])
    else:
        inside[last] = json.loads(json.dumps(random.choice(STRANGE)))
    return f"{(*above, last)} = {str(inside[last])[:40]!r}"


def change_bytes(path: Path, random: Random) -> str:
    content = bytearray(path.read_bytes())
    how = random.choice(["flip", "flip", "flip", "cut", "zero", "insert", "empty", "noise"])
    place = random.randrange(max(1, len(content)))
    if how == "flip" and content:
        for _ in range(random.choice([1, 1, 1, 3])):
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    elif how == "cut":
        del content[place:]
    elif how == "zero":
        content[place : place + 64] = bytes(len(content[place : place + 64]))
    elif how == "insert":
        content[place:place] = random.randbytes(16)
    else:
        content = bytearray() if how == "empty" else bytearray(random.randbytes(200))
    path.write_bytes(content)
    return f"{how} at {place}"


def change_array(array: np.ndarray, random: Random) -> np.ndarray:
    how = random.randrange(9)
    if how == 0:
        return array.astype(random.choice(["f2", "f8", "i1", "i8", "c8", "U5", "?", "M8[s]"]), casting="unsafe")
    if how == 1:
        return array[: random.randrange(max(1, len(array)))] if array.ndim else array.reshape(1, 1)
    if how == 2:
        return array.reshape(-1)
    if how == 3:
        return array[None]
    if how == 4:
        return np.asfortranarray(array)
    if how == 5:
        return np.zeros((0, *array.shape[1:]), array.dtype)
    changed = array.copy().reshape(-1)
    if len(changed) and array.dtype.kind in "fiu":
        with np.errstate(all="ignore"):
            wild = random.choice([np.nan, np.inf, -np.inf, -1e38, 1e38] if array.dtype.kind == "f" else [-1, 99, 2**62])
        changed[random.randrange(len(changed))] = np.array(wild).astype(array.dtype)
        if how == 6:
            changed[:] = changed[random.randrange(len(changed))]
    return changed.reshape(array.shape)


def change_npz(path: Path, random: Random) -> str:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    name = random.choice(list(arrays))
    how = random.randrange(6)
    if how == 0:
        del arrays[name]
    elif how == 1:
        arrays["x" + name] = arrays.pop(name)
    elif how == 2:
        arrays[name] = np.array([{"an": "object"}], dtype=object)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arrays[name] = change_array(arrays[name], random)
    np.savez(path, **arrays)
    return f"array {name}, {how}"


def change_checkpoint(path: Path, random: Random) -> str:
    """Made up: what torch.save would write, with other contents."""
    content = torch.load(path, weights_only=True)
    done = change_value(content, random)
    torch.save(content, path)
    return f"made up: {done}"


def change_json(path: Path, random: Random) -> str:
    content = json.loads(path.read_text())
    done = " and ".join(change_value(content, random) for _ in range(random.choice([1, 1, 2])))
    path.write_text(json.dumps(content))
    return done


def change_yaml(path: Path, random: Random) -> str:
    content = yaml.safe_load(path.read_text())
    done = " and ".join(change_value(content, random) for _ in range(random.choice([1, 1, 2])))
    path.write_text(yaml.safe_dump(content))
    return done


def change_csv(path: Path, random: Random) -> str:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    row = random.choice(rows)
    row[random.randrange(len(row))] = str(random.choice(STRANGE))[:50]
    path.write_text("\n".join(",".join(row) for row in rows))
    return "a field"


SHAPED: dict[str, Callable[[Path, Random], str]] = {
    ".json": change_json,
    ".yaml": change_yaml,
    ".npz": change_npz,
    ".csv": change_csv,
    ".ckpt": change_checkpoint,
}
#: Files of which a changed byte is always noticed, or means nothing.
CHECKED = (".npz", ".ckpt", ".safetensors")


@dataclass
class Change:
    """What was done to a file.

    Attributes:
        what: In words.
        same: Whether a command that succeeds has to say the same as before.
    """

    what: str
    same: bool = False


def change_file(folder: Path, random: Random, likely: tuple[str, ...] = ()) -> Change:
    """Change one file of a folder, mostly one of those that are likely to matter."""
    path = random.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    if likely and random.random() < 0.9:
        path = folder / random.choice(likely)
    name = path.relative_to(folder)
    how = random.random()
    if how < 0.05:
        path.unlink()
        return Change(f"{name} is gone")
    if how < 0.08:
        path.unlink()
        path.mkdir()
        return Change(f"{name} is a folder")
    if how < 0.55 and path.suffix in SHAPED:
        return Change(f"{name}: {SHAPED[path.suffix](path, random)}")
    return Change(f"{name}: {change_bytes(path, random)}", same=path.suffix in CHECKED)


def change_calibrator(folder: Path, random: Random) -> Change:
    """Change options or state, and then, to get past it, the checksum."""
    state, options = folder / "state.safetensors", folder / "calibrator.json"
    how = random.random()
    if how < 0.3:
        return change_file(folder, random)
    content = json.loads(options.read_text())
    if how < 0.65:
        done = change_value(content, random)
    else:
        tensors = load_file(state)
        name = random.choice(list(tensors))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            changed = change_array(tensors[name].numpy(), random)
        done = f"{name} {changed.dtype} {changed.shape}"
        with contextlib.suppress(TypeError):  # not for tensors
            tensors[name] = torch.from_numpy(np.array(changed, order="C"))
        if random.random() < 0.1:
            del tensors[name]
        save_file(tensors, state)
    if isinstance(content, dict):
        content.pop("checksum", None)
        text = json.dumps(content, sort_keys=True).encode()
        content["checksum"] = hashlib.sha256(text + state.read_bytes()).hexdigest()
    options.write_text(json.dumps(content))
    return Change(f"made up: {done}")


# Commands


@dataclass
class Outcome:
    """What a command did.

    Attributes:
        code: Its exit code, None if it ended otherwise.
        out: Standard output.
        err: Standard error.
        problem: A traceback.
    """

    code: int | None
    out: str
    err: str
    problem: str = ""


def call(arguments: list[str], seconds: int = 120) -> Outcome:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()

    def late(*_: object) -> None:
        raise TimeoutError(f"it takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("always")
            code = main(arguments)
    except SystemExit as stop:
        return Outcome(stop.code if isinstance(stop.code, int) else 1, out.getvalue(), err.getvalue())
    except BaseException:  # noqa: BLE001 - that is what is looked for
        return Outcome(None, out.getvalue(), err.getvalue(), traceback.format_exc())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Outcome(code, out.getvalue(), err.getvalue())


TRAIN = ["train", "recipe.yaml", "--quiet", "--out", "run"]
OOD = ["ood", "run", "--ood", "noise", "--limit", "20"]
SHIFT = ["shift", "run", "--corruptions", "contrast", "--severities", "1"]
COMPARE = ["compare", "recipe.yaml", "--quiet", "--losses", "ce", "ls", "--seeds", "1", "--jobs", "1", "--out", "study"]
NETWORK = ("recipe.yaml", "metrics.json", "environment.json", "checkpoints/best.ckpt")
#: Commands, and the files that they read.
RUN_COMMANDS: tuple[tuple[list[str], tuple[str, ...]], ...] = (
    (TRAIN, ("recipe.yaml", "metrics.json")),
    (["evaluate", "run", "--resamples", "20"], ("predictions/test.npz", "recipe.yaml")),
    (
        ["calibrate", "run", "run", "--resamples", "20", "--out", "calibrated"],
        ("predictions/test.npz", "predictions/validation.npz"),
    ),
    (OOD, (*NETWORK, "ood.json", "predictions/test.npz", "predictions/ood-noise.npz")),
    ([*OOD, "--force"], (*NETWORK, "ood.json", "predictions/test.npz")),
    (SHIFT, (*NETWORK, "shift.json")),
    ([*SHIFT, "--force"], (*NETWORK, "shift.json")),
    (
        ["report", "run"],
        ("recipe.yaml", "metrics.json", "environment.json", "history.csv", "learned.npz", "ood.json", "shift.json"),
    ),
)
STUDY_COMMANDS: tuple[tuple[list[str], tuple[str, ...]], ...] = (
    (COMPARE, ("study.json", "ce-seed0/metrics.json", "ls-seed0/recipe.yaml", "ce-seed0/predictions/test.npz")),
    (
        ["report", "study"],
        ("study.json", "study.json", "ce-seed0/metrics.json", "ls-seed0/history.csv", "ls-seed0/predictions/test.npz"),
    ),
)
APPLY = ["apply", "calibrator", "logits.npz", "--output", "applied.npz"]
CALIBRATORS = ("temperature", "ets", "vector", "matrix", "platt", "histogram", "isotonic", "bbq", "spline")


@dataclass
class Campaign:
    """Everything that is changed, as it was made.

    Attributes:
        place: A folder for all of it.
        seed: Of everything.
        failures: What went wrong.
        counts: Trials by kind and by what came out.
        verbose: Show each trial.
    """

    place: Path
    seed: int = 0
    failures: list[str] = field(default_factory=list)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    verbose: bool = False

    def __post_init__(self) -> None:
        self.whole, self.work = self.place / "whole", self.place / "work"
        self.whole.mkdir(parents=True)
        random = np.random.default_rng(self.seed)
        x = random.integers(0, 255, (40, 8, 8), dtype=np.uint8)
        np.savez(self.whole / "own.npz", train_x=x, train_y=np.arange(40) % 3, test_x=x[:20], test_y=np.arange(20) % 3)
        words = ["alpha", "beta", "gamma", "delta"]
        lines = [f"{' '.join(random.choice(words, 30))},{'ab'[i % 2]}" for i in range(30)]
        (self.whole / "texts.csv").write_text("text,label\n" + "\n".join(lines))
        (self.whole / "recipe.yaml").write_text(RECIPE.to_yaml())
        logits = 3 * random.normal(size=(200, 4))
        target = (logits + random.gumbel(size=logits.shape) * 2).argmax(1)
        np.savez(self.whole / "logits.npz", logits=logits, target=target)
        for key in CALIBRATORS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                posthoc.create(key).fit(logits, target).save(self.whole / "calibrators" / key)
        with contextlib.chdir(self.whole) if sys.version_info >= (3, 11) else _chdir(self.whole):
            for command in (TRAIN, OOD, SHIFT, COMPARE):
                done = call(command)
                assert done.code == 0, done
        shutil.copytree(self.whole / "run", self.whole / "interrupted", ignore=shutil.ignore_patterns("ood*", "shift*"))
        (self.whole / "interrupted" / "metrics.json").unlink()
        shutil.rmtree(self.whole / "interrupted" / "predictions")
        self.said: dict[str, tuple[str, bytes]] = {}

    def run(self, trials: int, kinds: tuple[str, ...] = ("recipe", "run", "interrupted", "study", "calibrator")) -> None:
        """So many trials, of all kinds in turn."""
        for number in range(trials):
            self.trial(kinds[number % len(kinds)], Random(f"{self.seed} {number}"), number)  # noqa: S311

    def trial(self, kind: str, random: Random, number: int) -> None:
        """Change something and call a command."""
        made = getattr(self, f"_{kind}")
        self._fresh()
        here = Path.cwd()
        os.chdir(self.work)
        try:
            change, command, produced = made(random)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            done = call(command)
            more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 2**20
            self._judge(f"{number}: {kind}, {change.what}: {' '.join(command)}", change, command, done, produced, kind)
            if more > 2:
                self.failures.append(f"{number}: {kind}, {change.what}: {' '.join(command)} took {more:.1f} GB")
        finally:
            os.chdir(here)
        outside = sorted(path.name for path in self.place.iterdir())
        if outside != ["whole", "work"]:
            self.failures.append(f"{number}: {kind}: outside of the folder there is {outside}")

    def _fresh(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        for name in ("own.npz", "texts.csv", "recipe.yaml", "logits.npz"):
            shutil.copy(self.whole / name, self.work / name)

    def _recipe(self, random: Random) -> tuple[Change, list[str], str]:
        content = json.loads(json.dumps(random.choice(RECIPES)))
        change = Change(change_value(content, random))
        path = Path("changed.yaml")
        path.write_text(yaml.safe_dump(content))
        if random.random() < 0.2:
            change = Change(change_bytes(path, random))
        dry = ["--dry-run"] if random.random() < 0.5 else ["--out", "run"]
        return change, ["train", "changed.yaml", "--quiet", "--epochs", "1", *dry], ""

    def _run(self, random: Random) -> tuple[Change, list[str], str]:
        shutil.copytree(self.whole / "run", "run")
        command, files = random.choice(RUN_COMMANDS)
        return change_file(Path("run"), random, files), command, ""

    def _interrupted(self, random: Random) -> tuple[Change, list[str], str]:
        shutil.copytree(self.whole / "interrupted", "run")
        if random.random() < 0.7:  # a checkpoint, which counts
            path = Path("run/checkpoints") / random.choice(["last.ckpt", "last.ckpt", "previous.ckpt", "best.ckpt"])
            return Change(f"{path}: {change_bytes(path, random)}", same=True), TRAIN, "run/predictions/test.npz"
        files = ("recipe.yaml", "environment.json", "checkpoints/last.ckpt", "history.csv")
        return change_file(Path("run"), random, files), TRAIN, "run/predictions/test.npz"

    def _study(self, random: Random) -> tuple[Change, list[str], str]:
        shutil.copytree(self.whole / "study", "study")
        command, files = random.choice(STUDY_COMMANDS)
        return change_file(Path("study"), random, files), command, ""

    def _calibrator(self, random: Random) -> tuple[Change, list[str], str]:
        shutil.copytree(self.whole / "calibrators" / random.choice(CALIBRATORS), "calibrator")
        return change_calibrator(Path("calibrator"), random), APPLY, "applied.npz"

    def _judge(self, what: str, change: Change, command: list[str], done: Outcome, produced: str, kind: str) -> None:
        problem = ""
        if done.code is None or "Traceback" in done.err:
            problem = done.problem or done.err
        elif done.code not in (0, 2):
            problem = f"exit code {done.code}: {done.err}"
        elif done.code == 2 and not done.err.strip():
            problem = "exit code 2 without a word"
        elif done.code == 2 and len(done.err.split("error:")[-1]) > 2500:
            problem = f"not a sentence: {done.err[:300]} ..."
        elif done.code == 0 and produced == "applied.npz" and not self._probabilities(Path(produced)):
            problem = "what it wrote are no probabilities"
        elif done.code == 0 and change.same:
            problem = self._other(command, done, produced, kind)
        self.counts[f"{kind}: {'wrong' if problem else 'the same, or unharmed' if done.code == 0 else 'a sentence'}"] += 1
        if problem:
            self.failures.append(f"{what}\n{problem}")
        if self.verbose:
            print(f"{done.code} {what}\n      {done.err.strip()[-300:]}", flush=True)  # noqa: T201

    @staticmethod
    def _probabilities(path: Path) -> bool:
        with np.load(path) as found:
            logits = found["logits"].astype(np.float64)
        return bool(np.isfinite(np.exp(logits)).all() and np.allclose(np.exp(logits).sum(1), 1, atol=1e-3))

    def _other(self, command: list[str], done: Outcome, produced: str, kind: str) -> str:
        """What differs from what the command says and writes about the unchanged files."""
        key = f"{kind} {' '.join(command)} {Path('calibrator/calibrator.json').exists()}"
        if kind == "calibrator":  # which differ; found by their checksums, or it is a failure
            return "" if Path("calibrator/state.safetensors").read_bytes() in self._states() else "a changed state was used"
        if key not in self.said:
            kept, work = self.place / "kept", self.work
            work.rename(kept)
            self._fresh()
            os.chdir(self.work)
            shutil.copytree(self.whole / kind, "study" if kind == "study" else "run")
            said = call(command)
            assert said.code == 0, said
            self.said[key] = numbers(said.out), Path(produced).read_bytes() if produced else b""
            shutil.rmtree(self.work)
            kept.rename(work)
            os.chdir(self.work)
        text, written = self.said[key]
        if numbers(done.out) != text:
            return f"it says\n{done.out}\ninstead of\n{text}"
        return "" if not produced or Path(produced).read_bytes() == written else f"{produced} differs"

    def _states(self) -> list[bytes]:
        return [path.read_bytes() for path in self.whole.glob("calibrators/*/state.safetensors")]


def numbers(text: str) -> str:
    """What is said, without what may differ from call to call."""
    return re.sub(r"in [\d.]+ s", "", text)


@contextlib.contextmanager
def _chdir(path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


def report() -> int:
    """A campaign from the command line."""
    parser = argparse.ArgumentParser(description="Damaged and made-up files.")
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=["recipe", "run", "interrupted", "study", "calibrator"])
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        campaign = Campaign(Path(place) / "campaign", given.seed, verbose=given.verbose)
        campaign.run(given.trials, tuple(given.kinds))
    for text in campaign.failures:
        print(f"{'-' * 100}\n{text}")  # noqa: T201
    for text, number in sorted(campaign.counts.items()):
        print(f"{number:6d}  {text}")  # noqa: T201
    seconds = time.monotonic() - start
    print(f"{given.trials} trials, seed {given.seed}: {len(campaign.failures)} failed, {seconds:.0f} s")  # noqa: T201
    return bool(campaign.failures)


if __name__ == "__main__":
    sys.exit(report())
