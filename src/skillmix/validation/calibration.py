"""Plan a calibration, compare a grader's votes with known labels, and present the result as text, JSON and a page."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal

from skillmix import __version__
from skillmix.calls import Call, GradeKey, Reply, as_name
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.experiment.experiment import Experiment, GraderSettings, experiment_of
from skillmix.files import write_whole
from skillmix.grading.points import Points
from skillmix.grading.points import vote as majority
from skillmix.grading.reader import Reading, words_about
from skillmix.prompts.prompt_set import PromptSet, load_prompts
from skillmix.prompts.rubric import rubric_of
from skillmix.render import (
    dollars,
    in_percent,
    known_sum,
    markdown_table,
    middle_cut,
    plural,
    share,
    share_with_interval,
    whole,
    wrapped,
)
from skillmix.report.page import asset, page_environment
from skillmix.runs.run import Run
from skillmix.runs.scheduler import CallCounts
from skillmix.runs.texts import graded_conversations
from skillmix.runs.verdicts import RulesGrader, reading_of, require_checkers, votes_of, with_verdict
from skillmix.scores.grader_cards import cards_as_json
from skillmix.scores.graders import GraderCard, GraderFacts, TextUnderGraders, TruthAgreement, Vote, grader_card
from skillmix.validation.known_texts import CalibrationSet, KnownText, load_set

STUDENT: Final = "calibration"
"""The student name under which a run stores the texts of a set."""


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """A calibration with its loaded and checked inputs."""

    known: CalibrationSet
    whole_size: int
    """The number of texts in the whole set; `known` may contain only some of them."""
    catalog: Catalog
    prompts: PromptSet
    experiment: Experiment
    """An experiment with the grader and the budget, but without steps."""
    grader: str
    run: str

    @property
    def settings(self) -> GraderSettings:
        """Return the grader's settings."""
        return self.experiment.graders[self.grader]


def planned(
    grader: str | Mapping[str, object],
    *,
    set: str = "paper",
    catalog: str = "paper",
    prompts: str = "standard",
    run: str | None = None,
    size: int | None = None,
    seed: int = 0,
    max_usd: float | None = None,
    bigbench: Path | None = None,
) -> CalibrationPlan:
    """Load and check the inputs of a calibration.

    The grader is a model string, or a mapping with the keys of a grader in an experiment file. By default, the run is
    named after the set and the grader. `size` limits the number of texts. `bigbench` is the source archive of the
    package bigbench, or a folder with its files.
    """
    own_catalog, own_prompts = load_catalog(catalog), load_prompts(prompts)
    document = {"model": grader} if isinstance(grader, str) else dict(grader)
    name = as_name(str(document.get("model")))
    experiment = experiment_of(
        {
            "name": STUDENT,
            "seed": seed,
            "catalog": catalog,
            "prompts": prompts,
            "graders": {name: document},
            "budget": {"max_usd": max_usd},
            "steps": [],
        },
        source="The calibration",
    )
    whole_set = load_set(set, own_catalog, bigbench=bigbench)
    known = whole_set if size is None else whole_set.subset(size)
    settings = experiment.graders[name]
    if settings.asked is None:
        require_checkers(own_catalog, {text.skill for text in known.texts}, settings.model)
    else:
        own_prompts.grader_file(settings.prompts)
    run = run or f"calibrate-{as_name(whole_set.name)}-{name}"
    return CalibrationPlan(known, len(whole_set.texts), own_catalog, own_prompts, experiment, name, run)


LABELS: Final = "labels"
"""The grader name that stands for the labels in a card."""
Criterion = Literal["skill", "topic", "sense"]
CRITERIA: Final[tuple[Criterion, ...]] = ("skill", "topic", "sense")
"""The criteria that have labels, in the order of a rubric for one skill."""
_LENGTH: Final = len(CRITERIA)


@dataclass(frozen=True, slots=True)
class WrongPoint:
    """A point on which the grader's decision differs from the label."""

    known: KnownText
    criterion: Criterion
    label: bool
    words: str | None
    """The grader's comment on the criterion; None if the reply contains only a number."""


@dataclass(frozen=True, slots=True)
class MeasuredText:
    """A text with the grader's votes."""

    known: KnownText
    points: Points
    """The majority of the rounds for skill, topic and sense; None if undecided."""
    votes: tuple[Vote | None, ...]
    """The points for skill, topic and sense by round; None if no reply of the round can be parsed."""
    wrong: tuple[WrongPoint, ...]

    def as_item(self, run: str, grader: str) -> TextUnderGraders:
        """Convert the text for a grader card, where grader and label both give the point for length.

        A point without a label is omitted. A card would otherwise treat the unlabeled decisions as the population from
        which the labeled decisions are sampled, but the labels of a calibration are not a sample.
        """
        known = self.known
        compared = [None if label is None else point for label, point in zip(known.labels, self.points, strict=True)]
        return TextUnderGraders(
            run=run,
            student=STUDENT,
            combination=known.id,
            generation=0,
            skills=(known.skill,),
            words=len(known.text.split()),
            points={grader: (*compared, True), LABELS: (*known.labels, True)},
            votes={grader: tuple(None if vote is None else (*vote, None) for vote in self.votes)},
            by_code=frozenset([_LENGTH]),
        )


