"""The registry of tables and figures, and the sections that are built from it."""

import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from matplotlib.figure import Figure

import skillmix.report
from skillmix.report import contents
from skillmix.report.contents import contents_of
from skillmix.report.figures.style import new_figure
from skillmix.report.records import Report
from skillmix.report.registry import SECTIONS, FigureSpec, ReportTable, TableSpec, figure, specs_in, table

EMPTY = Report(runs=(), cells=())


def toy(name: str, *rows: str) -> ReportTable:
    return ReportTable(name, "Toy", "Note.", ("name",), tuple((row,) for row in rows))


def test_the_sections_hold_what_is_registered_by_order_and_leave_out_what_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @table(section="graders", order=20)
    def second(report: Report) -> ReportTable | None:
        return toy("second", "row")

    @table(section="graders", order=10)
    def first(report: Report) -> ReportTable | None:
        return toy("first", "row")

    @table(section="graders", order=12)
    def empty(report: Report) -> ReportTable | None:
        return toy("empty")

    @table(section="data", order=10)
    def missing(report: Report) -> ReportTable | None:
        return None

    @figure("drawn", "Drawn", section="graders", order=15, caption="C.", why_not="No data.")
    def drawn(report: Report) -> Figure | None:
        return new_figure(1, 1)

    @figure("not-drawn", "Not drawn", section="data", order=10, caption="C.", why_not="No data.")
    def not_drawn(report: Report) -> Figure | None:
        return None

    monkeypatch.setattr(contents, "TABLES", [second, first, empty, missing])
    monkeypatch.setattr(contents, "FIGURES", [not_drawn, drawn])

    made = contents_of(EMPTY, figures=True)

    found = {section: [item.name for item in items] for section, items in made.sections.items()}
    assert found == {"graders": ["first", "drawn", "second"]}
    assert made.gaps == ["Not drawn: No data."]
    assert [t.name for t in contents_of(EMPTY).tables] == ["first", "second"]


def modules_of(folder: str) -> list[ModuleType]:
    files = sorted((Path(skillmix.report.__path__[0]) / folder).glob("[a-z]*.py"))
    return [import_module(f"{skillmix.report.__name__}.{folder}.{file.stem}") for file in files]


def test_every_spec_of_every_module_is_in_the_contents() -> None:
    tables = specs_in(TableSpec, *modules_of("tables"), *modules_of("outcomes"))
    figures = specs_in(FigureSpec, *modules_of("figures"), *modules_of("outcomes"))

    assert len(tables) > 10 and len(figures) > 5
    assert set(map(id, tables)) == set(map(id, contents.TABLES))
    assert set(map(id, figures)) == set(map(id, contents.FIGURES))


MODULES = [module for folder in ("tables", "figures", "outcomes") for module in modules_of(folder)]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_a_public_function_that_makes_a_table_or_a_figure_of_a_report_is_registered(module: ModuleType) -> None:
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module.__name__ and not name.startswith("_"):
            hints = inspect.signature(function)
            returned = str(hints.return_annotation)
            makes_item = any(kind in returned for kind in ("ReportTable", "matplotlib.figure.Figure", "Drawing"))
            assert "report" not in hints.parameters or not makes_item, f"{name} has no section"


def test_no_two_tables_or_figures_of_a_section_have_the_same_order() -> None:
    positions = [(spec.section, spec.order) for spec in contents.TABLES]
    positions += {(drawing.section, drawing.order) for spec in contents.FIGURES for drawing in spec.drawings(EMPTY)}

    assert len(set(positions)) == len(positions)
    assert {section for section, _ in positions} == set(SECTIONS)
