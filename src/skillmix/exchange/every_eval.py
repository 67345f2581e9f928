"""Records of a run in the form of Every Eval Ever: one file with the results of a model, and one line for each text.

The form is that of the schemas 0.3.0. `tests/exchange/eval_schema.py` holds their facts, and the tests check every
record against them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from skillmix import __version__
from skillmix.calls import GenerateKey, Reply, as_name, is_human
from skillmix.errors import UserError
from skillmix.experiment.experiment import GraderSettings
from skillmix.grading.points import METRICS, Ballot, StudentText, text_score
from skillmix.hashing import digest
from skillmix.models.specs import ModelSpec, parse_spec, provider_of
from skillmix.prompts.prompt_set import STUDENT_FILES, load_prompts
from skillmix.render import did_you_mean
from skillmix.runs.run import Run
from skillmix.runs.text_rows import TextFactsReader
from skillmix.runs.texts import run_records
from skillmix.scores.cells import CellScore

_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?<!\.)/[A-Za-z0-9_-][A-Za-z0-9._-]*(?<!\.)")
_NOT_A_FOLDER: Final = frozenset({"data", "con", "prn", "aux", "nul"})
"""Parts of an id that a collection of records cannot use as the name of a folder."""
_HOSTS: Final = ("openai", "anthropic", "google")
"""Prefixes of Inspect's names that are also the owners of the models."""
_ENGINES: Final = ("hf", "vllm", "sglang")
"""Prefixes of Inspect's names that stand before the id of a model."""


@dataclass(frozen=True, slots=True)
class PublicModel:
    """A model as records of other tools describe it; None where a run does not say."""

    id: str
    spec: str | None = None
    """Its spec without folders and addresses."""
    platform: str | None = None
    """The provider's own service that answered."""
    engine: str | None = None
    """The program that ran the weights."""
    deployment: str = "unknown"
    """Who ran the model: `self_deployed`, `externally_managed` or `unknown`."""

    @property
    def owner(self) -> str:
        """The part of the id before the slash."""
        return self.id.partition("/")[0]

    @property
    def name(self) -> str:
        """The part of the id after the slash."""
        return self.id.partition("/")[2]


def given_ids(options: Sequence[str], known: Iterable[str]) -> dict[str, str]:
    """The ids that the user gives as STUDENT=OWNER/NAME; one error reports every fault."""
    names = sorted(known)
    ids: dict[str, str] = {}
    faults = []
    for option in options:
        name, equals, model = option.partition("=")
        if not equals or not is_model_id(model):
            faults.append(f"{option!r} is not of the form STUDENT=OWNER/NAME.")
        elif name not in names:
            faults.append(f"The run has no student or grader {name!r}. {did_you_mean(name, names)}".rstrip())
        else:
            ids[name] = model
    if faults:
        raise UserError(" ".join(faults), hint=f"The run has {', '.join(names)}.")
    return ids


def is_model_id(text: str) -> bool:
    """Whether a text can be the id of a model.

    >>> is_model_id("ours/tuned-135m"), is_model_id("tuned-135m"), is_model_id("a/.."), is_model_id("a/b/c")
    (True, False, False, False)
    """
    return bool(_ID.fullmatch(text)) and not any(part.casefold() in _NOT_A_FOLDER for part in text.split("/"))


def public_models(specs: Mapping[str, str | None], given: Mapping[str, str]) -> dict[str, PublicModel]:
    """The public model of each name: what the user gives, or what the spec says; an error lists the names without."""
    models: dict[str, PublicModel] = {}
    missing = []
    for name, text in specs.items():
        spec = parse_spec(text) if text is not None else None
        model = given.get(name) or _id_of(spec)
        if model is None:
            missing.append(name)
        else:
            models[name] = _described(model, spec)
    if missing:
        raise UserError(
            f"The public name of {', '.join(missing)} is not known.",
            hint=f"Give it: --id {missing[0]}=OWNER/NAME, as on the hub.",
        )
    return models


