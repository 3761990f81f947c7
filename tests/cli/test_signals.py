"""Ctrl-C and SIGTERM: one sentence, the exit code that shells and schedulers know, and a run that goes on."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from calibrant.cli import main
from calibrant.errors import InputError, Terminated
from calibrant.recipes import Recipe
from calibrant.runs import RunFolder
from calibrant.train import fit
from calibrant.train.engine import Module
from processes import started

SAID = "calibrant: interrupted; run the same command again to resume\n"
COMMAND = ["train", "digits", "--data.limit", "60", "--epochs", "100000", "--quiet", "--out", "run"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ended(child: int, *until: str, number: signal.Signals, group: bool = False) -> int:
    """Send a signal when there are some files; the exit code."""
    try:
        while not all(Path(path).exists() for path in until):
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
            time.sleep(0.02)
        (os.killpg if group else os.kill)(child, number)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except BaseException:
        with contextlib.suppress(ProcessLookupError):  # a test that fails leaves nothing running
            os.killpg(child, signal.SIGKILL)
        raise


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("until", ["run/.calibrant-lock", "run/history.csv"])
def test_a_signal_ends_training_with_a_sentence(number: signal.Signals, until: str) -> None:
    assert ended(started(*COMMAND), until, number=number) == 128 + number
    assert Path("said").read_text() == SAID
    assert not list(Path("run").rglob(".*"))


@pytest.mark.slow
@pytest.mark.usefixtures("here", "_forked_workers")
def test_a_signal_ends_a_study_and_its_processes() -> None:
    """Ctrl-C reaches all processes of a terminal."""
    command = ["compare", "digits", "--losses", "ce", "ls", "--seeds", "1", "--epochs", "100000", "--data.limit", "60"]
    child = started(*command, "--quiet", "--jobs", "2", "--out", "study")
    histories = [f"study/{name}-seed0/history.csv" for name in ("ce", "ls")]
    assert ended(child, *histories, number=signal.SIGINT, group=True) == 128 + signal.SIGINT
    assert Path("said").read_text() == SAID
    for name in ("ce", "ls"):
        with RunFolder(f"study/{name}-seed0").claimed():  # nobody trains there any more
            pass


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("problem", [KeyboardInterrupt, Terminated])
@pytest.mark.parametrize("where", ["prepare", "Keeper.on_train_epoch_end", "finish", "measure_run"])
def test_at_any_moment(capsys, monkeypatch: pytest.MonkeyPatch, problem: type[BaseException], where: str) -> None:
    """While data is read, while training, while results are written."""

    def stop(*_: object, **__: object) -> None:
        raise problem

    with monkeypatch.context() as patch:
        module = sys.modules["calibrant.train.fit"]
        owner, _, name = where.rpartition(".")
        patch.setattr(getattr(module, owner) if owner else module, name, stop)
        assert main([*COMMAND[:4], "--epochs", "2", "--quiet", "--out", "run"]) == (
            130 if problem is KeyboardInterrupt else 143
        )
    assert capsys.readouterr().err == SAID
    assert main([*COMMAND[:4], "--epochs", "2", "--quiet", "--out", "run"]) == 0


@pytest.mark.usefixtures("here")
def test_commands_that_do_not_resume_say_so_much_less(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("calibrant.cli.evaluate.run", stop)
    assert main(["evaluate", "nothing.npz"]) == 130
    assert capsys.readouterr().err == "calibrant: interrupted\n"


def test_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe.load("digits", epochs=3, batch_size=10, **{"data.limit": 30})
    step = Module.training_step
    for number, problem in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):

        def stop(self, item, batch_idx, number: signal.Signals = number):
            if self.current_epoch == 1 and batch_idx == 0:
                os.kill(os.getpid(), number)
            return step(self, item, batch_idx)

        with monkeypatch.context() as patch:
            patch.setattr(Module, "training_step", stop)
            before = signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal
            with pytest.raises(problem) as caught:
                fit(recipe, tmp_path / "run", quiet=True)
        signal.signal(signal.SIGINT, before)
        assert getattr(caught.value, "code", 143) == 143
        assert 1 <= len(RunFolder(tmp_path / "run").history()) < 3
    assert fit(recipe, tmp_path / "run", quiet=True) is not None


# What else stops a run before its end


def test_a_run_that_is_out_of_time_is_not_finished(tmp_path: Path) -> None:
    """And goes on to the same end as one that had all the time."""
    recipe = Recipe.load("digits", loss="cals-alm", epochs=4, **{"data.limit": 60, "batch_size": 10})
    whole = fit(recipe, tmp_path / "whole", quiet=True)
    assert whole is not None
    hurried = Recipe.load(recipe, trainer={"max_time": {"microseconds": 1}})
    with pytest.raises(InputError, match="parts was stopped by trainer.max_time after 0 of 4 epochs; run the same command"):
        fit(hurried, tmp_path / "parts", quiet=True)
    assert not RunFolder(tmp_path / "parts").finished
    for _ in range(2):  # the time is that of one command, and half an epoch is none
        hurried = Recipe.load(recipe, trainer={"max_time": {"seconds": 0.05}})
        try:
            fit(hurried, tmp_path / "parts", quiet=True)
        except InputError as error:
            assert "was stopped by trainer.max_time" in str(error)  # noqa: PT017
    parts = fit(recipe, tmp_path / "parts", quiet=True)
    assert parts is not None
    assert parts.folder.predictions().read_bytes() == whole.folder.predictions().read_bytes()


def test_what_changes_the_result_is_another_run(tmp_path: Path, capsys) -> None:
    common = ["train", "digits", "--data.limit", "30", "--epochs", "1", "--quiet", "--out", str(tmp_path / "run")]
    assert main(common) == 0
    for option in (["limit_train_batches", "1"], ["precision", "bf16-mixed"], ["gradient_clip_val", "0.1"]):
        assert main([*common, f"--trainer.{option[0]}", option[1]]) == 2
        assert f"holds a run of another recipe (trainer.{option[0]} was None, now" in capsys.readouterr().err
    assert main([*common, "--trainer.logger", "csv", "--trainer.devices", "1", "--data.workers", "0"]) == 0
