"""Test whether the likelihood under a small language model separates sense from nonsense: `python bench/likelihood.py`.

The score of a text is the mean log-probability, under the bundled model, of the least likely fifth of its tokens, with
a line break before the text. The threshold was chosen on `natural_dev.yaml` in `tests/checkers` and not on
`third.yaml`. For both files, the script prints the area under the ROC curve (AUC), and the recall and precision of full
marks if a text must also reach the threshold.
"""

from itertools import product
from math import ceil
from pathlib import Path
from typing import Any

import torch
from tests.checkers.natural import KINDS, Judged, judged

from skillmix.models.bundled import bundled_model
from skillmix.models.local.loading import read_checkpoint
from skillmix.scores.statistics.intervals import wilson_interval

MODEL, THRESHOLD, SHARE = "smollm2-135m", -12.0, 0.2
TEXTS = Path(__file__).parent.parent / "tests" / "checkers"


def main() -> None:
    """Print the figures."""
    model, tokenizer = read_checkpoint(bundled_model(MODEL), dtype=torch.float32, device="cpu")
    model.eval().requires_grad_(False)
    for name, file in (("half that was used", "natural_dev.yaml"), ("third set, unseen half", "third.yaml")):
        scored = [(one, score(one.text, model, tokenizer)) for one in judged(TEXTS / file)]
        by_kind = {kind: [value for one, value in scored if one.kind == kind] for kind in KINDS}
        aucs = [f"{kind} {_auc(by_kind['natural'], by_kind[kind]):.3f}" for kind in KINDS[1:] if by_kind[kind]]
        print(f"{name}: AUC of natural texts against {', '.join(aucs)}")
        _print_rates("rules", [one for one, _ in scored if not one.denied], by_kind)
        _print_rates(
            "rules and likelihood", [one for one, value in scored if not one.denied and value >= THRESHOLD], by_kind
        )


def score(text: str, model: Any, tokenizer: Any) -> float:
    """Return the score of one text."""
    opening = [tokenizer.bos_token_id, *tokenizer("\n", add_special_tokens=False)["input_ids"]]
    tokens = tokenizer(text.strip(), add_special_tokens=False)["input_ids"]
    ids = torch.tensor([[*opening, *tokens]])
    with torch.inference_mode():
        logits = model(input_ids=ids, logits_to_keep=len(tokens) + 1).logits[0, :-1]
    logs = torch.log_softmax(logits, dim=-1).gather(1, ids[0, len(opening) :, None])[:, 0]
    return round(float(logs.sort().values[: ceil(SHARE * len(tokens))].mean()), 2)


def _print_rates(name: str, full: list[Judged], by_kind: dict[str, list[float]]) -> None:
    counts = {kind: sum(one.kind == kind for one in full) for kind in KINDS}
    natural, all_natural = counts["natural"], len(by_kind["natural"])
    recall, precision = (wilson_interval(natural / of, of) for of in (all_natural, len(full)))
    print(
        f"  {name}: full marks for {counts}; recall {natural / all_natural:.3f} [{recall[0]:.3f}, {recall[1]:.3f}], "
        f"precision {natural / len(full):.3f} [{precision[0]:.3f}, {precision[1]:.3f}]"
    )


def _auc(good: list[float], bad: list[float]) -> float:
    return sum((one > other) + 0.5 * (one == other) for one, other in product(good, bad)) / (len(good) * len(bad))


if __name__ == "__main__":
    main()
