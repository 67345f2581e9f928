"""Files for a model's repository on the Hugging Face hub: a card whose head holds tags and scores, and eval results."""

from collections.abc import Sequence
from typing import Any, Final

import yaml

from skillmix.exchange.public_models import PublicModel, public_catalog
from skillmix.grading.points import FULL_MARKS, METRICS
from skillmix.render import share
from skillmix.scores.cells import CellScore
from skillmix.scores.table import score_table

TAGS: Final = ("skillmix", "skill-composition")


def eval_results(scores: Sequence[CellScore], *, benchmark: str, source: str | None = None) -> list[dict[str, Any]]:
    """Entries of a file in `.eval_results/`: the full marks of every cell of one grader that has a value."""
    entries = []
    for score in scores:
        if score.metric != FULL_MARKS or score.value is None:
            continue
        task = f"{public_catalog(score.catalog)}_{score.setting}_k{score.k}".replace("-", "_")
        entry: dict[str, Any] = {"dataset": {"id": benchmark, "task_id": task}, "value": score.value}
        if source is not None:
            entry["source"] = {"url": source, "name": "skillmix"}
        entry["notes"] = _note(score)
        entries.append(entry)
    return entries


def _note(score: CellScore) -> str:
    interval = "" if score.low is None else f", 95 % interval {share(score.low)} to {share(score.high)}"
    complete = f"{score.complete} of {score.combinations} combinations"
    return f"full marks of the best text, {complete}{interval}; graded by {score.grader}"


def as_yaml(document: object) -> str:
    """YAML that any parser reads."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)


def model_card(
    model: PublicModel, scores: Sequence[CellScore], *, base: str | None = None, benchmark: str | None = None
) -> str:
    """The README.md of a model's repository: tags and scores in the head, and the same scores as a table."""
    known = [score for score in scores if score.value is not None]
    head: dict[str, Any] = {"pipeline_tag": "text-generation", "tags": list(TAGS)}
    if model.engine == "transformers":
        head["library_name"] = "transformers"
    if base is not None:
        head["base_model"] = base
    if known:
        head["model-index"] = [{"name": model.name, "results": [_index_entry(s, benchmark) for s in known]}]
    body = score_table(scores) if scores else "There are no scores."
    return (
        f"---\n{as_yaml(head)}---\n\n# {model.name}\n\n## Skill composition\n\n"
        "The share of combinations of k skills and a topic for which the model wrote a short text with full marks, "
        f"measured by skillmix, with 95 % intervals:\n\n{body}\n"
    )


def _index_entry(score: CellScore, benchmark: str | None) -> dict[str, Any]:
    """One score of the head; the hub shows name, value and data set."""
    catalog = public_catalog(score.catalog)
    name = f"skillmix {catalog}, {score.setting}, k = {score.k}"
    metric = {
        "type": score.metric,
        "name": f"{METRICS[score.metric].label}, graded by {score.grader}",
        "value": score.value,
    }
    return {
        "task": {"type": "text-generation", "name": "skill composition"},
        "dataset": {"type": benchmark or f"skillmix-{catalog}", "name": name},
        "metrics": [metric],
    }
