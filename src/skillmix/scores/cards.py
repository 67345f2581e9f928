"""Grader cards of runs: which texts and graders they have, who is the truth, and the cards in words and as JSON."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from skillmix.calls import PEOPLE, human_grader, is_human
from skillmix.checkers.registry import checker_of
from skillmix.errors import UserError
from skillmix.experiment.steps import CODE
from skillmix.grading.answers import Rules, names_skill
from skillmix.grading.points import Ballot, Points, StudentText, earns_nothing
from skillmix.render import (
    TOO_FEW,
    markdown_table,
    name_hint,
    panels,
    plural,
    share,
    share_with_interval,
    signed,
    signed_with_interval,
    whole,
    wrapped,
)
from skillmix.runs.graders.rater_journal import rater_model, raters_of
from skillmix.runs.graders.run_grader import PERSON
from skillmix.runs.reading.call_totals import call_totals
from skillmix.runs.reading.text_facts import TextFactsReader
from skillmix.runs.run import Run, RunGrader, opened
from skillmix.runs.texts import texts_with_ballots
from skillmix.scores.grader_card import (
    GraderCard,
    GraderFacts,
    TextUnderGraders,
    TruthAgreement,
    Vote,
    grader_card,
    people_in,
    with_people,
)
from skillmix.scores.statistics.against_truth import Measure

_Part = TypeVar("_Part", bound=Hashable)


@dataclass(frozen=True, slots=True)
class GraderOfRun:
    """A grader of one run, as its card needs it."""

    identity: Hashable
    """Equal in two runs only if spec, prompts, decoding, rounds and catalogue are equal."""
    facts: GraderFacts
    has_code: bool
    is_code_alone: bool


@dataclass(frozen=True, slots=True)
class GradedRun:
    """The texts of a run under its graders."""

    name: str
    items: tuple[TextUnderGraders, ...]
    graders: Mapping[str, GraderOfRun]


def run_cards(runs: Iterable[Run | str], *, truth: str | None = None, rules: str | None = None) -> list[GraderCard]:
    """The cards of every grader of some runs, against people, code or another grader; a run named twice counts once."""
    opened_runs = [opened(run) for run in runs]  # a run that does not exist is an error before any other is read
    stored = list({run.path.resolve(): run for run in reversed(opened_runs)}.values())[::-1]
    for run in stored:
        if run.has_outcomes:
            raise UserError(
                f"The graders of {run.name} name outcomes and give no points, so they have no cards.",
                hint="skillmix scores shows the shares of the outcomes.",
            )
    return cards_of([graded_run(run, rules=rules) for run in stored], truth=truth)


def graded_run(run: Run, *, rules: str | None = None) -> GradedRun:
    """The texts of a run under its graders, by the run's own rules unless others are named."""
    chosen = run.rules(rules)
    items = _Items(run, chosen)
    by_group: dict[int, list[TextUnderGraders]] = defaultdict(list)
    with run.read() as journal:
        for found in texts_with_ballots(run, journal):
            counted = [[ballot for ballot in group if _counts(ballot, chosen)] for group in found.groups]
            decided = [(ballot, ballot.points(chosen, run.phrases)) for group in counted for ballot in group]
            if decided:
                by_group[next(number for number, group in enumerate(counted) if group)].append(items.item(decided))
    return _graded_run(run, [item for _, own in sorted(by_group.items()) for item in own])


def graded_run_of(run: Run, decided: Sequence[tuple[Ballot, Points]], rules: Rules) -> GradedRun:
    """The same from ballots whose points are decided."""
    by_text: dict[tuple[str, str, int], list[tuple[Ballot, Points]]] = defaultdict(list)
    for ballot, points in decided:
        if _counts(ballot, rules):
            by_text[ballot.text.conversation].append((ballot, points))
    items = _Items(run, rules)
    return _graded_run(run, [items.item(own) for own in by_text.values()])


