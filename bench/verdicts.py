"""Measure the cost of a verdict by code: `python bench/verdicts.py [TEXTS]` (default: 100,000).

Each text has three sentences from three labeled texts, and four skills are requested. The script measures CPU time on
one core: first by part, over a few thousand texts, then for complete verdicts, including unrequested skills and the
check whether all skills are woven together. Most of these texts miss a skill, so the last table uses texts that show
all requested skills.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from skillmix.catalog.files import load_catalog
from skillmix.checkers.judge import Judge, Verdict
from skillmix.checkers.passage import Passage, Span, passage_of
from skillmix.checkers.registry import all_checkers
from skillmix.checkers.sense import PromptTexts, prompt_texts, sense_problem
from skillmix.checkers.topics import TopicWords, on_topic, topic_words

LABELLED = Path(__file__).parent.parent / "tests" / "checkers"
BY_PART = 5000
BATCH = 50
SKILLS = 4
SENTENCES = 3
MOST_SECONDS = 120.0
MOST_MICROSECONDS = 1000.0


def main(texts: int) -> None:
    """Print both tables."""
    catalog = load_catalog("verifiable")
    shown = prompt_texts(catalog.skills)
    judge = Judge(catalog.vocabulary, shown)
    all_topics = [topic_words(name, *words) for name, words in catalog.vocabulary.items()]
    parts: dict[str, float] = defaultdict(float)
    for number in range(0, BY_PART, BATCH):
        for part, seconds in _by_part(number, all_topics, shown).items():
            parts[part] += seconds
    print("| part | µs per text |\n|---|---:|")
    for part, seconds in parts.items():
        print(f"| {part} | {1e6 * seconds / BY_PART:.0f} |")
    print(f"| sum | {1e6 * sum(parts.values()) / BY_PART:.0f} |\n")
    topics = list(catalog.vocabulary)
    start = time.process_time()
    for number in range(texts):
        verdict = judge.judge(_text(number), skills=_skills(number), topic=topics[number % len(topics)])
        _ = verdict.unrequested, verdict.is_woven(_skills(number))
    seconds = time.process_time() - start
    print("| texts | CPU s | µs per text |\n|---:|---:|---:|")
    print(f"| {texts} | {seconds:.1f} | {1e6 * seconds / texts:.0f} |")
    _print_woven(judge)
    if seconds > MOST_SECONDS * texts / 100_000 or sum(parts.values()) > 1e-6 * MOST_MICROSECONDS * BY_PART:
        sys.exit("That is slower than it may be.")


def _print_woven(judge: Judge) -> None:
    """Measure the check for woven skills on texts with all skills, which are the sentences for pairs."""
    witnesses = yaml.safe_load((LABELLED / "witnesses.yaml").read_text(encoding="utf-8")) * 5
    verdicts: list[Verdict] = []
    judged = _seconds(
        lambda: verdicts.extend(judge.judge(w["text"], skills=w["skills"], topic=w["topic"]) for w in witnesses)
    )
    others = _seconds(lambda: [verdict.unrequested for verdict in verdicts])
    woven = _seconds(lambda: [v.is_woven(w["skills"]) for v, w in zip(verdicts, witnesses, strict=True)])
    print("\n| texts with all skills | verdict, µs | unrequested skills, µs | woven, µs |\n|---:|---:|---:|---:|")
    times = " | ".join(f"{1e6 * seconds / len(witnesses):.0f}" for seconds in (judged, others, woven))
    print(f"| {len(witnesses)} | {times} |")


def _by_part(number: int, topics: Sequence[TopicWords], shown: PromptTexts) -> dict[str, float]:
    """Return the CPU seconds of each part for a batch of texts that is small enough for the garbage collector."""
    numbers = range(number, number + BATCH)
    texts = [_text(n) for n in numbers]
    passages: list[Passage] = []
    return {
        "taking the text apart": _seconds(lambda: passages.extend(map(_whole_passage, texts))),
        f"{SKILLS} requested skills": _seconds(
            lambda: [_show(p, _skills(n)) for n, p in zip(numbers, passages, strict=True)]
        ),
        "topic": _seconds(
            lambda: [on_topic(p, topics[n % len(topics)]) for n, p in zip(numbers, passages, strict=True)]
        ),
        "sense": _seconds(lambda: [sense_problem(passage, shown) for passage in passages]),
        f"the {len(NAMES) - SKILLS} other skills": _seconds(
            lambda: [_show(p, _others(n)) for n, p in zip(numbers, passages, strict=True)]
        ),
    }


def _whole_passage(text: str) -> Passage:
    """Compute the parts that several checkers share, so that their time is not attributed to one checker."""
    passage = passage_of(text)
    _ = passage.words, passage.pieces, passage.lower
    return passage


def _others(number: int) -> list[str]:
    wanted = _skills(number)
    return [name for name in NAMES if name not in wanted]


def _show(passage: Passage, skills: Sequence[str]) -> list[Span | None]:
    return [CHECKERS_BY_NAME[skill](passage) for skill in skills]


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _pool() -> list[str]:
    """Return the labeled texts that make sense, and the test texts for pairs of skills, if they are one sentence."""
    entries = [
        entry
        for name in ("labelled/sensible.yaml", "witnesses.yaml")
        for entry in yaml.safe_load((LABELLED / name).read_text(encoding="utf-8"))
    ]
    return [entry["text"] for entry in entries if len(passage_of(entry["text"]).sentences) == 1]


POOL = _pool()
CHECKERS_BY_NAME = all_checkers()
NAMES = list(CHECKERS_BY_NAME)


def _text(number: int) -> str:
    """Return a different text for each number, combined from three texts of the pool."""
    size = len(POOL)
    return " ".join(POOL[place % size] for place in (number, 7 * number + 1, number + number // size + 2))


def _skills(number: int) -> tuple[str, ...]:
    return tuple(NAMES[(number * 5 + place * 13) % len(NAMES)] for place in range(SKILLS))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
