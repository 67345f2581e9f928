"""What `skillmix share` writes, checked against the facts of the published schemas and by the hub's own package."""

import json
import os
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.exchange.import_inspect import import_inspect
from skillmix.exchange.import_texts import import_texts
from skillmix.exchange.share import ShareChoices, SharedFiles, share
from skillmix.grading.points import METRICS
from skillmix.runs.run import open_run
from skillmix.scores.scoring import run_scores
from tests.exchange.eval_schema import AGGREGATE, EVAL_RESULT, SAMPLE, faults
from tests.exchange.replay import CASES, LOGS, direct_run

IDS = ("s=example/tuned-135m", "g=example/judge")
DEMO = Path(__file__).parents[2] / "src/skillmix/data/examples/demo.jsonl"


def shared(case: str, folder: Path, **choices: Any) -> SharedFiles:
    run = folder / "runs" / case
    if not run.exists():
        direct_run(case, folder / "runs")
    given = {"ids": IDS[:1] if case == "rules" else IDS, "benchmark": "example/skillmix", **choices}
    return share(str(run), folder / "out", ShareChoices("Example Lab", **given))


def aggregate_and_samples(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    (file,) = (folder / "every_eval_ever").rglob("*.json")
    (lines,) = (folder / "every_eval_ever").rglob("*.jsonl")
    rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    return json.loads(file.read_text(encoding="utf-8")), rows


def card_head(folder: Path, student: str = "s") -> dict[str, Any]:
    card = (folder / "hub" / student / "README.md").read_text(encoding="utf-8")
    head: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return head


@pytest.mark.parametrize("case", CASES)
def test_records_have_the_form_of_the_published_schemas(case: str, in_folder: Path) -> None:
    shared(case, in_folder)
    aggregate, samples = aggregate_and_samples(in_folder / "out")

    assert faults(aggregate, AGGREGATE) == []
    assert [fault for row in samples for fault in faults(row, SAMPLE)] == []
    assert samples


def test_the_checker_of_the_tests_finds_faults(in_folder: Path) -> None:
    """Otherwise the test above could not fail."""
    shared("model", in_folder)
    aggregate, samples = aggregate_and_samples(in_folder / "out")
    del aggregate["evaluation_id"]
    aggregate["surprise"] = 1
    aggregate["model_info"]["additional_details"]["deployment_type"] = "cloud"
    aggregate["evaluation_results"][0]["score_details"]["score"] = float("nan")
    aggregate["evaluation_results"][1]["score_details"]["details"]["complete"] = 3
    samples[0]["metadata"]["k"] = 2

    assert len(faults(aggregate, AGGREGATE)) == 5
    assert len(faults(samples[0], SAMPLE)) == 1


def test_results_are_the_scores_of_the_run_with_their_intervals(in_folder: Path) -> None:
    result = shared("model", in_folder)
    aggregate, _ = aggregate_and_samples(in_folder / "out")
    scores = {s.metric: s for s in run_scores(open_run(str(in_folder / "runs/model")))}

    found = {r["metric_config"]["metric_id"]: r["score_details"] for r in aggregate["evaluation_results"]}
    assert found.keys() == {f"skillmix.{name}" for name in METRICS}
    assert result.results == 3
    for name, score in scores.items():
        details = found[f"skillmix.{name}"]
        assert details["score"] == score.value
        assert details["details"]["ungraded_texts"] == str(score.ungraded)
        interval = details["uncertainty"].get("confidence_interval")
        assert (interval and (interval["lower"], interval["upper"])) == (score.low and (score.low, score.high))
    judge = aggregate["evaluation_results"][0]["metric_config"]["llm_scoring"]
    assert judge["judges"][0]["model_info"]["id"] == "example/judge"
    assert "{answer}" in judge["input_prompt"]


def test_the_mean_of_samples_is_the_score_of_one_try_where_all_texts_are_graded(in_folder: Path) -> None:
    shared("rules", in_folder)
    _, samples = aggregate_and_samples(in_folder / "out")
    scores = {s.metric: s for s in run_scores(open_run(str(in_folder / "runs/rules")))}

    for name, score in scores.items():
        own = [row["evaluation"]["score"] for row in samples if row["evaluation_result_id"].endswith(f"/{name}")]
        assert len(own) == 8
        assert sum(own) / len(own) == pytest.approx(score.one_try)


def test_an_ungraded_text_has_no_sample_under_the_metrics_that_it_leaves_open(in_folder: Path) -> None:
    shared("model", in_folder)
    _, samples = aggregate_and_samples(in_folder / "out")
    scores = {s.metric: s for s in run_scores(open_run(str(in_folder / "runs/model")))}

    for name, score in scores.items():
        rows = [row for row in samples if row["evaluation_result_id"].endswith(f"/{name}")]
        assert len(rows) == 6 - score.ungraded


def test_samples_hold_the_conversation_without_answers_in_the_input(in_folder: Path) -> None:
    shared("both", in_folder)
    _, samples = aggregate_and_samples(in_folder / "out")

    for row in samples:
        assert [message["role"] for message in row["messages"]] in (["user", "assistant"], ["user", "assistant"] * 2)
        assert row["input"]["raw"] == "\n\n".join(m["content"] for m in row["messages"] if m["role"] == "user")
        (answer,) = row["answer_attribution"]
        last = row["messages"][-1]
        assert answer["turn_idx"] == last["turn_idx"]
        assert answer["extracted_value"] in last["content"]
        recipe = json.dumps({"raw": row["input"]["raw"], "reference": []}, sort_keys=True, separators=(",", ":"))
        assert row["sample_hash"] == sha256(recipe.encode()).hexdigest()
    refused = [row for row in samples if row["metadata"]["status"] == "refused"]
    assert refused
    assert all(row["error"] and row["evaluation"]["score"] == 0.0 for row in refused)


def test_files_refer_to_each_other_and_have_the_same_names_the_next_time(in_folder: Path) -> None:
    first = shared("model", in_folder)
    aggregate, samples = aggregate_and_samples(in_folder / "out")
    again = shared("model", in_folder)

    details = aggregate["detailed_evaluation_results"]
    raw = (in_folder / "out/every_eval_ever" / details["file_path"]).read_bytes()
    assert details["checksum"] == sha256(raw).hexdigest()
    assert details["total_rows"] == len(samples) == first.samples
    assert {(row["evaluation_id"], row["model_id"]) for row in samples} == {
        (aggregate["evaluation_id"], "example/tuned-135m")
    }
    results = {r["evaluation_result_id"]: r["evaluation_name"] for r in aggregate["evaluation_results"]}
    assert {(row["evaluation_result_id"], row["evaluation_name"]) for row in samples} <= set(results.items())
    assert first.files == again.files


def test_eval_results_have_the_form_that_the_hub_reads(in_folder: Path) -> None:
    shared("model", in_folder, source="https://example.org/report")
    (file,) = (in_folder / "out/hub/s/.eval_results").iterdir()
    entries = yaml.safe_load(file.read_text(encoding="utf-8"))
    (score,) = [s for s in run_scores(open_run(str(in_folder / "runs/model"))) if s.metric == "full_marks"]

    assert [fault for entry in entries for fault in faults(entry, EVAL_RESULT)] == []
    assert [(e["dataset"], e["value"]) for e in entries] == [
        ({"id": "example/skillmix", "task_id": "paper_all_k2"}, score.value)
    ]
    hub = pytest.importorskip("huggingface_hub")
    (parsed,) = hub.parse_eval_result_entries(entries)
    assert hub.eval_result_entries_to_yaml([parsed]) == entries


def test_the_head_of_a_model_card_holds_tags_and_scores(in_folder: Path) -> None:
    shared("rules", in_folder)
    head = card_head(in_folder / "out")

    assert head["tags"] == ["skillmix", "skill-composition"]
    assert head["pipeline_tag"] == "text-generation"
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard.load(in_folder / "out/hub/s/README.md")
    assert {(r.metric_type, r.metric_value) for r in card.data.eval_results} == {
        (s.metric, s.value) for s in run_scores(open_run(str(in_folder / "runs/rules")))
    }


def test_without_a_benchmark_on_the_hub_there_are_no_eval_results(in_folder: Path) -> None:
    result = shared("rules", in_folder, benchmark=None)
    aggregate, _ = aggregate_and_samples(in_folder / "out")

    assert not any(".eval_results" in file for file in result.files)
    assert {r["source_data"]["source_type"] for r in aggregate["evaluation_results"]} == {"other"}
    assert faults(aggregate, AGGREGATE) == []


def test_imported_logs_and_imported_texts_can_be_shared(in_folder: Path) -> None:
    import_inspect([LOGS / "model.json"], "log")
    ids = ["mockllm-model=example/m", "mockllm-judge=example/j"]
    share("log", in_folder / "out", ShareChoices("Example Lab", ids=ids))
    of_log = aggregate_and_samples(in_folder / "out")
    import_texts(DEMO, "demo", catalog="paper")
    share("demo", in_folder / "out", ShareChoices("Example Lab", ids=["small=example/s"], students=["small"]))
    of_texts = aggregate_and_samples(in_folder / "out")

    for aggregate, samples in (of_log, of_texts):
        assert faults(aggregate, AGGREGATE) == []
        assert [fault for row in samples for fault in faults(row, SAMPLE)] == []
        assert "evaluation_timestamp" not in aggregate, "the time of an import is not that of the evaluation"


def test_private_folders_and_addresses_are_in_no_file(in_folder: Path) -> None:
    direct_run("model", in_folder / "runs")
    stored = in_folder / "runs/model/experiment.yaml"
    document = yaml.safe_load(stored.read_text(encoding="utf-8"))
    document["students"]["s"]["model"] = "openai:m@http://secret-host:8000/v1"
    document["graders"]["g"]["model"] = "local:/home/secret-user/model"
    stored.write_text(yaml.safe_dump(document), encoding="utf-8")

    shared("model", in_folder)

    written = b"".join(path.read_bytes() for path in (in_folder / "out").rglob("*") if path.is_file())
    assert b"secret" not in written


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"ids": ()}, "The public name of s is not known"),
        ({"ids": ("s=tuned",)}, "is not of the form STUDENT=OWNER/NAME"),
        ({"ids": ("s=example/..",)}, "is not of the form"),
        ({"ids": ("s=../../etc",)}, "is not of the form"),
        ({"ids": ("s=data/x",)}, "is not of the form"),
        ({"ids": ("t=a/b",)}, "has no student or grader 't'"),
        ({"students": ("t",)}, "no scores of a student 't'"),
        ({"benchmark": "skillmix"}, "is not a data set on the hub"),
        ({"source": "javascript:alert(1)"}, "is not the address of a page"),
        ({"rules": "paper"}, "follow the run's own rules"),
        ({"rules": "none"}, "There are no rules 'none'"),
    ],
)
def test_bad_choices_are_refused_in_words_and_nothing_is_written(
    choices: dict[str, Any], words: str, in_folder: Path
) -> None:
    with pytest.raises(UserError) as caught:
        shared("rules", in_folder, **choices)

    assert words in caught.value.message
    assert not (in_folder / "out").exists()


