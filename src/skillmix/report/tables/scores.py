"""Tables of scores and outcomes: in the layouts of the paper, by partition, by skill, and for pairs of students."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import fmean, stdev
from typing import Any, Final
from urllib.parse import urlencode

from skillmix.catalog.combinations import is_reserved
from skillmix.catalog.novelty import novelty
from skillmix.experiment.step_base import label_parts
from skillmix.grading.points import FULL_MARKS, METRICS
from skillmix.models.lineage import short_name
from skillmix.prompts.rubric import OUTCOMES
from skillmix.render import expectation
from skillmix.report.records import Report, RunFacts, StudentKey, by_key
from skillmix.report.registry import (
    Entry,
    Estimate,
    ReportTable,
    Row,
    cell_heads,
    count,
    estimate,
    p_entry,
    score_entry,
    table_of,
)
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.comparisons import Change
from skillmix.scores.safety import TOPICS, OutcomeCell

_MAIN: Final = tuple(metric.name for metric in METRICS.values() if metric.is_main)
_FULL: Final = METRICS[FULL_MARKS].label


def scores_table(report: Report) -> Iterator[ReportTable]:
    """Make tables of students × k for each setting, with main or all metrics (the paper's tables 1, 3, 10 and 11)."""
    following = {of.key: of.following for of in report.cell_texts}
    shows = {"grader": len(report.graders) > 1, "trained on": any(key in report.lineages for key in report.students)}
    for setting in report.settings:
        cells = {c.key: c for c in report.cells if c.key.setting == setting}
        ks = sorted({key.k for key in cells})
        for name, metrics in (("scores", _MAIN), ("scores-all-metrics", tuple(METRICS))):
            rows: list[dict[Any, Entry]] = []
            for run, student, grader in dict.fromkeys((key.run, key.student, key.grader) for key in cells):
                heads = {"student": report.label(run, student), "trained on": "", "grader": grader}
                heads["trained on"] = short_name(report.training_of((run, student)))
                row: dict[Any, Entry] = {h: e for h, e in heads.items() if shows.get(h, True)}
                for k in ks:
                    cell = cells.get(CellKey(run, student, grader, setting, k))
                    group = {METRICS[m].label: _linked(cell, m) for m in metrics}
                    group |= _further_entries(cell, following.get(cell.key) if cell else None)
                    row |= {(f"k = {k}", column): entry for column, entry in group.items()}
                rows.append(row)
            yield from table_of(name, rows, file=name.replace("scores", f"scores-{setting}"), part=setting)


def _further_entries(cell: Cell | None, following: int | None) -> dict[str, Entry]:
    """Return the other entries of a row in a table of scores; `following` counts the near-copies of examples."""
    known = cell if cell and cell.written else None
    full = known.scores[FULL_MARKS] if known else None
    among_valid = estimate(full.among_valid, (full.among_valid_low, full.among_valid_high)) if full else Estimate(None)
    return {
        f"woven {_FULL}": Estimate(full.woven, full.woven_low, full.woven_high) if full else Estimate(None),
        "format valid": Estimate(known.format_valid if known else None),
        f"{_FULL} among valid": among_valid,
        "cut": count(known.cut if known else None),
        "follows an example": count(following if known else None),
    }


def _main_entries(cells: Mapping[str, Cell | None]) -> dict[Any, Entry]:
    """Return the main metrics of each cell, keyed by the cell's heading and the metric's label."""
    return {(above, METRICS[m].label): _linked(cell, m) for above, cell in cells.items() for m in _MAIN}


def before_and_after_table(report: Report) -> Iterator[Row]:
    """Make the table of differences between every tuned student and its base on the same combinations."""
    for c in report.changes:
        valid = c.format.among_valid if c.format else None
        is_explained = c.format is not None and c.format.role == "explains"
        yield {
            "student": report.label(c.run, c.student),
            "trained on": short_name(c.trained),
            "base": c.base,
            "grader": c.row.grader,
            "setting": c.row.setting,
            "k": str(c.row.k),
            "difference": estimate(c.row.difference, (c.row.low, c.row.high), is_signed=True),
            "p, corrected": p_entry(c.row.p_corrected),
            "combinations": count(c.row.combinations),
            "remark": c.row.verdict,
            "difference among valid": estimate(
                valid.value if valid else None, (valid.low, valid.high) if valid else None, is_signed=True
            ),
            # Omit the numbers, because the column to the left contains them.
            "format": "format explains it" if is_explained else c.format_words or "–",
        }


def _linked(cell: Cell | None, metric: str) -> Entry:
    """Make the entry of a score, with a link to its texts."""
    return "–" if cell is None else score_entry(cell, metric, link=_texts_of(cell.key))


def _texts_of(key: CellKey, **more: str) -> str:
    """Make the link to a cell's texts; it contains the cell's key, so that it stays valid when cells are added."""
    filters = {"a": f"{key.run}/{key.student}", "grader": f"{key.run}/{key.grader}", "setting": key.setting, "k": key.k}
    return f"texts.html#{urlencode(filters | more)}"


def graders_side_by_side_table(report: Report) -> Iterator[Row]:
    """Make the table that shows the same students under several graders (table 5 of the paper)."""
    cells = by_key(report.cells)
    for run, student in report.students:
        places = dict.fromkeys((key.setting, key.grader) for key in cells if key[:2] == (run, student))
        for setting, grader in sorted(places, key=lambda place: report.settings.index(place[0])):
            if sum(other == setting for other, _ in places) > 1:
                own = {f"k = {k}": cells.get(CellKey(run, student, grader, setting, k)) for k in report.ks}
                heads = {"student": report.label(run, student), "setting": setting, "grader": grader}
                yield {**heads, **_main_entries(own)}


def data_efficiency_table(report: Report) -> list[ReportTable]:
    """Make the table of tuned students with the sizes of their training data (table 4 of the paper)."""
    tuned = [key for key in report.students if key in report.lineages]
    ks = [k for k in report.ks if k >= 2] or report.ks
    rows: list[Row] = []
    for key in sorted(tuned, key=lambda k: (report.lineages[k].rows or 0, report.lineages[k].k)):
        cells = {c.key.k: c for c in report.cells_of(key, grader=report.graders[0], setting=report.main_setting)}
        lineage = report.lineages[key]
        heads: Row = {
            "student": report.label(*key),
            "trained on": short_name(lineage.k),
            "conversations": count(lineage.rows),
        }
        if cells:
            rows.append({**heads, **_main_entries({f"k = {k}": cells.get(k) for k in ks})})
    return table_of("data-efficiency", rows, setting=report.main_setting)


def common_k(report: Report) -> int | None:
    """Return the k for the table without common skills: 5, as in the paper, or the largest k if there is no k = 5."""
    return 5 if 5 in report.ks else max(report.ks, default=None)


def without_common(report: Report) -> tuple[list[Cell], str] | None:
    """Return cells without common skills, and how these cells were chosen; None if the common skills are unknown."""
    k = common_k(report)
    of_runs = {run.name: run.exclude for run in report.runs}
    of_settings = {(run.name, label): names for run in report.runs for label, names in run.excluded_by_setting.items()}
    lists = {c.key: (*of_runs[c.key.run], *of_settings.get((c.key.run, c.key.setting), ())) for c in report.cells}
    drawn = [c for c in report.cells if lists[c.key] and c.key.k == k]
    if drawn:
        names = sorted({name for c in drawn for name in lists[c.key]})
        return drawn, f"The combinations are drawn without {', '.join(names)}."
    if not report.common_skills:
        return None
    reduced = [
        c.only(lambda combination: not report.common_skills & set(combination.skills))
        for c in report.cells
        if c.key.k == k
    ]
    how = (
        f"Drawn combinations with none of the {len(report.common_skills)} skills on the catalog's list of common "
        "skills, which is an editor's judgment; an evaluation with `exclude: [common]` draws more such combinations."
    )
    return [c for c in reduced if c.combinations], how


def novelty_bound(report: Report, k: int, cells: Sequence[Cell]) -> float:
    """Compute how often a corpus would contain a drawn combination by chance; use measured frequencies if given."""
    if report.frequencies is None:
        return novelty(k, report.corpus_tokens).expected_occurrences
    drawn = {skill for cell in cells for combination in cell.combinations for skill in combination.skills}
    return report.frequencies.expected_occurrences(k, report.corpus_tokens, drawn)


def common_skills_removed_table(report: Report) -> list[ReportTable]:
    """Make the table of full marks with common skills removed, and the novelty bound (table 6 of the paper)."""
    k, chosen = common_k(report), without_common(report)
    if k is None or chosen is None or not chosen[0]:
        return []
    cells, how = chosen
    settings = list(dict.fromkeys(c.key.setting for c in cells))
    rows: list[Row] = []
    for run, student, grader in dict.fromkeys((c.key.run, c.key.student, c.key.grader) for c in cells):
        own = {c.key.setting: c for c in cells if (c.key.run, c.key.student, c.key.grader) == (run, student, grader)}
        shown = {(setting, METRICS[m].label): score_entry(own.get(setting), m) for setting in settings for m in _MAIN}
        rows.append({"student": report.label(run, student), "grader": grader, **shown})
    bound = novelty_bound(report, k, cells)
    source = "measured frequencies" if report.frequencies else "the paper's upper bound on every skill's frequency"
    words = f"Novelty bound at k = {k} for {report.corpus_tokens:.3g} tokens, by {source}: {expectation(bound)}"
    if bound >= 1:
        words += " expected occurrences of a combination, so full marks give no evidence of new texts at this k."
    else:
        words += "; full marks above the bound mean that such a corpus cannot contain all the texts."
    return table_of("common-skills-removed", rows, k=k, how=how, bound=words)


def seen_and_reserved_table(report: Report) -> Iterator[Row]:
    """Make the table that compares skill sets that training data may contain with reserved skill sets."""
    for cell in report.cells:
        parts = dict(zip(("seen", "kept back"), _seen_and_kept_back(cell, report), strict=True))
        if all(part.combinations for part in parts.values()):
            scores = {(of, METRICS[m].label): score_entry(part, m) for of, part in parts.items() for m in _MAIN}
            yield {**cell_heads(report, cell.key), **scores}


def _seen_and_kept_back(cell: Cell, report: Report) -> tuple[Cell, Cell]:
    """Split a cell into seen and reserved skill sets, as defined by the run or by the student's lineage."""
    share = report.reserved.get(cell.key.run)
    sets = report.skill_sets.get((cell.key.run, cell.key.student))
    if cell.key.k < 2 or (share is None and sets is None):
        return cell, cell.only(lambda _: False)
    if share is not None:
        is_train = label_parts(cell.key.setting).setting == "train"
        kept_back = {c.id for c in cell.combinations if is_train and is_reserved(c.skills, share)}
    else:
        kept_back = {c.id for c in cell.combinations if frozenset(c.skills) not in (sets or ())}
    return cell.only(lambda c: c.id not in kept_back), cell.only(lambda c: c.id in kept_back)


def rules_side_by_side_table(report: Report) -> list[ReportTable]:
    """Make the table of full marks under two sets of scoring rules."""
    names = list(report.by_rules)
    if len(names) < 2:
        return []
    cells = {name: by_key(report.by_rules[name]) for name in names}
    rows: list[Row] = []
    for key in cells[names[0]]:
        first, second = (cells[name][key].scores[FULL_MARKS].value for name in names[:2])
        change = None if first is None or second is None else second - first
        scores = {name: score_entry(cells[name][key], FULL_MARKS) for name in names}
        rows.append({**cell_heads(report, key), **scores, "difference": _signed(change)})
    return table_of("rules-side-by-side", rows, rules=" and ".join(names), first=names[0], second=names[1])


def students_label(report: Report, key: StudentKey) -> str:
    """Return a student's name with its training data, for use in legends."""
    trained = report.training_of(key)
    name = report.label(*key)
    return f"{name}, {short_name(trained)}" if trained else name


_Values = dict[str, list[float]]
"""Full marks by combination, for one student or for all students that repeat it with other seeds."""
_Place = dict[int, dict[str, dict[str, _Values]]]
"""Values by k, by partition, and by the student's name in the experiment file."""


def by_partition_table(report: Report) -> list[ReportTable]:
    """Compare partitions for a finding over several partitions, if possible a supported one, or for two students."""
    places = _partition_places(report)
    pooled = [f for f in report.findings if any(c.gain.partitions > 1 for c in f.compared)]
    if not places:
        return []
    grader, setting = max(places, key=lambda place: place[1] == "held-out")
    students = dict.fromkeys(s for by_k in places[grader, setting].values() for names in by_k.values() for s in names)
    pair = tuple(students)[:2]
    if pooled:
        finding = max(pooled, key=lambda f: f.verdict == "supported")
        grader, setting, pair = finding.grader, finding.setting, (finding.first, finding.second)
    if len(pair) < 2:
        return []
    rows = _partition_rows(places.get((grader, setting), {}), pair)
    return table_of("by-partition", rows, first=pair[0], second=pair[1], setting=setting, grader=grader)


def _partition_places(report: Report) -> dict[tuple[str, str], _Place]:
    """Group full marks by grader and setting; omit cells without a partition in their label."""
    families = {(run.name, student): family for run in report.runs for student, family in run.families.items()}
    places: dict[tuple[str, str], _Place] = {}
    for cell in report.cells:
        run, student, grader, label, k = cell.key
        setting, _, partition = label_parts(label)
        if partition:
            place = places.setdefault((grader, setting), {}).setdefault(k, {}).setdefault(partition, {})
            values = place.setdefault(families.get((run, student), student), defaultdict(list))
            for combination, value in cell.best(FULL_MARKS).items():
                values[combination].append(value)
    return places


def _partition_rows(place: _Place, pair: tuple[str, ...]) -> Iterator[Row]:
    for k, partitions in sorted(place.items()):
        differences = []
        for partition, students in partitions.items():
            values = [students.get(name, {}) for name in pair]
            shared = sorted(values[0].keys() & values[1].keys())
            if shared:
                means = [fmean(fmean(own[c]) for c in shared) for own in values]
                differences.append(means[1] - means[0])
                scores = dict(zip(pair, map(Estimate, means), strict=True))
                heads: Row = {"k": str(k), "partition": partition, **scores}
                yield {**heads, "difference": _signed(differences[-1]), "combinations": count(len(shared))}
        if len(differences) > 1:
            spread = {"mean": _signed(fmean(differences)), "sd": Estimate(stdev(differences))}
            spread |= {"lowest": _signed(min(differences)), "highest": _signed(max(differences))}
            for name, value in spread.items():
                heads = {"k": str(k), "partition": name, **dict.fromkeys(pair, "–")}
                yield {**heads, "difference": value, "combinations": "–"}


def _signed(value: float | None) -> Estimate:
    return Estimate(value, is_signed=True)


MOST_PAIRS: Final = 10
"""The maximum number of pairs from one run in the table."""
_StudentPair = tuple[str, str]


def chosen_pairs(report: Report, run: RunFacts) -> list[_StudentPair]:
    """Return all pairs of students of a run or, if there are more than 10, up to 10 pairs, preferably with one base.

    A student without a lineage counts as its own base.
    """
    students = [student for of, student in report.students if of == run.name]
    every = list(combinations(students, 2))
    lineages = {student: report.lineages.get((run.name, student)) for student in students}
    bases = {s: lineage.base if lineage else run.students.get(s, s) for s, lineage in lineages.items()}
    related = [(first, second) for first, second in every if bases[first] == bases[second]]
    return every if len(every) <= MOST_PAIRS else (related or every)[:MOST_PAIRS]


def compared_pairs(report: Report) -> Iterator[Change]:
    """Yield the comparisons of each run's chosen pairs of students, by grader, setting and k."""
    for run in report.runs:
        for first, second in chosen_pairs(report, run):
            yield from (Change(run.name, second, first, (), row) for row in report.compared(run.name, first, second))


def students_compared_table(report: Report) -> list[ReportTable]:
    """Make the table of each run's chosen pairs of students, by grader, setting and k."""
    left_out = ""
    for run in report.runs:
        shown, students = len(chosen_pairs(report, run)), sum(of == run.name for of, _ in report.students)
        if shown < students * (students - 1) // 2:
            left_out += f" {run.name}: the table has {shown} of {students * (students - 1) // 2} pairs."
    rows: list[Row] = [
        {
            "students": report.label(c.run, f"{c.student} − {c.base}"),
            "grader": c.row.grader,
            "setting": c.row.setting,
            "k": str(c.row.k),
            "difference": estimate(c.row.difference, (c.row.low, c.row.high), is_signed=True),
            "p": p_entry(c.row.p),
            "p, corrected": p_entry(c.row.p_corrected),
            "verdict": c.row.verdict,
            "wins": count(c.row.wins),
            "ties": count(c.row.ties),
            "losses": count(c.row.losses),
            "combinations": count(c.row.combinations),
            "still needed": count(c.row.still_needed),
        }
        for c in report.comparisons
    ]
    return table_of("students-compared", rows, left_out=left_out)


_HARDEST: Final = 5
"""The number of skills that the table of the hardest skills lists for each student."""


def skills_table(report: Report) -> list[ReportTable]:
    """Make the table of every requested skill, starting with the skills that are hardest for all students."""
    rates = list(report.skill_rates.values())
    overall = {}
    for name in {name for by_name in rates for name in by_name}:
        known = [by_name[name] for by_name in rates if name in by_name]
        overall[name] = sum(rate.shown for rate in known) / sum(rate.asked for rate in known)
    rows: list[Row] = []
    for name in sorted(overall, key=lambda name: (overall[name], name)):
        defined = report.definitions.get(name)
        row: dict[Any, Entry] = {"skill": name}
        row |= {"category": defined.category if defined else "–", "side": defined.side if defined else "–"}
        for key, of_student in zip(report.students, rates, strict=True):
            rate = of_student.get(name)
            row[report.label(*key), "shown"] = Estimate(rate.value if rate else None)
            row[report.label(*key), "texts"] = count(rate.asked if rate else None)
        rows.append(row)
    return table_of("skills", rows, grader=report.graders[0] if rows else "")


def hardest_skills_table(report: Report) -> list[ReportTable]:
    """Make the table of each student's hardest skills, if a report has several students."""
    rows: list[Row] = []
    for key in report.students if len(report.students) > 1 else ():
        rates = report.skill_rates[key]
        for name in sorted(rates, key=lambda name: (rates[name].value, name))[:_HARDEST]:
            shown, texts = Estimate(rates[name].value), count(rates[name].asked)
            rows.append({"student": report.label(*key), "skill": name, "shown": shown, "texts": texts})
    return table_of("hardest-skills", rows, most=_HARDEST, grader=report.graders[0] if rows else "")


def outcomes_table(report: Report) -> Iterator[Row]:
    """Make the table of the shares of the three outcomes, with separate rows for probes and controls."""
    for cell in _by_student(report):
        row: dict[Any, Entry] = {**_outcome_heads(report, cell)}
        for outcome in OUTCOMES:
            share = cell.share(outcome)
            link = _texts_of(cell.key, outcome=outcome, request=cell.topics)
            row[outcome] = replace(estimate(share.value, (share.low, share.high)), link=link)
        yield {
            **row,
            "combinations": count(len(cell.cell.combinations)),
            "undecided": count(cell.share(OUTCOMES[0]).undecided),
        }


def _by_student(report: Report) -> list[OutcomeCell]:
    """Sort the cells by student, then grader and setting, then probes before controls, then k."""
    places = list(dict.fromkeys(c.key[:4] for c in report.outcomes))
    students = list(dict.fromkeys(place[:2] for place in places))
    return sorted(
        report.outcomes,
        key=lambda c: (students.index(c.key[:2]), places.index(c.key[:4]), TOPICS.index(c.topics), c.key.k),
    )


def _outcome_heads(report: Report, cell: OutcomeCell) -> Row:
    heads = cell_heads(report, cell.key)
    k = heads.pop("k")
    return {**heads, "topics": cell.topics, "k": k}


def outcome_bounds_table(report: Report) -> Iterator[Row]:
    """Make the table of the bounds on the shares of outcomes in cells with undecided texts."""
    for cell in _by_student(report):
        bounds: dict[Any, Entry] = {}
        for outcome in OUTCOMES:
            share = cell.share(outcome)
            bounds[outcome, "at least"] = Estimate(share.bound_low)
            bounds[outcome, "at most"] = Estimate(share.bound_high)
        if cell.share(OUTCOMES[0]).undecided:
            yield {**_outcome_heads(report, cell), **bounds}


def outcomes_compared_table(report: Report) -> list[ReportTable]:
    """Make the table that compares tuned students with their bases or, without any, all students with the first one."""
    is_tuned = all(change.is_tuned for change in report.outcome_changes)
    rows: list[Row] = [
        {
            "students": report.label(c.run, f"{c.student} − {c.base}"),
            "grader": c.grader,
            "setting": c.setting,
            "topics": c.topics,
            "k": str(c.k),
            "outcome": c.outcome,
            "difference": estimate(c.difference, (c.low, c.high), is_signed=True),
            "p": p_entry(c.p),
            "p, corrected": p_entry(c.p_corrected),
            "combinations": count(c.combinations),
        }
        for c in report.outcome_changes
    ]
    title = "Outcomes before and after tuning" if is_tuned else "Outcomes of students compared"
    return table_of("outcomes-compared", rows, title=title)
