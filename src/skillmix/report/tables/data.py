"""Tables of data sets, lineages, templates, calls and their costs, and the published figures beside these runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from skillmix.catalog.catalog import SETTINGS
from skillmix.models.lineage import short_name
from skillmix.report.records import Report, RunFacts, StudentKey
from skillmix.report.registry import LONG, Count, Dollars, Entry, Estimate, ReportTable, Seconds, table, tables
from skillmix.report.tables.scores import common_k, without_common
from skillmix.scores.cells import Cell


@table(section="data", order=20)
def yield_table(report: Report) -> ReportTable | None:
    """How many generated conversations had full marks."""
    rows: list[tuple[Entry, ...]] = []
    for run, facts in report.datasets:
        name = facts.name if len(report.runs) == 1 else f"{run}: {facts.name}"
        for k, y in facts.yields.items():
            rate = Estimate(y.full_marks / y.written if y.written else None)
            rows.append((name, ", ".join(facts.writers) or "–", str(k), Count(y.written), Count(y.full_marks), rate))
    if not rows:
        return None
    return ReportTable(
        name="yield",
        title="Yield: conversations with full marks",
        note="Conversations written for a data set, and how many had full marks; the set may take fewer of them.",
        columns=("data set", "writer", "k", "written", "full marks", "share"),
        rows=tuple(rows),
    )


@table(section="data", order=10)
def lineage_table(report: Report) -> ReportTable | None:
    """The base and the training data of every tuned student."""
    if not report.lineages:
        return None
    rows: list[tuple[Entry, ...]] = [
        (
            report.label(*key),
            x.base,
            ", ".join(_data_name(report, key[0], address) for address in x.datasets) or "–",
            short_name(x.k),
            Count(x.rows),
            Count(len(x.combinations)),
            Count(x.steps),
            x.partition or "–",
            "–" if x.seed is None else str(x.seed),
            "adapter" if x.is_adapter else "all weights",
        )
        for key, x in report.lineages.items()
    ]
    return ReportTable(
        name="lineage",
        title="Where the tuned students come from",
        note="From the lineage files of the models; a data set of another run is named by its hash.",
        columns=(
            "student",
            "base",
            "data",
            "trained on",
            "conversations",
            "combinations",
            "steps",
            "partition",
            "seed",
            "weights",
        ),
        rows=tuple(rows),
    )


def _data_name(report: Report, run: str, address: str) -> str:
    """The name of the step that made a data set, in the student's own run or in another; else its hash."""
    makers = [(r, facts.name) for r, facts in report.datasets if facts.hash == address]
    if not makers:
        return address
    where, name = next((maker for maker in makers if maker[0] == run), makers[0])
    return name if len(report.runs) == 1 else f"{where}: {name}"


@table(section="scores", order=25)
def baseline_table(report: Report) -> ReportTable | None:
    """What a student that joins fixed clauses earns on the same combinations."""
    if not report.baselines:
        return None
    rows: list[tuple[Entry, ...]] = [
        (
            report.label(b.run, "template baseline"),
            b.setting,
            str(b.k),
            Count(b.combinations),
            *(Estimate(shares[form]) for form in ("fixed", "slot") for shares in (b.full_marks, b.woven)),
        )
        for b in report.baselines
    ]
    return ReportTable(
        name="template-baseline",
        title="Template baseline: what fixed clauses earn",
        note="No model wrote these texts. Code joins one fixed clause for each skill and the topic's name, on the "
        "combinations of the run, at most 200 for each setting and k; the first clauses that earn full marks by code "
        "count. Named once: the topic's name comes once, before the clauses. Named in every clause: each clause has a "
        "slot for it. Full marks near these values say little about a student; woven full marks say more.",
        columns=("student", "setting", "k", "combinations", *(("full marks", "woven full marks") * 2)),
        rows=tuple(rows),
        groups=(("", 4), ("topic named once", 2), ("topic named in every clause", 2)),
    )


