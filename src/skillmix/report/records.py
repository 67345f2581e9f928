"""The contents of a report as records, before they become words, tables or figures."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from skillmix.catalog.novelty import MeasuredFrequencies
from skillmix.files import FolderKind
from skillmix.models.lineage import Lineage
from skillmix.models.lineage_files import DatasetFile
from skillmix.runs.rows import Invocations
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.comparisons import Change, PairRow, compare_cells
from skillmix.scores.findings import Finding, JudgedContrast
from skillmix.scores.graders import Disagreement, GraderAgreement, GraderCard, Readability, RoundAgreement
from skillmix.scores.safety import OutcomeCell, OutcomeChange
from skillmix.scores.scoring import ComparableStudent, practice_between
from skillmix.scores.sentences import MainResult, contrast_result, format_warnings, main_result, outcome_result
from skillmix.scores.skills import Rate, skill_rates
from skillmix.scores.status import CallTotals
from skillmix.training.log import TrainingCurve

if TYPE_CHECKING:
    from skillmix.checkers.template_student import Form

REPORT_MARK: Final = "skillmix-report"
REPORT_NOTE: Final = "This folder was made by `skillmix report`, and is replaced by the next one.\n"
_PAGES: Final = ("index.html", "texts.html", "compare.html", "report.css", "texts.css", "experiments/*.yaml")
_SCRIPTS: Final = ("page.js", "data.js", "search.js", "cards.js", "texts.js", "compare.js", "data/*.js")
_TABLES: Final = ("tables/*.md", "tables/*.csv", "tables/*.json", "tables/*.tex")
_FIGURES: Final = ("figures/*.svg", "figures/*.png")
_STYLED: Final = tuple(f"{style}/figures/*.{ending}" for style in ("paper", "slide") for ending in ("pdf", "png"))
_PAPER: Final = ("paper/*.tex", "paper/scores.csv", "paper/scores.parquet", *_STYLED)
REPORT: Final = FolderKind(
    "a report",
    lambda folder: (folder / REPORT_MARK).is_file() and (folder / REPORT_MARK).read_bytes() == REPORT_NOTE.encode(),
    (REPORT_MARK, *_PAGES, *_SCRIPTS, *_TABLES, *_FIGURES, *_PAPER),
)
CORPUS_TOKENS: Final = 2e12
"""The number of tokens in the corpus for the novelty bound, unless an option sets another number."""
MOST_TEXTS: Final = 200_000
"""The maximum number of texts of one run that the pages show, unless an option sets another number."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The options of a report."""

    rules: str | None = None
    """The scoring rules: a name, `both`, or None for the rules of each run."""
    published: bool = False
    """Whether the tables of the paper are shown."""
    tokens: float | None = None
    """The number of tokens in the corpus for the novelty bound; None for 2e12."""
    frequencies: MeasuredFrequencies | None = None
    """Measured frequencies of skills for the novelty bound; None for the paper's upper bound for all skills."""
    figures: bool = True
    """Whether to draw figures, which takes much of the time of a small report."""
    style: str | None = None
    """An additional style in which to draw figures: `paper` or `slide`."""
    texts: int = MOST_TEXTS
    """The maximum number of texts of each run that the pages show; scores always count all texts."""

    @property
    def words(self) -> list[str]:
        """Return the command-line arguments for all options that differ from their defaults, except the style."""
        rules = ["--rules", self.rules] if self.rules else []
        tokens = ["--tokens", f"{self.tokens:g}"] if self.tokens not in (None, CORPUS_TOKENS) else []
        tokens += ["--frequencies", self.frequencies.file] if self.frequencies else []
        texts = ["--texts", str(self.texts)] if self.texts != MOST_TEXTS else []
        switches = ["--published"] * self.published + ["--no-figures"] * (not self.figures)
        return [*rules, *tokens, *texts, *switches]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about a run, read from its folder."""

    name: str
    catalog: str | None
    partition: str | None
    seed: int | None
    prompts: str | None
    rules: str
    exclude: tuple[str, ...]
    students: Mapping[str, str]
    """Model strings by name; empty for an imported run."""
    graders: Mapping[str, str]
    rounds: Mapping[str, int]
    generations: int
    texts: int
    missing: int
    """The number of texts in planned cells that are missing or not graded."""
    excluded_by_setting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each setting drawn without some skills, the names of the excluded skills and exclude lists."""
    not_sent: tuple[str, ...] = ()
    """Request parameters that were not sent because a provider does not support them."""
    calls: tuple[CallTotals, ...] = ()
    invocations: Invocations = field(default_factory=Invocations)
    decoding: Mapping[str, str] = field(default_factory=dict)
    """The sampling settings of students and graders, in words."""
    train_seeds: Mapping[str, int] = field(default_factory=dict)
    """The seed of each train step."""
    families: Mapping[str, str] = field(default_factory=dict)
    """For students that the experiment file repeats over seeds, partitions or a matrix, their names in the file."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Content hashes of the catalog and of prompt sets, by name."""
    shown_texts: int | None = None
    """The number of texts in the sample that the pages show; None if they show all."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The numbers of requested and unrequested skills that code found in one student's texts at one k."""

    run: str
    student: str
    k: int
    texts: int
    requested: int
    unrequested: int
    by_skill: Mapping[str, int]
    """By skill, the number of texts that show the skill although it was not requested."""


