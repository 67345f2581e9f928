"""The Python interface of skillmix, which `docs/python.md` describes. Its names are available as `skillmix.NAME`."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from skillmix.catalog.catalog import SETTINGS, Catalog, Setting
from skillmix.catalog.combinations import Combination, Draw, draw_combinations
from skillmix.checkers.judge import Verdict
from skillmix.datasets.build import WrittenDataset
from skillmix.datasets.from_runs import FromRuns, dataset_of_runs
from skillmix.errors import UserError
from skillmix.exchange.export import vote_rows
from skillmix.experiment.experiment import Experiment, experiment_of, load_experiment
from skillmix.experiment.recipes import ShownMode, plain_recipe, recipe_named
from skillmix.files import with_listed_skills
from skillmix.frequencies.counting import FrequencyWanted, count_skills
from skillmix.frequencies.frequency_file import FrequencyResult
from skillmix.grading.answers import plain_answer
from skillmix.grading.points import FULL_MARKS, METRICS, decide_points, text_score
from skillmix.grading.reader import Reading, read_grades
from skillmix.prompts.prompt_set import load_prompts
from skillmix.prompts.rubric import rubric_of
from skillmix.report.records import ReportOptions
from skillmix.report.write import write_report
from skillmix.runs.run import Run, new_run, rules_named
from skillmix.runs.run import open_run as open_stored_run
from skillmix.runs.verdicts import RulesGrader, reading_of, require_checkers
from skillmix.scores.cells import CellScore
from skillmix.scores.comparisons import StudentComparison, compare_students
from skillmix.scores.grader_cards import run_cards
from skillmix.scores.graders import GraderCard
from skillmix.scores.safety import OutcomeChange, OutcomeScore, run_outcome_changes, run_outcomes
from skillmix.scores.scoring import run_scores
from skillmix.scores.sentences import ScoredRun, scored_run
from skillmix.scores.table import outcome_table, outcome_table_html, score_table, score_table_html
from skillmix.scores.text_rows import TextRow, run_texts
from skillmix.steps.calibrating import calibrated
from skillmix.steps.run import StepFilter, run_checked
from skillmix.steps.step_kind import Trained
from skillmix.validation.calibration import Calibration, planned, write_card
from skillmix.validation.task import AnnotationTask, TaskSettings, annotate_step_of, make_task, step_task

if TYPE_CHECKING:
    import pandas

_T = TypeVar("_T")


class TextRows(list[TextRow]):
    """Graded texts of a run."""

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a data frame with one row for each text and grader."""
        return _frame(map(asdict, self))