def _counts(ballot: Ballot, rules: Rules) -> bool:
    """Whether a ballot says something: it has a vote, or nobody needs to ask the grader."""
    return bool(ballot.readings) or (earns_nothing(ballot.text.answer, rules) and not is_human(ballot.grader))


def _graded_run(run: Run, items: Sequence[TextUnderGraders]) -> GradedRun:
    simulated = simulated_raters(run)
    names = sorted({grader for item in items for grader in item.points}, key=lambda name: (is_human(name), name))
    # What the calls to each grader cost; None if the cost of some call is unknown.
    costs: dict[str, float | None] = {}
    if run.has_journal:
        with run.read() as journal:
            for total in call_totals(journal):
                if total.role == "grader":
                    before = costs.get(total.name, 0.0)
                    is_known = before is not None and total.cost_usd is not None
                    costs[total.name] = (before or 0.0) + (total.cost_usd or 0.0) if is_known else None
    graders = {name: _grader_of_run(run, _known_rater(run.grader(name), simulated), items, costs) for name in names}
    return GradedRun(run.name, tuple(items), graders)


class _Items:
    """Makes the items of a run; equal parts of them are in memory once, because a run may have millions of texts."""

    def __init__(self, run: Run, rules: Rules) -> None:
        self._run = run
        self._rules = rules
        self._facts = TextFactsReader(run, rules)
        # The model of each student; that of a train step is the model that it tunes.
        models = {name: settings.model for name, settings in run.known_experiment.students.items()}
        for step in run.known_experiment.steps:
            base = str(getattr(step, "base", "")).removeprefix("step:") if step.trains_model else ""
            if base in models:
                models[step.name] = models[base]
        self._models = models
        self._parts: dict[Any, Any] = {}
        self._points: dict[Hashable, Mapping[str, Points]] = {}
        self._votes: dict[Hashable, Mapping[str, tuple[Vote | None, ...]]] = {}

    def item(self, decided: Sequence[tuple[Ballot, Points]]) -> TextUnderGraders:
        """One text with the points that graders gave it."""
        text = decided[0][0].text
        facts = self._facts.facts(text)
        points = [(ballot.grader, points) for ballot, points in decided]
        votes = [
            (ballot.grader, tuple(reading.points if reading is not None else None for reading in ballot.readings))
            for ballot, _ in decided
            if not self._run.grader(ballot.grader).is_code_alone
        ]
        return TextUnderGraders(
            run=self._run.name,
            student=text.student,
            combination=self._once(text.combination.id),
            generation=text.generation,
            skills=self._once(text.combination.skills),
            words=facts.words,
            points=self._points.setdefault(tuple(points), dict(points)),
            votes=self._votes.setdefault(tuple(votes), dict(votes)),
            settings=self._once(facts.settings),
            student_model=self._models.get(text.student),
            by_code=self._once(_decided_by_code(text, self._rules)),
        )

    def _once(self, part: _Part) -> _Part:
        known: _Part = self._parts.setdefault(part, part)
        return known


def _decided_by_code(text: StudentText, rules: Rules) -> frozenset[int]:
    """The criteria that code decides whatever graders say: the length, named skills, and all if the text is empty."""
    skills = text.combination.skills
    if earns_nothing(text.answer, rules):
        return frozenset(range(len(skills) + 3))
    named = {i for i, skill in enumerate(skills) if names_skill(text.answer.text, skill, rules.name_rule)}
    return frozenset({*named, len(skills) + 2})


def _known_rater(grader: RunGrader, simulated: Mapping[str, str]) -> RunGrader:
    """The grader, with the spec of its script if it is a simulated person."""
    return replace(grader, model=simulated[grader.name]) if grader.name in simulated else grader


def simulated_raters(run: Run) -> dict[str, str]:
    """The specs of simulated people who answered, by the name of the grader."""
    models = {human_grader(rater): rater_model(run.journal, rater) for rater in raters_of(run.journal)}
    return {grader: model for grader, model in models.items() if model not in (None, PERSON)}


