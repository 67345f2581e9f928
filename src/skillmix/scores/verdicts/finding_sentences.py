"""The sentence of each finding: who is compared, by how much they differ, and what would decide an open claim."""

from collections.abc import Sequence
from typing import Final

from skillmix.models.lineage import short_name
from skillmix.render.numbers import share, signed_with_interval, whole
from skillmix.scores.claims import Claim
from skillmix.scores.findings import Finding
from skillmix.scores.verdicts.judged import SMALLEST_GAIN, Judged, explanations


def finding_sentence(finding: Finding) -> str:
    """One or more sentences about a finding, with its numbers and what limits them."""
    sentence = _SENTENCES[finding.verdict](finding)
    remarks = (*_losses_beside_gains(finding), *limits(finding), *_repeats(finding))
    return " ".join((sentence, *remarks))


def _supported(finding: Finding) -> str:
    return _no_gain(finding) if finding.claim == "control" else _gain(finding)


def _not_supported(finding: Finding) -> str:
    return _gain(finding) if finding.claim == "control" else _no_gain(finding)


def _gain(finding: Finding) -> str:
    gains = [c for c in finding.compared if c.is_gain]
    best = max(gains, key=lambda c: c.gain.mean)
    verb = "does lift" if finding.claim == "control" else "lifts"
    at_all = len(gains) == len(finding.compared)
    where = f"every k tried: {_ks(gains)}." if at_all else f"some k: {_ks(gains)} of {_ks(finding.compared)}."
    return (
        f"{_students(finding)} {verb} full marks by {_estimate(best)} at k = {best.k} ({best.words}), {_scope(best)}; "
        f"a gain of {share(SMALLEST_GAIN)} or more is found at {where}"
    )


def _no_gain(finding: Finding) -> str:
    losses = [c for c in finding.compared if c.is_loss]
    if losses:
        worst = min(losses, key=lambda c: c.gain.mean)
        change = f"lowers full marks by {_estimate(worst)} at k = {worst.k} ({worst.words})"
        shown = worst
    else:
        shown = max(finding.compared, key=lambda c: c.gain.high or 0.0)
        change = f"changes full marks by {_estimate(shown)} at k = {shown.k}"
    return (
        f"{_students(finding)} {change}, {_scope(shown)}, and at no k of {_ks(finding.compared)} can the gain be "
        f"{share(SMALLEST_GAIN)} or more."
    )


def _not_taught(finding: Finding) -> str:
    return (
        f"{finding.second} earns full marks on less than {share(SMALLEST_GAIN)} of the combinations that are like its "
        f"training texts, so its training taught too little to ask what lies beyond. {_no_gain(finding)}"
    )


def _too_little(finding: Finding) -> str:
    best = max(finding.compared, key=lambda c: c.gain.mean)
    return (
        f"{_students(finding)} changes full marks by {_estimate(best)} at k = {best.k} ({best.words}) over "
        f"{whole(best.gain.combinations)} combinations{_and_scope(best)}; {need(finding)}.{_of_two(best)}"
    )


def _of_two(one: Judged) -> str:
    """Why two trainings have no interval."""
    gain = one.gain
    if gain.unit == "combinations" or len(gain.values) != 2 or gain.low is not None:
        return ""
    return f" Two {gain.unit} cannot show how far {gain.unit} differ, so there is no interval."


def need(finding: Finding) -> str:
    """What would decide the claim; of seeds and combinations the kind that helps."""
    more = finding.more
    several = any(c.gain.unit == "seeds" for c in finding.compared)
    combinations = _count(more.combinations, "combination") + " at each k" if more.combinations else ""
    if more.partitions:
        return f"about {_count(more.partitions, 'partition')} would be needed to decide"
    if more.seeds and combinations:
        return f"about {_count(more.seeds, 'seed')}, or about {combinations}, would be needed to decide"
    if more.seeds:
        return f"about {_count(more.seeds, 'seed')} would be needed to decide; more combinations alone would not do"
    if combinations:
        alone = "; more seeds alone would not do" if several else ""
        return f"about {combinations} would be needed to decide{alone}"
    return "the data cannot say how many more would be needed"


def _count(number: int, noun: str) -> str:
    return f"{whole(number)} more {noun}" + ("" if number == 1 else "s")


def _losses_beside_gains(finding: Finding) -> list[str]:
    """A loss at one k, where the sentence is about other k."""
    losses = [c for c in finding.compared if c.is_loss]
    if not losses or all(c.excludes_gain for c in finding.compared):
        return []
    return [f"It lowers full marks by {_estimate(c)} at k = {c.k} ({c.words})." for c in losses]


def limits(finding: Finding) -> list[str]:
    """What else than the claim may explain a difference."""
    if finding.explained:
        return explanations(finding.second, finding.explained)
    return [_UNMATCHED[finding.claim]] if finding.claim in _UNMATCHED and not finding.is_matched else []


_NO_PRACTICE: Final = (
    "No student practised single skills with as many texts and steps, so such practice may explain a difference."
)
_UNMATCHED: Final[dict[Claim, str]] = {
    "composition": "The two differ in texts or steps, or these are unknown, so more practice may explain a difference.",
    "held-out": _NO_PRACTICE,
    "larger k": _NO_PRACTICE,
    "efficiency": "Steps could not be matched, so more steps may explain a difference.",
}


def _repeats(finding: Finding) -> list[str]:
    if not finding.repeated:
        return []
    names = " and ".join(finding.repeated)
    verb = "holds" if len(finding.repeated) == 1 else "hold"
    return [f"{names} {verb} the scores of another of these runs under another name; they count once."]


def _students(finding: Finding) -> str:
    """The second student against the first, with their training data."""
    first = f"{finding.first}" + (f", {short_name(finding.first_k)}" if finding.first_k else "")
    sizes = f" ({_sizes(finding)})" if finding.first_k else ""
    return f"{finding.second}, tuned on {short_name(finding.second_k)}, against {first}{sizes},"


def _sizes(finding: Finding) -> str:
    """Conversations and steps of both students."""
    rows = f"{_number(finding.second_rows)} conversations against {_number(finding.first_rows)}"
    return f"{rows}, {_number(finding.second_steps)} steps against {_number(finding.first_steps)}"


def _number(number: int | None) -> str:
    return "unknown" if number is None else whole(number)


def _scope(one: Judged) -> str:
    """The trainings that the estimate speaks for."""
    gain = one.gain
    if gain.partitions > 1:
        return f"over {gain.partitions} partitions"
    return f"over {gain.seeds} seeds" if gain.seeds > 1 else "for this one training run"


def _and_scope(one: Judged) -> str:
    """The scope after a number of combinations."""
    scope = _scope(one)
    return f" and {scope.removeprefix('over ')}" if scope.startswith("over ") else f", {scope}"


def _estimate(one: Judged) -> str:
    return signed_with_interval(one.gain.mean, one.gain.low, one.gain.high)


def _ks(compared: Sequence[Judged]) -> str:
    return ", ".join(str(c.k) for c in compared)


_SENTENCES: Final = {
    "supported": _supported,
    "not supported": _not_supported,
    "not taught": _not_taught,
    "too little data": _too_little,
}