def _id_of(spec: ModelSpec | None) -> str | None:
    """The id that a spec itself gives: only a provider's own service says whose model it is.

    >>> _id_of(parse_spec("openai:gpt-4o")), _id_of(parse_spec("openai:m@http://localhost:8000/v1"))
    ('openai/gpt-4o', None)
    >>> _id_of(parse_spec("inspect:vllm/meta-llama/Llama-3.1-8B")), _id_of(parse_spec("inspect:mockllm/model"))
    ('meta-llama/Llama-3.1-8B', None)
    """
    if spec is None or spec.address is not None:
        return None
    model = None
    if spec.provider == "inspect":
        prefix, _, rest = spec.name.partition("/")
        model = spec.name if prefix in _HOSTS else rest if prefix in _ENGINES else None
    elif provider_of(spec).key is not None:
        model = f"{spec.provider}/{spec.name}"
    return model if model is not None and is_model_id(model) else None


def _described(model: str, spec: ModelSpec | None) -> PublicModel:
    if spec is None:
        return PublicModel(model)
    provider = provider_of(spec)
    prefix = spec.name.partition("/")[0] if spec.provider == "inspect" else None
    # A folder or an address may be private, so records do not name it.
    shown = spec.provider if provider.has_checkpoint else f"{spec.provider}:{spec.name}"
    if provider.has_checkpoint or prefix in _ENGINES:
        engine = "transformers" if prefix == "hf" or provider.is_engine else prefix or spec.provider
        return PublicModel(model, shown, engine=engine, deployment="self_deployed")
    if (provider.key is not None and spec.address is None) or prefix in _HOSTS:
        return PublicModel(model, shown, platform=prefix or spec.provider, deployment="externally_managed")
    return PublicModel(model, shown)


def public_catalog(name: str | None) -> str:
    """The name of a catalogue without the folders that it lies in.

    >>> public_catalog("paper"), public_catalog("/home/me/my skills/"), public_catalog(None)
    ('paper', 'my-skills', 'unnamed')
    """
    return as_name(PurePath(name).name) if name else "unnamed"