def _grader_of_run(
    run: Run, grader: RunGrader, items: Sequence[TextUnderGraders], costs: Mapping[str, float | None]
) -> GraderOfRun:
    name = grader.name
    asked = sum(bool(item.votes.get(name)) for item in items)
    is_free = grader.is_code_alone
    facts = GraderFacts(
        model=None if grader.model in (PERSON, "imported", "unknown") else grader.model,
        cost_usd=0.0 if is_free else costs.get(name),
        texts=sum(name in item.points for item in items) if is_free else asked,
    )
    return GraderOfRun(_identity(run, grader), facts, grader.has_code, grader.is_code_alone)


_WITHOUT_EFFECT: Final = ("concurrency", "timeout", "attempts", "key", "price")
"""Settings of a grader that change no grade."""


def _identity(run: Run, grader: RunGrader) -> Hashable:
    """What must be equal for two runs to share the card of a grader."""
    catalog, prompts = run.document.get("catalog_hash"), run.document.get("prompts_hash")
    if is_human(grader.name):
        return grader.name, grader.model, catalog
    settings = run.known_experiment.graders.get(grader.name)
    stored = settings.model_dump(mode="json") if settings else {"model": grader.model}
    kept = tuple(sorted((key, str(value)) for key, value in stored.items() if key not in _WITHOUT_EFFECT))
    return grader.name, kept, str(catalog), str(prompts)


def cards_of(runs: Sequence[GradedRun], *, truth: str | None = None) -> list[GraderCard]:
    """The cards of the graders of some runs; a grader that is not the same in all of them has several cards."""
    _require_truth(runs, truth)
    sharing: dict[tuple[str, Hashable], list[GradedRun]] = defaultdict(list)
    for run in runs:
        for name, grader in run.graders.items():
            sharing[name, grader.identity].append(run)
    cards = [_card(name, own, truth) for (name, _), own in sharing.items()]
    return [card for card in cards if card is not None]


def _require_truth(runs: Sequence[GradedRun], truth: str | None) -> None:
    known = list(dict.fromkeys(name for run in runs for name in run.graders))
    if truth is None or truth in known or (truth == CODE and _code_names(runs)):
        return
    if truth == PEOPLE and any(map(is_human, known)):
        return
    listed = f"Graders here: {', '.join(known)}." if known else "Nobody has graded a text yet."
    hint = "Nobody has annotated a text yet." if truth == PEOPLE else name_hint(truth, known, otherwise=listed)
    raise UserError(f"There is no grader {truth!r} to compare the others with.", hint=hint)


def _code_names(runs: Iterable[GradedRun]) -> list[str]:
    return sorted({name for run in runs for name, grader in run.graders.items() if grader.is_code_alone})


def _card(name: str, runs: Sequence[GradedRun], truth: str | None) -> GraderCard | None:
    """The card of a grader over runs; None for the truth itself, and for a person unless a truth was asked for.

    Scores are not corrected towards another model unless that was asked for.
    """
    if truth in (None, PEOPLE) and is_human(name):
        return None
    items = [item for run in runs for item in run.items]
    chosen = truth_of(name, runs, truth)
    if chosen == name:
        return None
    if chosen == PEOPLE:
        items = with_people(items)
    own = [run.graders[name] for run in runs]
    if chosen is not None and own[0].has_code and chosen in _code_names(runs):
        items = [_without_checked(item) for item in items]
    # The facts on one grader in several runs.
    facts = [grader.facts for grader in own]
    costs = [fact.cost_usd for fact in facts]
    known = [cost for cost in costs if cost is not None]
    texts = sum(fact.texts or 0 for fact in facts)
    together = GraderFacts(facts[0].model, sum(known) if len(known) == len(costs) else None, texts)
    card = grader_card(items, name, chosen, together)
    card = replace(card, simulated=_simulated(name, chosen, runs))
    is_only_another = truth is None and chosen != PEOPLE and chosen not in _code_names(runs)
    return replace(card, corrected=()) if is_only_another else card


