"""Test whether the bundled model's token log-probabilities separate sense from nonsense: `python bench/fluency.py`.

The texts are those of `tests/checkers/labelled/self_taught.yaml`, with a reader's labels; all had full marks when they
were shipped. Texts with even numbers determine a threshold for each score; AUC and rates are those of the others. "all"
compares good texts with all others, "circles" with texts that repeat words or phrases. With `--chat`, a text follows
the beginning of the assistant's turn, otherwise only the first token.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import yaml

from skillmix.models.bundled import bundled_model
from skillmix.models.local.loading import read_checkpoint

LABELLED = Path(__file__).parent.parent / "tests" / "checkers" / "labelled" / "self_taught.yaml"
WINDOW = 5
MOST_GOOD_LOST = 0.05
Scores = dict[str, float]


def main(opening: str) -> None:
    """Print the AUC and the rates of each score."""
    entries = yaml.safe_load(LABELLED.read_text("utf-8"))
    score = _scorer(opening)
    scored = [(entry["label"], score(entry["text"])) for entry in entries]
    print("| score | against | AUC, choosing half | AUC, checking half | threshold | good lost | nonsense refused |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name in scored[0][1]:
        for against, labels in {"all": {"bad", "circles"}, "circles": {"circles"}}.items():
            halves = [_split(scored[half::2], name, labels) for half in (0, 1)]
            (good, _), (held_good, held_bad) = halves
            threshold = sorted(good)[int(MOST_GOOD_LOST * len(good))]
            print(
                f"| {name} | {against} | {_auc(*halves[0]):.2f} | {_auc(*halves[1]):.2f} | {threshold:.2f}"
                f" | {_below(held_good, threshold):.2f} | {_below(held_bad, threshold):.2f} |"
            )


def _scorer(opening: str) -> Callable[[str], Scores]:
    model, tokenizer = read_checkpoint(bundled_model("smollm2-135m"), dtype=torch.float32, device="cpu")
    model.eval()
    before = [tokenizer.bos_token_id, *tokenizer(opening, add_special_tokens=False)["input_ids"]]

    def score(text: str) -> Scores:
        ids = torch.tensor([[*before, *tokenizer(text, add_special_tokens=False)["input_ids"]]])
        with torch.inference_mode():
            logs = torch.log_softmax(model(input_ids=ids).logits[0, :-1], dim=-1)
        each = logs.gather(1, ids[0, 1:, None])[len(before) - 1 :, 0]
        windows = each.unfold(0, min(WINDOW, len(each)), 1).mean(dim=1)
        return {
            "mean": float(each.mean()),
            "sum": float(each.sum()),
            f"lowest mean of {WINDOW} tokens": float(windows.min()),
            "lowest token": float(each.min()),
            # Repetitive texts are easy to predict, so a high score can indicate a fault.
            "minus the mean": -float(each.mean()),
        }

    return score


def _split(scored: Sequence[tuple[str, Scores]], name: str, labels: set[str]) -> tuple[list[float], list[float]]:
    good = [scores[name] for label, scores in scored if label == "good"]
    return good, [scores[name] for label, scores in scored if label in labels]


def _auc(good: list[float], bad: list[float]) -> float:
    wins = sum((one > other) + 0.5 * (one == other) for one in good for other in bad)
    return wins / (len(good) * len(bad))


def _below(scores: list[float], threshold: float) -> float:
    return sum(score < threshold for score in scores) / len(scores)


if __name__ == "__main__":
    main("assistant\n" if "--chat" in sys.argv else "")
