"""Estimate the share of passages that show each skill, with intervals and bounds.

The sample is a simple random sample of the different passages of a corpus, so Wilson's interval holds for the share in
that corpus. An answer that cannot be read is unknown: it is left out of the share, and the bounds count it both ways.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from skillmix.frequencies.passages import SampledPassage
from skillmix.scores.statistics.intervals import CONFIDENCE, Interval, t_quantile, wilson_interval

Answers = Mapping[str, Mapping[str, bool | None]]
"""By passage id and skill, whether the passage shows the skill; None if the answer is unknown.

A skill that nobody was asked about, as when the budget was spent, is absent."""


@dataclass(frozen=True, slots=True)
class SkillShare:
    """How common one skill is."""

    skill: str
    asked: int
    """Passages with a question about the skill."""
    shown: int
    unknown: int
    """Passages whose answer about the skill is missing or cannot be read."""
    share: float | None
    """Of the passages with a known answer; None if there is none."""
    low: float | None
    high: float | None
    """Wilson's 95 % interval, for the share in this corpus."""
    bound_low: float | None
    bound_high: float | None
    """The share if no unknown passage shows the skill, and if all of them do."""
    share_with_repeats: float | None
    """The share if a passage counts as often as it occurs in the corpus."""
    documents_low: float | None
    documents_high: float | None
    """A 95 % interval for documents like these; None if fewer than two documents are in the sample."""
    is_common: bool | None
    """Whether the share is at the threshold or above; None if the share is unknown."""
    is_decided: bool
    """Whether the interval and the bounds are all on one side of the threshold."""


def skill_shares(
    skills: Iterable[str], passages: Sequence[SampledPassage], answers: Answers, *, threshold: float
) -> list[SkillShare]:
    """The shares of all skills, the most common first."""
    shares = [_share(skill, passages, answers, threshold) for skill in skills]
    return sorted(shares, key=lambda one: (one.share is None, -(one.share or 0.0), one.skill))


def _share(skill: str, passages: Sequence[SampledPassage], answers: Answers, threshold: float) -> SkillShare:
    found = [(p, answers[p.id][skill]) for p in passages if skill in answers.get(p.id, {})]
    known = [(passage, shown) for passage, shown in found if shown is not None]
    shown = sum(answer for _, answer in known)
    asked, unknown = len(found), len(found) - len(known)
    share = shown / len(known) if known else None
    interval = wilson_interval(share, len(known)) if share is not None else None
    bounds = Interval(shown / asked, (shown + unknown) / asked) if asked else None
    wider = _for_documents(known, share) if share is not None else None
    ends = [end for pair in (interval, bounds) if pair for end in pair]
    weight = sum(passage.occurrences for passage, _ in known)
    return SkillShare(
        skill=skill,
        asked=asked,
        shown=shown,
        unknown=unknown,
        share=share,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        bound_low=bounds.low if bounds else None,
        bound_high=bounds.high if bounds else None,
        share_with_repeats=sum(p.occurrences for p, answer in known if answer) / weight if weight else None,
        documents_low=wider.low if wider else None,
        documents_high=wider.high if wider else None,
        is_common=None if share is None else share >= threshold,
        is_decided=bool(interval) and (min(ends) >= threshold or max(ends) < threshold),
    )


def _for_documents(known: Sequence[tuple[SampledPassage, bool]], share: float) -> Interval | None:
    """An interval for the share in documents like these, which may have several passages each.

    It is Wilson's with fewer passages: as many as would give the variance between documents, with a t quantile for the
    number of documents. A skill that all or no passages show has as many passages as there are documents.
    """
    by_document: dict[str, list[bool]] = defaultdict(list)
    for passage, answer in known:
        by_document[passage.document].append(answer)
    documents = len(by_document)
    if documents < 2:
        return None
    if documents == len(known):
        return wilson_interval(share, len(known))
    spread = sum((sum(group) - share * len(group)) ** 2 for group in by_document.values())
    variance = spread * documents / (documents - 1) / len(known) ** 2
    quantile = (1 + CONFIDENCE) / 2
    narrower = (NormalDist().inv_cdf(quantile) / t_quantile(quantile, documents - 1)) ** 2
    effective = share * (1 - share) / variance * narrower if 0 < share < 1 and variance > 0 else documents
    return wilson_interval(share, max(1, round(min(effective, len(known)))))
