"""Choosing hyper-parameters on validation data, by Optuna."""

import contextlib
import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from calibrant.checks import in_range, one_of, whole
from calibrant.errors import InputError, input_errors, lookup
from calibrant.extras import require
from calibrant.files import file_name, locked, replacing, write_text
from calibrant.metrics.panel import PanelResult
from calibrant.metrics.table import MEASURES, Measure, ranked
from calibrant.recipes import Recipe
from calibrant.report import Report
from calibrant.report.search import search_plot
from calibrant.runs import RunFolder, RunResult, StudyResult, TrialRecord, TuningFolder, TuningResult
from calibrant.study.jobs import Job, StoppedError, say, seeds_of, with_loss
from calibrant.study.launchers import Options, State, launch, refuse_while_starting, usual_jobs
from calibrant.study.proposals import Proposals
from calibrant.study.space import Dimension, chosen, losses_of, search_space
from calibrant.study.study import Study

#: Names of what chooses the next trial, and of what ends unpromising ones early.
SAMPLERS: Final = ("tpe", "random", "grid")
PRUNERS: Final = ("none", "median", "hyperband")
#: Name of the search in Optuna's storage.
NAME: Final = "calibrant"


class Tuning:
    """A search for the hyper-parameters of a recipe that never looks at the test set until it is over.

    The validation set is divided: adaptive losses, checkpoints and temperatures learn from one part, trials are scored on
    the other. The best options are then trained with the whole validation set and several seeds, and measured on the
    test set once. All runs share one split, that of ``data.seed``, or of the recipe's seed if there is none. Finished trials
    are kept, and an interrupted search is resumed.

    Args:
        recipe: Name of a recipe, a .yaml file, or a recipe.
        loss: Key of the loss; that of the recipe if not given.
        space: Fields and what to choose from: a range ``(2, 20)``, ``("log", 0.01, 1)``, a list, or text such as
            ``"log:0.01..1"``.
        trials: Number of trials; 16 if not given, or all combinations of a grid.
        by: The measure that trials are ranked by.
        seeds: Seeds that the best options are trained with: how many, or the seeds themselves.
        repeats: Seeds of each trial, whose mean score counts.
        share: Fraction of the validation set that trials are scored on.
        sampler: How options are chosen: ``"tpe"``, ``"random"``, or ``"grid"`` for all combinations of lists and whole
            numbers.
        pruner: How unpromising trials are ended early: ``"none"``, ``"median"`` or ``"hyperband"``, not before a third of
            their epochs. Networks lose their calibration late in training, so that early scores say little.
        out: Folder; ``runs/RECIPE-LOSSES-tuning`` if not given.
        allow_code: Allow code from outside calibrant in the recipe.
        **overrides: Fields of the recipe, as in :meth:`calibrant.train.Recipe.load`.

    Example:
        >>> from calibrant.study import Tuning
        >>> tuning = Tuning("digits-lt", loss="mbls", space={"loss.margin": (2, 20)}, trials=8, by="nll")
        >>> tuning
        Tuning(digits-lt, mbls: loss.margin=2..20, 8 trials by NLL)
        >>> result = tuning.run()  # doctest: +SKIP
        >>> result.best.options  # doctest: +SKIP
        {'loss.margin': 7.94}
    """

    def __init__(
        self,
        recipe: str | Path | Recipe,
        *,
        loss: str | None = None,
        space: Mapping[str, Any],
        trials: int | None = None,
        by: str = "nll",
        seeds: int | Sequence[int] = 3,
        repeats: int = 1,
        share: float = 0.5,
        sampler: str = "tpe",
        pruner: str = "none",
        out: str | Path | None = None,
        allow_code: bool = False,
        **overrides: Any,
    ) -> None:
        require("optuna", "tuning")
        self.recipe = _one_split(Recipe.load(recipe, **overrides, **({"loss": loss} if loss else {})))
        with input_errors():
            self.repeats = whole("`repeats`", repeats, 1)
            self.share = in_range("`share`", share, 0.05, 0.9)
            self.sampler, self.pruner = one_of("`sampler`", sampler, SAMPLERS), one_of("`pruner`", pruner, PRUNERS)
        self.measure = lookup(by, {k: m for k, m in MEASURES.items() if _is_measured(m, dense=True)}, "`by`")
        if pruner != "none" and not (PanelResult.has(self.measure) and self.measure in ranked(2, dense=True)):
            raise InputError(f"`pruner` {pruner} needs a measure that is known after every epoch, which {by} is not")
        self.seeds, self.allow_code = seeds_of(seeds), allow_code
        with input_errors(f"recipe {self.recipe.name}"):
            self.recipe.check(allow_code=allow_code)
        self.space: list[Dimension] = search_space(space, self.recipe, allow_code=allow_code)
        self.losses = losses_of(self.space, self.recipe)
        if sampler == "grid" and any(not d.choices and not d.whole for d in self.space):
            raise InputError("`sampler` grid needs lists or whole numbers, such as loss.margin=5,10,15")
        self.proposals = Proposals(self.space, self.losses, self.recipe, sampler)
        every = len(self.proposals.combinations or ()) if sampler == "grid" else 16
        with input_errors():
            self.trials = whole("`trials`", every if trials is None else trials, 1)
        default = Path("runs") / file_name(f"{self.recipe.name}-{'-'.join(self.losses)}-tuning")
        self.folder = TuningFolder(Path(out) if out else default)
        self.state = State()
        self.study: Study | None = None
        #: Options of the runs that were started, as text.
        self.options_of: dict[RunFolder, dict[str, str]] = {}
        self._search: Any = None

    def __repr__(self) -> str:
        space = ", ".join(f"{d.field}={d.text}" for d in self.space)
        about = f"{self.trials} trials by {self.measure.title}"
        return f"Tuning({self.recipe.name}, {' or '.join(self.losses)}: {space}, {about})"

    def run(
        self,
        *,
        jobs: int | None = 1,
        threads: int | None = None,
        launcher: str = "local",
        resources: Mapping[str, float] | None = None,
        force: bool = False,
        tell: Callable[[Job], None] | None = None,
    ) -> TuningResult:
        """Run the missing trials, train the best options with all seeds, and measure them on the test set.

        Args:
            jobs: Number of runs trained in parallel, which share the cores; None for one per core on a CPU.
            threads: Threads per run.
            launcher: ``"local"``, or ``"ray"`` for a Ray cluster.
            resources: Ray resources per run, such as ``{"gpu": 1}``.
            force: Start over.
            tell: Called after each run; by default, a line about it goes to standard error.

        Raises:
            InputError: If the folder holds another search, or no trial finished.
        """
        with input_errors():
            for name, value in (("jobs", jobs), ("threads", threads)):
                whole(f"`{name}`", 1 if value is None else value, 1)
            one_of("`launcher`", launcher, ("local", "ray"))
        if self.folder.foreign or self.folder.path.is_file():
            raise InputError(f"{self.folder} holds other files, and no search; pass another `out`")
        refuse_while_starting()
        tell = tell or (lambda job: say(self.line(job)))
        with self._claimed():
            self.state = State()
            if self.folder.started and not force:
                self._start(force=False)  # another search is told at once
            missing = force or not self.folder.started or self._missing()
            count = jobs
            if missing:
                self._try_out()
                self._start(force=force)
                planned = [self._job(0, seed, self.recipe) for seed in range(self.trials * self.repeats)]
                count = usual_jobs(planned, allow_code=self.allow_code) if jobs is None and launcher == "local" else jobs
            options = Options(force=False, allow_code=self.allow_code, threads=threads, group=self.folder.path.name)
            more: Any = {"launcher": launcher, "resources": resources, "tell": tell}
            launch(self._ask(), self.state, options, jobs=count, **{**more, "tell": self._teller(tell)})
            if not any(trial.state == "done" for trial in self.result.trials) and self.state.passing:
                raise InputError(f"no trial finished ({self.state.failed[next(iter(self.state.passing))]})")
            result = self.save()
            best, place = self.best_recipe(), self.folder.best(result.best.number).path
            self.study = Study(best, losses=[best.loss.name], seeds=self.seeds, out=place, allow_code=self.allow_code)
            self.study.run(jobs=count, threads=threads, **more)
            self.study.save()
        return result

    @contextlib.contextmanager
    def _claimed(self) -> Iterator[None]:
        """Lock the folder; if nothing is written to it, it is taken away again."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self.folder.lock, str(self.folder)):
                yield
        finally:
            with contextlib.suppress(OSError):  # it is not empty
                self.folder.path.rmdir()

    def _missing(self) -> bool:
        """Whether there are trials to run."""
        if any(not trial.state.is_finished() for trial in self._search.trials):
            return True
        return len(self._search.trials) < self.trials and self.proposals.next(self._search) is not None

    def line(self, job: Job) -> str:
        """What came of a run, in a line."""
        if job.folder in self.state.failed:
            return f"{job.method}: {self.state.failed[job.folder]}"
        if job.folder not in self.state.done:  # of the best options, after the search
            failed = self.study is not None and job.folder in self.study.state.failed
            return f"best options, seed {job.seed}: {'failed' if failed else 'trained'}"
        value = self.measure.text(self.state.done[job.folder].test[self.measure.key])
        seed = f", seed {job.seed}" if self.repeats > 1 else ""
        return f"{job.method}{seed}: {self.measure.title} {value}{'%' if self.measure.percent else ''}"

    def _try_out(self) -> None:
        """Refuse what cannot be trained or scored, before anything is written."""
        from calibrant.train import check  # noqa: PLC0415 - imports Lightning
        from calibrant.train.preparing import prepare  # noqa: PLC0415

        check(self.recipe, allow_code=self.allow_code)
        data = prepare(self._scored(self.recipe), allow_code=self.allow_code).data
        if not _is_measured(self.measure, dense=data.train.dense):
            raise InputError(f"`by` {self.measure.key} is for segmentation only")
        for d in self.space:
            for value in d.examples if d.path.startswith(("model.", "trainer.")) else []:
                changed = Recipe.load(self.recipe, **{d.field: value})
                with input_errors(f"space {d.field}={d.text}"):
                    check(changed, allow_code=self.allow_code)
                    changed.build_model(data.num_classes, data.facts, allow_code=self.allow_code)

    # Trials

    def _start(self, *, force: bool) -> None:
        """Create Optuna's study, or resume it if it is the same search."""
        if force:
            self.folder.clear()
        _opened.cache_clear()  # of an earlier search
        self._open()
        if self._search.user_attrs and "ready" not in self._search.user_attrs:  # it was interrupted before its first trial
            self.folder.clear()
            self._open()
        what = {
            "recipe": replace(self.recipe, about="").to_dict(),
            "space": {d.field: d.text for d in self.space},
            "by": self.measure.key,
            "share": self.share,
            "repeats": self.repeats,
            "pruner": self.pruner,
        }
        if "ready" in self._search.user_attrs:
            self._same(what)
            return
        for name, value in what.items():
            self._search.set_user_attr(name, value)
        self._search.set_user_attr("ready", value=True)

    def _open(self) -> None:
        """Optuna's study, which is created if there is none."""
        self.folder.mend()
        self._storage = _storage(self.folder.journal)
        direction = "maximize" if self.measure.higher else "minimize"
        try:
            self._search = _optuna().create_study(
                storage=self._storage, study_name=NAME, direction=direction, load_if_exists=True
            )
        except (ValueError, KeyError) as error:  # not JSON, or not what Optuna writes
            raise InputError(f"{self.folder.journal} is damaged ({error}); `force=True` starts over") from error

    def _same(self, what: Mapping[str, Any]) -> None:
        """Refuse to mix trials of different searches."""
        before = self._search.user_attrs
        cure = "pass another `out`, or `force=True` to start over"
        for name in ("space", "by", "share", "repeats", "pruner"):
            if before.get(name) != what[name]:
                was, now = (_words(found.get(name)) for found in (before, what))
                raise InputError(f"{self.folder} holds another search ({name} was {was}, now {now}); {cure}")
        recipe = Recipe.load(before["recipe"])
        for loss in self.losses:
            own = [with_loss(found, loss, self.losses) for found in (recipe, self.recipe)]
            if difference := own[0].difference(own[1]):
                raise InputError(f"{self.folder} holds a search over another recipe ({difference}); {cure}")

    def _ask(self) -> Iterator[Job]:
        """The runs of interrupted trials, then of new ones, each asked for when there is room for it."""
        optuna = _optuna()
        states = optuna.trial.TrialState
        for number in [trial.number for trial in self._search.trials if trial.state == states.RUNNING]:
            trial = optuna.Trial(self._search, _trial_id(self._storage, number))  # perhaps not all was chosen
            yield from self._jobs(number, self.proposals.choose(trial))
        while True:
            waiting = sum(trial.state == states.WAITING for trial in self._search.trials)
            if len(self._search.trials) - waiting >= self.trials:
                return
            if not waiting:
                options = self.proposals.next(self._search)
                if options is None:
                    return
                self._search.enqueue_trial(options)
            trial = self._search.ask()
            yield from self._jobs(trial.number, self.proposals.choose(trial))

    def _scored(self, recipe: Recipe) -> Recipe:
        """A recipe whose test set is the part of the validation set that is held out."""
        return Recipe.load(recipe, **{"data.test_from_validation": self.share})

    def _jobs(self, number: int, options: Mapping[str, Any]) -> Iterator[Job]:
        recipe = self._scored(chosen(self.recipe, options, self.losses))
        if self.pruner != "none":
            recipe = replace(recipe, curves="test")  # of the held-out samples
        for repeat in range(self.repeats):
            if any(folder in self.state.failed for folder in self._folders(number)):
                return  # the others would be trained in vain
            yield self._job(number, self.recipe.seed + repeat, recipe, options)

    def _folders(self, number: int) -> list[RunFolder]:
        return [self.folder.trial(number, self.recipe.seed + repeat) for repeat in range(self.repeats)]

    def _job(self, number: int, seed: int, recipe: Recipe, options: Mapping[str, Any] | None = None) -> Job:
        texts = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in (options or {}).items()}
        watch = None
        if seed == self.recipe.seed and self.pruner != "none":
            watch = Pruning(self.folder.journal.resolve(), number, self.measure.key, self.pruner, recipe.epochs)
        name = ", ".join(f"{name}={text}" for name, text in texts.items())
        place = self.folder.trial(number, seed)
        self.options_of[place] = texts
        return Job(f"trial {number}: {name}", seed, replace(recipe, seed=seed), place, str(number), texts, watch)

    def _teller(self, tell: Callable[[Job], None]) -> Callable[[Job], None]:
        """Tell Optuna about a trial once all its runs are done, or one has failed."""

        def told(job: Job) -> None:
            number = int(job.base)
            folders = self._folders(number)
            failed = [self.state.failed[folder] for folder in folders if folder in self.state.failed]
            if not self._search.trials[number].state.is_finished():
                if any(folder in self.state.passing for folder in folders):
                    pass  # it is run again when the search is resumed
                elif failed:
                    self._fail(number, failed[0])
                elif all(folder in self.state.done for folder in folders):
                    self._score(number, [self.state.done[folder] for folder in folders])
            tell(job)

        return told

    def _score(self, number: int, results: Sequence[RunResult]) -> None:
        """Tell Optuna the score of a trial."""
        values = _means(results)
        score = values[self.measure.key]
        if not math.isfinite(score):
            self._fail(number, f"its {self.measure.title} is {score}")
            return
        self._note(number, "values", values)
        self._note(number, "samples", [results[0].test.samples, results[0].validation.samples])
        self._search.tell(number, score)

    def _fail(self, number: int, problem: str) -> None:
        """Tell Optuna that a trial was ended early, or failed."""
        states = _optuna().trial.TrialState
        if "pruned" in self._search.trials[number].user_attrs:
            self._search.tell(number, state=states.PRUNED)
            return
        self._note(number, "problem", problem)
        self._search.tell(number, state=states.FAIL)

    def _note(self, number: int, name: str, value: Any) -> None:
        """Record something about a trial."""
        self._storage.set_trial_user_attr(_trial_id(self._storage, number), name, value)

    # Results

    @property
    def result(self) -> TuningResult:
        """The trials that have ended so far, here or in an earlier search that was saved.

        Raises:
            InputError: If there is none.
        """
        if self._search is None:
            return self.folder.result()
        states = _optuna().trial.TrialState
        words: Any = {states.COMPLETE: "done", states.PRUNED: "pruned", states.FAIL: "failed"}
        ended = [trial for trial in self._search.trials if trial.state in words]
        records = []
        for trial in ended:
            folders = self._folders(trial.number)
            own = trial.user_attrs
            problem = own.get("problem", f"after epoch {own['pruned']}" if "pruned" in own else "")
            records.append(
                TrialRecord(
                    number=trial.number,
                    options={d.field: d.value(trial.params[d.field]) for d in self.space if d.field in trial.params},
                    state=words[trial.state],
                    score=trial.value if trial.state == states.COMPLETE else math.nan,
                    values=own.get("values", {}),
                    epochs=max(folder.epochs_done() for folder in folders),
                    problem=problem,
                    folders=[str(folder.path.relative_to(self.folder.path)) for folder in folders],
                )
            )
        scored, learned = next((t.user_attrs["samples"] for t in ended if "samples" in t.user_attrs), (0, 0))
        return TuningResult(
            recipe=self.recipe.name,
            loss=" or ".join(self.losses),
            by=self.measure.key,
            space={d.field: d.text for d in self.space},
            scored=scored,
            learned=learned,
            trials=records,
            repeats=self.repeats,
        )

    def result_so_far(self) -> TuningResult | None:
        """The trials that have ended so far; None before the search has begun."""
        return self.result if self._search is not None else None

    def best_recipe(self) -> Recipe:
        """The recipe with the best options, with its own validation and test set again."""
        return chosen(self.recipe, self.result.best.options, self.losses)

    def save(self) -> TuningResult:
        """Write the table of trials, the best recipe and the figure."""
        result = self.result
        self.folder.write_result(result)
        write_text(self.folder.recipe, self.best_recipe().to_yaml())
        with replacing(self.folder.figure, force=True) as temporary:
            search_plot(result).save(temporary)
        return result

    def summary(self) -> StudyResult:
        """What the best options achieve on the test set.

        Raises:
            InputError: If they have not been trained yet.
        """
        return self.folder.best(self.result.best.number).result()

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report of the saved search, and return its path."""
        place = Path(path) if path else self.folder.report
        Report(self.folder).write(place, force=True)
        return place


@dataclass(frozen=True)
class Pruning:
    """Reports the score of a trial after each epoch, in the process that trains it, and ends it if it is not promising.

    Attributes:
        journal: Optuna's storage.
        number: The number of the trial.
        key: The measure.
        pruner: Which pruner decides.
        epochs: Epochs of a whole run; in the first third, nothing is ended.
    """

    journal: Path
    number: int
    key: str
    pruner: str
    epochs: int

    def __call__(self, row: Mapping[str, float]) -> None:
        """Report the score of an epoch.

        Raises:
            StoppedError: If the trial is to end.
        """
        if f"test_{self.key}" not in row or not float(row["epoch"]).is_integer():
            return
        storage, search = _opened(self.journal)
        trial = _trial_id(storage, self.number)
        epoch, score = int(row["epoch"]), float(row[f"test_{self.key}"])
        storage.set_trial_intermediate_value(trial, epoch, score)
        pruners, first = _optuna().pruners, max(1, self.epochs // 3)
        pruner = (
            pruners.MedianPruner(n_warmup_steps=first)
            if self.pruner == "median"
            else pruners.HyperbandPruner(min_resource=first, max_resource=max(first, self.epochs))
        )
        if pruner.prune(search, search.trials[self.number]):
            storage.set_trial_user_attr(trial, "pruned", epoch)
            raise StoppedError(f"not promising after epoch {epoch}: {MEASURES[self.key].title} {score:.4g}")


@functools.lru_cache(maxsize=1)
def _opened(journal: Path) -> tuple[Any, Any]:
    """Optuna's storage and study, as another process sees them."""
    storage = _storage(journal)
    return storage, _optuna().load_study(storage=storage, study_name=NAME)