def test_a_folder_with_other_files_is_not_replaced(in_folder: Path) -> None:
    shared("rules", in_folder)
    (in_folder / "out/notes.txt").write_text("mine", encoding="utf-8")

    with pytest.raises(UserError, match=r"notes\.txt in it is not part"):
        shared("rules", in_folder)

    assert (in_folder / "out/notes.txt").read_text(encoding="utf-8") == "mine"


def test_the_command_lists_its_files(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    direct_run("rules", in_folder / "runs")
    arguments = ["share", "rules", "--output", "out", "--organization", "Example Lab", "--id", "s=example/m"]

    assert main([*arguments, "--no-samples", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["students"], result["results"], result["samples"]) == (["s"], 3, 0)
    assert all((in_folder / "out" / file).is_file() for file in result["files"])
    assert main(["share", "rules", "--output", "out", "--organization", " "]) == 2
    assert "organization is empty" in capsys.readouterr().err


def test_the_published_validator_accepts_the_files(in_folder: Path) -> None:
    """SKILLMIX_EEE is the Python of an environment with the package every-eval-ever, which needs Python 3.12."""
    python = os.environ.get("SKILLMIX_EEE")
    if python is None:
        pytest.skip("every-eval-ever needs Python 3.12 and many packages; set SKILLMIX_EEE to a Python that has it")
    for case in CASES:
        shared(case, in_folder)
        folder = in_folder / "out/every_eval_ever"
        files = [str(path.relative_to(folder)) for path in folder.rglob("*.json*")]

        done = subprocess.run(
            [python, "-m", "every_eval_ever", "validate", "--format", "json", *files],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count('"valid": true') == done.stdout.count('"warnings": []') == len(files) == 2
