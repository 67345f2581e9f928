"""Measure the frequency of each skill in a corpus: draw passages, ask a grader about them, and estimate shares.

A run stores the sample, the journal of calls and the result. Repeating the command makes only the missing calls and
writes the same files.

`passages.jsonl` contains the passages, and `sample.json` contains the settings and counts of the draw. `sample.json` is
written last, so if it exists, the sample is complete. If the files of the corpus have not changed, the stored sample is
used without reading the corpus again. Otherwise, a new sample is drawn, which must begin with the stored sample,
because a run belongs to one corpus.

For each passage, a hash determines the order of the skills, which are divided into chunks of one call each. Therefore,
no skill is always first or always next to the same skills. Calls are made in the order of the sample, so if the
budget is spent early, the passages with answers are a smaller random sample.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from skillmix.calls import Decoding, GradeKey, Message, Outcome, Reply, Request, Subject, seed_for
from skillmix.catalog.catalog import Catalog, Skill
from skillmix.catalog.combinations import Combination, combination_id
from skillmix.catalog.files import load_catalog
from skillmix.catalog.own_code import require_trust
from skillmix.checkers.passage import passage_of
from skillmix.checkers.registry import checker_of
from skillmix.errors import UserError, faults_error
from skillmix.experiment.costs import load_prices, usual_tokens_in
from skillmix.experiment.experiment import Experiment, GraderSettings, experiment_of
from skillmix.files import SHIPPED, read_text, write_whole
from skillmix.frequencies.documents import (
    FEWEST_WORDS,
    PassageSample,
    PassageSampler,
    ReadCounts,
    SampledPassage,
    check_files,
    corpus_files,
    documents_of,
    merged,
    passages_of,
    require_readable,
)
from skillmix.frequencies.frequency_file import FrequencyResult, require_own_list, skill_shares
from skillmix.grading.answers import count_sentences
from skillmix.grading.reader import read_skill_points
from skillmix.hashing import ranked, short_id
from skillmix.prompts.prompt_set import fill, slots_of
from skillmix.prompts.rubric import Phrases, rubric_of
from skillmix.runs.budget import Budget, Task
from skillmix.runs.calling import StepContext
from skillmix.runs.conversations import model_name
from skillmix.runs.journal import JournalReader
from skillmix.runs.progress import RunProgress, Work
from skillmix.runs.run import Run, new_run
from skillmix.runs.scheduler import CallCounts, signal_of
from skillmix.runs.verdicts import require_checkers
from skillmix.steps.calls import call_models
from skillmix.steps.checks import prices_by_model, probe_settings

SHIPPED_FILE: Final = SHIPPED / "prompts" / "frequency" / "passage.txt"
_DEFINITIONS: Final = {
    "definitions": "- {s.name}: {s.definition}\n  Example: {s.example}",
    "bare_definitions": "- {s.name}: {s.definition}",
}
"""The format of a skill's entry in each slot that lists skills."""
_ALLOWED: Final = ("passage", "skills", "mark", *_DEFINITIONS)


@dataclass(frozen=True, slots=True)
class PassagePrompt:
    """A prompt template whose slots have been checked."""

    template: str

    def content_hash(self) -> str:
        """Return a hash that changes whenever the wording changes."""
        return short_id("passage prompt", self.template)

    def text(self, skills: Sequence[Skill], passage: str) -> str:
        """Fill the template for one passage. The mark is a hash of the passage, so the passage cannot contain it."""
        values = {
            "passage": passage,
            "mark": f"===== {short_id('mark', passage)} =====",
            "skills": "; ".join(skill.name for skill in skills),
        }
        for slot, layout in _DEFINITIONS.items():
            values[slot] = "\n".join(layout.format(s=skill) for skill in skills)
        return fill(self.template, values)


def load_passage_prompt(file: Path | None = None) -> PassagePrompt:
    """Load the shipped prompt or a user's prompt; report all faults in one error."""
    template = read_text(file or SHIPPED_FILE).strip()
    slots = slots_of(template)
    faults = [] if template else ["the file is empty"]
    faults += [f"missing slot: {slot}" for slot in ("passage", "skills") if slot not in slots]
    if not slots & _DEFINITIONS.keys():
        faults.append("missing slot: definitions")
    faults += [f"unknown slot: {slot}" for slot in sorted(slots - set(_ALLOWED))]
    if faults:
        raise faults_error(str(file), faults, hint=f"Slots: {', '.join(_ALLOWED)}.")
    return PassagePrompt(template)