def _one_split(recipe: Recipe) -> Recipe:
    """The recipe with one split for all seeds: in another, samples that trials have seen could be test samples."""
    if recipe.data.test_from_validation:
        raise InputError("`data.test_from_validation` is set by the search itself (`share`)")
    return Recipe.load(recipe, **{"data.seed": recipe.seed}) if recipe.data.seed is None else recipe


def _is_measured(measure: Measure, *, dense: bool) -> bool:
    """Whether runs are measured by it."""
    counts = measure.key == "sweep_bins"  # no score
    return not counts and (PanelResult.has(measure) or measure.on == "images") and (dense or not measure.dense)


def _trial_id(storage: Any, number: int) -> int:
    found: int = storage.get_trial_id_from_study_id_trial_number(storage.get_study_id_from_name(NAME), number)
    return found


def _storage(journal: Path) -> Any:
    """Optuna's storage in a file to which it only appends, safe against kills and shared by processes."""
    optuna = _optuna()
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))


def _optuna() -> Any:
    optuna = require("optuna", "tuning")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _means(results: Sequence[RunResult]) -> dict[str, float]:
    """Means of the measures on the held-out samples."""
    return {key: statistics.mean(result.test.values[key] for result in results) for key in results[0].test.values}


def _words(value: Any) -> str:
    return ", ".join(f"{name}={text}" for name, text in value.items()) if isinstance(value, Mapping) else str(value)
