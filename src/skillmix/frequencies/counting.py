"""Count how common each skill of a catalogue is in a corpus: draw passages, ask about them, estimate shares.

Everything is kept in a run: the sample, the journal of calls, the result. The same command again makes only the calls
that are missing, and writes the same files.
"""

import asyncio
from dataclasses import asdict, dataclass, field
from pathlib import Path
from signal import SIGINT
from typing import Any, Final

from skillmix.calls import CallProblem
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.catalog.own_code import require_trust
from skillmix.checkers.registry import checker_of
from skillmix.errors import Interrupted, UserError
from skillmix.experiment.costs import load_prices, usual_tokens_in
from skillmix.experiment.experiment import Experiment, GraderSettings, experiment_of
from skillmix.frequencies.documents import check_files, corpus_files
from skillmix.frequencies.drawing import WORDS, DrawnSample, DrawWanted, SampleFiles, draw
from skillmix.frequencies.frequency_file import FrequencyResult, require_own_list
from skillmix.frequencies.questions import GRADER, PassageQuestions, with_code
from skillmix.frequencies.shares import skill_shares
from skillmix.grading.sentences import count_sentences
from skillmix.prompts.passage_prompt import PassagePrompt, load_passage_prompt
from skillmix.prompts.rubric import Phrases
from skillmix.runs.budget import LimitedBudget
from skillmix.runs.calling import StepContext, serve
from skillmix.runs.progress.progress import RunProgress, watched
from skillmix.runs.progress.stopping import signal_of
from skillmix.runs.progress.time_left import Work
from skillmix.runs.rules_grader import require_checkers
from skillmix.runs.run import Run, new_run
from skillmix.runs.scheduler import CallCounts
from skillmix.steps.before_run import prices_by_model, probe_settings
from skillmix.steps.calls import counts_line

STEP: Final = "frequency"
_SPEED_AND_ACCESS: Final = {"concurrency", "timeout", "key", "insecure", "rounds", "prompts"}
_TOKENS_OF_A_ROW: Final = 12


@dataclass(frozen=True, slots=True)
class FrequencyWanted:
    """What to count, in which corpus and by whom."""

    corpus: tuple[Path, ...]
    grader: dict[str, object]
    """The keys of a grader in an experiment file, `model` among them."""
    catalog: str = "paper"
    n: int = 1000
    seed: int = 0
    words: int = WORDS
    text_field: str = "text"
    skills_per_call: int = 20
    threshold: float = 0.05
    run: str = "frequency"
    list_file: Path | None = None
    prompt: Path | None = None
    prices: Path | None = None
    max_usd: float | None = None
    max_calls: int | None = None
    readers: int | None = None

    @property
    def draw(self) -> DrawWanted:
        """The passages to draw."""
        return DrawWanted(self.corpus, self.n, self.seed, self.words, self.text_field, self.readers)

    def check(self) -> None:
        """Refuse numbers that mean nothing."""
        for name, value, least in (
            ("n", self.n, 1),
            ("words", self.words, 10),
            ("skills_per_call", self.skills_per_call, 1),
        ):
            if value < least:
                raise UserError(f"{name} = {value} is too small.", hint=f"Choose {least} or more.")
        if not 0 < self.threshold < 1:
            raise UserError(
                f"The threshold {self.threshold:g} is not a share between 0 and 1.", hint="Choose one such as 0.05."
            )


@dataclass(frozen=True, slots=True)
class Counted:
    """The outcome of one invocation."""

    run: Run
    result: FrequencyResult
    counts: CallCounts = field(default_factory=CallCounts)

    @property
    def failed(self) -> dict[str, CallProblem]:
        """Calls without an outcome, with their problems."""
        return {str(key): problem for key, problem in self.counts.failed.items()}

    @property
    def is_complete(self) -> bool:
        """Whether every question was asked and every answer can be read."""
        return not self.counts.failed and self.counts.stopped is None and not self.result.unknown


def count_skills(wanted: FrequencyWanted) -> Counted:
    """Count the skills of a catalogue in a corpus."""
    plan = _plan(wanted)
    if wanted.list_file is not None:
        require_own_list(wanted.list_file)
    run = new_run(wanted.run)
    document = plan.document(run)
    run.require_same_import(document)
    check_files(corpus_files(wanted.corpus), text_field=wanted.text_field)
    prices = prices_by_model(plan.experiment, load_prices(wanted.prices)) if plan.asked else {}
    if plan.asked:
        asyncio.run(probe_settings({f"grader:{GRADER}": plan.settings}))
    files = SampleFiles(run.path)
    drawn = files.drawn(wanted.draw)
    counts = CallCounts()
    with run.write() if plan.asked else run.locked() as journal:
        run.begin_import(document)
        files.store(drawn, wanted.draw)
        questions = plan.questions(drawn)
        if journal is not None:
            limits = plan.experiment.budget
            spent = journal.spent()
            budget = LimitedBudget(prices, spent=spent, max_calls=limits.max_calls, max_usd=limits.max_usd)
            journal.add_combinations(questions.all_chunks())
            with RunProgress([Work(STEP, f"calls: {plan.settings.asked}", questions.count)]) as progress:
                context = StepContext(plan.experiment, plan.catalog, run, journal, budget, progress)
                _make_calls(questions, context, counts)
        run.note_invocation({"command": "frequency", "called": counts.called})
    answers: dict[str, dict[str, bool | None]] = {}
    if plan.asked:
        with run.read() as reader:
            answers = questions.answers(reader)
    if plan.settings.has_code:
        answers = with_code(answers, drawn.passages, plan.skills)
    result = plan.result(drawn, answers)
    if signal_of(counts.stopped) is None:  # an interrupted count has a result when it has gone on
        result.store(run.path, list_file=wanted.list_file)
    return Counted(run, result, counts)


