"""Dividing documents into passages and drawing them: the sample depends only on the texts."""

import io
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from skillmix.frequencies.counting import FrequencyWanted, draw
from skillmix.frequencies.documents import PassageSample, PassageSampler, merged, paragraphs_of, passages_of
from tests.frequencies.corpora import passage, write_jsonl

SENTENCE = "Ten words are in this sentence and it ends here."


def sampled(texts: list[str], *, n: int, seed: int = 0) -> PassageSample:
    sampler = PassageSampler(n, seed)
    for number, text in enumerate(texts):
        sampler.add(text, f"file:{number}")
    return sampler.sample()


def test_a_passage_ends_with_the_sentence_that_reaches_the_length() -> None:
    found = list(passages_of([" ".join([SENTENCE] * 7)], words=25))

    assert [text.count("Ten") for text in found] == [3, 4]  # a single remaining sentence is added to the last passage


def test_a_rest_of_half_a_passage_or_more_is_a_passage() -> None:
    found = list(passages_of([" ".join([SENTENCE] * 5)], words=25))

    assert [text.count("Ten") for text in found] == [3, 2]


def test_paragraphs_stay_lines_and_no_word_is_lost() -> None:
    paragraphs = [f"{SENTENCE} {SENTENCE}", "A heading", SENTENCE, "Mr. Smith left. " * 3]

    found = list(passages_of(paragraphs, words=20))

    assert " ".join(" ".join(found).split()) == " ".join(" ".join(paragraphs).split())
    assert "\n" in found[-1]


def test_a_document_of_a_few_words_has_no_passage() -> None:
    assert list(passages_of(["Home"], words=20)) == []
    assert list(passages_of(["This short text has six words."], words=20)) == ["This short text has six words."]


@pytest.mark.parametrize("text", ["字" * 5000, "A" * 5000, "word " * 5000], ids=["no blanks", "one word", "no end"])
def test_text_without_sentence_ends_or_blanks_is_cut_too(text: str) -> None:
    found = list(passages_of([text], words=50))

    assert max(map(len, found)) <= 2 * 50 * 8
    assert "".join("".join(found).split()) == "".join(text.split())


def test_control_characters_and_lone_surrogates_do_not_reach_a_passage() -> None:
    (found,) = passages_of(["Six words\x00 are in\x1b[2J this \ud800 text."], words=20)

    assert "\x00" not in found and "\x1b" not in found
    found.encode()


def test_the_order_of_the_texts_does_not_change_the_sample() -> None:
    texts = [passage(number) for number in range(300)]
    shuffled = random.Random(1).sample(texts, len(texts))

    assert sampled(texts, n=40).ids == sampled(shuffled, n=40).ids


def test_a_larger_sample_begins_with_a_smaller_one_and_another_seed_draws_others() -> None:
    texts = [passage(number) for number in range(300)]

    assert sampled(texts, n=100).ids[:40] == sampled(texts, n=40).ids
    assert set(sampled(texts, n=40, seed=1).ids) != set(sampled(texts, n=40).ids)


def test_a_repeated_passage_is_drawn_once_with_its_exact_number_of_occurrences() -> None:
    counts = {passage(number): 1 + number % 5 for number in range(200)}
    texts = random.Random(2).sample([t for t, times in counts.items() for _ in range(times)], sum(counts.values()))

    drawn = sampled(texts, n=50)

    assert len({p.text for p in drawn.passages}) == 50
    assert {p.text: p.occurrences for p in drawn.passages} == {p.text: counts[p.text] for p in drawn.passages}
    assert drawn.total == sum(counts.values())


def test_readers_of_parts_together_draw_what_one_reader_draws() -> None:
    texts = [passage(number % 220) for number in range(300)]
    parts = [sampled(texts[start::3], n=30) for start in range(3)]

    together = merged(parts, n=30, seed=0)

    assert [(p.id, p.occurrences) for p in together.passages] == [
        (p.id, p.occurrences) for p in sampled(texts, n=30).passages
    ]
    assert together.total == 300


def test_every_passage_is_drawn_equally_often_over_many_seeds() -> None:
    texts = [passage(number) for number in range(50)]
    drawn = Counter(p.text for seed in range(600) for p in sampled(texts, n=10, seed=seed).passages)

    expected = 600 * 10 / 50
    chi_square = sum((drawn[text] - expected) ** 2 / (expected * (1 - 10 / 50)) for text in texts)
    assert chi_square * 49 / 50 < 85.4  # the 99.9% point with 49 degrees of freedom


def test_text_json_and_parquet_files_of_the_same_documents_give_the_same_sample(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    documents = [f"{SENTENCE}\r\n{SENTENCE}\n\n{passage(n)}\n{passage(n + 1000)}\n\n\n{SENTENCE}" for n in range(60)]
    (tmp_path / "txt").mkdir()
    for number, text in enumerate(documents):
        (tmp_path / f"txt/{number}.txt").write_bytes(text.encode())
    write_jsonl(tmp_path / "one/a.jsonl", documents)
    for number in range(4):
        write_jsonl(tmp_path / f"many/{9 - number}.jsonl.gz", documents[number::4], field="text")
    (tmp_path / "parquet").mkdir()
    parquet.write_table(pyarrow.table({"id": list(range(60)), "text": documents}), tmp_path / "parquet/a.parquet")

    drawn = [
        draw(FrequencyWanted((tmp_path / kind,), {}, n=25, words=20)) for kind in ("txt", "one", "many", "parquet")
    ]

    assert len({one.ids for one in drawn}) == 1
    assert {(one.total, one.counts.documents) for one in drawn} == {(drawn[0].total, 60)}
    assert len({p.document for p in drawn[0].passages}) > 15


def test_several_readers_draw_the_same_sample(tmp_path: Path) -> None:
    for number in range(3):
        write_jsonl(tmp_path / f"{number}.jsonl", [passage(n) for n in range(number, 90, 3)])

    one, two = (draw(FrequencyWanted((tmp_path,), {}, n=20, words=20, readers=readers)) for readers in (1, 2))

    assert one == two


@pytest.mark.parametrize("sign", ["word ", "A", "! ", "a. ", "\n", "... "])
def test_cutting_takes_time_linear_in_the_length_of_the_text(sign: str) -> None:
    def seconds(size: int) -> float:
        text = sign * (size // len(sign))
        started = time.process_time()
        for _ in passages_of(paragraphs_of(io.StringIO(text)), words=100):
            pass
        return time.process_time() - started

    seconds(1000)
    small, large = seconds(50_000), seconds(400_000)
    assert large < 40 * max(small, 0.005)  # 8 times the text; quadratic time would be 64 times as long