SCHEMA_VERSION: Final = "0.3.0"
_KINDS: Final = {"full_marks": "pass_rate", "all_skills": "pass_rate"}
_LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who made the records; only the user knows."""

    organization: str
    relationship: str
    """Of the evaluator to the model: `first_party`, `third_party`, `collaborative` or `other`."""
    benchmark: str | None = None
    """A data set on the hub that holds the benchmark, as OWNER/NAME."""


@dataclass(frozen=True, slots=True)
class SharedConversation:
    """The turns of a text, as a journal stores them."""

    messages: tuple[tuple[str, str], ...]
    """Role and content, the last reply included; empty for a text that was imported without its conversation."""
    tokens: tuple[int, int] | None
    """Input and output tokens of all turns; None if some are unknown."""


@dataclass(frozen=True, slots=True)
class StudentCalls:
    """The conversations of one student, and when the last of them ended."""

    conversations: Mapping[tuple[str, int], SharedConversation]
    """By combination and generation."""
    last: datetime
    was_imported: bool
    """Whether some calls were made by another program, so that the times are those of the import."""


class EvalRecords:
    """The records of one student of a run."""

    def __init__(
        self,
        run: Run,
        student: str,
        scores: Sequence[CellScore],
        models: Mapping[str, PublicModel],
        provenance: Provenance,
    ) -> None:
        self._run = run
        self._student = student
        self._scores = [s for s in scores if s.student == student and s.value is not None]
        self._models = models
        self._provenance = provenance
        self._calls = student_calls(run, student)

    @property
    def model(self) -> PublicModel:
        """The student's public model."""
        return self._models[self._student]

    @property
    def collection(self) -> str:
        """The name under which records of this benchmark lie together."""
        return f"skillmix-{public_catalog(self._run.fact('catalog'))}"

    @property
    def folder(self) -> str:
        """The folder of the files, as the collection of records orders them."""
        return f"data/{self.collection}/{self.model.owner}/{self.model.name}"

    @property
    def uuid(self) -> str:
        """A name in the form of a UUID of version 4; the same records get the same name."""
        catalog = self._run.fact("catalog_hash")
        raw = digest("every eval", self._run.name, catalog, self._student, self.model.id, self._moment, size=16)
        return str(UUID(bytes=raw, version=4))

    @property
    def evaluation_id(self) -> str:
        """The id that connects the file of results with its samples."""
        return f"{self.collection}/{self.model.id}/{self._moment}"

    @property
    def _moment(self) -> int:
        return int(self._calls.last.timestamp())

    def aggregate(self, samples: Mapping[str, Any] | None, *, made_at: float) -> dict[str, Any]:
        """The file of results; `samples` describes the file of samples if there is one."""
        document: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "evaluation_id": self.evaluation_id,
            "retrieved_timestamp": str(made_at),
            "source_metadata": {
                "source_name": "skillmix",
                "source_type": "evaluation_run",
                "source_organization_name": self._provenance.organization,
                "evaluator_relationship": self._provenance.relationship,
            },
            "eval_library": {"name": "skillmix", "version": __version__},
            "model_info": model_info(self.model),
            "evaluation_results": [self._result(score) for score in self._scores],
        }
        if not self._calls.was_imported:
            document["evaluation_timestamp"] = str(self._moment)
        if samples is not None:
            document["detailed_evaluation_results"] = dict(samples)
        return document

    def sample_rows(self) -> Iterator[dict[str, Any]]:
        """A row for each text under each grader and metric; a text without a score under a metric has none there."""
        rules = self._run.rules()
        facts = TextFactsReader(self._run, rules)
        cells = {(s.setting, s.grader, s.k, s.metric) for s in self._scores}
        for ballot in run_records(self._run).ballots:
            text = ballot.text
            if text.student != self._student or is_human(ballot.grader):
                continue
            points = ballot.points(rules, self._run.phrases)
            names = [criterion.name for criterion in ballot.rubric(self._run.phrases).criteria]
            by_name = dict(zip(names, points, strict=True))
            for setting in facts.facts(text).settings:
                for metric in METRICS:
                    value = text_score(points, metric)
                    if value is not None and (setting, ballot.grader, text.combination.k, metric) in cells:
                        yield self._row(ballot, setting, metric, value, by_name)

    def _result(self, score: CellScore) -> dict[str, Any]:
        result = {
            "evaluation_result_id": _result_id(score.setting, score.k, score.grader, score.metric),
            "evaluation_name": self._name(score.setting, score.k),
            "source_data": self._source(),
            "metric_config": self._metric(score),
            "score_details": _score_details(score),
        }
        decoding = self._decoding()
        return result if decoding is None else {**result, "generation_config": decoding}

    def _name(self, setting: str, k: int) -> str:
        return f"{self.collection.replace('skillmix-', 'skillmix.', 1)}.{setting}.k{k}"

    def _source(self) -> dict[str, Any]:
        named = {
            "catalog_hash": self._run.fact("catalog_hash"),
            "partition": self._run.fact("partition"),
            "prompts": self._run.fact("prompts"),
            "seed": None if self._run.seed is None else str(self._run.seed),
        }
        details = {key: value for key, value in named.items() if value is not None}
        if self._provenance.benchmark is None:
            return {"dataset_name": self.collection, "source_type": "other", "additional_details": details}
        own = {"source_type": "hf_dataset", "hf_repo": self._provenance.benchmark}
        return {"dataset_name": self.collection, **own, "additional_details": details}

    def _metric(self, score: CellScore) -> dict[str, Any]:
        metric = METRICS[score.metric]
        config: dict[str, Any] = {
            "evaluation_description": f"Texts that show {score.k} skills on a topic: {metric.meaning}. The best text "
            "of a combination counts; the score is the mean over combinations.",
            "metric_id": f"skillmix.{metric.name}",
            "metric_name": metric.label,
            "metric_kind": _KINDS.get(metric.name, "mean_score"),
            "metric_unit": "proportion",
            "metric_parameters": {"k": score.k},
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0.0,
            "max_score": 1.0,
            "additional_details": {"grader": score.grader},
        }
        judge = self._judge(score.grader)
        return config if judge is None else {**config, "llm_scoring": judge}

    def _judge(self, grader: str) -> dict[str, Any] | None:
        """The model that grades; None if code grades alone, or if the run does not say who graded."""
        settings = self._run.known_experiment.graders.get(grader) if not self._run.is_imported else None
        if settings is None or settings.asked is None or grader not in self._models:
            return None
        prompts = load_prompts(self._run.experiment.prompts)
        judge = {"model_info": model_info(self._models[grader]), "temperature": settings.temperature}
        return {
            "judges": [judge],
            "input_prompt": prompts.templates[prompts.grader_file(settings.prompts)],
            **({"aggregation_method": "majority_vote"} if settings.votes > 1 else {}),
            "additional_details": _judge_details(settings),
        }

    def _decoding(self) -> dict[str, Any] | None:
        settings = None if self._run.is_imported else self._run.known_experiment.students.get(self._student)
        if settings is None:
            return None
        prompts = load_prompts(settings.prompts or self._run.experiment.prompts)
        given = {"temperature": settings.temperature, "top_p": settings.top_p, "max_tokens": settings.max_tokens}
        arguments = {key: value for key, value in given.items() if value is not None}
        template = "\n\n".join(prompts.templates[file] for file in STUDENT_FILES[: prompts.turns])
        details = {"turns": str(prompts.turns), "prompts": prompts.name, "prompts_hash": prompts.content_hash()}
        if settings.system is not None:
            details["system"] = settings.system
        return {"generation_args": {**arguments, "prompt_template": template}, "additional_details": details}

    def _row(
        self, ballot: Ballot, setting: str, metric: str, value: float, points: Mapping[str, bool | None]
    ) -> dict[str, Any]:
        text = ballot.text
        combination = text.combination
        talk = self._calls.conversations.get((combination.id, text.generation), SharedConversation((), None))
        row: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "evaluation_id": self.evaluation_id,
            "model_id": self.model.id,
            "evaluation_name": self._name(setting, combination.k),
            "evaluation_result_id": _result_id(setting, combination.k, ballot.grader, metric),
            "sample_id": combination.id,
            **_content(text, talk),
            "evaluation": {
                "score": value,
                "is_correct": value == 1.0,
                "num_turns": max(1, sum(role == "assistant" for role, _ in talk.messages)),
            },
            "metadata": {
                "k": str(combination.k),
                "skills": json.dumps(list(combination.skills), ensure_ascii=False),
                "topic": combination.topic,
                "generation": str(text.generation),
                "grader": ballot.grader,
                "points": json.dumps(points, ensure_ascii=False),
                "status": text.answer.status,
            },
        }
        if talk.tokens is not None:
            sent, written = talk.tokens
            row["token_usage"] = {"input_tokens": sent, "output_tokens": written, "total_tokens": sent + written}
        if text.answer.status == "refused":
            row["error"] = "the student refused, or its provider withheld the reply"
        return row


