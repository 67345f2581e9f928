"""Make grader cards of runs: choose texts, graders and reference labels, and format the cards as text and JSON."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Final

from skillmix.calls import PEOPLE, human_grader, is_human
from skillmix.errors import UserError
from skillmix.experiment.steps import CODE
from skillmix.grading.answers import Rules, names_skill
from skillmix.grading.points import Ballot, Points, earns_nothing
from skillmix.render import (
    known_sum,
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
from skillmix.runs.people import rater_model, raters_of
from skillmix.runs.run import Run, opened
from skillmix.runs.texts import texts_with_ballots
from skillmix.runs.verdicts import PERSON, has_checker
from skillmix.scores.graders import (
    GraderCard,
    GraderFacts,
    TextUnderGraders,
    TruthAgreement,
    grader_card,
    people_in,
    with_people,
)
from skillmix.scores.statistics.against_truth import Measure
from skillmix.scores.status import call_totals
from skillmix.scores.text_rows import TextFactsReader


@dataclass(frozen=True, slots=True)
class GraderOfRun:
    """A grader of one run, with the fields that its card needs."""

    identity: Hashable
    """Equal in two runs only if model string, prompts, sampling settings, rounds and catalog are all equal."""
    facts: GraderFacts
    has_code: bool
    is_code_alone: bool


@dataclass(frozen=True, slots=True)
class GradedRun:
    """The texts of a run with the grades of all graders."""

    name: str
    items: tuple[TextUnderGraders, ...]
    graders: Mapping[str, GraderOfRun]


def run_cards(runs: Iterable[Run | str], *, truth: str | None = None, rules: str | None = None) -> list[GraderCard]:
    """Compare every grader of the given runs with people, code or another grader; a run listed twice counts once."""
    opened_runs = [opened(run) for run in runs]  # report a missing run before reading any other
    stored = list({run.path.resolve(): run for run in reversed(opened_runs)}.values())[::-1]
    for run in stored:
        if run.has_outcomes:
            raise UserError(
                f"The graders of {run.name} give outcomes instead of points, so they have no cards.",
                hint="Run `skillmix scores` to see the share of each outcome.",
            )
    return cards_of([graded_run(run, rules=rules) for run in stored], truth=truth)


def graded_run(run: Run, *, rules: str | None = None) -> GradedRun:
    """Read the texts of a run with their grades; use the run's own rules unless `rules` is given."""
    chosen = run.rules(rules)
    with run.read() as journal:
        found = (text.ballots for text in texts_with_ballots(run, journal))
        items = _items(run, ([(b, b.points(chosen, run.phrases)) for b in ballots] for ballots in found), chosen)
    return _graded_run(run, items)


def graded_run_of(run: Run, decided: Iterable[tuple[Ballot, Points]], rules: Rules) -> GradedRun:
    """Make a graded run from ballots whose points are already known."""
    by_text: dict[tuple[str, str, int], list[tuple[Ballot, Points]]] = defaultdict(list)
    for ballot, points in decided:
        by_text[ballot.text.conversation].append((ballot, points))
    return _graded_run(run, _items(run, by_text.values(), rules))


def _items(run: Run, texts: Iterable[Sequence[tuple[Ballot, Points]]], rules: Rules) -> list[TextUnderGraders]:
    """Combine the ballots on each text; a ballot counts if it has a vote, or if its grader did not need to vote."""
    reader = TextFactsReader(run, rules)
    # The model of each student or, for a train step, the model that the step fine-tunes.
    models = {name: settings.model for name, settings in run.known_experiment.students.items()}
    for step in run.known_experiment.steps:
        base = str(getattr(step, "base", "")).removeprefix("step:") if step.trains_model else ""
        if base in models:
            models[step.name] = models[base]
    items = []
    for ballots in texts:
        nobody_asks = bool(ballots) and earns_nothing(ballots[0][0].text.answer, rules)
        counted = [(b, p) for b, p in ballots if b.readings or (nobody_asks and not is_human(b.grader))]
        if not counted:
            continue
        text, skills = counted[0][0].text, counted[0][0].text.combination.skills
        facts = reader.facts(text)
        # Under every grader, code denies the points for skills that the text names, determines the point for length,
        # and denies all points if the text earns nothing.
        named = (i for i, skill in enumerate(skills) if names_skill(text.answer.text, skill, rules.name_rule))
        items.append(
            TextUnderGraders(
                run=run.name,
                student=text.student,
                combination=text.combination.id,
                generation=text.generation,
                skills=skills,
                words=facts.words,
                points={ballot.grader: points for ballot, points in counted},
                votes={
                    ballot.grader: tuple(None if reading is None else reading.points for reading in ballot.readings)
                    for ballot, _ in counted
                    if not run.grader(ballot.grader).is_code_alone
                },
                settings=facts.settings,
                student_model=models.get(text.student),
                by_code=frozenset(range(len(skills) + 3) if nobody_asks else [*named, len(skills) + 2]),
            )
        )
    return items


