"""Shares with intervals and bounds: unknown is not zero, and the intervals contain the true share."""

import os
from collections.abc import Sequence

import numpy as np
import pytest

from skillmix.frequencies.documents import SampledPassage
from skillmix.frequencies.frequency_file import SkillShare, skill_shares
from skillmix.scores.statistics.intervals import wilson_interval

TRIALS = 4000 if os.environ.get("SKILLMIX_LONG") else 600


def passages(count: int, *, per_document: int = 1, occurrences: int = 1) -> list[SampledPassage]:
    return [SampledPassage(f"p{n}", f"Text {n}.", f"file:{n // per_document}", occurrences) for n in range(count)]


def share_of(answers: Sequence[bool | None], *, threshold: float = 0.05, per_document: int = 1) -> SkillShare:
    sample = passages(len(answers), per_document=per_document)
    by_id = {p.id: {"pun": answer} for p, answer in zip(sample, answers, strict=True)}
    (found,) = skill_shares(["pun"], sample, by_id, threshold=threshold)
    return found


def test_unknown_answers_are_left_out_of_the_share_and_widen_the_bounds() -> None:
    found = share_of([True] * 10 + [False] * 30 + [None] * 60)

    assert (found.asked, found.shown, found.unknown) == (100, 10, 60)
    assert found.share == 0.25
    assert (found.bound_low, found.bound_high) == (0.1, 0.7)
    assert (found.low, found.high) == wilson_interval(0.25, 40)


def test_a_skill_that_nobody_was_asked_about_has_no_share() -> None:
    (found,) = skill_shares(["pun"], passages(3), {}, threshold=0.05)

    assert (found.asked, found.share, found.low, found.is_common, found.is_decided) == (0, None, None, None, False)


def test_a_skill_is_common_from_the_threshold_on() -> None:
    at, below = share_of([True] * 5 + [False] * 95), share_of([True] * 4 + [False] * 96)

    assert (at.is_common, at.is_decided) == (True, False)
    assert (below.is_common, below.is_decided) == (False, False)


def test_a_skill_is_decided_if_interval_and_bounds_are_on_one_side() -> None:
    assert share_of([True] * 300 + [False] * 700).is_decided
    assert share_of([True] * 5 + [False] * 995).is_decided
    assert not share_of([True] * 5 + [False] * 900 + [None] * 95).is_decided


def test_the_most_common_skill_comes_first_and_unknown_ones_last() -> None:
    sample = passages(10)
    answers = {p.id: {"pun": n < 2, "irony": n < 5, "litotes": None} for n, p in enumerate(sample)}

    found = skill_shares(["litotes", "pun", "irony"], sample, answers, threshold=0.05)

    assert [one.skill for one in found] == ["irony", "pun", "litotes"]


def test_repeated_passages_count_as_often_as_they_occur_in_a_share_of_its_own() -> None:
    sample = [SampledPassage("p0", "a", "f", 9), SampledPassage("p1", "b", "f", 1)]

    (found,) = skill_shares(["pun"], sample, {"p0": {"pun": True}, "p1": {"pun": False}}, threshold=0.05)

    assert (found.share, found.share_with_repeats) == (0.5, 0.9)


def test_one_passage_a_document_needs_no_wider_interval() -> None:
    found = share_of([True] * 10 + [False] * 40)

    assert (found.documents_low, found.documents_high) == (found.low, found.high)


def test_passages_of_one_document_say_nothing_about_other_documents() -> None:
    found = share_of([True] * 10 + [False] * 40, per_document=50)

    assert found.low is not None
    assert (found.documents_low, found.documents_high) == (None, None)


@pytest.mark.parametrize(("n", "rate"), [(100, 0.05), (100, 0.3), (1000, 0.02), (1000, 0.05)])
def test_the_interval_of_a_sample_holds_the_share_of_its_corpus(n: int, rate: float) -> None:
    """The corpus is fixed and its documents differ; only the draw of passages varies."""
    generator = np.random.default_rng(n)
    size = 40 * n
    by_document = np.repeat(generator.beta(rate * 2, (1 - rate) * 2, size=size // 10), 10)
    corpus = generator.random(size) < by_document
    truth = corpus.mean()
    shown = np.array([corpus[generator.choice(size, n, replace=False)].sum() for _ in range(TRIALS)])
    intervals = {count: wilson_interval(count / n, n) for count in set(shown.tolist())}

    held = np.mean([intervals[c].low <= truth <= intervals[c].high for c in shown.tolist()])

    assert 0.925 <= held <= 0.98


@pytest.mark.parametrize("documents", [30, 100])
def test_the_interval_for_documents_holds_the_share_of_the_population_of_documents(documents: int) -> None:
    """The documents vary, with five passages each; Wilson's interval over passages is too narrow."""
    generator = np.random.default_rng(documents)
    rate, hits, narrow_hits, trials = 0.3, 0, 0, 400
    for _ in range(trials):
        chances = np.repeat(generator.beta(rate * 2, (1 - rate) * 2, size=documents), 5)
        found = share_of((generator.random(documents * 5) < chances).tolist(), per_document=5)
        assert found.documents_low is not None and found.documents_high is not None
        assert found.low is not None and found.high is not None
        hits += found.documents_low <= rate <= found.documents_high
        narrow_hits += found.low <= rate <= found.high

    assert 0.92 <= hits / trials <= 0.985
    assert narrow_hits / trials < 0.9
