"""The contents of a report: the sections of the page, and the functions that fill them."""

import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib.figure import Figure

import skillmix.report
from skillmix.report import contents
from skillmix.report.contents import contents_of
from skillmix.report.figures.style import new_figure
from skillmix.report.records import Report
from skillmix.report.registry import ITEMS, SECTIONS, Item, ReportTable

EMPTY = Report(runs=(), cells=())


def toy(name: str, *rows: str) -> list[ReportTable]:
    return [ReportTable(name, "Toy", "Note.", ("name",), ((row,),)) for row in rows]


def test_the_sections_hold_what_the_file_lists_in_its_order_and_leave_out_what_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: dict[str, Any] = {
        "rounds": lambda report: toy("second", "row"),
        "points-by-criterion": lambda report: toy("first", "row"),
        "templates": lambda report: toy("empty"),
        "lineage": lambda report: [],
    }

    def drawn(report: Report) -> Figure | None:
        return new_figure(1, 1)

    def not_drawn(report: Report) -> Figure | None:
        return None

    tables = [(item, made[item.table]) for item in ITEMS if item.table in made]
    figures = {item.figure: item for item in ITEMS if item.figure}
    monkeypatch.setattr(contents, "TABLES", tables)
    monkeypatch.setattr(contents, "FIGURES", [(figures["yield"], not_drawn), (figures["saturation"], drawn)])

    found = contents_of(EMPTY, figures=True)

    names = {section: [item.name for item in items] for section, items in found.sections.items()}
    assert names == {"skills": ["saturation"], "graders": ["first", "second"]}
    assert found.gaps == ["Yield per k: It needs data sets with conversations at two or more values of k."]
    assert [t.name for t in contents_of(EMPTY).tables] == ["first", "second"]


def modules_of(folder: str) -> list[ModuleType]:
    files = sorted((Path(skillmix.report.__path__[0]) / folder).glob("[a-z]*.py"))
    return [import_module(f"{skillmix.report.__name__}.{folder}.{file.stem}") for file in files]


@pytest.mark.parametrize(("folder", "listed"), [("tables", contents.TABLES), ("figures", contents.FIGURES)])
def test_every_function_for_a_table_or_a_figure_is_in_the_contents(folder: str, listed: list[tuple[Item, Any]]) -> None:
    makers = {
        function
        for module in modules_of(folder)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
        if name.endswith(f"_{folder.removesuffix('s')}") and list(inspect.signature(function).parameters) == ["report"]
    }

    assert len(makers) > 5
    assert {make for _, make in listed} == makers


def test_every_table_and_figure_has_a_title_and_stands_once() -> None:
    assert all(item.title and bool(item.table) != bool(item.figure) for item in ITEMS)
    assert all(item.note if item.table else item.caption and item.why_not for item in ITEMS)
    assert len({item.table for item in ITEMS if item.table}) == sum(bool(item.table) for item in ITEMS)
    assert len({item.figure for item in ITEMS if item.figure}) == sum(bool(item.figure) for item in ITEMS)
    assert {item.section for item in ITEMS} == set(SECTIONS)