def _simulated(name: str, truth: str | None, runs: Sequence[GradedRun]) -> tuple[str, ...]:
    """The simulated raters of a card: those behind its truth, and the grader if it is one."""
    raters = {other: grader for run in runs for other, grader in run.graders.items() if is_human(other)}
    wanted = {name, *(raters if truth == PEOPLE else [truth])}
    return tuple(sorted(rater for rater in raters if rater in wanted and raters[rater].facts.model is not None))


def truth_of(name: str, runs: Sequence[GradedRun], wanted: str | None) -> str | None:
    """The grader that another one is compared with: people, else code, else the first other grader; None if alone."""
    code = [other for other in _code_names(runs) if other != name]
    if wanted is not None:
        return (code[0] if code else name) if wanted == CODE and wanted not in runs[0].graders else wanted
    items = [item for run in runs for item in run.items]
    if people_in(items):
        return PEOPLE
    others = [other for run in runs for other in run.graders if other != name]
    return next(iter([*code, *others]), None)


def _without_checked(item: TextUnderGraders) -> TextUnderGraders:
    """The text without the skills that code decides under both graders."""
    checked = {index for index, skill in enumerate(item.skills) if checker_of(skill) is not None}
    return replace(item, by_code=item.by_code | checked)


NOTE: Final = (
    "Sensitivity: how often the grader gives a point that the truth gives; specificity: how often it denies one that "
    "the truth denies. The truth is what a grader is compared with, and errs as well. Intervals are of 95 %; criteria "
    "of one combination count as one cluster. Criteria that code decides (length, named skills) are left out."
)
CORRECTED_NOTE: Final = (
    "Full marks of single texts, one try. Corrected by the truth: every text has a label. By own labels: the labels of "
    "a sample of these texts. By criteria: error rates of each kind of criterion on labelled texts of the same k. By "
    "error rates: those of full marks, which hold only for students of about the same skill."
)


def card_text(card: GraderCard, *, wide: bool = False) -> str:
    """A card for a terminal of 100 columns; `wide` adds alpha and a table by skill."""
    parts = [wrapped(card_title(card), indent=2), wrapped(_facts(card), indent=2)]
    if card.by_kind:
        parts.append(_agreement_table("criterion", card.by_kind, wide=wide))
    if card.by_skill and wide:
        parts.append(_agreement_table("skill", card.by_skill, wide=wide))
    if card.bias.rows:
        rows = [
            [row.by, row.group, whole(row.units), _signed(row.excess), _interval(row.agreement)]
            for row in card.bias.rows
        ]
        bias_table = markdown_table(["by", "group", "n", "grader − truth", "agreement"], rows, right=frozenset({2}))
        parts += [bias_table, wrapped(family_sentence(card), indent=2)]
    if card.corrected:
        parts.append(_corrected_table(card))
    return "\n\n".join(part for part in parts if part)


def card_title(card: GraderCard) -> str:
    """The grader, the truth, and how many texts have a label."""
    runs = f" ({', '.join(card.runs)})" if len(card.runs) > 1 else ""
    if card.truth is None:
        return f"{card.grader}{runs}: nobody else graded its {plural(card.texts, 'text')}, so there is no truth"
    return (
        f"{card.grader}{runs} against {truth_in_words(card.truth)}: {whole(card.labelled)} of "
        f"{plural(card.texts, 'text')} {'has' if card.labelled == 1 else 'have'} a label{simulated_in_words(card)}"
    )


def simulated_in_words(card: GraderCard) -> str:
    """Which raters of a card are simulated, to follow a heading; empty if all are people."""
    return f"; simulated, no people: {', '.join(card.simulated)}" if card.simulated else ""


def truth_in_words(truth: str) -> str:
    """The name of the truth, for a heading.

    >>> truth_in_words("people"), truth_in_words("rules")
    ('the majority of people', 'rules')
    """
    return "the majority of people" if truth == PEOPLE else truth