@dataclass(frozen=True, slots=True)
class CallFacts:
    """Statistics of the calls to the grader about the texts of the set, over all invocations."""

    calls: int
    unreadable: int
    """The number of replies that cannot be parsed."""
    without_reply: int
    reasons: dict[str, int]
    """The number of unparseable replies, by reason."""
    input_tokens: int | None
    output_tokens: int | None
    """None if the token count of any reply is unknown."""
    cost_usd: float | None
    """None if the cost of any reply is unknown."""


_Grading = tuple[int, Call, Reading | None]
"""The round, the call, and the points read from its reply."""


def _measured_text(
    known: KnownText, own: Sequence[_Grading], plan: CalibrationPlan, code: RulesGrader | None
) -> MeasuredText:
    """Combine the grader's replies and the code's verdict into a text's votes and points."""
    skills = known.combination.skills
    verdict = code.verdict(known.text, skills=skills, topic=known.topic) if code else None
    if plan.settings.asked is None:
        assert verdict is not None  # a grader without a model is code
        readings: list[Reading | None] = [reading_of(verdict, skills)]
    else:
        by_round = votes_of([(number, reading) for number, _, reading in own])
        readings = [by_round.get(number) for number in range(plan.settings.votes)]
        if verdict is not None:
            readings = [reading and with_verdict(reading, skills, verdict) for reading in readings]
    votes = tuple(reading.points[:_LENGTH] if reading and reading.points else None for reading in readings)
    readable = [one for one in votes if one is not None]
    points = tuple(majority([one[index] for one in readable], len(votes)) for index in range(_LENGTH))
    rubric = rubric_of(skills, known.topic, phrases=plan.prompts.phrases)
    wrong = []
    for index, (criterion, label, point) in enumerate(zip(CRITERIA, known.labels, points, strict=True)):
        if label is None or point is None or label == point:
            continue
        # Quote the first round with this decision; half a point neither gives nor denies the point.
        words = (
            words_about(rubric, index, call.outcome.text)
            for _, call, reading in own
            if reading and reading.points and isinstance(call.outcome, Reply)
            for value in [reading.points[index]]
            if value is not None and value != 0.5 and (value > 0.5) is point
        )
        wrong.append(WrongPoint(known, criterion, label, next(filter(None, words), None)))
    return MeasuredText(known, points, votes, tuple(wrong))


_WORST: Final = 10
"""The number of skills listed in the terminal; the page lists all skills."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The outcome of a calibration: the grader's card and the data behind it."""

    plan: CalibrationPlan
    run: Run
    counts: CallCounts
    """Counts of the calls made by this invocation."""
    texts: tuple[MeasuredText, ...]
    """The texts with the grader's votes, in the order of the set."""
    calls: CallFacts
    card: GraderCard
    without_disputed: GraderCard | None
    """The card without disputed texts; None if no text of the set is disputed."""

    def __str__(self) -> str:
        return card_lines(self)

    @property
    def wrong(self) -> list[WrongPoint]:
        """Return the points on which the grader's decision differs from the label."""
        return [wrong for text in self.texts for wrong in text.wrong]

    @property
    def undecided(self) -> dict[str, int]:
        """Count the labeled points that are undecided because too many votes are missing, by criterion."""
        return {
            criterion: sum(text.known.labels[index] is not None and text.points[index] is None for text in self.texts)
            for index, criterion in enumerate(CRITERIA)
        }

    @property
    def disputed(self) -> int:
        """Count the texts whose label a second reader disputes."""
        return sum(text.known.is_disputed for text in self.texts)

    @property
    def is_complete(self) -> bool:
        """Whether every labeled point is decided and no call is missing."""
        return not self.counts.failed and self.counts.stopped is None and not any(self.undecided.values())

    @property
    def folder(self) -> Path:
        """Return the folder that contains the card's files."""
        return self.run.path / "cards" / self.plan.grader

    def as_json(self) -> dict[str, object]:
        """Return the JSON of `calibrate --json` and card.json."""
        plan, settings = self.plan, self.plan.settings
        return {
            "skillmix": __version__,
            "grader": settings.model,
            "rounds": settings.votes,
            "prompts": plan.prompts.name,
            "variant": settings.prompts if settings.asked else None,
            "temperature": settings.temperature if settings.asked else None,
            "max_tokens": settings.max_tokens if settings.asked else None,
            "catalog": plan.catalog.name,
            "set": plan.known.name,
            "set_hash": plan.known.content_hash(),
            "texts": len(self.texts),
            "texts_in_set": plan.whole_size,
            "disputed": self.disputed,
            "undecided": self.undecided,
            "calls": asdict(self.calls),
            "card": cards_as_json([self.card])[0],
            "card_without_disputed": next(iter(cards_as_json(filter(None, [self.without_disputed]))), None),
            "wrong": [
                {
                    "skill": wrong.known.skill,
                    "topic": wrong.known.topic,
                    "text": wrong.known.text,
                    "criterion": wrong.criterion,
                    "label": int(wrong.label),
                    "disputed": wrong.known.is_disputed,
                    "why": wrong.known.why,
                    "words": wrong.words,
                }
                for wrong in self.wrong
            ],
        }


