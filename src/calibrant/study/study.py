"""Studies: recipes x losses x options x seeds, each a run folder, and the resulting tables."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant import data as datasets
from calibrant.errors import InputError, input_errors, lookup
from calibrant.evaluation.calibration import check_methods
from calibrant.files import file_name, replacing
from calibrant.losses import METHODS
from calibrant.metrics.table import MEASURES, measure
from calibrant.plots import MethodBars
from calibrant.recipes import Recipe
from calibrant.report import Report
from calibrant.report.sweeps import sweeps
from calibrant.runs import STAGES, JobRecord, RunFolder, Stage, StudyFolder, StudyResult, TuningFolder
from calibrant.study.jobs import Job, plan, say, seeds_of
from calibrant.study.launchers import State, execute
from calibrant.study.summary import posthoc_errors, summarise, usual
from calibrant.study.tables import StudyTable

if TYPE_CHECKING:
    from calibrant.evaluation.ood import Loader


class Study:
    """Every loss with every seed, each in its own run folder; finished runs are kept, interrupted ones resumed.

    Args:
        *recipes: Names of recipes, .yaml files, or recipes.
        losses: Keys of losses; ``["all"]`` stands for all.
        seeds: Number of seeds, or the seeds themselves.
        varied: Fields to sweep: an option of one loss, such as ``{"fl.gamma": [3, 5]}``, one that several losses share,
            such as ``{"loss.margin": [5, 10]}``, or any other field.
        out: Study folder; ``runs/RECIPE`` if not given.
        allow_code: Allow code from outside calibrant in recipes.
        **overrides: Fields of all recipes, as in :meth:`calibrant.train.Recipe.load`.

    Example:
        >>> from calibrant.study import Study
        >>> study = Study("digits-lt", losses=["ce", "mbls"], seeds=2, epochs=5)
        >>> [(job.method, job.seed) for job in study.jobs]
        [('ce', 0), ('mbls', 0), ('ce', 1), ('mbls', 1)]
        >>> result = study.run()  # doctest: +SKIP
    """

    def __init__(
        self,
        *recipes: str | Path | Recipe,
        losses: Sequence[str] = ("ce", "cals-alm"),
        seeds: int | Sequence[int] = 3,
        varied: Mapping[str, Sequence[Any]] | None = None,
        out: str | Path | None = None,
        allow_code: bool = False,
        **overrides: Any,
    ) -> None:
        if not recipes:
            raise InputError("a study needs at least one recipe")
        found = [Recipe.load(recipe, **overrides) for recipe in recipes]
        self.folder = StudyFolder(Path(out) if out else Path("runs") / found[0].name)
        if TuningFolder(self.folder.path).started:
            raise InputError(f"{self.folder} holds a search; pass another `out`")
        keys = list(dict.fromkeys(losses))
        if keys == ["all"]:  # of those for segmented images only, name the ones you want
            keys = [key for key, method in METHODS.items() if not method.dense]
        self.jobs: list[Job] = plan(found, keys, seeds_of(seeds), self.folder, varied)
        self.allow_code = allow_code
        for job in self.jobs:
            with input_errors(f"recipe {job.recipe.name}"):
                job.recipe.check(allow_code=allow_code)
        self.state = State()
        self.more: dict[RunFolder, dict[Stage, dict[str, float]]] = {}
        self.posthoc: dict[str, dict[str, list[float]]] = {}
        self.shown: list[str] = []

    @staticmethod
    def load(folder: str | Path | StudyFolder) -> "Study":
        """Read a saved study from its folder."""
        place = StudyFolder(folder)
        result = place.result()
        study = Study.__new__(Study)
        study.folder, study.allow_code, study.more, study.posthoc = place, False, {}, result.posthoc
        study.state, study.shown = State(), result.metrics
        study.jobs = []
        for job in result.jobs:
            if file_name(job.folder) != job.folder:
                raise InputError(f"{place}: study.json names the folder {job.folder!r}, which is outside the study")
            run = place.run(job.folder)
            if not run.started:
                continue
            study.jobs.append(Job(job.method, job.seed, run.recipe(), run, job.base, job.options))
            if job.state == "done":
                study.state.done[run] = run.result()
            elif job.state == "failed":
                study.state.failed[run] = job.problem
        for done in study.finished:  # measures other than those of the runs themselves
            row = result[done.method]
            beyond = [key for key in row.before if measure(key).on == "outside"]
            if beyond:
                number = row.seeds.index(done.seed)
                study.more[done.folder] = {s: {key: row.values(key, s)[number] for key in beyond} for s in STAGES}
        return study

    def __repr__(self) -> str:
        return f"Study({str(self.folder)!r}: {len(self.state.done)} of {len(self.jobs)} runs done)"

    @property
    def recipe(self) -> Recipe:
        """The recipe of the first job."""
        return self.jobs[0].recipe

    @property
    def finished(self) -> list[Job]:
        """The finished jobs."""
        return [job for job in self.jobs if job.folder in self.state.done]

    # Training and measuring

    def run(
        self,
        *,
        jobs: int | None = 1,
        threads: int | None = None,
        launcher: str = "local",
        resources: Mapping[str, float] | None = None,
        force: bool = False,
        tell: Callable[[Job], None] | None = None,
    ) -> "Study":
        """Train the missing runs; failures are recorded in ``state.failed`` and do not stop the others.

        Args:
            jobs: Number of runs trained in parallel on this machine, which share its cores; None for one per core on a
                CPU, or as many as fit into memory.
            threads: Threads per run; by default chosen by :func:`calibrant.train.fit` and the number of jobs.
            launcher: ``"local"``, or ``"ray"`` for a Ray cluster.
            resources: Ray resources per run, such as ``{"gpu": 1}``.
            force: Train everything again.
            tell: Called after each run that was trained or failed; by default, a line about it goes to standard error.
        """
        tell = tell or (lambda job: say(self.line(job)))
        options: Any = {"jobs": jobs, "threads": threads, "launcher": launcher, "resources": resources, "force": force}
        execute(self.jobs, self.state, allow_code=self.allow_code, tell=tell, **options)
        if not self.state.done:
            problems = "; ".join(f"{job.method}: {self.state.failed.get(job.folder, '')}" for job in self.jobs[:3])
            raise InputError(f"no run of {self.folder} finished ({problems})")
        return self

    def line(self, job: Job) -> str:
        """What came of a run, in a line."""
        ended = f"{len(self.state.done) + len(self.state.failed)} of {len(self.jobs)}"
        return f"{job.method}, seed {job.seed}: {self.outcome(job)} ({ended})"

    def outcome(self, job: Job) -> str:
        """ECE and accuracy of a run that has ended, or that it failed."""
        if job.folder not in self.state.done:
            return "failed"
        test = self.state.done[job.folder].test
        return f"ECE {100 * test['ece']:.2f}, accuracy {100 * test['accuracy']:.1f}"

    def check_beyond(self, *, ood: Sequence[str] = (), shift: bool = False) -> None:
        """Check what :meth:`measure_beyond` needs before hours of training, not after."""
        if not ood and not shift:
            return
        with input_errors():
            own = self.recipe.load_data(allow_code=self.allow_code)
            if shift:
                own.test.refuse("shift")
            for name in ood:
                datasets.unknown(name, own, root=self.recipe.data.root, size=self.recipe.data.size, limit=1)

    def measure_beyond(
        self,
        *,
        ood: Sequence[str] = (),
        shift: bool = False,
        load: "Loader | None" = None,
        advance: Callable[[], Any] = lambda: None,
    ) -> None:
        """Also measure OOD data and corrupted test images, which become columns of the table.

        Args:
            ood: OOD data, see :func:`calibrant.data.unknown`.
            shift: Whether to corrupt test images.
            load: Loads the network of a run.
            advance: Called after each run, for a progress bar.
        """
        if not ood and not shift:
            return
        from calibrant.evaluation import TrainedNetwork, detect, measure_shift  # noqa: PLC0415 - Lightning is slow to import

        root = self.recipe.data.root
        loader = load or (lambda folder: TrainedNetwork.load(folder, root=root, allow_code=self.allow_code))
        for job in self.finished:
            own: dict[Stage, dict[str, float]] = {"before": {}, "after": {}}
            for name in ood:
                detected = detect(job.folder, name, load=loader, root=root)
                for stage in STAGES:
                    own[stage][f"auroc:{name}"] = detected.at(stage)["entropy"].auroc
            if shift:
                shifted = measure_shift(job.folder, load=loader, root=root)
                for stage in STAGES:
                    own[stage] |= {f"shift_{key}": shifted.mean(stage, key) for key in ("accuracy", "ece")}
            self.more[job.folder] = own
            advance()

    def measure_posthoc(self, methods: Sequence[str]) -> dict[str, dict[str, list[float]]]:
        """ECE over seeds after calibrators fitted on each run's validation predictions, by method and calibrator."""
        self.posthoc = posthoc_errors(self.jobs, self.state.done, self.check_posthoc(methods))
        return self.posthoc

    @staticmethod
    def check_posthoc(methods: Sequence[str]) -> list[str]:
        """Refuse calibrators that do not exist, before anything is trained."""
        return check_methods(methods, dense=True)

    # Results

    def metrics(self, wanted: Sequence[str] = ()) -> list[str]:
        """Keys of the measures that tables show: those requested, saved, or the default ones; ``["all"]`` stands for all."""
        dense = any(result.test.dense for result in self.state.done.values())
        keys = list(wanted) or self.shown or usual(dense)
        if keys == ["all"]:
            keys = [key for key, record in MEASURES.items() if dense or not record.dense]
        for key in keys:
            measure(key) if ":" in key else lookup(key, MEASURES, "metrics")
        first = next(iter(self.state.done.values()), None)
        beyond = list(next(iter(self.more.values()))["before"]) if self.more else []
        if first is None:
            return keys
        known = {*first.test.values, *beyond}
        missing = [key for key in keys if key not in known]
        if missing and list(wanted) not in ([], ["all"]):
            raise InputError(f"these runs have no {measure(missing[0]).title} ({missing[0]})")
        return [*(key for key in keys if key in known and key not in beyond), *beyond]

    @property
    def title(self) -> str:
        """Recipe, test samples, seeds, epochs and bins."""
        test = next(iter(self.state.done.values())).test
        seeds, epochs = len({job.seed for job in self.jobs}), self.recipe.epochs
        return (
            f"{self.recipe.name}: {test.samples:,} test samples, {seeds} seed{'s' if seeds > 1 else ''}, "
            f"{epochs} epoch{'s' if epochs > 1 else ''}, {self.recipe.num_bins} bins"
        )

    def summarise(self, metrics: Sequence[str] = ()) -> StudyResult:
        """Mean and spread over seeds, and significance."""
        if not self.state.done:
            raise InputError(f"{self.folder}: no run is finished; call run() first")
        records = [
            JobRecord(
                job.method,
                job.seed,
                job.folder.name,
                "done" if job.folder in self.state.done else "failed" if job.folder in self.state.failed else "missing",
                self.state.failed.get(job.folder, ""),
                job.base,
                dict(job.options),
            )
            for job in self.jobs
        ]
        rows = summarise(self.jobs, self.state.done, more=self.more or None)
        shown, criterion = self.metrics(metrics), self.recipe.temperature
        return StudyResult(self.title, self.recipe.name, shown, records, rows, self.posthoc, criterion)

    def table(self, metrics: Sequence[str] = ()) -> StudyTable:
        """The table of methods x measures."""
        return StudyTable(self.summarise(metrics))

    def save(self, metrics: Sequence[str] = ()) -> StudyResult:
        """Write the tables, the figures of all methods and of swept options, and the file that :meth:`load` reads."""
        result = self.summarise(metrics)
        table = StudyTable(result)
        for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
            self.folder.write_table(ending, text)
        self.folder.write_runs(table.runs())
        self.folder.write_result(result)
        bars = {key: [row.values(key) for row in result.summaries] for key in table.metrics}
        with replacing(self.folder.figure("bars"), force=True) as temporary:
            MethodBars([row.method for row in result.summaries], bars).save(temporary)
        self.folder.drop_sweeps()
        for name, figure in sweeps(result).items():
            with replacing(self.folder.figure(name), force=True) as temporary:
                figure.save(temporary)
        return result

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report of the saved study, and return its path."""
        place = Path(path) if path else self.folder.report
        if not self.folder.there:
            self.save()
        Report(self.folder).write(place, force=True)
        return place
