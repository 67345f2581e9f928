"""Rewards agree with `rules:`, cannot be had by copying the prompt, and TRL trains with them."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

import skillmix
from skillmix.catalog.files import load_catalog
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.rewards import full_marks, partial_credit, skill_fraction
from tests.checkers.own_catalog import write_catalog

ROOT = Path(__file__).parents[1]
WITNESSES: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests/checkers/witnesses.yaml").read_text(encoding="utf-8"))
GOOD = "We raked the autumn leaves for three days, no, four days, before the wind brought them back."
ASKED: dict[str, Any] = {"skills": [["self-correction", "diacope"]], "topic": ["Autumn leaves"]}


def test_full_marks_are_those_of_the_rules_grader() -> None:
    catalog = load_catalog("verifiable")
    some = WITNESSES[:20]
    texts = [w["text"] for w in some] + [w["text"] for w in some[1:]] + [some[0]["text"]]  # right ones, then others'
    skills = [w["skills"] for w in some] * 2
    topics = [w["topic"] for w in some] * 2

    rewards = full_marks([f"Answer: {text}" for text in texts], skills, topics)

    expected = []
    for text, names, topic in zip(texts, skills, topics, strict=True):
        combination = skillmix.combination_of(names, topic)
        expected.append(skillmix.score(text, combination, [skillmix.check(text, combination, catalog)])["full_marks"])
    assert rewards == expected
    assert 1.0 in rewards and 0.0 in rewards


def test_completions_may_be_conversations_and_further_columns_are_ignored() -> None:
    messages = [{"role": "assistant", "content": f"Answer: {GOOD}\n\nExplanation: none."}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": f"Answer: {GOOD}"}]}]

    further: dict[str, Any] = {
        "prompts": [[]],
        "completion_ids": [[1]],
        "k": [2],
        "trainer_state": object(),
        "catalog": ["verifiable"],
    }

    assert full_marks([messages], **ASKED, **further) == [1.0]
    assert partial_credit([parts], **ASKED) == [1.0]
    assert full_marks([[]], **ASKED) == [0.0]
    assert full_marks([], [], []) == []


def test_partial_credit_counts_points_of_texts_that_make_sense() -> None:
    half = "I waited four days for the beautiful autumn leaves on the mountain."
    long = f"{half} I slept. I ate."
    nonsense = "Leaves autumn no days the four of three mountain days a beautiful."
    texts = [GOOD, half, long, nonsense, "", "Answer: "]

    rewards = partial_credit(texts, [ASKED["skills"][0]] * 6, [ASKED["topic"][0]] * 6)

    assert rewards == [1.0, 0.6, 0.4, 0.0, 0.0, 0.0]
    assert skill_fraction(texts, [ASKED["skills"][0]] * 6, [ASKED["topic"][0]] * 6) == [1.0, 0, 0, 0, 0, 0]


def test_copying_the_prompt_earns_nothing(in_folder: Path) -> None:
    """The prompt as a whole, its definitions, its examples, and an example with one word changed."""
    main(["prompts", "verifiable", "--dataset", "p.jsonl", "--k", "1", "2", "--n", "40", "--setting", "all"])
    rows = [json.loads(line) for line in Path("p.jsonl").read_text(encoding="utf-8").splitlines()]
    catalog = load_catalog("verifiable")
    completions, skills, topics = [], [], []
    for row in rows:
        prompt = row["prompt"][-1]["content"]
        definitions = [catalog.skill(name).definition for name in row["skills"]]
        examples = [catalog.skill(name).example for name in row["skills"]]
        topic = row["topic"].lower()
        copies = [prompt, " ".join(definitions), " ".join(examples), f"{examples[0]} It is about {topic}."]
        copies += [f"Answer: {text}" for text in copies]
        completions += copies
        skills += [row["skills"]] * len(copies)
        topics += [row["topic"]] * len(copies)

    assert len(completions) == 640
    assert set(full_marks(completions, skills, topics)) == {0.0}
    assert set(partial_credit(completions, skills, topics)) == {0.0}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"skills": ["simile"], "topic": ["Picnics"]}, "are a string: 'simile'"),
        ({"skills": [["simile"], ["simile"]], "topic": ["Picnics"]}, "2 lists of skills"),
        ({"skills": [["similie"]], "topic": ["Picnics"]}, "No skill named 'similie'"),
        ({"skills": [["simile"]], "topic": ["Picknicks"]}, "Picknicks"),
        ({"skills": [["metaphor"]], "topic": ["Sewing"], "catalog": "paper"}, "no checker exists for"),
    ],
)
def test_a_wrong_column_is_an_error_and_no_reward(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        full_marks(["Answer: x"], **columns)


def test_a_catalogue_with_code_of_its_own_needs_trust(tmp_path: Path) -> None:
    folder = str(write_catalog(tmp_path))
    asked: dict[str, Any] = {"skills": [["color pair"]], "topic": ["Ships"], "catalog": [folder]}

    with pytest.raises(UserError, match="has code that you have not trusted"):
        full_marks(["Answer: The red and blue ship left the harbour at dawn."], **asked)


def test_prompts_have_the_columns_and_no_combination_of_an_evaluation(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra `test` is not installed")
    assert main(["prompts", "verifiable", "--dataset", "p.parquet", "--k", "1", "3", "--n", "30", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 60
    main(["prompts", "verifiable", "--dataset", "p.jsonl", "--k", "1", "3", "--n", "30"])

    rows = [json.loads(line) for line in Path("p.jsonl").read_text(encoding="utf-8").splitlines()]

    assert datasets.Dataset.from_parquet("p.parquet", cache_dir="cache").to_list() == rows
    catalog = load_catalog("verifiable")
    train = set(catalog.partition().side("train").skills)
    evaluated = {c.id for k in (1, 3) for c in skillmix.draw(catalog, k=k, n=60, setting="train")}
    for row in rows:
        assert set(row["skills"]) <= train and len(row["skills"]) == row["k"]
        assert row["combination"] not in evaluated
        assert row["prompt"][-1]["content"].endswith("two sentences." if row["k"] == 3 else "one sentence.")


def test_worked_examples_are_earlier_turns_of_the_prompt(in_folder: Path) -> None:
    main(["prompts", "verifiable", "--dataset", "p.jsonl", "--k", "1", "--n", "1", "--prompts", "worked"])

    (row,) = [json.loads(line) for line in Path("p.jsonl").read_text(encoding="utf-8").splitlines()]

    roles = [message["role"] for message in row["prompt"]]
    assert len(roles) > 3 and roles == [("user", "assistant")[i % 2] for i in range(len(roles))]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dataset", "p.csv"], ".parquet"),
        (["--dataset", "there.jsonl"], "exists"),
        (["--dataset", "p.jsonl", "--skills", "simile"], "--skills"),
        (["--dataset", "p.jsonl", "--k", "99"], "k = 99"),
        (["--k", "2", "--skills", "simile", "--topic", "Picnics"], "--dataset"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    in_folder: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("there.jsonl").write_text("mine", encoding="utf-8")

    assert main(["prompts", "verifiable", *options]) == 2

    assert words in capsys.readouterr().err
    assert Path("there.jsonl").read_text(encoding="utf-8") == "mine"
    assert [path.name for path in Path.cwd().iterdir()] == ["there.jsonl"]


def test_a_note_names_skills_that_no_code_checks(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompts", "paper", "--dataset", "p.jsonl", "--n", "1", "--k", "1"]) == 0

    assert "skillmix.rewards reject them" in capsys.readouterr().err


HALF = "I waited four days for the beautiful autumn leaves on the mountain."
WORDS = ["<unk>", "</s>", GOOD, HALF, "Leaves.", "No.", "The leaves autumn of."]


def write_model_of_sentences(folder: Path) -> Path:
    """A small model whose words are whole sentences, so that one word is an answer and learning takes a few steps."""
    torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>", pad_token="</s>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(WORDS), eos_token_id=1, pad_token_id=1, num_key_value_heads=1, **size)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def probability_of_good(model: Any) -> float:
    import torch

    with torch.no_grad():
        return float(model(torch.tensor([[0]])).logits[0, -1].softmax(-1)[WORDS.index(GOOD)])


def test_trl_takes_ten_steps_with_the_script_of_the_guide_and_learns(in_folder: Path) -> None:
    pytest.importorskip("trl", reason="the extra `test` is not installed")
    pytest.importorskip("datasets", reason="the extra `test` is not installed")
    guide = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    script, _ = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    for shown, here in (("max_completion_length=48", "max_completion_length=1"), ("1e-5", "5e-2")):
        assert shown in script
        script = script.replace(shown, here)
    row = {"prompt": [{"role": "user", "content": "Write."}], "skills": ASKED["skills"][0], "topic": ASKED["topic"][0]}
    Path("prompts.jsonl").write_text((json.dumps(row) + "\n") * 8, encoding="utf-8")
    scope: dict[str, Any] = {"MODEL": str(write_model_of_sentences(in_folder / "model"))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM

        before = probability_of_good(AutoModelForCausalLM.from_pretrained(scope["MODEL"]))
        exec(script, scope)

    history = [step for step in scope["trainer"].state.log_history if "reward" in step]
    assert [step["step"] for step in history] == list(range(1, 11))
    assert max(step["rewards/full_marks/mean"] for step in history) > 0
    assert any(0 < step["rewards/partial_credit/mean"] < 1 for step in history)
    assert probability_of_good(scope["trainer"].model) > max(0.5, 2 * before)


def test_the_command_of_the_guide_writes_the_prompts_of_its_script(in_folder: Path) -> None:
    guide = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    command = re.search(r"\$ skillmix (prompts .+?) +#", guide)

    assert command and main(command[1].split()) == 0

    assert len(Path("prompts.jsonl").read_text(encoding="utf-8").splitlines()) == 100