def calibration_of(plan: CalibrationPlan, run: Run, counts: CallCounts) -> Calibration:
    """Make the grader's card from the votes in the run's journal."""
    known = {(text.combination.id, text.text): text for text in plan.known.texts}
    code = RulesGrader(plan.catalog) if plan.settings.has_code else None
    measured, graded = dict[str, MeasuredText](), list[_Grading]()
    with run.read() as journal:
        for conversation in graded_conversations(run, journal):
            text = conversation.text
            found = known.get((text.combination.id, text.answer.text)) if text.student == STUDENT else None
            if found is None:
                continue
            own = [
                (key.round, call, reading)
                for call, reading in zip(conversation.calls, conversation.readings, strict=True)
                if isinstance(key := call.key, GradeKey)
                and key.grader == plan.grader
                and key.round < plan.settings.votes
            ]
            graded += own
            measured[found.id] = _measured_text(found, own, plan, code)
    texts = tuple(measured[text.id] for text in plan.known.texts if text.id in measured)
    replies = [call.outcome for _, call, _ in graded if isinstance(call.outcome, Reply)]
    problems = [reading.problem for _, _, reading in graded if reading is not None and reading.points is None]
    calls = CallFacts(
        calls=len(graded),
        unreadable=len(problems),
        without_reply=len(graded) - len(replies),
        reasons=dict(Counter(problem or "unknown" for problem in problems).most_common()),
        input_tokens=known_sum(reply.input_tokens for reply in replies),
        output_tokens=known_sum(reply.output_tokens for reply in replies),
        cost_usd=known_sum(reply.cost_usd for reply in replies),
    )

    def card_of(chosen: Sequence[MeasuredText]) -> GraderCard:
        items = [text.as_item(run.name, plan.grader) for text in chosen]
        card = grader_card(items, plan.grader, LABELS, GraderFacts(plan.settings.model, calls.cost_usd, len(chosen)))
        if all(None not in text.known.labels for text in chosen):
            return card
        # If a label is missing, full marks can be ruled out but not confirmed, so their rates would be biased.
        return replace(card, by_kind=tuple(row for row in card.by_kind if row.criterion in CRITERIA))

    undisputed = [text for text in texts if not text.known.is_disputed]
    without = card_of(undisputed) if len(undisputed) < len(texts) else None
    return Calibration(plan, run, counts, texts, calls, card_of(texts), without)


def headline(calibration: Calibration) -> str:
    """Describe in a sentence how often the grader correctly and wrongly gives the point for the skill."""
    skill = next((row for row in calibration.card.by_kind if row.criterion == "skill"), None)
    rates = (skill.sensitivity.value, skill.specificity.value) if skill else (None, None)
    found = [f"{in_percent(rates[0])}% of the texts that show the skill"] if rates[0] is not None else []
    found += [f"{in_percent(1 - rates[1])}% of the texts that do not"] if rates[1] is not None else []
    name = calibration.plan.settings.model
    if not found:
        return f"{name} decided no labeled point."
    return f"{name} gives the point for the skill to {' and to '.join(found)}."


CRITERION_HEADER: Final = ("criterion", "points", "agreement", "sensitivity", "specificity", "kappa")
SKILL_HEADER: Final = ("skill", *CRITERION_HEADER[1:-1])


def criterion_rows(card: GraderCard) -> list[list[str]]:
    """Return the rows of the card's table of criteria."""
    return [[*_row(row), share_with_interval(*row.kappa)] for row in card.by_kind]


