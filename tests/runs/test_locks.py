"""Two processes and one folder; names that are names; files that others may read."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from calibrant.cli import main
from calibrant.data.places import locate
from calibrant.errors import InputError, InUseError
from calibrant.files import file_name, locked, write_text
from calibrant.recipes import Recipe
from calibrant.runs import RunFolder
from calibrant.study import Study
from calibrant.study.jobs import plan
from calibrant.train import fit

HOLD = """
import sys, time
from pathlib import Path
from calibrant.runs import RunFolder
with RunFolder(sys.argv[1]).claimed():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def small() -> Recipe:
    return Recipe.load("digits", epochs=1, **{"data.limit": 30})


def holder(folder: Path) -> "subprocess.Popen[str]":
    """A process that holds a folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.files.PATIENCE", 0.0)


@pytest.mark.usefixtures("_impatient")
def test_the_second_process_is_told_and_a_kill_leaves_no_lock(tmp_path: Path, small: Recipe, capsys) -> None:
    folder = tmp_path / "run"
    first = holder(folder)
    try:
        said = f"run is in use by another process \\(process {first.pid} on .*\\); wait until it is done"
        with pytest.raises(InputError, match=said):
            fit(small, folder, quiet=True)
        assert main(["train", "digits", "--epochs", "1", "--data.limit", "30", "--quiet", "--out", str(folder)]) == 2
        assert "is in use by another process" in capsys.readouterr().err
        assert [path.name for path in folder.iterdir()] == [".calibrant-lock"]
    finally:
        first.kill()
        first.wait()
    run = fit(small, folder, quiet=True)
    assert run is not None
    assert not list(folder.glob(".*"))


@pytest.mark.usefixtures("_impatient")
def test_what_is_done_with_a_run_is_done_by_one_process(tmp_path: Path, small: Recipe, capsys) -> None:
    folder = tmp_path / "run"
    fit(small, folder, quiet=True)
    first = holder(folder)
    try:
        for command in (["ood", str(folder), "--ood", "noise"], ["shift", str(folder)]):
            assert main(command) == 2
            assert "is in use by another process" in capsys.readouterr().err
        assert fit(small, folder, quiet=True) is not None  # which is finished, and only shown
    finally:
        first.kill()
        first.wait()


def test_a_process_that_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    """The same command again, right after a kill: its workers are still there, but not for long."""
    first = holder(tmp_path / "run")
    ended: list[int] = []

    def end() -> None:
        ended.append(first.pid)
        first.kill()

    threading.Timer(0.5, end).start()
    with RunFolder(tmp_path / "run").claimed():
        assert ended
    first.wait()


@pytest.mark.usefixtures("_impatient")
def test_a_folder_in_use_may_be_free_another_time(tmp_path: Path, small: Recipe) -> None:
    study = Study(small, losses=["ce"], seeds=1, out=tmp_path / "study")
    first = holder(study.jobs[0].folder.path)
    try:
        with pytest.raises(InputError, match="is in use by another process"):
            study.run()
    finally:
        first.kill()
        first.wait()
    assert study.state.passing == {study.jobs[0].folder}
    with pytest.raises(InUseError), locked(tmp_path / "lock", "it"), locked(tmp_path / "lock", "it"):
        pytest.fail("it is held")


def test_a_lock_is_that_of_one_thread_and_of_one_file(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", "it"):
        with pytest.raises(InputError, match="it is in use by this process"), locked(tmp_path / "lock", "it"):
            pytest.fail("it is held")
        (tmp_path / "lock").unlink()  # as somebody might who cleans up
    with locked(tmp_path / "lock", "it"):
        assert (tmp_path / "lock").exists()
    assert not (tmp_path / "lock").exists()


def test_forked_children_do_not_keep_a_lock(tmp_path: Path) -> None:
    """Readers of files live a few seconds longer than the process that was killed."""
    code = HOLD.replace('    print("held"', '    import os\n    os.fork() or time.sleep(60)\n    print("held"')
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    with RunFolder(tmp_path / "run").claimed():
        pass


def test_a_folder_in_which_nothing_was_started_is_taken_away(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no"), RunFolder(tmp_path / "run").claimed():
        raise RuntimeError("no")
    assert not (tmp_path / "run").exists()


# Starts that fail


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": "npz", "data.path": "nowhere.npz"},
        {"model.width": 0},
        {"model": "gpool-cnn"},
        {"loss.alpha": 7.0, "loss": "ls"},
        {"trainer": {"accelerator": "abacus"}},
        {"trainer": {"logger": "wandb" if "wandb" not in sys.modules else "Logger"}},
    ],
)
def test_a_start_that_fails_claims_nothing(tmp_path: Path, small: Recipe, wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        fit(small, tmp_path / "run", quiet=True, **wrong)
    assert not (tmp_path / "run").exists()


def test_before_the_first_epoch_is_done_another_recipe_may_start(tmp_path: Path, small: Recipe, monkeypatch) -> None:
    from calibrant.train.engine import Module

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Module, "training_step", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            fit(small, tmp_path / "run", quiet=True, batch_size=20)
    run = fit(small, tmp_path / "run", quiet=True, batch_size=10)
    assert run is not None
    assert run.recipe.batch_size == 10
    with pytest.raises(InputError, match="holds a run of another recipe \\(batch_size was 10, now 20\\)"):
        fit(small, tmp_path / "run", quiet=True, batch_size=20)


def test_force_clears_only_what_it_can_make_again(tmp_path: Path, small: Recipe) -> None:
    first = fit(small, tmp_path / "run", quiet=True)
    assert first is not None
    with pytest.raises(InputError, match="model small-cnn"):
        fit(small, tmp_path / "run", quiet=True, force=True, **{"model.width": 0})
    again = fit(small, tmp_path / "run", quiet=True)
    assert again is not None
    assert again.recipe == first.recipe


# Names


@pytest.mark.parametrize(
    ("text", "plain"),
    [("ce-seed0", True), ("cals-alm,margin=5-seed0", True), ("größe 3", True), ("a.b", True)]
    + [(text, False) for text in ("../../x", "a/b", "..", ".", "", "/etc", "a\\b", "a\0b", ".hidden", "x" * 500, "a\nb")],
)
def test_names_of_files(text: str, plain: bool, tmp_path: Path) -> None:
    name = file_name(text)
    assert (name == text) is plain
    assert Path(name).name == name
    (tmp_path / name).write_text("")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_different_names_stay_different() -> None:
    names = ["a/b", "a_b", "a\\b", "a:b", "../a_b", "..a_b"]
    assert len({file_name(name) for name in names}) == len(names)


def test_nothing_is_written_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b/c")
    Path("recipe.yaml").write_text("name: ../../x\nepochs: 1\ndata: {limit: 30}\n")
    for command in ("train", "compare"):
        assert main([command, "recipe.yaml", "--quiet"]) == 2
        assert "name must be a plain name, as it also names a folder; got '../../x'" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "c", "recipe.yaml"]


def test_fields_that_a_study_varies_stay_in_its_folder() -> None:
    jobs = plan([Recipe()], ["ce"], [0], "study", {"data.path": ["a/../../../../evil", "b"]})
    assert all(job.folder.path.parent == Path("study") for job in jobs)
    assert len({job.folder for job in jobs}) == 2


def test_a_study_of_a_stranger_stays_in_its_folder(tmp_path: Path) -> None:
    study = Study("digits", losses=["ce"], seeds=1, out=tmp_path / "study", epochs=1, **{"data.limit": 30})
    study.run()
    study.save()
    path = tmp_path / "study/study.json"
    path.write_text(path.read_text().replace('"ce-seed0"', '"../elsewhere"'))
    with pytest.raises(InputError, match="study.json names the folder '../elsewhere', which is outside the study"):
        Study.load(tmp_path / "study")


# Files that others may read, and what is no file


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(InputError, match=f"{name} is not a file that can be replaced"):
            write_text(tmp_path / name, "")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert locate("pipe", tmp_path) is None  # reading it would wait for ever
    assert locate("folder", tmp_path) == tmp_path / "folder"
    assert locate("x" * 5000, tmp_path) is None


def test_files_follow_the_umask(tmp_path: Path, small: Recipe) -> None:
    before = os.umask(0o022)
    try:
        run = fit(small, tmp_path / "run", quiet=True)
        write_text(tmp_path / "text", "")
    finally:
        os.umask(before)
    assert run is not None
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [*run.folder.path.rglob("*.*"), tmp_path / "text"]}
    assert len(modes) > 8
    assert set(modes.values()) == {0o644}, modes