@table(section="graders", order=26)
def template_table(report: Report) -> ReportTable | None:
    """How far the texts with full marks of each cell are templates."""
    following = {f.key: f.full_marks_following for f in report.followed}
    rows: list[tuple[Entry, ...]] = [
        (
            report.label(t.key.run, t.key.student),
            t.key.grader,
            t.key.setting,
            str(t.key.k),
            Count(t.full_marks),
            Estimate(_share(t.repeated, t.full_marks)),
            Estimate(t.distinct_4),
            Estimate(_share(following.get(t.key), t.full_marks)),
        )
        for t in report.templates
    ]
    if not rows:
        return None
    return ReportTable(
        name="templates",
        title="How far texts with full marks are templates",
        note="Same words: the share of texts with full marks that show each skill in the same words as a text on "
        "another combination of the cell, with the topic's words masked; – where no code checked the skills. "
        "Distinct-4: distinct four-word runs by all four-word runs of these texts. Follow an example: the share with "
        "half or more of the three-word runs of an example in the prompts.",
        columns=("student", "grader", "setting", "k", "full marks", "same words", "distinct-4", "follow an example"),
        rows=tuple(rows),
        is_detail=len(rows) > LONG,
    )


def _share(count: int | None, texts: int) -> float | None:
    return None if count is None or not texts else count / texts