class RunView:
    """The scores, texts and votes of a run, which are read from its journal without calling a model."""

    def __init__(self, stored: Run) -> None:
        self._run = stored

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def __str__(self) -> str:
        if self._run.has_outcomes:
            return outcome_table(self.outcomes)
        return "\n\n".join([*self._scored.format_first, score_table(self.scores), self.result]).rstrip()

    def _repr_markdown_(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        if self._run.has_outcomes:
            return outcome_table_html(self.outcomes)
        first = "".join(f"<p>{escape(line)}</p>" for line in self.format_first)
        last = f"<p>{escape(self.result)}</p>" if self.result else ""
        return f"{first}{score_table_html(self.scores)}{last}"

    @property
    def name(self) -> str:
        """Return the name of the run's folder."""
        return self._run.name

    @property
    def path(self) -> Path:
        """Return the run's folder."""
        return self._run.path

    @property
    def scores(self) -> list[CellScore]:
        """Return a score for each student, grader, setting, k and metric; empty if the graders give outcomes."""
        return self._scored.scores

    @property
    def result(self) -> str:
        """Return the main result in the words of the report; empty for a single student."""
        return " ".join(self._scored.result)

    @property
    def format_first(self) -> list[str]:
        """Return a warning for each student whose scores are unreliable because most replies miss the format."""
        return self._scored.format_first

    @cached_property
    def _scored(self) -> ScoredRun:
        return scored_run(self._run)

    @cached_property
    def outcomes(self) -> list[OutcomeScore]:
        """Return a score for each student, grader, setting, k, topics and outcome; empty if the graders give points."""
        return run_outcomes(self._run) if self._run.has_outcomes else []

    @cached_property
    def outcome_changes(self) -> list[OutcomeChange]:
        """Compare the outcomes of tuned students with their bases or, if there are none, all with the first student."""
        return run_outcome_changes(self._run) if self._run.has_outcomes else []

    def scored(self, *, rules: Literal["default", "paper"] | None = None, by_sets: bool = False) -> list[CellScore]:
        """Return the scores under other rules, or separately for reserved skill sets."""
        return run_scores(self._run, rules=rules, by_sets=by_sets)

    @property
    def is_complete(self) -> bool:
        """Whether all planned texts and grades exist."""
        scores: list[CellScore | OutcomeScore] = [*self.scores, *self.outcomes]
        return all(score.complete == score.combinations for score in scores)

    def texts(self, *, student: str | None = None, k: int | None = None, grader: str | None = None) -> TextRows:
        """Return the graded texts with their points, best first, one record for each text and grader."""
        rows = run_texts(self._run, student=student, k=k)
        return TextRows(row for row in rows if grader in (None, row.grader))

    def compare(
        self, first: str, second: str, *, metric: str = FULL_MARKS, rules: Literal["default", "paper"] | None = None
    ) -> StudentComparison:
        """Compare two students on the combinations that both completed."""
        return compare_students(self._run, first, second, metric=metric, rules=rules)

    def votes(self) -> Iterator[dict[str, Any]]:
        """Yield all grading calls with their raw replies and parsed grades."""
        return vote_rows(self._run)

    def annotation(
        self,
        raters: Sequence[str],
        *,
        n: int | None = None,
        width: float | None = None,
        agreement: float = 0.5,
        overlap: float = 0.3,
        seed: int = 0,
        student: str | None = None,
        k: int | None = None,
    ) -> AnnotationTask:
        """Make an annotation task: each rater's texts, the questions, and the file for the answers.

        Each rater reads n texts (default: 50), or as many as make the 95% interval of agreement no wider than `width`
        at this `agreement`. All raters read the share `overlap` of the texts.
        """
        students = () if student is None else (student,)
        ks = () if k is None else (k,)
        settings = TaskSettings(tuple(raters), n, width, agreement, overlap, seed, students, ks)
        return make_task(self._run, settings)

    def step_annotation(self, step: str) -> AnnotationTask:
        """Return the task of an annotate step in the run's experiment."""
        return step_task(annotate_step_of(self._run, step), self._run)

    def to_pandas(self, what: Literal["scores", "outcomes", "texts", "votes"] = "scores") -> "pandas.DataFrame":
        """Return a data frame with one row for each score, outcome, graded text or vote."""
        tables: dict[str, Callable[[], Iterable[Mapping[str, Any]]]] = {
            "scores": lambda: (score.json_row() for score in self.scores),
            "outcomes": lambda: (score.json_row() for score in self.outcomes),
            "texts": lambda: map(asdict, self.texts()),
            "votes": self.votes,
        }
        if what not in tables:
            raise UserError(f"There is no table {what!r}.", hint="Choose scores, outcomes, texts or votes.")
        return _frame(tables[what]())

    def report(self, *, output: str | Path | None = None, figures: bool = True) -> Path:
        """Write the report, and return the path of its first page."""
        folder = Path(output) if output is not None else self.path / "report"
        return write_report([self._run], output=folder, options=ReportOptions(figures=figures)).page


def _frame(rows: Iterable[Mapping[str, Any]]) -> "pandas.DataFrame":
    try:
        import pandas
    except ImportError:
        raise UserError("to_pandas needs pandas.", hint="pip install pandas") from None
    return pandas.DataFrame(list(rows))


def draw(
    catalog: Catalog,
    *,
    k: int,
    n: int,
    setting: Setting = "all",
    seed: int = 0,
    partition: str | None = None,
    exclude: Sequence[str] = (),
) -> list[Combination]:
    """Draw n combinations of k skills and a topic, the same for equal arguments on every machine."""
    pool = catalog.pool(setting, partition=partition, exclude=with_listed_skills(exclude))
    return draw_combinations(Draw(pool, setting, k, seed), n)


def read_reply(combination: Combination, reply: str, *, text: str | None = None, prompts: str = "standard") -> Reading:
    """Parse a grader's reply into points in the order skills, topic, sense, length, or into the reason for a failure.

    With the graded `text`, grades that the text itself contains are not attributed to the grader.
    """
    rubric = rubric_of(combination.skills, combination.topic, phrases=load_prompts(prompts).phrases)
    return read_grades(rubric, reply, text=text)


def check(text: str, combination: Combination, catalog: Catalog) -> Verdict:
    """Grade a text by code, with the words that show each skill and the topic, and the reasons for denied points."""
    require_checkers(catalog, combination.skills, "check")
    return RulesGrader(catalog).verdict(text, skills=combination.skills, topic=combination.topic)


def score(
    text: str,
    combination: Combination,
    grades: Sequence[Reading | Verdict],
    *,
    rules: Literal["default", "paper"] = "default",
) -> dict[str, float | None]:
    """Compute the metrics of a text from its grades; a metric is None if unparseable votes could change it."""
    rubric = rubric_of(combination.skills, combination.topic)
    readings = [reading_of(grade, combination.skills) if isinstance(grade, Verdict) else grade for grade in grades]
    points = decide_points(rubric, plain_answer(text), readings, rounds=max(1, len(readings)), rules=rules_named(rules))
    return {name: text_score(points, name) for name in METRICS}


def open_run(name: str | Path) -> RunView:
    """Open a run by its name in `runs/`, or by its path."""
    return RunView(open_stored_run(str(name)))


def evaluate(
    *,
    name: str,
    student: str | Mapping[str, object],
    grader: str | Mapping[str, object],
    k: Sequence[int] = (1, 2, 3, 4, 5),
    settings: Sequence[Setting] = SETTINGS,
    combinations: int = 100,
    generations: int = 3,
    rounds: int | None = None,
    seed: int = 0,
    catalog: str = "paper",
    partition: str | None = None,
    prompts: str = "standard",
    max_usd: float | None = None,
) -> RunView:
    """Evaluate a student with a grader and return the run. Repeating the call makes only missing model calls.

    Student and grader are model strings, or mappings with the keys of an experiment file, such as `model` and `key`.
    Each setting and k has `combinations` combinations with `generations` texts each, and each text `rounds` gradings.
    """
    step = {
        "name": "evaluate",
        "stage": "evaluate",
        "students": ["student"],
        "graders": ["grader"],
        "k": list(k),
        "settings": list(settings),
        "combinations": combinations,
        "generations": generations,
    }
    document = {
        "name": name,
        "seed": seed,
        "catalog": catalog,
        "partition": partition,
        "prompts": prompts,
        "students": {"student": _model(student)},
        "graders": {"grader": _model(grader) | ({} if rounds is None else {"rounds": rounds})},
        "budget": {"max_usd": max_usd},
        "steps": [step],
    }
    checked = experiment_of(document, source="skillmix.evaluate")
    _require_own_run(checked)
    return RunView(_outside_loops(lambda: run_checked(checked)).run)


def run(
    experiment: str | Path | Mapping[str, object],
    *,
    set: Mapping[str, object] | None = None,
    step: str | None = None,
    prices: str | Path | None = None,
) -> RunView:
    """Run an experiment from a file or a mapping, without repeating finished calls, and return the run.

    `set` changes values of a file by their path, such as {"budget.max_usd": 5}. With `step`, only this step runs.
    """
    if isinstance(experiment, Mapping):
        if set:
            raise UserError("`set` works only with an experiment file.", hint="Change the mapping instead.")
        checked = experiment_of(dict(experiment), source="skillmix.run")
    else:
        checked = load_experiment(Path(experiment), changes=[f"{key}={value}" for key, value in (set or {}).items()])
    known = Path(prices) if prices is not None else None
    return RunView(_outside_loops(lambda: run_checked(checked, prices=known, wanted=StepFilter(step=step))).run)


def calibrate(
    grader: str | Mapping[str, object],
    *,
    set: str | Path = "paper",
    catalog: str = "paper",
    prompts: str = "standard",
    run: str | None = None,
    size: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
    max_usd: float | None = None,
    prices: str | Path | None = None,
    bigbench: str | Path | None = None,
) -> Calibration:
    """Grade texts with known labels and return the grader's card. Repeating the call makes only missing model calls.

    The grader is a model string, or a mapping with the keys of an experiment file. `set` is a shipped set, a YAML file,
    a folder of YAML files, or `bigbench:TASK`. `size` limits the number of texts, which are chosen by hash. The card is
    also saved in the folder of the run, as a page and as JSON.
    """
    plan = planned(
        _model(grader) | ({} if rounds is None else {"rounds": rounds}),
        set=str(set),
        catalog=catalog,
        prompts=prompts,
        run=run,
        size=size,
        seed=seed,
        max_usd=max_usd,
        bigbench=Path(bigbench) if bigbench is not None else None,
    )
    known = Path(prices) if prices is not None else None
    made = _outside_loops(lambda: calibrated(plan, prices=known))
    write_card(made)
    return made


def grader_cards(
    runs: RunView | str | Path | Sequence[RunView | str | Path],
    *,
    truth: str | None = None,
    rules: Literal["default", "paper"] | None = None,
) -> list[GraderCard]:
    """Make a card for each grader of one or more runs: agreement with labels, bias, consistency and scores.

    `truth` is the source of the labels: a grader, "rules" (code) or "people" (default: people, else code, else a
    grader).
    """
    several = [runs] if isinstance(runs, RunView | str | Path) else list(runs)
    stored = [run._run if isinstance(run, RunView) else open_stored_run(str(run)) for run in several]
    return run_cards(stored, truth=truth, rules=rules)


def build_dataset(
    sources: Sequence[RunView | str],
    *,
    recipe: str | None = None,
    k: Sequence[int] = (),
    size: int | None = None,
    graders: Sequence[str] | None = None,
    shown: ShownMode | None = None,
    only_requested: bool = False,
    output: str | Path | None = None,
) -> WrittenDataset:
    """Collect conversations with full marks from runs as training data.

    A `recipe` such as "D(1,2)" is a data set of the paper; otherwise, texts with the given k, or with any k, are used.
    `shown` sets what happens to texts that show a reserved pair or two held-out skills (default: the first run's
    setting), and `only_requested` excludes texts that show a skill that was not requested. Both need checkers.
    """
    if recipe is not None and k:
        raise UserError(f"The recipe {recipe} determines k.", hint="Give only one of them.")
    chosen = recipe_named(recipe, size=size) if recipe is not None else plain_recipe(list(k), size=size)
    names = [str(source.path.resolve()) if isinstance(source, RunView) else source for source in sources]
    folder = Path(output) if output is not None else None
    wanted = FromRuns(
        runs=names, recipe=chosen, graders=graders, shown=shown, only_requested=only_requested, output=folder
    )
    return dataset_of_runs(wanted)


def train(
    *, name: str, base: str, data: Sequence[WrittenDataset | str | Path], catalog: str = "paper", **recipe: object
) -> Trained:
    """Fine-tune a local model in the run `name` and return the fine-tuned checkpoint; requires `skillmix[train]`.

    `data` are data sets, their folders, or JSON Lines files of conversations. Any key of a train step, such as
    `epochs`, `batch`, `learning_rate` or `lora`, is also accepted as an argument.
    """
    paths = [str((item.folder if isinstance(item, WrittenDataset) else Path(item)).resolve()) for item in data]
    step = {"name": "train", "stage": "train", "base": "base", "data": paths, **recipe}
    document = {"name": name, "catalog": catalog, "students": {"base": {"model": base}}, "steps": [step]}
    checked = experiment_of(document, source="skillmix.train")
    _require_own_run(checked)
    return _outside_loops(lambda: run_checked(checked)).trained["train"]


def frequency(
    *,
    corpus: str | Path | Sequence[str | Path],
    grader: str | Mapping[str, object],
    catalog: str = "paper",
    n: int = 1000,
    seed: int = 0,
    words: int = 100,
    field: str = "text",
    skills_per_call: int = 20,
    threshold: float = 0.05,
    name: str = "frequency",
    exclude_list: str | Path | None = None,
    max_usd: float | None = None,
) -> FrequencyResult:
    """Measure the frequency of each skill of a catalog in a corpus. Repeating the call makes only missing model calls.

    `corpus` is a text, JSON Lines or Parquet file, a folder of such files, or a list of files and folders. The grader
    is a model string, such as `rules:` for code, or a mapping with the keys of an experiment file. The sample and the
    calls are stored in the run `name`.
    """
    sources = [corpus] if isinstance(corpus, str | Path) else list(corpus)
    wanted = FrequencyWanted(
        corpus=tuple(map(Path, sources)),
        grader=_model(grader),
        catalog=catalog,
        n=n,
        seed=seed,
        words=words,
        text_field=field,
        skills_per_call=skills_per_call,
        threshold=threshold,
        run=name,
        list_file=None if exclude_list is None else Path(exclude_list),
        max_usd=max_usd,
    )
    return _outside_loops(lambda: count_skills(wanted)).result


def _require_own_run(experiment: Experiment) -> None:
    """Reject an experiment's existing run if it has other students or graders."""
    stored = new_run(experiment.name)
    if not stored.exists or stored.is_imported:  # an import rejects additions itself
        return
    own = {*experiment.students, *experiment.graders}
    former = stored.known_experiment
    known = [*former.students, *former.graders]
    others = [name for name in known if name not in own]
    if others and not own.issubset(known):  # the user may have added models to the run's experiment
        hint = "Choose another name. To add a model to that run, edit its experiment file and call skillmix.run."
        raise UserError(f"The run {stored.path} belongs to another experiment, with {', '.join(others)}.", hint=hint)


def _model(model: str | Mapping[str, object]) -> dict[str, object]:
    return {"model": model} if isinstance(model, str) else dict(model)


def _outside_loops(work: Callable[[], _T]) -> _T:
    """Run code that starts an event loop, in another thread if a loop is already running, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(work).result()
