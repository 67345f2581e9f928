"""TRL as a witness: on SmolLM2 its mask, its loss and its gradient norm are ours."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from skillmix.models.bundled import bundled_models
from skillmix.training.data.chat_formats import Turn
from skillmix.training.data.examples import Conversation, Encoder

CONVERSATIONS = [
    Conversation(
        "a", (Turn("Write 2 words.", "Answer: Salt, bread.\n\nExplanation: two."), Turn("Better?", "Bread 🙂."))
    ),
    Conversation("b", (Turn("Name a knot", " The bowline holds"), Turn("And one more, please", "A hitch.\n"))),
    Conversation("c", (Turn("naïve 漢字 — 100 %?", "Yes."), Turn("Sure?", "Sure, and more so than before: 1,024."))),
]


LAYERS = 4
"""Of thirty: every one is of the same kind, and loss and gradient depend on all that are there."""


def model_of(folder: Path) -> Any:
    """The model in a folder with its first layers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    model.model.layers = model.model.layers[:LAYERS]
    return model


@pytest.fixture(scope="module")
def smollm2() -> Path:
    folder = bundled_models()[0].folder
    if folder is None:
        pytest.skip("the bundled model is not in the cache: `skillmix models --fetch` brings it")
    return Path(folder)


@pytest.fixture(scope="module")
def trainer(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """TRL set up as its users would, with what an assistant writes marked in SmolLM2's own template."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer
        from trl import SFTConfig, SFTTrainer

        from datasets import Dataset

        tokenizer = AutoTokenizer.from_pretrained(smollm2)
        said = "message['content'] + '<|im_end|>'"
        assert f"+ {said}" in tokenizer.chat_template
        marked = f"{{% generation %}}{{{{ {said} }}}}{{% endgeneration %}}"
        either = f"{{% if message['role'] == 'assistant' %}}{marked}{{% else %}}{{{{ {said} }}}}{{% endif %}}"
        tokenizer.chat_template = tokenizer.chat_template.replace(f"+ {said}", f"}}}}{either}{{{{ ''")
        messages = [
            [
                {"role": r, "content": c}
                for t in conversation.turns
                for r, c in (("user", t.user), ("assistant", t.answer))
            ]
            for conversation in CONVERSATIONS
        ]
        config = SFTConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")),
            assistant_only_loss=True,
            per_device_train_batch_size=len(messages),
            max_steps=1,
            max_grad_norm=1e9,
            learning_rate=0.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        return SFTTrainer(
            model=model_of(smollm2),
            args=config,
            train_dataset=Dataset.from_list([{"messages": some} for some in messages]),
            processing_class=tokenizer,
        )


def test_the_mask_is_that_of_trl(trainer: Any, smollm2: Path) -> None:
    from transformers import AutoTokenizer

    ours = Encoder(AutoTokenizer.from_pretrained(smollm2)).examples(CONVERSATIONS, limit=1024, too_long="refuse")

    theirs = trainer.train_dataset
    for example, row in zip(ours.examples, theirs, strict=True):
        assert example.tokens.tolist() == list(row["input_ids"])
        learned = row["assistant_masks"] if "assistant_masks" in row else [label != -100 for label in row["labels"]]
        assert example.is_trained.tolist() == [bool(one) for one in learned]


def test_loss_and_gradient_norm_are_those_of_trl(trainer: Any, smollm2: Path) -> None:
    from transformers import AutoTokenizer

    from skillmix.training.step.engine import Engine
    from skillmix.training.step.optimizer import TrainingRecipe

    examples = Encoder(AutoTokenizer.from_pretrained(smollm2)).examples(CONVERSATIONS, limit=1024, too_long="refuse")
    recipe = TrainingRecipe(steps=1, batch=3, optimizer="sgd", precision="fp32", compile="off")

    ours = Engine(model_of(smollm2), recipe).step(0, examples.examples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()

    theirs = next(row for row in trainer.state.log_history if "grad_norm" in row)
    assert ours.answers == pytest.approx(float(theirs["loss"]), rel=1e-5)
    assert ours.norm == pytest.approx(float(theirs["grad_norm"]), rel=1e-5)