PAPER: Final = "paper"
"""The source of a published row."""
_ORDER: Final = {1: "table_10", 3: "table_11", 4: "table_4", 5: "table_5", 6: "table_6", 10: "table_10", 11: "table_11"}
"""The paper's tables by number, and where their numbers are; tables 1 and 3 print two metrics of tables 10 and 11."""
_TWO_METRICS: Final = (1, 3)
_DROPPED: Final = "all_skills"


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the paper or of these runs; a value for each group of columns and each metric."""

    source: str
    model: str
    trained_on: str
    setting: str
    grader: str
    values: tuple[tuple[Estimate, ...], ...]


@tables(section="published", order=10)
def paper_tables(report: Report) -> Iterator[ReportTable]:
    """Each table of the paper with the rows of these runs that have its layout; the paper gives no intervals."""
    for number, name in _ORDER.items():
        if name in report.published:
            yield _paper_table(report, number, report.published[name])


def _paper_table(report: Report, number: int, printed: Mapping[str, object]) -> ReportTable:
    metrics = [str(m) for m in _list(printed["metrics"]) if not (m == _DROPPED and number in _TWO_METRICS)]
    chosen = [_list(printed["metrics"]).index(m) for m in metrics]
    ks = [k for k in _list(printed.get("k")) if isinstance(k, int)]
    groups = [f"k = {k}" for k in ks] or [str(s) for s in _list(printed.get("settings"))]
    rows = [_printed_row(row, chosen) for row in map(_dict, _list(printed["rows"]))]
    # By setting, the paper's rows before those of these runs.
    rows = sorted(
        [*rows, *_own_rows(report, number, metrics, ks)], key=lambda row: (*SETTINGS, row.setting).index(row.setting)
    )
    heads = [
        h for h in ("model", "source", "trained_on", "setting", "grader") if any(getattr(r, h) != "–" for r in rows)
    ]
    # The paper's caption, and who graded the rows of these runs.
    caption = str(printed["caption"]).rstrip(".")
    note = f"{caption}. Rows of these runs: grader {report.graders[0]}." if report.graders else f"{caption}."
    return ReportTable(
        name=f"paper-table-{number}",
        title=f"Table {number} of arXiv 2409.19808, and these runs",
        note=note,
        columns=(*(h.replace("_", " ") for h in heads), *(m.replace("_", " ") for _ in groups for m in metrics)),
        rows=tuple((*(str(getattr(r, h)) for h in heads), *(v for group in r.values for v in group)) for r in rows),
        groups=(("", len(heads)), *((group, len(metrics)) for group in groups)),
        is_detail=True,
        family="published",
        part=f"table {number}",
    )


def _printed_row(row: Mapping[str, object], metrics: Sequence[int]) -> _Row:
    values = tuple(tuple(Estimate(_float(_list(group)[m])) for m in metrics) for group in _list(row["values"]))
    model, trained_on, setting, grader = (
        str(row.get(head, "–")) for head in ("model", "trained_on", "setting", "grader")
    )
    return _Row(PAPER, model, trained_on, setting, grader, values)


def _own_rows(report: Report, number: int, metrics: Sequence[str], ks: Sequence[int]) -> Iterator[_Row]:
    """The rows of these runs in the layout of a table of the paper."""
    if number == 6:
        yield from _without_common_rows(report, metrics)
        return
    settings = SETTINGS if number in (1, 3, 10, 11) else ("all",)
    graders = report.graders if number == 5 else report.graders[:1]
    for key in report.students:
        for setting in settings if number != 4 or key in report.lineages else ():
            for grader in graders:
                cells = {c.key.k: c for c in report.cells_of(key, grader=grader, setting=setting)}
                if cells.keys() & set(ks):
                    values = tuple(_values(cells.get(k), metrics) for k in ks)
                    yield _own_row(report, key, setting, grader if number == 5 else "–", values)


def _without_common_rows(report: Report, metrics: Sequence[str]) -> Iterator[_Row]:
    """The rows of the table without common skills, which the paper prints for k = 5."""
    chosen = without_common(report) if common_k(report) == 5 else None
    for key in report.students if chosen else ():
        mine = [c for c in (chosen or ((), ""))[0] if (c.key.run, c.key.student) == key]
        # A draw without some skills has a label of its own, such as `train-without-common`.
        cells = {c.key.setting.partition("-without-")[0]: c for c in mine if c.key.grader == report.graders[0]}
        if cells:
            yield _own_row(report, key, "–", "–", tuple(_values(cells.get(s), metrics) for s in SETTINGS))


def _own_row(
    report: Report, key: StudentKey, setting: str, grader: str, values: tuple[tuple[Estimate, ...], ...]
) -> _Row:
    trained = short_name(report.training_of(key)) if key in report.lineages else "–"
    return _Row(key[0], key[1], trained, setting, grader, values)


def _values(cell: Cell | None, metrics: Sequence[str]) -> tuple[Estimate, ...]:
    if cell is None:
        return tuple(Estimate(None) for _ in metrics)
    scores = [cell.scores[metric] for metric in metrics]
    return tuple(Estimate(score.value, score.low, score.high) for score in scores)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


@table(section="runs", order=10)
def call_table(report: Report) -> ReportTable | None:
    """Calls, tokens and cost of every student and grader that is a model."""
    rows = [row for run in report.runs for row in _rows(report, run)]
    if not rows:
        return None
    return ReportTable(
        name="calls-and-cost",
        title="Calls, tokens and cost",
        note="A student takes one call for each turn; the reply to the last one is graded. A grader takes one call for "
        "each round, and another where a reply cannot be read. All: the sum over a run. All calls in the journals "
        "count, those that write data sets and repeated gradings included. – and unknown: the provider does not say "
        "how many tokens it counted, or the model has no known price. Code that grades makes no calls.",
        columns=("name", "role", "model", "calls", "input tokens", "output tokens", "US dollars"),
        rows=tuple(rows),
    )


def _rows(report: Report, run: RunFacts) -> list[tuple[Entry, ...]]:
    """The calls of a run by model, and their sum where there are several models."""
    calls = run.calls
    rows = [
        _row((report.label(run.name, c.name), c.role, c.model), c.calls, (c.input_tokens, c.output_tokens), c.cost_usd)
        for c in calls
    ]
    if len(rows) < 2:
        return rows
    tokens = _sum([c.input_tokens for c in calls]), _sum([c.output_tokens for c in calls])
    costs = [c.cost_usd for c in calls if c.cost_usd is not None]
    cost = sum(costs) if len(costs) == len(calls) else None
    return [*rows, _row((report.label(run.name, "all"), "–", "–"), sum(c.calls for c in calls), tokens, cost)]


def _row(
    names: tuple[str, str, str], calls: int, tokens: tuple[int | None, int | None], cost: float | None
) -> tuple[Entry, ...]:
    return *names, Count(calls), *map(Count, tokens), Dollars(cost)


def _sum(counts: Sequence[int | None]) -> int | None:
    """The sum; None if a count is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


@table(section="time", order=10)
def time_table(report: Report) -> ReportTable | None:
    """Wall seconds of each step."""
    if not report.step_seconds:
        return None
    rows = [(report.label(run, step), Seconds(seconds)) for run, step, seconds in report.step_seconds]
    if len(rows) > 1:
        rows.append(("all", Seconds(sum(seconds for _, _, seconds in report.step_seconds))))
    return ReportTable(
        name="where-the-time-went",
        title="Where the time went",
        note="Wall seconds of each step, added up over all times that the step ran to its end. A run that was stopped "
        "before the end of a step does not count. Steps without a known time, and reports, are not listed.",
        columns=("step", "wall time"),
        rows=tuple(rows),
    )
