"""What `skillmix share` writes, checked by the hub's own package where it is installed."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.exchange.import_inspect import import_inspect
from skillmix.exchange.import_texts import import_texts
from skillmix.exchange.share import SharedFiles, share
from skillmix.runs.run import open_run
from skillmix.scores.scoring import run_scores
from tests.exchange.replay import LOGS, direct_run

DEMO = Path(__file__).parents[2] / "src/skillmix/data/examples/demo.jsonl"


def shared(case: str, folder: Path, **choices: Any) -> SharedFiles:
    run = folder / "runs" / case
    if not run.exists():
        direct_run(case, folder / "runs")
    given = {"ids": ["s=example/tuned-135m"], "benchmark": "example/skillmix", **choices}
    return share(str(run), folder / "out", **given)


def card_head(folder: Path, student: str = "s") -> dict[str, Any]:
    card = (folder / "hub" / student / "README.md").read_text(encoding="utf-8")
    head: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return head


def test_eval_results_have_the_form_that_the_hub_reads(in_folder: Path) -> None:
    shared("model", in_folder, source="https://example.org/report")
    (file,) = (in_folder / "out/hub/s/.eval_results").iterdir()
    entries = yaml.safe_load(file.read_text(encoding="utf-8"))
    (score,) = [s for s in run_scores(open_run(str(in_folder / "runs/model"))) if s.metric == "full_marks"]

    (entry,) = entries
    assert set(entry) == {"dataset", "value", "source", "notes"}
    assert entry["dataset"] == {"id": "example/skillmix", "task_id": "paper_all_k2"}
    assert entry["value"] == score.value
    assert entry["source"] == {"url": "https://example.org/report", "name": "skillmix"}
    hub = pytest.importorskip("huggingface_hub")
    (parsed,) = hub.parse_eval_result_entries(entries)
    assert hub.eval_result_entries_to_yaml([parsed]) == entries


def test_the_head_of_a_model_card_holds_tags_and_scores(in_folder: Path) -> None:
    result = shared("rules", in_folder)
    head = card_head(in_folder / "out")
    scores = {(s.metric, s.value) for s in run_scores(open_run(str(in_folder / "runs/rules")))}

    assert result.results == len(scores) == 3
    assert head["tags"] == ["skillmix", "skill-composition"]
    assert head["pipeline_tag"] == "text-generation"
    (model,) = head["model-index"]
    assert model["name"] == "tuned-135m"
    assert {(m["type"], m["value"]) for r in model["results"] for m in r["metrics"]} == scores
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard.load(in_folder / "out/hub/s/README.md")
    assert {(r.metric_type, r.metric_value) for r in card.data.eval_results} == scores


def test_without_a_benchmark_on_the_hub_there_are_no_eval_results(in_folder: Path) -> None:
    result = shared("rules", in_folder, benchmark=None)

    assert result.files == ["hub/s/README.md"]


def test_imported_logs_and_imported_texts_can_be_shared(in_folder: Path) -> None:
    import_inspect([LOGS / "model.json"], "log")
    share("log", in_folder / "out", ids=["mockllm-model=example/m"])
    of_log = card_head(in_folder / "out", "mockllm-model")
    import_texts(DEMO, "demo", catalog="paper")
    share("demo", in_folder / "out", ids=["small=example/s"], students=["small"])
    of_texts = card_head(in_folder / "out", "small")

    assert all(head["model-index"][0]["results"] for head in (of_log, of_texts))


def test_other_rules_give_their_own_scores(in_folder: Path) -> None:
    shared("model", in_folder, rules="paper")
    run = open_run(str(in_folder / "runs/model"))
    (model,) = card_head(in_folder / "out")["model-index"]

    assert {(m["type"], m["value"]) for r in model["results"] for m in r["metrics"]} == {
        (s.metric, s.value) for s in run_scores(run, rules="paper") if s.value is not None
    }


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
        ({"ids": ()}, "The public name of s is unknown"),
        ({"ids": ("s=tuned",)}, "does not have the form STUDENT=OWNER/NAME"),
        ({"ids": ("s=example/..",)}, "does not have the form"),
        ({"ids": ("s=../../etc",)}, "does not have the form"),
        ({"ids": ("t=a/b",)}, "has no student 't'"),
        ({"students": ("t",)}, "no scores for the student 't'"),
        ({"benchmark": "skillmix"}, "is not the id of a data set"),
        ({"source": "javascript:alert(1)"}, "is not an https URL"),
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

    assert main(["share", "rules", "--output", "out", "--id", "s=example/m", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) == {"folder", "students", "results", "files", "left_out"}
    assert (result["students"], result["results"]) == (["s"], 3)
    assert all((in_folder / "out" / file).is_file() for file in result["files"])
