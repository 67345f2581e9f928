"""Count how common each skill of a catalog is in a corpus: draw passages, ask graders about them, and estimate shares.

Everything is stored in a run: the sample, the journal of calls and the result. Repeating the command makes only the
missing calls, and writes the same files.

`passages.jsonl` contains the passages, and `sample.json` contains the settings and counts of the draw. `sample.json` is
written last, so the sample is complete if this file exists. If the files of the corpus have not changed, the stored
sample is used without reading the corpus again. Otherwise, a new sample is drawn, and it must begin with the stored
sample, because a run is about one corpus.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from skillmix.calls import CallProblem
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.catalog.own_code import require_trust
from skillmix.checkers.registry import checker_of
from skillmix.errors import UserError
from skillmix.experiment.costs import load_prices, usual_tokens_in
from skillmix.experiment.experiment import Experiment, GraderSettings, experiment_of
from skillmix.files import write_whole
from skillmix.frequencies.documents import (
    FEWEST_WORDS,
    PassageSample,
    PassageSampler,
    ReadCounts,
    SampledPassage,
    check_files,
    corpus_files,
    documents_of,
    files_error,
    merged,
    passages_of,
)
from skillmix.frequencies.frequency_file import FrequencyResult, require_own_list, skill_shares
from skillmix.frequencies.questions import GRADER, PassagePrompt, PassageQuestions, load_passage_prompt, with_code
from skillmix.grading.answers import count_sentences
from skillmix.hashing import short_id
from skillmix.prompts.rubric import Phrases
from skillmix.runs.budget import Budget
from skillmix.runs.calling import StepContext
from skillmix.runs.progress import RunProgress, Work
from skillmix.runs.run import Run, new_run
from skillmix.runs.scheduler import CallCounts, signal_of
from skillmix.runs.verdicts import require_checkers
from skillmix.steps.calls import call_models
from skillmix.steps.checks import prices_by_model, probe_settings

WORDS: Final = 100
"""The default length of a passage in words, which is about one paragraph."""
_LARGE: Final = 64 << 20
"""The size in bytes below which a corpus can be read faster than further processes would start."""
_MOST_READERS: Final = 8


@dataclass(frozen=True, slots=True)
class FrequencyWanted:
    """The settings of a count: catalog, corpus and grader."""

    corpus: tuple[Path, ...]
    grader: dict[str, object]
    """The keys of a grader in an experiment file, including `model`."""
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
    """The number of processes that read files, by default one for a small corpus. It does not affect the sample."""

    def __post_init__(self) -> None:
        for name, least in (("n", 1), ("words", 10), ("skills_per_call", 1)):
            value = getattr(self, name)
            if value < least:
                raise UserError(f"{name} = {value} is too small.", hint=f"Choose {least} or more.")
        if not 0 < self.threshold < 1:
            raise UserError(
                f"The threshold {self.threshold:g} is not a share between 0 and 1.", hint="Choose one such as 0.05."
            )


@dataclass(frozen=True, slots=True)
class DrawnSample:
    """A sample, and counts of what was read."""

    sample: PassageSample
    files: int
    documents: int
    skipped: dict[str, int]
    """The number of unused files, lines and records, by reason."""

    @property
    def passages(self) -> tuple[SampledPassage, ...]:
        """Return the passages in order."""
        return self.sample.passages


def draw(wanted: FrequencyWanted) -> DrawnSample:
    """Read a corpus once, and draw passages from it."""
    left_out: Counter[str] = Counter()
    files = corpus_files(wanted.corpus, skipped=left_out)
    check_files(files, text_field=wanted.text_field)
    readers = wanted.readers
    if readers is None:
        is_large = sum(file.stat().st_size for file in files) >= _LARGE
        readers = max(1, min(_MOST_READERS, (os.cpu_count() or 1) - 1)) if is_large else 1
    readers = min(len(files), readers)
    if readers == 1:
        parts = [_read(files, wanted)]
    else:
        with ProcessPoolExecutor(readers, mp_context=get_context("spawn")) as pool:
            parts = list(pool.map(partial(_read, wanted=wanted), [[file] for file in files]))
    faults = [fault for _, counts in parts for fault in counts.file_faults]
    if faults:
        raise files_error(faults, wanted.text_field)
    sample = merged([sample for sample, _ in parts], n=wanted.n, seed=wanted.seed)
    if not sample.passages:
        raise UserError(
            f"The corpus has no passage: no document has {FEWEST_WORDS} words or more.",
            hint="Check the files, and --field for JSON Lines and Parquet.",
        )
    skipped = sum((counts.skipped for _, counts in parts), start=left_out)
    return DrawnSample(
        sample,
        files=sum(counts.files for _, counts in parts),
        documents=sum(counts.documents for _, counts in parts),
        skipped=dict(sorted(skipped.items())),
    )


def _read(files: Sequence[Path], wanted: FrequencyWanted) -> tuple[PassageSample, ReadCounts]:
    sampler = PassageSampler(wanted.n, wanted.seed)
    counts = ReadCounts()
    try:
        for document in documents_of(files, text_field=wanted.text_field, counts=counts):
            for text in passages_of(document.paragraphs, words=wanted.words):
                sampler.add(text, document.place)
    except UserError:
        if not counts.file_faults:
            raise
    return sampler.sample(), counts


_PASSAGES: Final = "passages.jsonl"
_FACTS: Final = "sample.json"


def stored_or_drawn(folder: Path, wanted: FrequencyWanted) -> DrawnSample:
    """Return a run's sample if it is large enough and the files are unchanged, otherwise draw one; write nothing."""
    stored = _stored(folder)
    if stored is None:
        return draw(wanted)
    old, facts = stored
    first = replace(old, sample=PassageSample(old.passages[: wanted.n], old.sample.total))
    if facts.get("state") == _state_of(wanted) and facts.get("n", 0) >= wanted.n:
        return first
    new = draw(wanted)
    shared = min(len(old.passages), len(new.passages))
    if old.sample.ids[:shared] != new.sample.ids[:shared] or old.sample.total != new.sample.total:
        raise UserError(
            f"The sample in {folder} is from another corpus, or was drawn with another seed or passage length.",
            hint="Restore them, or use a separate run for the new corpus with --run.",
        )
    return new if len(new.passages) > len(old.passages) else first


