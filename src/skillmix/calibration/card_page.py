"""The page of a calibration: it opens offline, and all text from outside is escaped."""

import json
from pathlib import Path

from skillmix import __version__
from skillmix.calibration.outcome import (
    CRITERION_HEADER,
    SKILL_HEADER,
    Calibration,
    criterion_rows,
    fact_rows,
    headline,
    skill_rows,
    undecided_line,
)
from skillmix.report.page import asset, page_environment
from skillmix.runs.folder_replacement import write_whole

_SIMULATED = "The grader is scripted: it simulates a model, and its errors are drawn at rates that its spec names."


def write_card(calibration: Calibration) -> Path:
    """Write card.html, its style and card.json, and return the path of the page."""
    folder = calibration.folder
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "report.css", asset("report.css"))
    document = json.dumps(calibration.as_json(), ensure_ascii=False, indent=1, allow_nan=False)
    write_whole(folder / "card.json", f"{document}\n")
    write_whole(folder / "card.html", card_page(calibration))
    return folder / "card.html"


def card_page(calibration: Calibration) -> str:
    """The page as HTML; it has no script."""
    without = calibration.without_disputed
    model = calibration.plan.settings.model
    return (
        page_environment()
        .from_string(asset("calibration.html"))
        .render(
            title=f"{model} on {calibration.plan.known.name}",
            headline=headline(calibration),
            simulated=_SIMULATED if model.startswith("scripted:") else "",
            undecided=undecided_line(calibration),
            criterion_header=CRITERION_HEADER,
            criteria=criterion_rows(calibration.card),
            undisputed=criterion_rows(without) if without else [],
            skill_header=SKILL_HEADER,
            skills=skill_rows(calibration.card),
            wrong=[text for text in calibration.measured.texts if text.wrong],
            wrong_points=len(calibration.wrong),
            facts=fact_rows(calibration),
            reasons=list(calibration.measured.facts.reasons.items()),
            version=__version__,
        )
    )