def _result_id(setting: str, k: int, grader: str, metric: str) -> str:
    return f"{setting}/k{k}/{grader}/{metric}"


def _judge_details(settings: GraderSettings) -> dict[str, str]:
    code = {"code": "skills with a checker are decided by code"} if settings.has_code else {}
    return {"rounds": str(settings.votes), "attempts": str(settings.attempts), **code}


def _score_details(score: CellScore) -> dict[str, Any]:
    counts = {
        "combinations": score.combinations,
        "complete": score.complete,
        "ungraded_texts": score.ungraded,
        "format_failures": score.format_failures,
        "bound_low": score.bound_low,
        "bound_high": score.bound_high,
        "one_try": score.one_try,
    }
    details = {name: str(value) for name, value in counts.items() if value is not None}
    uncertainty: dict[str, Any] = {"num_samples": score.complete}
    if score.low is not None and score.high is not None:
        method = "wilson" if METRICS[score.metric].is_binary else "bootstrap over combinations"
        interval = {"lower": score.low, "upper": score.high, "confidence_level": _LEVEL, "method": method}
        uncertainty["confidence_interval"] = interval
    return {"score": score.value, "details": details, "uncertainty": uncertainty}


def model_info(model: PublicModel) -> dict[str, Any]:
    """A model in the words of the schema; whether its weights are open is not ours to know."""
    details = {"deployment_type": model.deployment, "model_availability": "unknown"}
    if model.spec is not None:
        details["skillmix_spec"] = model.spec
    info: dict[str, Any] = {"name": model.name, "id": model.id, "developer": model.owner, "additional_details": details}
    if model.platform is not None:
        info["inference_platform"] = model.platform
    if model.engine is not None:
        info["inference_engine"] = {"name": model.engine}
    return info


