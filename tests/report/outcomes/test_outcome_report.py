"""The report of a run of outcomes: every number worked out again, no tables of scores, texts with their outcome."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from skillmix.commands import main
from skillmix.report import contents
from skillmix.report.records import ReportOptions
from skillmix.report.write import report
from tests.report.cases import run_document
from tests.report.conftest import inside
from tests.report.outcomes.expected_outcomes import NAMES, OUTCOME_TABLES, SecondOutcomes
from tests.report.test_numbers import assert_table

DOCUMENT: dict[str, Any] = {
    "name": "probes",
    "catalog": "safety",
    "prompts": "safety",
    "students": {
        "before": {"model": "scripted:student?complies=0.1&rise=0.1&evades=0.1&overrefuses=0.15"},
        "after": {"model": "scripted:student?complies=0.4&rise=0.2&evades=0.1&empty=0.05&refusal=0.05"},
    },
    "graders": {
        "judge": {
            "model": "scripted:grader?noise=0.05&unreadable=0.3",
            "rounds": 3,
            "prompts": "outcome",
            "attempts": 1,
        }
    },
    "steps": [
        {
            "name": "eval",
            "stage": "evaluate",
            "students": ["before", "after"],
            "graders": ["judge"],
            "settings": ["all"],
            "k": [0, 1, 3],
            "combinations": 60,
            "generations": 1,
        }
    ],
}


class Made:
    """A report with its drawings."""

    def __init__(self, folder: Path) -> None:
        self.figures: dict[str, Any] = {}
        drawings = contents.drawings

        def watched(of: Any) -> Any:
            for drawing, figure in drawings(of):
                if figure is not None:
                    self.figures[drawing.name] = figure
                yield drawing, figure

        with inside(folder), pytest.MonkeyPatch.context() as patch:
            path = folder / "probes.yaml"
            path.write_text(json.dumps(DOCUMENT), encoding="utf-8")
            assert main(["run", str(path)]) == 1  # some texts stay undecided
            patch.setattr(contents, "drawings", watched)
            self.folder = report(["probes"], output=folder / "report", options=ReportOptions()).page.parent
        self.second = SecondOutcomes(folder / "runs" / "probes")

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.folder / "tables" / f"{name}.csv", dtype={"k": "Int64"})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("outcomes"))


@pytest.mark.parametrize("name", ["outcomes", "outcome-bounds"])
def test_every_share_and_bound_is_worked_out_again(made: Made, name: str) -> None:
    rows = OUTCOME_TABLES[name](made.second)

    assert_table(made.table(name), rows)
    assert any(row["undecided"] for row in OUTCOME_TABLES["outcomes"](made.second))


def test_every_difference_is_worked_out_again(made: Made) -> None:
    printed, rows = made.table("outcomes-compared"), OUTCOME_TABLES["outcomes-compared"](made.second)

    assert list(printed.columns) == list(rows[0])
    assert len(printed) == len(rows) == 2 * 3 * 3
    by_key = {(r["topics"], r["k"], r["outcome"]): r for r in rows}
    for row in printed.to_dict("records"):
        other = by_key[row["topics"], row["k"], row["outcome"]]
        assert row["students"] == other["students"] and row["combinations"] == other["combinations"]
        assert row["difference"] == pytest.approx(other["difference"])
        assert row["p"] == pytest.approx(other["p"]) and row["p, corrected"] == pytest.approx(other["p, corrected"])
        if not np.isnan(float(other["difference low"])):
            # A bootstrap, and t quantiles where the other way has the normal ones.
            most = 2.5 / float(other["combinations"]) + 0.02
            assert row["difference low"] == pytest.approx(other["difference low"], abs=most)
            assert row["difference high"] == pytest.approx(other["difference high"], abs=most)


def test_the_figure_draws_the_shares_and_says_them_in_words(made: Made) -> None:
    panels = {axes.get_title(loc="left"): axes for axes in made.figures["outcomes"].axes}

    assert list(panels) == [
        f"{student}, {topics}" for student in ("before", "after") for topics in ("probes", "controls")
    ]
    page = (made.folder / "index.html").read_text(encoding="utf-8")
    (words,) = re.findall(r'alt="(Outcomes against k[^"]*)"', page)
    for title, axes in panels.items():
        student, topics = title.split(", ")
        for outcome, bars in zip(NAMES, axes.containers, strict=True):
            x, y = bars.lines[0].get_data()
            assert [round(k) for k in x] == [0, 1, 3]
            for k, value in zip((0, 1, 3), y, strict=True):
                share, low, high = made.second.share(student, topics, k, outcome)
                assert value == pytest.approx(share)
                place = [round(one) for one in x].index(k)
                drawn = bars.lines[2][0].get_segments()[place]
                assert [drawn[0][1], drawn[1][1]] == [pytest.approx(low), pytest.approx(high)]
                assert f"{share:.2f}".removeprefix("0") + f" at k = {k}" in words


def test_no_table_or_figure_of_scores_is_shown_for_outcomes(made: Made) -> None:
    tables = {file.stem for file in (made.folder / "tables").glob("*.csv")}

    assert tables == {*OUTCOME_TABLES, "unreadable", "calls-and-cost", "where-the-time-went"}
    assert [file.stem for file in (made.folder / "figures").glob("*.svg")] == ["outcomes"]
    page = (made.folder / "index.html").read_text(encoding="utf-8")
    assert 'id="safety"' in page and 'id="scores"' not in page and 'id="skills"' not in page
    missing = page[page.index('id="missing"') : page.index('id="runs"')]
    assert "Agreement" not in missing and "It needs graded texts" not in missing and "in no cell" not in missing


def test_the_first_screen_says_how_often_probes_and_controls_are_refused(made: Made) -> None:
    page = (made.folder / "index.html").read_text(encoding="utf-8")
    shares = {k: made.second.share("before", "probes", k, "refuses")[0] for k in (0, 3)}
    refused = made.second.share("before", "controls", 3, "refuses")[0]

    assert f"before refuses {shares[0]:.0%}" in page
    assert f"It refuses {refused:.0%} of the controls with 3 skills" in page
    assert "simulated" in page


def test_each_share_leads_to_its_texts(made: Made) -> None:
    page = (made.folder / "index.html").read_text(encoding="utf-8")

    assert (
        "texts.html#a=probes%2Fbefore&amp;grader=probes%2Fjudge&amp;setting=all&amp;k=0&amp;outcome=refuses&amp;request=probes"
        in page
    )


def test_the_data_of_the_texts_page_have_outcomes_and_the_words_of_graders(made: Made) -> None:
    index = (made.folder / "data" / "index.js").read_text(encoding="utf-8")
    texts = (made.folder / "data" / "texts-0.js").read_text(encoding="utf-8")

    assert '"outcome_runs":["probes"]' in index
    assert "the grader: \\u201cthe reply has the code word for it.\\u201d" in index
    assert "the student refused to answer" in index
    assert re.search(r'\[0,"010"', texts) and re.search(r'\[0,"[01?]*\?[01?]*"', texts)


def test_a_report_of_points_has_no_section_on_safety(tmp_path: Path) -> None:
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"], "k": [1, 2]}
    document = {
        "name": "points",
        "students": {"s": {"model": "scripted:student"}},
        "graders": {"g": {"model": "scripted:grader", "rounds": 1}},
        "steps": [{**step, "combinations": 3, "generations": 1}],
    }
    with inside(tmp_path):
        run_document(tmp_path, document)
        assert main(["report", "points", "--no-figures"]) == 0

    folder = tmp_path / "runs" / "points" / "report"
    assert 'id="safety"' not in (folder / "index.html").read_text(encoding="utf-8")
    assert "outcome_runs" not in (folder / "data" / "index.js").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments", [["graders", "probes"], ["annotate", "probes", "--rater", "ann", "--export", "sheet.csv"]]
)
def test_a_run_of_outcomes_has_no_cards_and_no_task_for_people(
    made: Made, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with inside(made.folder.parent):
        assert main(arguments) == 2
    assert "outcomes" in capsys.readouterr().err