GRADER: Final = "grader"
"""The name of the grader in call keys."""
CORPUS: Final = "corpus"
"""The name in call keys that takes the place of a student's name."""
_TOPIC: Final = "any topic"
"""The placeholder for the topic in the combination of each question."""


def shown_by_code(passage: str, skills: Iterable[str]) -> dict[str, bool]:
    """Check whether a passage shows each of the skills that have a checker."""
    split = passage_of(passage)
    return {skill: check(split) is not None for skill in skills if (check := checker_of(skill)) is not None}


@dataclass(frozen=True)
class PassageQuestions:
    """The questions about the passages of a sample."""

    passages: Sequence[SampledPassage]
    skills: Sequence[str]
    """The skills that a model must be asked about; empty if code checks all skills."""
    catalog: Catalog
    grader: GraderSettings
    prompt: PassagePrompt
    seed: int
    skills_per_call: int

    @property
    def count(self) -> int:
        """Return the number of calls, not counting repeated questions."""
        return len(self.passages) * -(-len(self.skills) // self.skills_per_call)

    def chunks(self, passage: SampledPassage) -> list[Combination]:
        """Divide the skills into chunks of nearly equal size, one for each call about a passage."""
        order = ranked(list(self.skills), "frequency", passage.id)
        number = -(-len(self.skills) // self.skills_per_call)
        # `combination_of` would order the skills in the same way for all passages.
        return [
            Combination(combination_id(skills, _TOPIC), skills, _TOPIC)
            for skills in (tuple(order[start::number]) for start in range(number))
        ]

    def all_chunks(self) -> Iterator[Combination]:
        """Yield the skills of every call."""
        for passage in self.passages:
            yield from self.chunks(passage)

    def tasks(self) -> Iterator[Task]:
        """Yield the first question about each chunk of each passage, in the order of the sample."""
        for passage in self.passages:
            for chunk in self.chunks(passage):
                yield self._task(passage, chunk, attempt=0)

    def follow(self, request: Request, outcome: Outcome) -> Iterator[Task]:
        """Repeat a question with a new key and seed if the reply leaves a skill undecided."""
        key, subject = request.key, request.subject
        if not isinstance(key, GradeKey) or subject is None or not isinstance(outcome, Reply):
            return
        if key.attempt + 1 < self.grader.attempts and None in read_answer(subject, outcome.text):
            yield self._task(self._by_id[key.text], subject.combination, attempt=key.attempt + 1)

    def answers(self, journal: JournalReader) -> dict[str, dict[str, bool | None]]:
        """Return whether each passage shows each skill, by passage and skill.

        The first parseable point of all attempts counts. A skill is None if its call has an outcome but no parseable
        point, and absent if its call was not made.
        """
        wanted = {(passage.id, chunk.id): chunk for passage in self.passages for chunk in self.chunks(passage)}
        found: dict[str, dict[str, bool | None]] = {}
        for call in journal.calls("grade"):
            key = call.key
            if not isinstance(key, GradeKey) or (key.student, key.grader) != (CORPUS, GRADER) or call.outcome is None:
                continue
            chunk = wanted.get((key.text, key.combination))
            if chunk is None:
                continue
            of_passage = found.setdefault(key.text, {})
            points: Sequence[float | None] = (None,) * len(chunk.skills)
            if isinstance(call.outcome, Reply):
                points = read_answer(Subject(chunk, text=self._by_id[key.text].text), call.outcome.text)
            for skill, point in zip(chunk.skills, points, strict=True):
                if of_passage.get(skill) is None:
                    of_passage[skill] = None if point is None else point > _HALF
        return found

    @cached_property
    def _by_id(self) -> Mapping[str, SampledPassage]:
        return {passage.id: passage for passage in self.passages}

    @cached_property
    def _model(self) -> str:
        assert self.grader.asked is not None  # if the grader is code, there are no questions
        return model_name(self.grader.asked)

    def _task(self, passage: SampledPassage, chunk: Combination, *, attempt: int) -> Task:
        settings = self.grader
        key = GradeKey(CORPUS, chunk.id, 0, passage.id, GRADER, 0, attempt)
        system = () if settings.system is None else (Message("system", settings.system),)
        skills = [self.catalog.skill(name) for name in chunk.skills]
        messages = (*system, Message("user", self.prompt.text(skills, passage.text)))
        decoding = Decoding(settings.temperature, settings.max_tokens, settings.top_p, settings.extra_json)
        seed = seed_for(self.seed, key) if settings.sends_seed else None
        subject = Subject(chunk, chunk.skills, passage.text)
        return Task(f"grader:{GRADER}", Request(key, self._model, messages, decoding, seed, subject))


_HALF: Final = 0.5
"""Points up to this value mean that the passage does not show the skill, as in a vote of one round."""


def read_answer(subject: Subject, reply: str) -> tuple[float | None, ...]:
    """Read the points in a reply, ignoring quotations from the passage that look like points."""
    combination = subject.combination
    return read_skill_points(rubric_of(combination.skills, combination.topic), reply, text=subject.text)


def with_code(
    answers: Mapping[str, Mapping[str, bool | None]], passages: Iterable[SampledPassage], skills: Sequence[str]
) -> dict[str, dict[str, bool | None]]:
    """Add the answers of code about the skills that have a checker."""
    return {passage.id: {**answers.get(passage.id, {}), **shown_by_code(passage.text, skills)} for passage in passages}


WORDS: Final = 100
"""The default length of a passage in words, which is about one paragraph."""
_LARGE: Final = 64 << 20
"""The corpus size in bytes below which one process reads it all, because starting more processes takes longer."""
_MOST_READERS: Final = 8


@dataclass(frozen=True, slots=True)
class FrequencyWanted:
    """The settings of a measurement."""

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
    """The number of processes that read files, which does not affect the sample. By default, a small corpus has one."""

    def __post_init__(self) -> None:
        for name, least in (("n", 1), ("words", 10), ("skills_per_call", 1)):
            value = getattr(self, name)
            if value < least:
                raise UserError(f"{name} = {value} is too small.", hint=f"Choose {least} or more.")
        if not 0 < self.threshold < 1:
            raise UserError(
                f"The threshold {self.threshold:g} is not between 0 and 1.", hint="Use a share such as 0.05."
            )


def draw(wanted: FrequencyWanted) -> PassageSample:
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
    sample = merged(parts, n=wanted.n, seed=wanted.seed)
    require_readable(sample.counts, wanted.text_field)
    if not sample.passages:
        raise UserError(
            f"The corpus has no passage: no document has {FEWEST_WORDS} words or more.",
            hint="Check the files, and --field for JSON Lines and Parquet.",
        )
    skipped = Counter(dict(sorted((sample.counts.skipped + left_out).items())))
    return replace(sample, counts=replace(sample.counts, skipped=skipped))


def _read(files: Sequence[Path], wanted: FrequencyWanted) -> PassageSample:
    sampler, counts = PassageSampler(wanted.n, wanted.seed), ReadCounts()
    for document in documents_of(files, text_field=wanted.text_field, counts=counts):
        for text in passages_of(document.paragraphs, words=wanted.words):
            sampler.add(text, document.place)
    return replace(sampler.sample(), counts=counts)


_PASSAGES: Final = "passages.jsonl"
_FACTS: Final = "sample.json"


def stored_or_drawn(folder: Path, wanted: FrequencyWanted) -> PassageSample:
    """Return a run's sample if it is large enough and the files are unchanged; otherwise, draw one. Write no files."""
    stored = _stored(folder)
    if stored is None:
        return draw(wanted)
    old, facts = stored
    first = replace(old, passages=old.passages[: wanted.n])
    if facts.get("state") == _state_of(wanted) and facts.get("n", 0) >= wanted.n:
        return first
    new = draw(wanted)
    shared = min(len(old.passages), len(new.passages))
    if old.ids[:shared] != new.ids[:shared] or old.total != new.total:
        raise UserError(
            f"The sample in {folder} is from another corpus, or was drawn with another seed or passage length.",
            hint="Restore the corpus and the settings, or choose another run with --run.",
        )
    return new if len(new.passages) > len(old.passages) else first


def store_sample(folder: Path, sample: PassageSample, wanted: FrequencyWanted) -> None:
    """Store a sample, unless the stored sample is as large; the caller must have locked the run."""
    stored = _stored(folder)
    if stored is not None and len(stored[0].passages) >= len(sample.passages):
        return
    lines = [json.dumps(asdict(passage), ensure_ascii=False) for passage in sample.passages]
    facts = {
        "n": wanted.n,
        "seed": wanted.seed,
        "words": wanted.words,
        "field": wanted.text_field,
        **_corpus_facts(sample),
        "hash": _hash_of(sample),
        "state": _state_of(wanted),
    }
    (folder / _FACTS).unlink(missing_ok=True)
    write_whole(folder / _PASSAGES, "\n".join(lines) + "\n")
    write_whole(folder / _FACTS, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")


def _corpus_facts(sample: PassageSample) -> dict[str, Any]:
    """Return the counts of a corpus as stored in `sample.json` and `frequencies.json`."""
    counts = sample.counts
    numbers = {"files": counts.files, "documents": counts.documents, "passages": sample.total}
    return {**numbers, "skipped": dict(counts.skipped)}


def _stored(folder: Path) -> tuple[PassageSample, dict[str, Any]] | None:
    """Return the stored sample and its facts; None if there is no stored sample."""
    if not (folder / _FACTS).exists():
        return None
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        lines = (folder / _PASSAGES).read_text(encoding="utf-8").split("\n")
        counts = ReadCounts(facts["files"], facts["documents"], Counter(facts["skipped"]))
        passages = tuple(SampledPassage(**json.loads(line)) for line in lines if line)
        sample = PassageSample(passages, int(facts["passages"]), counts)
        is_whole = facts["hash"] == _hash_of(sample)
    except (ValueError, TypeError, KeyError, OSError):
        is_whole = False
    if not is_whole:
        raise UserError(
            f"The sample in {folder} is damaged.",
            hint=f"Delete {_FACTS} and {_PASSAGES}; the same passages are drawn again.",
        )
    return sample, facts


def _hash_of(sample: PassageSample) -> str:
    return short_id("sample", [[p.id, p.text, p.document, p.occurrences] for p in sample.passages], sample.total)


def _state_of(wanted: FrequencyWanted) -> str:
    """Return a hash of the settings of a draw and of the names, sizes and modification times of the corpus files."""
    files = [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in corpus_files(wanted.corpus)]
    return short_id("corpus", files, wanted.seed, wanted.words, wanted.text_field)


STEP: Final = "frequency"
_SPEED_AND_ACCESS: Final = {"concurrency", "timeout", "key", "insecure", "proxy", "rounds", "prompts"}
_TOKENS_OF_A_ROW: Final = 12


@dataclass(frozen=True, slots=True)
class Counted:
    """The outcome of one invocation of `skillmix frequency`."""

    run: Run
    result: FrequencyResult
    counts: CallCounts

    @property
    def is_complete(self) -> bool:
        """Whether every question was sent and every answer can be parsed."""
        return not self.counts.failed and self.counts.stopped is None and not self.result.unknown


def count_skills(wanted: FrequencyWanted) -> Counted:
    """Measure the frequency of each skill of a catalog in a corpus."""
    experiment, questions = _planned(wanted)
    settings = questions.grader
    if wanted.list_file is not None:
        require_own_list(wanted.list_file)
    run = new_run(wanted.run)
    catalog_hash, prompt_hash = questions.catalog.content_hash(), questions.prompt.content_hash()
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
            "grader": settings.model_dump(mode="json", exclude=_SPEED_AND_ACCESS),
            "prompt_hash": prompt_hash,
            "words": wanted.words,
            "field": wanted.text_field,
            "skills_per_call": wanted.skills_per_call,
        },
    }
    run.require_same_import(document)
    check_files(corpus_files(wanted.corpus), text_field=wanted.text_field)
    prices = prices_by_model(experiment, load_prices(wanted.prices)) if questions.skills else {}
    if questions.skills:
        asyncio.run(probe_settings({f"grader:{GRADER}": settings}))
    sample = stored_or_drawn(run.path, wanted)
    passages, counts = sample.passages, CallCounts()
    questions = replace(questions, passages=passages)
    with run.write() as journal:
        run.begin_import(document)
        store_sample(run.path, sample, wanted)
        if questions.skills:
            limits = experiment.budget
            spent = journal.spent()
            budget = Budget(prices, spent=spent, max_calls=limits.max_calls, max_usd=limits.max_usd)
            journal.add_combinations(questions.all_chunks())
            with RunProgress([Work(STEP, f"calls: {settings.asked}", questions.count)]) as progress:
                context = StepContext(experiment, questions.catalog, run, journal, budget, progress)
                models = {f"grader:{GRADER}": settings}
                call_models(STEP, models, questions.tasks(), questions.follow, context, counts)
        run.note_invocation({"command": "frequency"})
    answers: dict[str, dict[str, bool | None]] = {}
    if questions.skills:
        with run.read() as reader:
            answers = questions.answers(reader)
    skills = [skill.name for skill in questions.catalog.skills]
    if settings.has_code:
        answers = with_code(answers, passages, skills)
    result = FrequencyResult(
        catalog=wanted.catalog,
        catalog_hash=catalog_hash,
        grader=settings.model,
        prompt_hash=prompt_hash if questions.skills else None,
        seed=wanted.seed,
        words=wanted.words,
        threshold=wanted.threshold,
        corpus=_corpus_facts(sample),
        passages=len(passages),
        documents=len({passage.document for passage in passages}),
        repeated=sum(passage.occurrences > 1 for passage in passages),
        sentences_per_passage=sum(count_sentences(passage.text) for passage in passages) / len(passages),
        words_per_passage=sum(len(passage.text.split()) for passage in passages) / len(passages),
        skills=tuple(skill_shares(skills, passages, answers, threshold=wanted.threshold)),
    )
    if signal_of(counts.stopped) is None:  # after an interruption, the resumed command stores the result
        result.store(run.path, list_file=wanted.list_file)
    return Counted(run, result, counts)


@dataclass(frozen=True, slots=True)
class FrequencyEstimate:
    """The calls, tokens and cost of a measurement, estimated before any call."""

    passages: int
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """The estimated cost; None if the grader's price is unknown."""


def estimate_counting(wanted: FrequencyWanted) -> FrequencyEstimate:
    """Draw the sample and estimate the calls, without making calls or writing files."""
    experiment, questions = _planned(wanted)
    questions = replace(questions, passages=draw(wanted).passages)
    passages = len(questions.passages)
    if not questions.skills:
        return FrequencyEstimate(passages, 0, 0, 0, 0.0)
    price = prices_by_model(experiment, load_prices(wanted.prices))[f"grader:{GRADER}"]
    characters = sum(len(m.content) for task in questions.tasks() for m in task.request.messages)
    tokens_in, tokens_out = round(usual_tokens_in(characters)), passages * len(questions.skills) * _TOKENS_OF_A_ROW
    cost = price.of(tokens_in, tokens_out) if price else None
    return FrequencyEstimate(passages, questions.count, tokens_in, tokens_out, cost)


def _planned(wanted: FrequencyWanted) -> tuple[Experiment, PassageQuestions]:
    """Load and check the grader, the budget and the questions, which have no passages yet."""
    catalog = load_catalog(wanted.catalog)
    document = {
        "name": Path(wanted.run).name,
        "seed": wanted.seed,
        "catalog": wanted.catalog,
        "graders": {GRADER: {"rounds": 1, **wanted.grader}},
        "budget": {"max_usd": wanted.max_usd, "max_calls": wanted.max_calls},
        "steps": [],
    }
    experiment, prompt = experiment_of(document, source="frequency"), load_passage_prompt(wanted.prompt)
    settings = experiment.graders[GRADER]
    if settings.has_code:
        require_trust(catalog.code)
    names = [skill.name for skill in catalog.skills]
    if settings.asked is None:
        require_checkers(catalog, names, settings.model)
        names = []
    elif settings.has_code:
        names = [name for name in names if checker_of(name) is None]
    if settings.votes != 1:
        raise UserError(f"rounds = {settings.votes} is not possible here.", hint="Each question is asked once.")
    return experiment, PassageQuestions((), names, catalog, settings, prompt, wanted.seed, wanted.skills_per_call)