@dataclass(frozen=True, slots=True)
class CellTexts:
    """The extent to which the texts of one cell reuse a template or nearly copy examples from the prompts."""

    key: CellKey
    texts: int
    full_marks: int
    """The number of texts with full marks."""
    repeated: int | None
    """The number of these texts that show each skill in words also used for another combination, ignoring topic words.

    None if no code checked the texts.
    """
    distinct_4: float | None
    """Distinct 4-grams as a share of all 4-grams in texts with full marks; None if there are no such texts."""
    following: int | None
    """The number of near-copies of examples; None if the catalog of the run is unknown."""
    full_marks_following: int | None


@dataclass(frozen=True, slots=True)
class TemplateBaseline:
    """The template student's scores on the combinations of a setting and k, as shares of combinations."""

    run: str
    setting: str
    k: int
    combinations: int
    full_marks: "Mapping[Form, float]"
    """By the form of the clauses: `fixed` clauses mention the topic once, and `slot` clauses mention it each time."""
    woven: "Mapping[Form, float]"


@dataclass(frozen=True, slots=True)
class SkillDefinition:
    """A skill as its catalog defines it."""

    name: str
    category: str
    definition: str
    example: str
    side: str
    """The skill's side of the partition: train, held-out, or neither."""


@dataclass(frozen=True, slots=True)
class ExampleText:
    """An example text on the first screen."""

    student: str
    about: str
    """A clause that describes the combination and says why it was chosen."""
    text: str
    missed: tuple[str, ...]
    """The criteria that the student misses in its first text."""
    link: str


StudentKey = tuple[str, str]
"""The run and the student."""


