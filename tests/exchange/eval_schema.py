"""The facts of the published schemas 0.3.0 of Every Eval Ever as tables, and a small checker for them.

A form is a type, a set of allowed values, a pattern, a list of a form, or an object: required keys end in "!", and an
object with the key "…" is open. The tables were made by hand from the schemas of the package every-eval-ever 0.3.0; the
last test of test_share.py runs the package's own validator where it is installed.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

Form = Any
TEXT, NUMBER, WHOLE, TRUTH = str, float, int, bool
TEXTS = {"*": TEXT, "…": True}
"""An object whose values are all texts."""

_MODEL = {
    "name!": TEXT,
    "id!": TEXT,
    "developer": TEXT,
    "inference_platform": TEXT,
    "inference_engine": {"name": TEXT, "version": TEXT, "…": True},
    "additional_details!": {
        "deployment_type!": {"self_deployed", "externally_managed", "unknown"},
        "model_availability!": {"open_weights", "closed_weights", "unknown"},
        "*": TEXT,
        "…": True,
    },
    "…": True,
}
_SOURCE = {
    "dataset_name!": TEXT,
    "source_type!": {"url", "hf_dataset", "other"},
    "url": [TEXT],
    "hf_repo": TEXT,
    "hf_split": TEXT,
    "samples_number": WHOLE,
    "sample_ids": [TEXT],
    "additional_details": TEXTS,
    "…": True,
}
_METRIC = {
    "evaluation_description": TEXT,
    "metric_id": TEXT,
    "metric_name": TEXT,
    "metric_kind": TEXT,
    "metric_unit": TEXT,
    "metric_parameters": {"…": True},
    "lower_is_better!": TRUTH,
    "score_type": {"binary", "continuous", "levels"},
    "min_score": NUMBER,
    "max_score": NUMBER,
    "llm_scoring": {
        "judges!": [{"model_info!": _MODEL, "temperature": NUMBER, "weight": NUMBER, "additional_details": TEXTS}],
        "input_prompt!": TEXT,
        "aggregation_method": {"majority_vote", "average", "weighted_average", "median"},
        "additional_details": TEXTS,
        "…": True,
    },
    "additional_details": TEXTS,
    "…": True,
}
_DETAILS = {
    "score!": NUMBER,
    "details": TEXTS,
    "uncertainty": {
        "standard_error": {"value!": NUMBER, "method": TEXT, "…": True},
        "confidence_interval": {
            "lower!": NUMBER,
            "upper!": NUMBER,
            "confidence_level": NUMBER,
            "method": TEXT,
            "…": True,
        },
        "standard_deviation": NUMBER,
        "num_samples": WHOLE,
        "num_bootstrap_samples": WHOLE,
        "…": True,
    },
    "…": True,
}
_GENERATION = {
    "generation_args": {  # closed: the schema lists all arguments
        "temperature": NUMBER,
        "top_p": NUMBER,
        "top_k": NUMBER,
        "max_tokens": WHOLE,
        "execution_command": TEXT,
        "reasoning": TRUTH,
        "prompt_template": TEXT,
    },
    "additional_details": TEXTS,
    "…": True,
}
AGGREGATE = {
    "schema_version!": re.compile(r"0\.3\.0"),
    "evaluation_id!": TEXT,
    "evaluation_timestamp": TEXT,
    "retrieved_timestamp!": re.compile(r"\d+(\.\d+)?"),
    "source_metadata!": {
        "source_name": TEXT,
        "source_type!": {"documentation", "evaluation_run"},
        "source_organization_name!": TEXT,
        "evaluator_relationship!": {"first_party", "third_party", "collaborative", "other"},
        "additional_details": TEXTS,
        "…": True,
    },
    "eval_library!": {"name!": TEXT, "version!": TEXT, "additional_details": TEXTS, "…": True},
    "model_info!": _MODEL,
    "evaluation_results!": [
        {
            "evaluation_result_id": TEXT,
            "evaluation_name!": TEXT,
            "source_data!": _SOURCE,
            "evaluation_timestamp": TEXT,
            "metric_config!": _METRIC,
            "score_details!": _DETAILS,
            "generation_config": _GENERATION,
            "…": True,
        }
    ],
    "detailed_evaluation_results": {
        "format!": {"jsonl"},
        "file_path!": re.compile(
            r"data/[^/]+/[^/]+/[^/]+/[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}_samples\.jsonl"
        ),
        "hash_algorithm": {"sha256", "md5"},
        "checksum": TEXT,
        "total_rows": WHOLE,
        "…": True,
    },
}
SAMPLE = {
    "schema_version!": re.compile(r"0\.3\.0"),
    "evaluation_id!": TEXT,
    "model_id!": TEXT,
    "evaluation_name!": TEXT,
    "evaluation_result_id": TEXT,
    "sample_id!": TEXT,
    "sample_hash": re.compile("[0-9a-f]{64}"),
    "interaction_type!": {"single_turn", "multi_turn", "agentic"},
    "input!": {"raw!": TEXT, "reference!": [TEXT], "formatted": TEXT, "choices": [TEXT], "…": True},
    "output": {"raw!": [TEXT], "reasoning_trace": [TEXT], "…": True},
    "messages": [{"turn_idx!": WHOLE, "role!": TEXT, "content": TEXT, "reasoning_trace": TEXT, "…": True}],
    "answer_attribution!": [
        {
            "turn_idx!": WHOLE,
            "source!": TEXT,
            "extracted_value!": TEXT,
            "extraction_method!": TEXT,
            "is_terminal!": TRUTH,
            "…": True,
        }
    ],
    "evaluation!": {"score!": NUMBER, "is_correct!": TRUTH, "num_turns": WHOLE, "tool_calls_count": WHOLE, "…": True},
    "token_usage": {"input_tokens!": WHOLE, "output_tokens!": WHOLE, "total_tokens!": WHOLE, "…": True},
    "error": TEXT,
    "metadata": TEXTS,
}
EVAL_RESULT = {
    "dataset!": {"id!": re.compile(r"[\w.-]+/[\w.-]+"), "task_id!": TEXT, "revision": TEXT},
    "value!": NUMBER,
    "verifyToken": TEXT,
    "date": TEXT,
    "source": {"url!": re.compile("https://.+"), "name": TEXT, "user": TEXT, "org": TEXT},
    "notes": TEXT,
}
"""An entry of `.eval_results/*.yaml`, as the hub reads it."""


def faults(value: object, form: Form, place: str = "") -> list[str]:
    """Every place where a value does not have a form."""
    return list(_faults(value, form, place))


def _faults(value: object, form: Form, place: str) -> Iterator[str]:
    if isinstance(form, Mapping):
        yield from _object_faults(value, form, place)
    elif isinstance(form, list):
        if not isinstance(value, list):
            yield f"{place}: not a list"
        for number, one in enumerate(value if isinstance(value, list) else []):
            yield from _faults(one, form[0], f"{place}[{number}]")
    elif not _fits(value, form):
        yield f"{place}: {value!r} does not fit {form}"


def _fits(value: object, form: Form) -> bool:
    if isinstance(form, set):
        return value in form
    if isinstance(form, re.Pattern):
        return isinstance(value, str) and form.fullmatch(value) is not None
    if form is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return type(value) is form


def _object_faults(value: object, form: Mapping[str, Form], place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place}: not an object"
        return
    known = {key.removesuffix("!"): own for key, own in form.items() if key not in ("…", "*")}
    yield from (f"{place}.{key[:-1]}: missing" for key in form if key.endswith("!") and key[:-1] not in value)
    for key, own in value.items():
        if key in known:
            yield from _faults(own, known[key], f"{place}.{key}")
        elif "*" in form:
            yield from _faults(own, form["*"], f"{place}.{key}")
        elif "…" not in form:
            yield f"{place}.{key}: not in the schema"