def _graded_run(run: Run, items: Sequence[TextUnderGraders]) -> GradedRun:
    names = sorted({grader for item in items for grader in item.points}, key=lambda name: (is_human(name), name))
    # By grader name, the model strings of the simulated raters that answered.
    models = {human_grader(rater): rater_model(run.people, rater) for rater in raters_of(run.people)}
    simulated = {grader: model for grader, model in models.items() if model not in (None, PERSON)}
    # The total cost of the calls to each grader; None if the cost of any call is unknown.
    costs: dict[str, float | None] = {}
    with run.read() as journal:
        for total in (total for total in call_totals(journal) if total.role == "grader"):
            costs[total.name] = known_sum((costs.get(total.name, 0.0), total.cost_usd))
    catalog, prompts = run.document.get("catalog_hash"), run.document.get("prompts_hash")
    graders = {}
    for name in names:
        grader = run.grader(name)
        model, is_free = simulated.get(name, grader.model), grader.is_code_alone
        facts = GraderFacts(
            model=None if model in (PERSON, "imported", "unknown") else model,
            cost_usd=0.0 if is_free else costs.get(name),
            texts=sum(name in item.points if is_free else bool(item.votes.get(name)) for item in items),
        )
        settings = run.known_experiment.graders.get(name)
        stored = settings.model_dump(mode="json") if settings else {"model": model}
        kept = tuple(sorted((key, str(value)) for key, value in stored.items() if key not in _WITHOUT_EFFECT))
        identity = (name, model, catalog) if is_human(name) else (name, kept, str(catalog), str(prompts))
        graders[name] = GraderOfRun(identity, facts, grader.has_code, is_free)
    return GradedRun(run.name, tuple(items), graders)


_WITHOUT_EFFECT: Final = ("concurrency", "timeout", "attempts", "key", "price")
"""Settings of a grader that do not affect grades."""


def cards_of(runs: Sequence[GradedRun], *, truth: str | None = None) -> list[GraderCard]:
    """Make a card for each grader of the given runs, or several cards if the grader's settings differ between runs."""
    known = list(dict.fromkeys(name for run in runs for name in run.graders))
    are_known = truth in (None, *known) or (truth == CODE and _code_names(runs))
    if not are_known and not (truth == PEOPLE and any(map(is_human, known))):
        listed = f"Graders here: {', '.join(known)}." if known else "No text has been graded yet."
        hint = "No text has been annotated yet."
        hint = hint if truth == PEOPLE else name_hint(str(truth), known, otherwise=listed)
        raise UserError(f"There is no grader {truth!r} to use as reference.", hint=hint)
    sharing: dict[tuple[str, Hashable], list[GradedRun]] = defaultdict(list)
    for run in runs:
        for name, grader in run.graders.items():
            sharing[name, grader.identity].append(run)
    cards = []
    for (name, _), own in sharing.items():
        # The reference for this grader: people if possible, otherwise code, otherwise the first other grader.
        code = [other for other in _code_names(own) if other != name]
        others = [other for run in own for other in run.graders if other != name]
        chosen = next(iter([*code, *others]), None)
        if truth is not None:
            chosen = (code[0] if code else name) if truth == CODE and truth not in own[0].graders else truth
        elif people_in(item for run in own for item in run.items):
            chosen = PEOPLE
        # People have a card only if the user chose a grader as the reference. The reference itself never has a card.
        if chosen != name and not (truth in (None, PEOPLE) and is_human(name)):
            cards.append(_card(name, own, chosen, truth))
    return cards


def _code_names(runs: Iterable[GradedRun]) -> list[str]:
    return sorted({name for run in runs for name, grader in run.graders.items() if grader.is_code_alone})


def _card(name: str, runs: Sequence[GradedRun], truth: str | None, wanted: str | None) -> GraderCard:
    """Make the card of one grader over several runs.

    Points from another model are used to correct scores only if the user chose that model as the reference.
    """
    items = [item for run in runs for item in run.items]
    code = _code_names(runs)
    if truth == PEOPLE:
        items = with_people(items)
    own = [run.graders[name] for run in runs]
    if own[0].has_code and truth in code:
        # Omit skills that both graders leave to code.
        checked = {skill for item in items for skill in item.skills if has_checker(skill)}
        items = [replace(i, by_code=i.by_code | {n for n, s in enumerate(i.skills) if s in checked}) for i in items]
    texts, cost = sum(grader.facts.texts or 0 for grader in own), known_sum(grader.facts.cost_usd for grader in own)
    card = grader_card(items, name, truth, GraderFacts(own[0].facts.model, cost, texts))
    # The simulated raters behind the reference labels, and the grader itself if it is a simulated rater.
    raters = {other: grader for run in runs for other, grader in run.graders.items() if is_human(other)}
    behind = {name, *(raters if truth == PEOPLE else [truth])}
    simulated = sorted(r for r, grader in raters.items() if r in behind and grader.facts.model is not None)
    is_only_another = wanted is None and truth != PEOPLE and truth not in code
    return replace(card, simulated=tuple(simulated), corrected=() if is_only_another else card.corrected)