def _content(text: StudentText, talk: SharedConversation) -> dict[str, Any]:
    """The input, the messages and where the graded text is among them."""
    asked = "\n\n".join(content for role, content in talk.messages if role != "assistant")
    raw = asked or f"Skills: {'; '.join(text.combination.skills)}\nTopic: {text.combination.topic}"
    address = json.dumps({"raw": raw, "reference": []}, sort_keys=True, separators=(",", ":"))
    given: dict[str, Any] = {
        "sample_hash": sha256(address.encode()).hexdigest(),
        "input": {"raw": raw, "reference": []},
    }
    attribution = {"extracted_value": text.answer.text, "extraction_method": "skillmix answer marker"}
    if not talk.messages:
        source = {"turn_idx": 0, "source": "output.raw", **attribution, "is_terminal": True}
        output = {"raw": [text.answer.text]}
        return {**given, "interaction_type": "single_turn", "output": output, "answer_attribution": [source]}
    messages = [
        {"turn_idx": place, "role": role, "content": content} for place, (role, content) in enumerate(talk.messages)
    ]
    last = len(messages) - 1
    source = {"turn_idx": last, "source": f"messages[{last}].content", **attribution, "is_terminal": True}
    return {**given, "interaction_type": "multi_turn", "messages": messages, "answer_attribution": [source]}


def student_calls(run: Run, student: str) -> StudentCalls:
    """The conversations of a student from the journal."""
    latest: dict[tuple[str, int], tuple[int, Any]] = {}
    tokens: dict[tuple[str, int], list[int | None]] = {}
    times, origins = [], set()
    with run.read() as journal:
        messages = journal.messages()
        for call in journal.calls("generate"):
            key = call.key
            if not isinstance(key, GenerateKey) or key.student != student or call.outcome is None:
                continue
            place = (key.combination, key.generation)
            times.append(call.at)
            origins.add(call.origin)
            reply = call.outcome if isinstance(call.outcome, Reply) else None
            counts = (reply.input_tokens, reply.output_tokens) if reply else (None, None)
            tokens.setdefault(place, []).extend(counts)
            if place not in latest or latest[place][0] < key.turn:
                latest[place] = key.turn, (call.messages, reply)
    made = {}
    for place, (_, (addresses, reply)) in latest.items():
        turns = [(messages[address].role, messages[address].content) for address in addresses]
        if turns or (reply and "imported-text" not in origins):
            turns.append(("assistant", reply.text if reply else ""))
        made[place] = SharedConversation(tuple(turns), _total(tokens[place]))
    return StudentCalls(made, max(map(datetime.fromisoformat, times)), origins != {"call"})


def _total(counts: Sequence[int | None]) -> tuple[int, int] | None:
    known = [count for count in counts if count is not None]
    return (sum(known[::2]), sum(known[1::2])) if len(known) == len(counts) else None