@dataclass(frozen=True)
class Report:
    """The records behind every table, figure and sentence about one or more runs."""

    runs: tuple[RunFacts, ...]
    cells: tuple[Cell, ...]
    by_rules: Mapping[str, tuple[Cell, ...]] = field(default_factory=dict)
    """The same cells scored under each of several rules, if requested."""
    lineages: Mapping[StudentKey, Lineage] = field(default_factory=dict)
    skill_sets: Mapping[StudentKey, frozenset[frozenset[str]]] = field(default_factory=dict)
    """The skill sets that each tuned student saw in training."""
    reserved: Mapping[str, float] = field(default_factory=dict)
    """The share of skill sets that each run reserves for evaluation, excluding them from its training data."""
    contenders: tuple[ComparableStudent, ...] = ()
    contrasts: tuple[JudgedContrast, ...] = ()
    """The planned comparisons, in their order."""
    findings: tuple[Finding, ...] = ()
    """The judged claims, and the planned comparisons."""
    changes: tuple[Change, ...] = ()
    """Every tuned student compared with its base."""
    comparisons: tuple[Change, ...] = ()
    """The pairs of students that the section "Compare" shows."""
    rounds: tuple[RoundAgreement, ...] = ()
    agreements: tuple[GraderAgreement, ...] = ()
    disagreements: Mapping[str, tuple[Disagreement, ...]] = field(default_factory=dict)
    """The disagreements between graders, by run."""
    readability: tuple[Readability, ...] = ()
    cards: tuple[GraderCard, ...] = ()
    """The cards of all graders that were compared with people, code or another grader."""
    datasets: tuple[tuple[str, DatasetFile], ...] = ()
    curves: tuple[tuple[str, TrainingCurve], ...] = ()
    step_seconds: tuple[tuple[str, str, float], ...] = ()
    """The run, the name and the wall seconds of each step with a known time, except report steps."""
    shown: tuple[Shown, ...] = ()
    cell_texts: tuple[CellTexts, ...] = ()
    baselines: tuple[TemplateBaseline, ...] = ()
    """The template student's scores, for runs whose catalog has clauses for it."""
    categories: Mapping[str, str] = field(default_factory=dict)
    definitions: Mapping[str, SkillDefinition] = field(default_factory=dict)
    """The definitions of drawn skills, if their catalog is available."""
    examples: tuple[ExampleText, ...] = ()
    """One text from each student of the main result, all on the same combination."""
    common_skills: frozenset[str] = frozenset()
    corpus_tokens: float = CORPUS_TOKENS
    frequencies: MeasuredFrequencies | None = None
    outcomes: tuple[OutcomeCell, ...] = ()
    """The cells of runs whose graders give outcomes, which have no scores."""
    outcome_changes: tuple[OutcomeChange, ...] = ()
    published: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The tables from the paper, if requested."""
    gaps: tuple[str, ...] = ()
    """Notes on data that the runs lack, and reasons why tables or figures are missing."""

    @cached_property
    def result(self) -> MainResult:
        """Return the main result for the first screen; the terminal prints the same sentence."""
        if self.has_only_outcomes:
            result = outcome_result(self.outcomes, self.label)
        elif self.contrasts:
            result = contrast_result(self.contrasts, self.cells)
        else:
            result = main_result(self.cells, self.findings)
        return result.with_training(self.lineages, (data for _, data in self.datasets))

    def compared(self, run: str, first: str, second: str) -> list[PairRow]:
        """Compare two students of a run, with one row for each grader, setting and k."""
        practice = practice_between([c for c in self.contenders if c.run == run], first, second)
        return compare_cells(run, first, second, by_key(self.cells), practice=practice)

    @cached_property
    def skill_rates(self) -> dict[StudentKey, dict[str, Rate]]:
        """Return how often each student shows each requested skill, under the first grader."""
        return {key: skill_rates(self.cells_of(key, grader=self.graders[0])) for key in self.students}

    @property
    def claims(self) -> list[Finding]:
        """Return the claims that were judged."""
        return [finding for finding in self.findings if finding.claim != "planned"]

    @cached_property
    def format_first(self) -> list[str]:
        """Return warnings about students that miss the format in more than half of their replies."""
        return format_warnings(self.cells)

    @property
    def all_cells(self) -> tuple[Cell, ...]:
        """Return the cells with scores and the cells with outcomes."""
        return (*self.cells, *(part.cell for part in self.outcomes))

    @property
    def has_only_outcomes(self) -> bool:
        """Whether the graders give only outcomes, so that no cell has scores."""
        return bool(self.outcomes) and not self.cells

    @property
    def students(self) -> list[StudentKey]:
        """Return all students of the cells, in order of appearance."""
        return list(dict.fromkeys((c.key.run, c.key.student) for c in self.cells))

    @property
    def graders(self) -> list[str]:
        """Return every grader that appears in a cell."""
        return list(dict.fromkeys(c.key.grader for c in self.cells))

    @property
    def settings(self) -> list[str]:
        """Return every setting that appears in a cell."""
        return list(dict.fromkeys(c.key.setting for c in self.cells))

    @property
    def ks(self) -> list[int]:
        """Return every k that appears in a cell."""
        return sorted({c.key.k for c in self.cells})

    @property
    def main_setting(self) -> str:
        """Return the setting `all` if there is one, otherwise the first setting; empty without cells."""
        return "all" if "all" in self.settings else next(iter(self.settings), "")

    def label(self, run: str, name: str) -> str:
        """Return the name of a student, a grader or a step, preceded by its run if there are several runs."""
        return name if len(self.runs) == 1 else f"{run}: {name}"

    def training_of(self, key: StudentKey) -> tuple[int, ...]:
        """Return the numbers of skills that a student was trained on; empty for a student that was not tuned."""
        return self.lineages[key].k if key in self.lineages else ()

    def pairs_to_compare(self) -> list[tuple[StudentKey, StudentKey]]:
        """Return each base with its student tuned on the largest k or, without lineages, a run's first two students."""
        return list(
            dict.fromkeys(
                ((run, f.first), (run, f.second)) for f in self.findings if not f.pair.first.k for run in f.runs[:1]
            )
        )

    def cells_of(self, key: StudentKey, *, grader: str | None = None, setting: str | None = None) -> list[Cell]:
        """Return the cells of one student."""
        return [
            c
            for c in self.cells
            if (c.key.run, c.key.student) == key and grader in (None, c.key.grader) and setting in (None, c.key.setting)
        ]


def by_key(cells: Iterable[Cell]) -> dict[CellKey, Cell]:
    """Index cells by their key."""
    return {cell.key: cell for cell in cells}