def store_sample(folder: Path, drawn: DrawnSample, wanted: FrequencyWanted) -> None:
    """Store a sample, unless the stored sample is as large; the caller must have locked the run."""
    stored = _stored(folder)
    if stored is not None and len(stored[0].passages) >= len(drawn.passages):
        return
    lines = [json.dumps(asdict(passage), ensure_ascii=False) for passage in drawn.passages]
    facts = {
        "n": wanted.n,
        "seed": wanted.seed,
        "words": wanted.words,
        "field": wanted.text_field,
        "files": drawn.files,
        "documents": drawn.documents,
        "passages": drawn.sample.total,
        "skipped": drawn.skipped,
        "hash": _hash_of(drawn.sample),
        "state": _state_of(wanted),
    }
    (folder / _FACTS).unlink(missing_ok=True)
    write_whole(folder / _PASSAGES, "\n".join(lines) + "\n")
    write_whole(folder / _FACTS, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")


def _stored(folder: Path) -> tuple[DrawnSample, dict[str, Any]] | None:
    """Return the stored sample and its facts; None if there is no stored sample."""
    if not (folder / _FACTS).exists():
        return None
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        lines = (folder / _PASSAGES).read_text(encoding="utf-8").split("\n")
        passages = tuple(SampledPassage(**json.loads(line)) for line in lines if line)
        sample = PassageSample(passages, int(facts["passages"]))
        drawn = DrawnSample(sample, facts["files"], facts["documents"], facts["skipped"])
        is_whole = facts["hash"] == _hash_of(sample)
    except (ValueError, TypeError, KeyError, OSError):
        is_whole = False
    if not is_whole:
        raise UserError(
            f"The sample in {folder} is damaged.",
            hint=f"Delete {_FACTS} and {_PASSAGES}; the same passages are drawn again.",
        )
    return drawn, facts


def _hash_of(sample: PassageSample) -> str:
    return short_id("sample", [[p.id, p.text, p.document, p.occurrences] for p in sample.passages], sample.total)


def _state_of(wanted: FrequencyWanted) -> str:
    """Return a hash of the settings of a draw and of the names, sizes and times of the corpus files."""
    files = [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in corpus_files(wanted.corpus)]
    return short_id("corpus", files, wanted.seed, wanted.words, wanted.text_field)


STEP: Final = "frequency"
_SPEED_AND_ACCESS: Final = {"concurrency", "timeout", "key", "insecure", "proxy", "rounds", "prompts"}
_TOKENS_OF_A_ROW: Final = 12


@dataclass(frozen=True, slots=True)
class Counted:
    """The outcome of one invocation."""

    run: Run
    result: FrequencyResult
    counts: CallCounts = field(default_factory=CallCounts)

    @property
    def failed(self) -> dict[str, CallProblem]:
        """Return the calls without an outcome, with their problems."""
        return {str(key): problem for key, problem in self.counts.failed.items()}

    @property
    def is_complete(self) -> bool:
        """Whether every question was sent and every answer can be parsed."""
        return not self.counts.failed and self.counts.stopped is None and not self.result.unknown


def count_skills(wanted: FrequencyWanted) -> Counted:
    """Count the skills of a catalog in a corpus."""
    plan = _plan(wanted)
    if wanted.list_file is not None:
        require_own_list(wanted.list_file)
    run = new_run(wanted.run)
    catalog_hash, prompt_hash = plan.catalog.content_hash(), plan.prompt.content_hash()
    # The run's experiment.yaml contains everything that determines its calls, except n, which may increase.
    document: dict[str, object] = {
        "name": run.name,
        "seed": wanted.seed,
        "catalog": wanted.catalog,
        "catalog_hash": catalog_hash,
        "partition": None,
        "prompts": None,
        "criteria": asdict(Phrases()),
        "steps": [{"name": STEP, "stage": STEP}],
        "frequency": {
            "grader": plan.settings.model_dump(mode="json", exclude=_SPEED_AND_ACCESS),
            "prompt_hash": prompt_hash,
            "words": wanted.words,
            "field": wanted.text_field,
            "skills_per_call": wanted.skills_per_call,
        },
    }
    run.require_same_import(document)
    check_files(corpus_files(wanted.corpus), text_field=wanted.text_field)
    prices = prices_by_model(plan.experiment, load_prices(wanted.prices)) if plan.asked else {}
    if plan.asked:
        asyncio.run(probe_settings({f"grader:{GRADER}": plan.settings}))
    drawn = stored_or_drawn(run.path, wanted)
    counts = CallCounts()
    with run.write() as journal:
        run.begin_import(document)
        store_sample(run.path, drawn, wanted)
        questions = plan.questions(drawn)
        if plan.asked:
            limits = plan.experiment.budget
            spent = journal.spent()
            budget = Budget(prices, spent=spent, max_calls=limits.max_calls, max_usd=limits.max_usd)
            journal.add_combinations(questions.all_chunks())
            with RunProgress([Work(STEP, f"calls: {plan.settings.asked}", questions.count)]) as progress:
                context = StepContext(plan.experiment, plan.catalog, run, journal, budget, progress)
                models = {f"grader:{GRADER}": plan.settings}
                call_models(STEP, models, questions.tasks(), questions.follow, context, counts)
        run.note_invocation({"command": "frequency"})
    answers: dict[str, dict[str, bool | None]] = {}
    if plan.asked:
        with run.read() as reader:
            answers = questions.answers(reader)
    if plan.settings.has_code:
        answers = with_code(answers, drawn.passages, plan.skills)
    passages, n = drawn.passages, len(drawn.passages)
    result = FrequencyResult(
        catalog=wanted.catalog,
        catalog_hash=catalog_hash,
        grader=plan.settings.model,
        prompt_hash=prompt_hash if plan.asked else None,
        seed=wanted.seed,
        words=wanted.words,
        threshold=wanted.threshold,
        corpus={
            "files": drawn.files,
            "documents": drawn.documents,
            "passages": drawn.sample.total,
            "skipped": drawn.skipped,
        },
        passages=n,
        documents=len({passage.document for passage in passages}),
        repeated=sum(passage.occurrences > 1 for passage in passages),
        sentences_per_passage=sum(count_sentences(passage.text) for passage in passages) / n,
        words_per_passage=sum(len(passage.text.split()) for passage in passages) / n,
        skills=tuple(skill_shares(plan.skills, passages, answers, threshold=wanted.threshold)),
    )
    if signal_of(counts.stopped) is None:  # an interrupted count has a result only after it is continued and finished
        result.store(run.path, list_file=wanted.list_file)
    return Counted(run, result, counts)


@dataclass(frozen=True, slots=True)
class FrequencyEstimate:
    """The calls, tokens and cost of counting, estimated before any call."""

    passages: int
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """None if the grader's price is unknown."""

    def as_json(self) -> dict[str, Any]:
        """Return the documented form of `frequency --dry-run --json`."""
        return asdict(self)


def estimate_counting(wanted: FrequencyWanted) -> FrequencyEstimate:
    """Draw the sample and estimate the calls, without making calls or writing files."""
    plan = _plan(wanted)
    drawn = draw(wanted)
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
    """Decisions made before the corpus is read."""

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
        """Return the skills about which a model must be asked."""
        if self.settings.asked is None:
            return []
        return [s for s in self.skills if not self.settings.has_code or checker_of(s) is None]

    def questions(self, drawn: DrawnSample) -> PassageQuestions:
        wanted = self.wanted
        return PassageQuestions(
            drawn.passages, self.asked, self.catalog, self.settings, self.prompt, wanted.seed, wanted.skills_per_call
        )


def _plan(wanted: FrequencyWanted) -> _Plan:
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