def skill_rows(card: GraderCard) -> list[list[str]]:
    """Return the rows of the card's table of skills, starting with the lowest agreement."""
    values = {row.criterion: 1.0 if row.agreement.value is None else row.agreement.value for row in card.by_skill}
    return [_row(row) for row in sorted(card.by_skill, key=lambda row: (values[row.criterion], row.criterion))]


def _row(row: TruthAgreement) -> list[str]:
    measures = (row.agreement, row.sensitivity, row.specificity)
    return [row.criterion, whole(row.units), *(share_with_interval(*measure) for measure in measures)]


def fact_rows(calibration: Calibration) -> list[tuple[str, str]]:
    """Return the data behind the card, as (name, value) pairs."""
    plan, settings, facts = calibration.plan, calibration.plan.settings, calibration.calls
    texts = len(calibration.texts)
    part = "all of the set" if texts == plan.whole_size else f"of {whole(plan.whole_size)} in the set, chosen by hash"
    rows = [
        ("set", f"{plan.known.name}, {plural(texts, 'text')} ({part})"),
        ("disputed texts", whole(calibration.disputed)),
        ("catalog", plan.catalog.name),
    ]
    if settings.asked is None:
        return [*rows, ("grader", "code, which votes once and costs nothing")]
    per_text = None if facts.cost_usd is None or not texts else facts.cost_usd / texts

    def counted(count: int) -> str:
        return f"{whole(count)} ({share(count / facts.calls)})" if facts.calls else whole(count)

    return [
        *rows,
        ("prompt", f"{plan.prompts.name}, grade-{settings.prompts}.txt"),
        ("rounds", whole(settings.votes)),
        ("sampling", f"temperature {settings.temperature:g}, at most {whole(settings.max_tokens)} tokens"),
        ("calls", whole(facts.calls)),
        ("unparseable replies", counted(facts.unreadable)),
        ("calls without a reply", counted(facts.without_reply)),
        ("flips between rounds", share_with_interval(*calibration.card.stability.flips)),
        ("US dollars", dollars(facts.cost_usd)),
        ("US dollars a text", "unknown" if per_text is None else f"{per_text:.4f}"),
    ]


def undecided_line(calibration: Calibration) -> str:
    """Describe in a sentence how many labeled points are undecided; empty if none are."""
    parts = ", ".join(f"{whole(count)} of {name}" for name, count in calibration.undecided.items() if count)
    return f"Undecided points, excluded from all rates because too many votes are missing: {parts}." if parts else ""


def card_lines(calibration: Calibration) -> str:
    """Return the card for a terminal: rates by criterion, skills with the lowest agreement, and the data behind it."""
    without = calibration.without_disputed
    skills = [[middle_cut(row[0]), *row[1:]] for row in skill_rows(calibration.card)]
    undisputed = criterion_rows(without) if without else []
    by_skill = "Skills with the lowest agreement:" if len(skills) > _WORST else "By skill:"
    parts = [wrapped(headline(calibration))]
    for title, header, rows in (
        ("", CRITERION_HEADER, criterion_rows(calibration.card)),
        (f"Without {plural(calibration.disputed, 'disputed text')}:", CRITERION_HEADER, undisputed),
        (by_skill, SKILL_HEADER, skills[:_WORST]),
    ):
        parts += [title, markdown_table(header, rows, right=frozenset({1}))] if rows else []
    parts.append("\n".join(f"{name}: {value}" for name, value in fact_rows(calibration)))
    return "\n\n".join(filter(None, [*parts, wrapped(undecided_line(calibration))]))


_SIMULATED = "The grader is scripted: it simulates a model, and its errors are drawn at rates set in its model string."


def write_card(calibration: Calibration) -> Path:
    """Write card.html, its style sheet and card.json, and return the path of the page."""
    without, model = calibration.without_disputed, calibration.plan.settings.model
    template = page_environment().from_string(asset("calibration.html"))
    page = template.render(
        title=f"{model} on {calibration.plan.known.name}",
        headline=headline(calibration),
        simulated=_SIMULATED if model.startswith("scripted:") else "",
        undecided=undecided_line(calibration),
        criterion_header=CRITERION_HEADER,
        criteria=criterion_rows(calibration.card),
        undisputed=criterion_rows(without) if without else [],
        skill_header=SKILL_HEADER,
        skills=skill_rows(calibration.card),
        wrong=[text for text in calibration.texts if text.wrong],
        wrong_points=len(calibration.wrong),
        facts=fact_rows(calibration),
        reasons=list(calibration.calls.reasons.items()),
        version=__version__,
    )
    document = json.dumps(calibration.as_json(), ensure_ascii=False, indent=1, allow_nan=False)
    folder = calibration.folder
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "report.css", asset("report.css"))
    write_whole(folder / "card.json", f"{document}\n")
    write_whole(folder / "card.html", page)
    return folder / "card.html"