@dataclass(frozen=True, slots=True)
class FrequencyEstimate:
    """Calls, tokens and cost of counting, before a call is made."""

    passages: int
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """None if the price of the grader is not known."""

    def as_json(self) -> dict[str, Any]:
        """The documented form of `frequency --dry-run --json`."""
        return asdict(self)


def estimate_counting(wanted: FrequencyWanted) -> FrequencyEstimate:
    """Draw the sample and estimate the calls, without a call and without a file."""
    plan = _plan(wanted)
    drawn = draw(wanted.draw)
    if not plan.asked:
        return FrequencyEstimate(len(drawn.passages), 0, 0, 0, 0.0)
    questions = plan.questions(drawn)
    price = prices_by_model(plan.experiment, load_prices(wanted.prices))[f"grader:{GRADER}"]
    characters = sum(len(m.content) for task in questions.tasks() for m in task.request.messages)
    tokens_in = round(usual_tokens_in(characters))
    tokens_out = len(drawn.passages) * len(plan.asked) * _TOKENS_OF_A_ROW
    cost = price.of(tokens_in, tokens_out) if price else None
    return FrequencyEstimate(len(drawn.passages), questions.count, tokens_in, tokens_out, cost)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is decided before the corpus is read."""

    wanted: FrequencyWanted
    catalog: Catalog
    experiment: Experiment
    prompt: PassagePrompt

    @property
    def settings(self) -> GraderSettings:
        return self.experiment.graders[GRADER]

    @property
    def skills(self) -> list[str]:
        return [skill.name for skill in self.catalog.skills]

    @property
    def asked(self) -> list[str]:
        """The skills that a model is asked about."""
        if self.settings.asked is None:
            return []
        return [s for s in self.skills if not self.settings.has_code or checker_of(s) is None]

    def questions(self, drawn: DrawnSample) -> PassageQuestions:
        wanted = self.wanted
        return PassageQuestions(
            drawn.passages, self.asked, self.catalog, self.settings, self.prompt, wanted.seed, wanted.skills_per_call
        )

    def document(self, run: Run) -> dict[str, object]:
        """The experiment.yaml of the run: everything that decides its calls, except n, which may grow."""
        wanted = self.wanted
        return {
            "name": run.name,
            "seed": wanted.seed,
            "catalog": wanted.catalog,
            "catalog_hash": self.catalog.content_hash(),
            "partition": None,
            "prompts": None,
            "criteria": asdict(Phrases()),
            "steps": [{"name": STEP, "stage": STEP}],
            "frequency": {
                "grader": self.settings.model_dump(mode="json", exclude=_SPEED_AND_ACCESS),
                "prompt_hash": self.prompt.content_hash(),
                "words": wanted.words,
                "field": wanted.text_field,
                "skills_per_call": wanted.skills_per_call,
            },
        }

    def result(self, drawn: DrawnSample, answers: dict[str, dict[str, bool | None]]) -> FrequencyResult:
        passages = drawn.passages
        wanted = self.wanted
        return FrequencyResult(
            catalog=wanted.catalog,
            catalog_hash=self.catalog.content_hash(),
            grader=self.settings.model,
            prompt_hash=self.prompt.content_hash() if self.asked else None,
            seed=wanted.seed,
            words=wanted.words,
            threshold=wanted.threshold,
            corpus={
                "files": drawn.files,
                "documents": drawn.documents,
                "passages": drawn.sample.total,
                "skipped": drawn.skipped,
            },
            passages=len(passages),
            documents=len({passage.document for passage in passages}),
            repeated=sum(passage.occurrences > 1 for passage in passages),
            sentences_per_passage=sum(count_sentences(p.text) for p in passages) / len(passages),
            words_per_passage=sum(len(p.text.split()) for p in passages) / len(passages),
            skills=tuple(skill_shares(self.skills, passages, answers, threshold=wanted.threshold)),
        )


def _plan(wanted: FrequencyWanted) -> _Plan:
    wanted.check()
    catalog = load_catalog(wanted.catalog)
    document = {
        "name": Path(wanted.run).name,
        "seed": wanted.seed,
        "catalog": wanted.catalog,
        "graders": {GRADER: {"rounds": 1, **wanted.grader}},
        "budget": {"max_usd": wanted.max_usd, "max_calls": wanted.max_calls},
        "steps": [],
    }
    plan = _Plan(wanted, catalog, experiment_of(document, source="frequency"), load_passage_prompt(wanted.prompt))
    if plan.settings.has_code:
        require_trust(catalog.code)
    if plan.settings.asked is None:
        require_checkers(catalog, plan.skills, plan.settings.model)
    if plan.settings.votes != 1:
        raise UserError(f"rounds = {plan.settings.votes} is not possible here.", hint="Each question is asked once.")
    return plan


def _make_calls(questions: PassageQuestions, context: StepContext, counts: CallCounts) -> None:
    try:
        asyncio.run(_serve(questions, context, counts))
    except asyncio.CancelledError:
        raise Interrupted(signal_of(counts.stopped) or SIGINT) from None
    context.progress.end(STEP, counts_line(STEP, counts))


async def _serve(questions: PassageQuestions, context: StepContext, counts: CallCounts) -> None:
    async with watched(context.progress, STEP, counts):
        await serve({f"grader:{GRADER}": questions.grader}, questions.tasks(), questions.follow, context, counts)
