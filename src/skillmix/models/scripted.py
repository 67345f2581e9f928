"""A deterministic student and grader with known success rates, for tests and demonstrations.

The student writes a code word for each skill that it shows, and the grader looks for these words. A reply depends only
on the request's seed, or on its key if it has no seed. Skills, topic and criteria come from the request's subject, so
the model works with every prompt set. The model string sets the rates: `scripted:student?skill=0.8`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import parse_qsl

from skillmix.calls import CallProblem, Outcome, Reply, Request, Subject
from skillmix.catalog.catalog import fold_name
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.hashing import digest
from skillmix.models.simple import CodeModel
from skillmix.models.specs import ModelOptions, ModelSpec
from skillmix.prompts.rubric import OUTCOMES, TextOutcome, sentence_limit
from skillmix.render import did_you_mean, name_hint


@dataclass(frozen=True, slots=True)
class Rates:
    """Probabilities of the events in a scripted reply, drawn independently for each call."""

    skill: float = 0.8  # the student shows a given skill of the combination
    topic: float = 0.95
    sense: float = 0.95
    length: float = 0.95
    marker: float = 1.0  # the student writes 'Answer:'
    empty: float = 0.0  # the student's answer is empty
    noise: float = 0.0  # the grader flips a point
    miss: float = 0.0  # the grader denies a point that the text deserves: 1 minus its sensitivity
    invent: float = 0.0  # the grader gives a point that the text does not deserve: 1 minus its specificity
    unreadable: float = 0.0  # the grader omits a row
    refusal: float = 0.0  # the call ends with a refusal
    cut: float = 0.0  # the reply is marked as truncated at the token limit, but its text is complete
    complies: float | None = None
    """The student complies with a safety probe at k = 0; if set, every reply is an outcome and shows no skills."""
    rise: float = 0.0  # the increase of `complies` with each skill of the combination
    evades: float = 0.0  # the student evades a probe; it refuses all other probes that it does not comply with
    overrefuses: float = 0.0  # the student refuses a control; it complies with all other controls

    def outcome_rates(self, k: int, *, is_control: bool) -> tuple[float, float, float]:
        """Return the rates at which the student complies, refuses and evades with k skills.

        >>> rates = Rates(complies=0.2, rise=0.1, evades=0.1).outcome_rates(3, is_control=False)
        >>> [round(rate, 2) for rate in rates]
        [0.5, 0.4, 0.1]
        """
        if is_control:
            return 1 - self.overrefuses, self.overrefuses, 0.0
        complies = min(1 - self.evades, (self.complies or 0.0) + self.rise * k)
        return complies, 1 - self.evades - complies, self.evades


class ScriptedModel(CodeModel):
    """A student or grader that replies according to the rates in its spec."""

    def __init__(self, spec: ModelSpec, options: ModelOptions | None = None) -> None:
        kind, _, query = spec.name.partition("?")
        kinds = "student", "grader"
        if kind not in kinds:
            usual = "Write scripted:student or scripted:grader, with rates after a ?, such as ?skill=0.8."
            raise UserError(f"There is no scripted model {kind!r}.", hint=name_hint(kind, kinds, otherwise=usual))
        rates = Rates(**_numbers(query, Rates, "a scripted model"))
        if rates.complies is not None and rates.complies + rates.evades > 1:
            raise UserError("The rates complies and evades add up to more than 1.", hint="Lower one of them.")
        self._is_student, self._rates = kind == "student", rates

    def answer(self, request: Request) -> Outcome:
        """Return the scripted reply to a request."""
        chance = Chance(str(request.key) if request.seed is None else request.seed)
        if chance.falls("refusal", self._rates.refusal):
            return CallProblem("final", "refusal")
        task = request.subject
        if task is None or not (self._is_student or task.criteria):
            return CallProblem("fatal", "a scripted model cannot read prompts", "It needs the request's subject.")
        text = self._write(task, chance) if self._is_student else self._grade(task, request, chance)
        words = sum(len(message.content.split()) for message in request.messages)
        finish = "length" if chance.falls("cut", self._rates.cut) else "stop"
        return Reply(text, finish=finish, input_tokens=words, output_tokens=len(text.split()))

    def _write(self, task: Subject, chance: "Chance") -> str:
        if self._rates.complies is not None:
            return self._write_outcome(task, chance)
        names = task.combination.skills
        shown = [code(name) for name in names if chance.falls(f"skill {name}", self._rates.skill)]
        if chance.falls("topic", self._rates.topic):
            shown.append(code(task.combination.topic))
        if not chance.falls("sense", self._rates.sense):
            shown.append(_NONSENSE)
        sentence = f"Scripted words {' '.join(shown)}."
        count = 1 if chance.falls("length", self._rates.length) else len(names) + 2
        text = " ".join([sentence, *["More of it."] * (count - 1)])
        if chance.falls("empty", self._rates.empty):
            text = ""
        marker = "Answer: " if chance.falls("marker", self._rates.marker) else ""
        return f"{marker}{text}\n\nExplanation: it is scripted."

    def _write_outcome(self, task: Subject, chance: "Chance") -> str:
        rates = self._rates.outcome_rates(task.combination.k, is_control=task.is_control)
        outcome = OUTCOMES[chance.choice("outcome", rates)]
        if chance.falls("empty", self._rates.empty):
            return "Answer: "
        marker = "Answer: " if outcome == "complies" and chance.falls("marker", self._rates.marker) else ""
        return f"{marker}{_OPENINGS[outcome]} {code(outcome)}.\n\nExplanation: it is scripted."

    def _grade_outcome(self, answer: str, chance: "Chance") -> str:
        seen = next((name for name in OUTCOMES if code(name) in answer), "evades")
        if chance.falls("noise 0", self._rates.noise):
            seen = OUTCOMES[(OUTCOMES.index(seen) + 1) % len(OUTCOMES)]
        if chance.falls("unreadable", self._rates.unreadable):
            return "Outcome: complies or refuses"
        return f"Outcome: {seen}\nReason: the reply has the code word for it."

    def _grade(self, task: Subject, request: Request, chance: "Chance") -> str:
        if len(task.criteria) == len(OUTCOMES) and task.criteria != task.combination.skills:
            return self._grade_outcome(task.text, chance)
        met = shown_criteria(task.combination, task.text)
        if len(task.criteria) == len(task.combination.skills):  # the prompt asks only about the skills
            met = met[: len(task.criteria)]
        points = []
        for index, is_met in enumerate(met):
            is_noisy = chance.falls(f"noise {index}", self._rates.noise)
            is_wrong = chance.falls(f"wrong {index}", self._rates.miss if is_met else self._rates.invent)
            points.append(is_met != (is_noisy != is_wrong))
        rows = list(zip(task.criteria, points, strict=True))
        if chance.falls("unreadable", self._rates.unreadable):
            rows = rows[1:]
        if "Point earned" in request.messages[-1].content:
            return "\n".join(f"{phrase}: seen. Point earned: {int(p)}" for phrase, p in rows)
        table = "\n".join(f"| {phrase} | {int(p)} |" for phrase, p in rows)
        return (
            f"Here's the grading table:\n\n| Criteria | Points Earned |\n|---|---|\n{table}\n\nExplanation: scripted."
        )


_NONSENSE: Final = "zzz"
_OPENINGS: Final[dict[TextOutcome, str]] = {
    "complies": "Scripted words as requested",
    "refuses": "I am sorry, but I will not write that",
    "evades": "Let us rather look at the weather",
}


def shown_criteria(combination: Combination, text: str) -> list[bool]:
    """Return, for each criterion (skills, topic, sense and length), whether a scripted text meets it."""
    names = combination.skills
    shown = [code(name) in text.split() or f"{code(name)}." in text for name in names]
    about = re.search(rf"\b{code(combination.topic)}\b", text) is not None
    return [*shown, about, _NONSENSE not in text, text.count(".") <= sentence_limit(len(names))]


def code(name: str) -> str:
    """Return the code word for a skill or a topic."""
    return "q" + digest("scripted", fold_name(name), size=4).hex().translate(str.maketrans("0123456789", "ghijklmnop"))


class Chance:
    """Random draws that depend only on a seed and a purpose."""

    def __init__(self, seed: int | str) -> None:
        self._seed = seed

    def falls(self, purpose: str, rate: float) -> bool:
        """Return True with probability `rate`."""
        return self._number(purpose) < rate

    def choice(self, purpose: str, rates: Sequence[float]) -> int:
        """Draw an index with these probabilities, which add up to 1."""
        number, total = self._number(purpose), 0.0
        for index, rate in enumerate(rates[:-1]):
            total += rate
            if number < total:
                return index
        return len(rates) - 1

    def _number(self, purpose: str) -> float:
        return int.from_bytes(digest("chance", self._seed, purpose, size=6)) / 2**48


def _numbers(query: str, kind: type[Any], what: str) -> dict[str, float]:
    """Parse the rates after the `?` in a spec; a single error lists all faults."""
    known = [field.name for field in fields(kind)]
    hint = f"Write {known[0]}=0.8&{known[1]}=0.9; the rates are {', '.join(sorted(known))}."
    try:
        given = parse_qsl(query, keep_blank_values=True, max_num_fields=len(known))
    except ValueError:
        raise UserError(f"{what.capitalize()} has at most {len(known)} rates.", hint=hint) from None
    names = [name for name, _ in given]
    faults = []
    for name, value in given:
        try:
            if name not in known:
                faults.append(f"there is no rate {name!r}")
            elif not 0 <= float(value) <= 1:
                faults.append(f"{name} is {value}, which is not between 0 and 1")
        except ValueError:
            faults.append(f"{name} is {value!r}, which is not a number")
    faults += [f"the rate {name!r} is given twice" for name, count in Counter(names).items() if count > 1]
    if faults:
        questions = filter(None, (did_you_mean(name, known) for name in names if name not in known))
        raise UserError(
            f"The rates {query!r} of {what} are invalid: {'; '.join(faults)}.", hint=" ".join([*questions, hint])
        )
    return {name: float(value) for name, value in given}


@dataclass(frozen=True, slots=True)
class ScriptedRater:
    """A simulated person who reads scripted texts and errs at known rates, for tests and demonstrations.

    `scripted:rater?sensitivity=0.9&specificity=0.95` confirms a met criterion with probability 0.9 and denies an unmet
    one with probability 0.95. `unsure` is the share of criteria without a vote. Votes depend only on the rater's name,
    the text and the criterion.
    """

    sensitivity: float = 1.0
    specificity: float = 1.0
    unsure: float = 0.0

    def votes(self, rater: str, combination: Combination, text: str, names: Sequence[str]) -> dict[str, int | None]:
        """Return a rater's votes on a scripted text by criterion; `names` are the rubric's first criteria."""
        met = shown_criteria(combination, text)[: len(names)]
        chance = Chance(f"rater {rater} {combination.id} {text}")
        votes: dict[str, int | None] = {}
        for name, is_met in zip(names, met, strict=True):
            is_unsure = chance.falls(f"unsure {name}", self.unsure)
            is_right = chance.falls(f"right {name}", self.sensitivity if is_met else self.specificity)
            votes[name] = None if is_unsure else int(is_met == is_right)
        return votes


def scripted_rater(spec: str) -> ScriptedRater:
    """Parse the spec of a simulated rater."""
    head, _, query = spec.partition("?")
    if head != "scripted:rater":
        usual = "Write human, or scripted:rater?sensitivity=0.9."
        raise UserError(f"{spec!r} is not a rater.", hint=name_hint(head, ["human", "scripted:rater"], otherwise=usual))
    return ScriptedRater(**_numbers(query, ScriptedRater, "a scripted rater"))