def _facts(card: GraderCard) -> str:
    stability, facts = card.stability, card.facts
    cost = facts.cost_per_text
    parts = [f"model: {facts.model or 'unknown'}"]
    if stability.pairs:
        parts.append(
            f"flips between rounds: {_interval(stability.flips)} of {plural(stability.pairs, 'pair')} of votes"
        )
    if stability.rounds:
        parts.append(f"unreadable: {_interval(stability.unreadable)} of {plural(stability.rounds, 'round')}")
    parts.append(f"cost of a text: {'unknown' if cost is None else f'{cost:.4f} US dollars'}")
    return "; ".join(parts)


def family_sentence(card: GraderCard) -> str:
    """Whether the grader favours students of its own family; empty if that is unknown."""
    difference = card.bias.favours_own_family
    if difference.value is None or difference.low is None or difference.high is None:
        return ""
    within = difference.low <= 0 <= difference.high
    verdict = "within noise" if within else ("it favours them" if difference.value > 0 else "it is harder on them")
    return f"Students of its own family against others: {_signed(difference)}, {verdict}."


def _agreement_table(name: str, rows: Sequence[TruthAgreement], *, wide: bool) -> str:
    header = [
        name,
        "n",
        "agreement",
        "sensitivity",
        "specificity",
        "kappa",
        *(["alpha", "truth gives"] if wide else []),
    ]
    lines = []
    for row in rows:
        measures = [row.agreement, row.sensitivity, row.specificity, row.kappa]
        measures += [row.alpha, row.earned] if wide else []
        lines.append([row.criterion, whole(row.units), *map(_interval, measures)])
    return panels(header, lines, names=2, right=frozenset({1}))


def _corrected_table(card: GraderCard) -> str:
    several = len({score.run for score in card.corrected}) > 1
    header = [*(["run"] if several else []), "student", "setting", "k", "texts", "labels", "raw", "corrected", "by"]
    rows = []
    for score in card.corrected:
        first = [*([score.run] if several else []), score.student, score.setting, str(score.k)]
        last = "cannot be corrected" if score.problem else str(score.method)
        counts = [whole(score.texts), whole(score.labelled)]
        rows.append([*first, *counts, _interval(score.raw), _interval(score.corrected), last])
    problems = dict.fromkeys(score.problem for score in card.corrected if score.problem)
    why = [wrapped(f"Cannot be corrected: {problem}.", indent=2) for problem in problems]
    start = 4 if several else 3
    table = panels(header, rows, names=start, right=frozenset({start - 1, start, start + 1}))
    return "\n".join([table, *(["", *why] if why else [])])


def _interval(measure: Measure) -> str:
    return _bare(share(measure.value), share_with_interval(*measure))


def _signed(measure: Measure) -> str:
    return _bare(signed(measure.value), signed_with_interval(*measure))


def _bare(value: str, with_interval: str) -> str:
    """Without the remark on too few combinations, which means something else than an unknown interval here."""
    return value if with_interval.endswith(TOO_FEW) else with_interval


def short_table(cards: Iterable[GraderCard]) -> str:
    """One row for each grader and criterion: agreement, sensitivity and specificity."""
    header = ["grader", "criterion", "n", "agreement", "sensitivity", "specificity"]
    rows = [
        [
            card.grader,
            row.criterion,
            whole(row.units),
            *map(_interval, (row.agreement, row.sensitivity, row.specificity)),
        ]
        for card in cards
        for row in card.by_kind
    ]
    return markdown_table(header, rows, right=frozenset({2}))


def cards_as_json(cards: Iterable[GraderCard]) -> list[object]:
    """Cards as `--json` prints them: every measure is an object with value, low and high."""
    return [_plain(card) for card in cards]


def _plain(value: object) -> object:
    if isinstance(value, Measure):
        return value._asdict()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