NOTE: Final = (
    "Sensitivity: how often the grader gives a point that the truth gives. Specificity: how often the grader denies a "
    "point that the truth denies. Truth means the reference labels, which can also be wrong. Intervals are 95% "
    "intervals with combinations as clusters. Criteria that code decides (length, named skills) are omitted. A dash "
    "means that no labeled text determines the number."
)
CORRECTED_NOTE: Final = (
    "Full marks of single texts (one try), corrected by one of four methods. Truth: every text has a label. Own "
    "labels: a sample of these texts has labels. Criteria: from the error rates of each kind of criterion on labeled "
    "texts of the same k. Error rates: from the error rates of full marks, which apply only to students of similar "
    "skill."
)


def card_text(card: GraderCard, *, wide: bool = False) -> str:
    """Format a card for a terminal of 100 columns; `wide` adds alpha and a table by skill."""
    stability, cost = card.stability, card.facts.cost_per_text
    facts = [f"model: {card.facts.model or 'unknown'}"]
    if stability.pairs:
        facts.append(
            f"flips between rounds: {_interval(stability.flips)} of {plural(stability.pairs, 'pair')} of votes"
        )
    if stability.rounds:
        facts.append(f"unreadable: {_interval(stability.unreadable)} of {plural(stability.rounds, 'round')}")
    facts.append(f"cost of a text: {'unknown' if cost is None else f'{cost:.4f} US dollars'}")
    parts = [wrapped(card_title(card), indent=2), wrapped("; ".join(facts), indent=2)]
    if card.by_kind:
        parts.append(_agreement_table("criterion", card.by_kind, wide=wide))
    if card.by_skill and wide:
        parts.append(_agreement_table("skill", card.by_skill, wide=wide))
    if card.bias.rows:
        rows = [
            [row.by, row.group, whole(row.units), _signed(row.excess), _interval(row.agreement)]
            for row in card.bias.rows
        ]
        parts.append(markdown_table(["by", "group", "n", "grader − truth", "agreement"], rows, right=frozenset({2})))
    own = card.bias.favours_own_family
    if card.bias.rows and own.value is not None and own.low is not None and own.high is not None:
        verdict = "within noise" if own.low <= 0 <= own.high else "the grader favors its own family"
        verdict = "the grader is harder on its own family" if own.high < 0 else verdict
        about = "Excess points for students of the grader's model family, compared with other students"
        parts.append(wrapped(f"{about}: {_signed(own)}, {verdict}.", indent=2))
    if card.corrected:
        several = ["run"] if len({score.run for score in card.corrected}) > 1 else []
        header = [*several, "student", "setting", "k", "texts", "labels", "raw", "corrected", "by"]
        rows = [
            [
                *([score.run] if several else []),
                *(score.student, score.setting, str(score.k), whole(score.texts), whole(score.labelled)),
                *(_interval(score.raw), _interval(score.corrected)),
                "cannot be corrected" if score.problem else str(score.method),
            ]
            for score in card.corrected
        ]
        start = len(several) + 3
        table = panels(header, rows, names=start, right=frozenset({start - 1, start, start + 1}))
        problems = dict.fromkeys(score.problem for score in card.corrected if score.problem)
        why = [wrapped(f"Cannot be corrected: {problem}.", indent=2) for problem in problems]
        parts.append("\n".join([table, *(["", *why] if why else [])]))
    return "\n\n".join(parts)


def card_title(card: GraderCard) -> str:
    """Return a title that names the grader, the reference and simulated raters, and counts the labeled texts."""
    runs = f" ({', '.join(card.runs)})" if len(card.runs) > 1 else ""
    if card.truth is None:
        alone = f"no other grader graded its {plural(card.texts, 'text')}"
        return f"{card.grader}{runs}: {alone}, so there are no reference labels"
    truth = "the majority of people" if card.truth == PEOPLE else card.truth
    simulated = f"; simulated raters, not people: {', '.join(card.simulated)}" if card.simulated else ""
    return (
        f"{card.grader}{runs} against {truth}: {whole(card.labelled)} of {plural(card.texts, 'text')} "
        f"{'has' if card.labelled == 1 else 'have'} a label{simulated}"
    )


def _agreement_table(name: str, rows: Sequence[TruthAgreement], *, wide: bool) -> str:
    measures = ["agreement", "sensitivity", "specificity", "kappa", *(["alpha", "earned"] if wide else [])]
    header = [name, "n", *("truth gives" if measure == "earned" else measure for measure in measures)]
    lines = [
        [row.criterion, whole(row.units), *(_interval(getattr(row, measure)) for measure in measures)] for row in rows
    ]
    return panels(header, lines, names=2, right=frozenset({1}))


def _interval(measure: Measure) -> str:
    # `share_with_interval` would print "too few", but here an interval can be unknown for other reasons.
    return share(measure.value) if None in measure else share_with_interval(*measure)


def _signed(measure: Measure) -> str:
    return signed(measure.value) if None in measure else signed_with_interval(*measure)


def short_table(cards: Iterable[GraderCard]) -> str:
    """Format agreement, sensitivity and specificity in one row for each grader and criterion."""
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
    """Convert cards to the form that `--json` prints, in which a measure is an object with value, low and high."""
    return [_plain(card) for card in cards]


def _plain(value: object) -> object:
    if isinstance(value, Measure):
        return value._asdict()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
