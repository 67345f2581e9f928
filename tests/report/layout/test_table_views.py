"""Tables as the page shows them."""

from skillmix.report.page import TableBlock, blocks_of
from skillmix.report.registry import LONG, Entry, Estimate, ReportTable, count

KS = (1, 2, 3, 4, 5, 6)
METRICS = ("full marks", "woven", "cut")


def wide(name: str, part: str, ks: tuple[int, ...] = KS) -> ReportTable:
    values: list[Entry] = [e for k in ks for e in (Estimate(k / 10), Estimate(None), count(k))]
    return ReportTable(
        name=name,
        title="Scores",
        note="Note.",
        columns=("student", *(m for _ in ks for m in METRICS)),
        rows=(("base", *values),),
        groups=(("", 1), *((f"k = {k}", len(METRICS)) for k in ks)),
        family="scores",
        part=part,
    )


def block_of(*tables: ReportTable) -> TableBlock:
    (block,) = blocks_of(tables)
    assert isinstance(block, TableBlock)
    return block


def test_a_wide_table_shows_one_metric_at_a_time_and_no_metric_that_is_unknown() -> None:
    block = block_of(wide("scores-all", "all"))

    assert [view.label for view in block.views] == ["full marks", "cut"]
    assert block.views[0].columns == ("student", *(f"k = {k}" for k in KS))
    assert [e.text for e in block.views[0].bodies[0].rows[0][1:]] == [f".{k}0" for k in KS]  # type: ignore[union-attr]
    assert [e.text for e in block.views[1].bodies[0].rows[0][1:]] == [str(k) for k in KS]  # type: ignore[union-attr]


def test_settings_with_different_k_share_one_table() -> None:
    block = block_of(wide("scores-train", "train", (1, 10)), wide("scores-all", "all", (2, 10)))

    view = block.views[0]
    assert view.columns == ("student", "k = 1", "k = 2", "k = 10")
    assert [body.heading for body in view.bodies] == ["setting train", "setting all"]
    assert [body.id for body in view.bodies] == ["scores-train", "scores-all"]
    assert view.bodies[0].rows[0][2] == "–" and view.bodies[1].rows[0][1] == "–"
    assert block.files == ("scores-train", "scores-all")


def test_with_one_k_all_metrics_stand_side_by_side() -> None:
    block = block_of(wide("scores-all", "all", (3,)))

    (view,) = block.views
    assert view.columns == ("student", "full marks", "cut")
    assert view.groups == (("", 1), ("k = 3", 2))


def test_a_long_table_shows_its_first_rows_unless_it_is_folded_away() -> None:
    rows: tuple[tuple[Entry, ...], ...] = tuple((f"skill {n}",) for n in range(LONG + 1))
    table = ReportTable("skills", "Skills", "Note.", ("skill",), rows)

    assert block_of(table).is_long
    assert not block_of(ReportTable("skills", "Skills", "Note.", ("skill",), rows, is_detail=True)).is_long
    assert not block_of(ReportTable("skills", "Skills", "Note.", ("skill",), rows[:3])).is_long
