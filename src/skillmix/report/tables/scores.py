"""Tables of scores, in the layouts of the paper, by partition, by skill, and of pairs of students."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, stdev
from typing import Final
from urllib.parse import urlencode

from skillmix.catalog.combinations import is_reserved
from skillmix.catalog.novelty import novelty
from skillmix.experiment.step_base import label_parts
from skillmix.grading.points import FULL_MARKS, METRICS
from skillmix.models.lineage import short_name
from skillmix.render import expectation
from skillmix.report.records import ComparedPair, Report, RunFacts, StudentKey, by_key
from skillmix.report.registry import (
    CORRECTION,
    Count,
    Entry,
    Estimate,
    ReportTable,
    cell_heads,
    estimate,
    p_entry,
    score_entry,
    table,
    table_of,
)
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.skills import Rate, skill_rates
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS

_MAIN: Final = tuple(metric.name for metric in METRICS.values() if metric.is_main)
_MAIN_LABELS: Final = tuple(METRICS[name].label for name in _MAIN)
_NOTE: Final = (
    "Each score takes the best text of each combination and the mean over complete combinations, with a 95% "
    "interval over combinations; below it is the same for one try. Ungraded texts, format failures (no marker, or an "
    "empty answer) and replies that the token limit cut are counted beside it. Too few: a bootstrap over fewer than "
    f"{FEWEST_COMBINATIONS} combinations gives no reliable interval."
)
SCORE_NOTE: Final = _NOTE
_FURTHER_NOTE: Final = (
    "Woven full marks: the text also shows every skill about the topic, in clauses with a topic word of their own; – "
    "where no code checks the skills. Format valid: the share of texts with the marker and an answer after it, "
    "whatever skills they show; refusals do not count. Full marks among valid: the share of these texts with full "
    "marks, one try, with a 95% bootstrap interval over combinations. Cut: texts whose reply ended at the token limit."
    " Follows an example: texts with half or more of the three-word runs of an example in the prompts."
)
_FULL: Final = METRICS[FULL_MARKS].label
_FURTHER_COLUMNS: Final = (f"woven {_FULL}", "format valid", f"{_FULL} among valid", "cut", "follows an example")


@table(section="scores", order=20)
def setting_tables(report: Report) -> Iterator[ReportTable]:
    """Students × k for each setting, with the main metrics and with all (tables 1, 3, 10 and 11 of the paper)."""
    for setting in report.settings:
        for metrics, suffix, numbers in ((_MAIN, "", "1 and 3"), (tuple(METRICS), "-all-metrics", "10 and 11")):
            made = _students_by_k(report, setting, metrics)
            yield replace(
                made,
                note=f"{_as_in_paper(f'tables {numbers}')} {made.note}",
                name=f"scores-{setting}{suffix}",
                title=f"Scores, setting {setting}" + (", all metrics" if suffix else ""),
                is_detail=bool(suffix),
                family="scores",
                part=setting,
                page_note="",
            )


def _as_in_paper(tables: str) -> str:
    """The sentence that names the tables of the paper with the same layout."""
    return f"The layout is that of {tables} of the paper (arXiv 2409.19808)."


def _students_by_k(report: Report, setting: str, metrics: Sequence[str]) -> ReportTable:
    cells = [c for c in report.cells if c.key.setting == setting]
    ks = sorted({c.key.k for c in cells})
    by_row = {(c.key.run, c.key.student, c.key.grader, c.key.k): c for c in cells}
    following = {followed.key: followed.following for followed in report.followed}
    several = len(report.graders) > 1
    trained = any(key in report.lineages for key in report.students)
    rows: list[tuple[Entry, ...]] = []
    for run, student, grader in dict.fromkeys((c.key.run, c.key.student, c.key.grader) for c in cells):
        head: list[Entry] = [report.label(run, student)]
        head += [short_name(report.training_of((run, student)))] if trained else []
        head += [grader] if several else []
        entries: list[Entry] = []
        for k in ks:
            cell = by_row.get((run, student, grader, k))
            entries += [_linked(cell, m) for m in metrics]
            entries += _further_entries(cell, following.get(cell.key) if cell else None)
        rows.append((*head, *entries))
    heads = ["student", *(["trained on"] if trained else []), *(["grader"] if several else [])]
    return ReportTable(
        name="scores",
        title="Scores",
        note=f"{_NOTE} {_FURTHER_NOTE}",
        columns=(*heads, *(name for _ in ks for name in (*(METRICS[m].label for m in metrics), *_FURTHER_COLUMNS))),
        rows=tuple(rows),
        groups=(("", len(heads)), *((f"k = {k}", len(metrics) + len(_FURTHER_COLUMNS)) for k in ks)),
    )


def _further_entries(cell: Cell | None, following: int | None) -> tuple[Entry, ...]:
    """The entries of `_FURTHER_COLUMNS`; `following` counts the texts that follow an example."""
    if cell is None:
        return Estimate(None), Estimate(None), Estimate(None), Count(None), Count(None)
    full = cell.scores[FULL_MARKS]
    among_valid = estimate(full.among_valid, (full.among_valid_low, full.among_valid_high))
    woven = Estimate(full.woven, full.woven_low, full.woven_high)
    return woven, Estimate(cell.format_valid), among_valid, Count(cell.cut), Count(following)


@table(section="scores", order=30)
def change_table(report: Report) -> ReportTable | None:
    """Every tuned student minus its base on the same combinations."""
    rows: list[dict[str, Entry]] = []
    for c in report.changes:
        valid = c.format.among_valid if c.format else None
        is_explained = c.format is not None and c.format.role == "explains"
        rows.append(
            {
                "student": report.label(c.run, c.student),
                "trained on": short_name(c.trained),
                "base": c.base,
                "grader": c.row.grader,
                "setting": c.row.setting,
                "k": str(c.row.k),
                "difference": estimate(c.row.difference, (c.row.low, c.row.high), is_signed=True),
                "p, corrected": p_entry(c.row.p_corrected),
                "combinations": Count(c.row.combinations),
                "remark": c.row.verdict,
                "difference among valid": estimate(
                    valid.value if valid else None, (valid.low, valid.high) if valid else None, is_signed=True
                ),
                # The column beside it has the numbers.
                "format": "format explains it" if is_explained else c.format_words or "–",
            }
        )
    return table_of(
        "before-and-after",
        "Tuned students against their bases",
        "Difference in full marks, best of the generations, on the combinations that both have complete, with its "
        f"95% bootstrap interval. {CORRECTION} Difference among valid: the same for full "
        "marks among texts with a valid format, one try; – if a student has such texts on fewer than "
        f"{FEWEST_COMBINATIONS} combinations. Format explains a difference that was found if the share of texts with a "
        "valid format differs in the same direction, outside noise, and the difference among valid is within noise.",
        rows,
    )


def _linked(cell: Cell | None, metric: str) -> Entry:
    """A score with the address of its texts, which names the cell, so that it stays right when cells are added."""
    if cell is None:
        return "–"
    run, student, grader, setting, k = cell.key
    filters = {"a": f"{run}/{student}", "grader": f"{run}/{grader}", "setting": setting, "k": k}
    return score_entry(cell, metric, link=f"texts.html#{urlencode(filters)}")


@table(section="scores", order=60)
def grader_table(report: Report) -> ReportTable | None:
    """The same students under several graders (table 5 of the paper)."""
    rows: list[tuple[Entry, ...]] = []
    ks, cells_by_key = report.ks, by_key(report.cells)
    for run, student in report.students:
        cells = report.cells_of((run, student))
        for setting in dict.fromkeys(c.key.setting for c in cells):
            graders = list(dict.fromkeys(c.key.grader for c in cells if c.key.setting == setting))
            for grader in graders if len(graders) > 1 else ():
                entries = []
                for k in ks:
                    cell = cells_by_key.get(CellKey(run, student, grader, setting, k))
                    entries += [_linked(cell, m) for m in _MAIN]
                rows.append((report.label(run, student), setting, grader, *entries))
    if not rows:
        return None
    return ReportTable(
        name="graders-side-by-side",
        title="The same texts under several graders",
        note=f"{_as_in_paper('table 5')} {_NOTE}",
        page_note=_as_in_paper("table 5"),
        columns=("student", "setting", "grader", *(_MAIN_LABELS * len(ks))),
        rows=tuple(rows),
        is_detail=True,
        groups=(("", 3), *((f"k = {k}", len(_MAIN)) for k in ks)),
    )


@table(section="scores", order=50)
def efficiency_table(report: Report) -> ReportTable | None:
    """Tuned students with the size of their data (table 4 of the paper)."""
    tuned = [key for key in report.students if key in report.lineages]
    if not tuned:
        return None
    setting = "all" if "all" in report.settings else report.settings[0]
    ks = [k for k in report.ks if k >= 2] or report.ks
    rows: list[tuple[Entry, ...]] = []
    for key in sorted(tuned, key=lambda k: (report.lineages[k].rows or 0, report.lineages[k].k)):
        cells = {c.key.k: c for c in report.cells_of(key, grader=report.graders[0], setting=setting)}
        if cells:
            lineage = report.lineages[key]
            entries = [_linked(cells.get(k), m) for k in ks for m in _MAIN]
            rows.append((report.label(*key), short_name(lineage.k), Count(lineage.rows), *entries))
    if not rows:
        return None
    return ReportTable(
        name="data-efficiency",
        title=f"Data efficiency, setting {setting}",
        note=f"{_as_in_paper('table 4')} Conversations counts each conversation of the data sets once. {_NOTE}",
        page_note=f"{_as_in_paper('table 4')} Conversations counts each conversation of the data sets once.",
        columns=("student", "trained on", "conversations", *(_MAIN_LABELS * len(ks))),
        rows=tuple(rows),
        groups=(("", 3), *((f"k = {k}", len(_MAIN)) for k in ks)),
    )


def common_k(report: Report) -> int | None:
    """The k of the table without common skills: 5 as in the paper, or else the largest k."""
    return 5 if 5 in report.ks else max(report.ks, default=None)


def without_common(report: Report) -> tuple[list[Cell], str] | None:
    """Cells without common skills, and how they were chosen; None if the common skills are unknown."""
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
        f"Drawn combinations with none of the {len(report.common_skills)} skills on the catalogue's list of common "
        "skills, which is an editor's judgement; an evaluation with `exclude: [common]` draws more of them."
    )
    return [c for c in reduced if c.combinations], how


def novelty_bound(report: Report, k: int, cells: Sequence[Cell]) -> float:
    """How often a corpus would hold one of the drawn combinations by chance, from measured frequencies if given."""
    if report.frequencies is None:
        return novelty(k, report.corpus_tokens).expected_occurrences
    drawn = {skill for cell in cells for combination in cell.combinations for skill in combination.skills}
    return report.frequencies.expected_occurrences(k, report.corpus_tokens, drawn)


def _bound_in_words(report: Report, k: int, bound: float) -> str:
    source = "measured frequencies" if report.frequencies else "the paper's upper bound on every skill's frequency"
    start = f"Novelty bound at k = {k} for {report.corpus_tokens:.3g} tokens, by {source}: {expectation(bound)}"
    if bound >= 1:
        return f"{start} expected occurrences of a combination, so full marks say nothing about new texts at this k."
    return f"{start}; full marks above the bound mean that such a corpus cannot contain all the texts."


@table(section="scores", order=70)
def common_table(report: Report) -> ReportTable | None:
    """Full marks with common skills removed, and the novelty bound (table 6 of the paper)."""
    k, chosen = common_k(report), without_common(report)
    if k is None or chosen is None or not chosen[0]:
        return None
    cells, how = chosen
    bound = novelty_bound(report, k, cells)
    settings = list(dict.fromkeys(c.key.setting for c in cells))
    rows: list[tuple[Entry, ...]] = []
    for run, student, grader in dict.fromkeys((c.key.run, c.key.student, c.key.grader) for c in cells):
        by_setting = {
            c.key.setting: c for c in cells if (c.key.run, c.key.student, c.key.grader) == (run, student, grader)
        }
        entries = [score_entry(by_setting.get(setting), m) for setting in settings for m in _MAIN]
        rows.append((report.label(run, student), grader, *entries))
    return ReportTable(
        name="common-skills-removed",
        title=f"Common skills removed, k = {k}",
        note=f"{_as_in_paper('table 6')} {how} {_bound_in_words(report, k, bound)}",
        columns=("student", "grader", *(_MAIN_LABELS * len(settings))),
        rows=tuple(rows),
        groups=(("", 2), *((setting, len(_MAIN)) for setting in settings)),
    )


@table(section="scores", order=40)
def seen_table(report: Report) -> ReportTable | None:
    """Skill sets that training data may contain, and skill sets kept back."""
    rows: list[tuple[Entry, ...]] = []
    for cell in report.cells:
        seen, reserved = _seen_and_kept_back(cell, report)
        if seen.combinations and reserved.combinations:
            key = cell.key
            entries = [score_entry(part, m) for part in (seen, reserved) for m in _MAIN]
            rows.append((report.label(key.run, key.student), key.grader, key.setting, str(key.k), *entries))
    if not rows:
        return None
    return ReportTable(
        name="seen-and-reserved",
        title="Skill sets seen in training, and skill sets kept back",
        note=f"Seen: skill sets that training data may contain; kept back: skill sets in no training data. {_NOTE}",
        page_note="Seen: skill sets that training data may contain; kept back: skill sets in no training data.",
        columns=("student", "grader", "setting", "k", *(_MAIN_LABELS * 2)),
        rows=tuple(rows),
        groups=(("", 4), ("seen", len(_MAIN)), ("kept back", len(_MAIN))),
    )


def _seen_and_kept_back(cell: Cell, report: Report) -> tuple[Cell, Cell]:
    """The seen and the kept-back part of a cell, by the run's reserved skill sets or by the student's lineage."""
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


@table(section="scores", order=80)
def rules_table(report: Report) -> ReportTable | None:
    """Full marks under several rules."""
    names = list(report.by_rules)
    if len(names) < 2:
        return None
    cells = {name: by_key(report.by_rules[name]) for name in names}
    rows: list[dict[str, Entry]] = []
    for key in cells[names[0]]:
        first, second = (cells[name][key].scores[FULL_MARKS].value for name in names[:2])
        change = None if first is None or second is None else second - first
        scores = {name: score_entry(cells[name][key], FULL_MARKS) for name in names}
        rows.append({**cell_heads(report, key), **scores, "difference": Estimate(change, is_signed=True)})
    table = table_of(
        "rules-side-by-side",
        f"Full marks by rules: {' and '.join(names)}",
        f"The same texts and votes under several rules; the difference is {names[1]} minus {names[0]}.",
        rows,
        folds="always",
    )
    return table and replace(table, note=f"{table.note} {_NOTE}", page_note=table.note)


def students_label(report: Report, key: StudentKey) -> str:
    """A student's name with its training data, for legends."""
    trained = report.training_of(key)
    name = report.label(*key)
    return f"{name}, {short_name(trained)}" if trained else name


_Values = dict[str, list[float]]
"""Full marks by combination, of one student or of those that the file repeats for several seeds."""
_Place = dict[int, dict[str, dict[str, _Values]]]
"""Values by k, partition and name of the student in the file."""


@table(section="compare", order=5)
def partition_table(report: Report) -> ReportTable | None:
    """The first supported finding over several partitions, else the first finding, else the first two students."""
    places = _partition_places(report)
    pooled = [f for f in report.findings if any(c.gain.partitions > 1 for c in f.compared)]
    if not places:
        return None
    grader, setting = max(places, key=lambda place: place[1] == "held-out")
    students = dict.fromkeys(s for by_k in places[grader, setting].values() for names in by_k.values() for s in names)
    pair = tuple(students)[:2]
    if pooled:
        finding = max(pooled, key=lambda f: f.verdict == "supported")
        grader, setting, pair = finding.grader, finding.setting, (finding.first, finding.second)
    rows = list(_partition_rows(places.get((grader, setting), {}), pair)) if len(pair) > 1 else []
    if not rows:
        return None
    return ReportTable(
        name="by-partition",
        title=f"By partition: {pair[1]} against {pair[0]}",
        note=f"{_PARTITION_NOTE} Setting {setting}, grader {grader}.",
        columns=("k", "partition", *pair, "difference", "combinations"),
        rows=tuple(rows),
    )


_PARTITION_NOTE: Final = (
    "Full marks, best of the generations, on the combinations that both students have complete; several training seeds "
    "count with their mean. Last at each k: the mean of the differences, their standard deviation between partitions, "
    "the smallest and the largest."
)


def _partition_places(report: Report) -> dict[tuple[str, str], _Place]:
    """The values of each grader and setting, as far as steps name a partition."""
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


def _partition_rows(place: _Place, pair: tuple[str, ...]) -> Iterator[tuple[Entry, ...]]:
    for k, partitions in sorted(place.items()):
        differences = []
        for partition, students in partitions.items():
            first, second = (students.get(name, {}) for name in pair)
            shared = sorted(first.keys() & second.keys())
            if shared:
                means = [fmean(fmean(values[c]) for c in shared) for values in (first, second)]
                differences.append(means[1] - means[0])
                yield str(k), partition, *map(Estimate, means), _signed(differences[-1]), Count(len(shared))
        if len(differences) > 1:
            spread = {"mean": _signed(fmean(differences)), "sd": Estimate(stdev(differences))}
            spread |= {"lowest": _signed(min(differences)), "highest": _signed(max(differences))}
            yield from ((str(k), name, "–", "–", value, "–") for name, value in spread.items())


def _signed(value: float) -> Estimate:
    return Estimate(value, is_signed=True)


MOST_PAIRS: Final = 10
"""Pairs of one run that the table shows."""
_NAMED_PAIRS: Final = 20
_COMPARED_NOTE: Final = (
    "A row B − A has full marks of B minus those of A, best of the generations, on the combinations that both have "
    "complete, with the 95% interval. p comes from a permutation test within combinations. "
    f"{CORRECTION} Wins, ties and losses of B count combinations. Still needed: further combinations for 80 % power at "
    "the observed difference. `skillmix compare RUN A B` shows any pair with the texts that differ."
)
_StudentPair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ChosenPairs:
    """The pairs of students of a run that a report compares, and those that it leaves out."""

    shown: tuple[_StudentPair, ...]
    left_out: tuple[_StudentPair, ...]


def chosen_pairs(report: Report, run: RunFacts) -> ChosenPairs:
    """All pairs of a run, or 10 of them: pairs with one base, if there are any, and else the first pairs.

    The base of a student without a lineage is its own model.
    """
    students = [student for of, student in report.students if of == run.name]
    every = list(combinations(students, 2))
    if len(every) <= MOST_PAIRS:
        return ChosenPairs(tuple(every), ())
    bases = {student: _base(report, run, student) for student in students}
    related = [(first, second) for first, second in every if bases[first] == bases[second]]
    shown = (related or every)[:MOST_PAIRS]
    return ChosenPairs(tuple(shown), tuple(pair for pair in every if pair not in shown))


def _base(report: Report, run: RunFacts, student: str) -> str:
    lineage = report.lineages.get((run.name, student))
    return lineage.base if lineage else run.students.get(student, student)


def compared_pairs(report: Report) -> Iterator[ComparedPair]:
    """The chosen pairs of students of each run, by grader, setting and k."""
    for run in report.runs:
        for first, second in chosen_pairs(report, run).shown:
            for row in report.compared(run.name, first, second):
                yield ComparedPair(run.name, first, second, row)


@table(section="compare", order=10)
def pair_table(report: Report) -> ReportTable | None:
    """The chosen pairs of students of each run, by grader, setting and k."""
    notes = [_COMPARED_NOTE, *(note for run in report.runs for note in _left_out(run, chosen_pairs(report, run)))]
    return table_of(
        "students-compared",
        "Pairs of students",
        " ".join(notes),
        (
            {
                "students": report.label(c.run, _name((c.first, c.second))),
                "grader": c.row.grader,
                "setting": c.row.setting,
                "k": str(c.row.k),
                "difference": estimate(c.row.difference, (c.row.low, c.row.high), is_signed=True),
                "p": p_entry(c.row.p),
                "p, corrected": p_entry(c.row.p_corrected),
                "verdict": c.row.verdict,
                "wins": Count(c.row.wins),
                "ties": Count(c.row.ties),
                "losses": Count(c.row.losses),
                "combinations": Count(c.row.combinations),
                "still needed": Count(c.row.still_needed),
            }
            for c in report.comparisons
        ),
    )


def _name(pair: _StudentPair) -> str:
    first, second = pair
    return f"{second} − {first}"


def _left_out(run: RunFacts, pairs: ChosenPairs) -> list[str]:
    """A sentence that names the pairs that the table leaves out."""
    if not pairs.left_out:
        return []
    named = [_name(pair) for pair in pairs.left_out[:_NAMED_PAIRS]]
    more = len(pairs.left_out) - len(named)
    listed = ", ".join(named) + (f" and {more} more" if more else "")
    shown = len(pairs.shown)
    return [f"{run.name}: the table has {shown} of {shown + len(pairs.left_out)} pairs. Left out: {listed}."]


_HARDEST: Final = 5
"""Skills of each student in the table of the hardest."""


@table(section="skills", order=5)
def skill_table(report: Report) -> ReportTable | None:
    """Every skill that was asked for, the hardest for all students first."""
    if not report.students:
        return None
    grader = report.graders[0]
    rates = [skill_rates(report.cells_of(key, grader=grader)) for key in report.students]
    names = {name for by_name in rates for name in by_name}
    if not names:
        return None
    rows: list[tuple[Entry, ...]] = [
        (
            name,
            report.definitions[name].category if name in report.definitions else "–",
            report.definitions[name].side if name in report.definitions else "–",
            *(entry for by_name in rates for entry in _skill_entries(by_name.get(name))),
        )
        for name in sorted(names, key=lambda name: (_overall([r[name] for r in rates if name in r]), name))
    ]
    return ReportTable(
        name="skills",
        title="Skills, the hardest for all students first",
        note=f"Shown: the share of texts that show the skill, of the texts that were asked for it and that {grader} "
        "decided; all k and settings together. Ordered by the share over all students.",
        columns=("skill", "category", "side", *(("shown", "texts") * len(rates))),
        rows=tuple(rows),
        groups=(("", 3), *((report.label(*key), 2) for key in report.students)),
    )


@table(section="skills", order=6)
def hardest_table(report: Report) -> ReportTable | None:
    """The hardest skills of each student, where a report has several students."""
    rows: list[dict[str, Entry]] = []
    for key in report.students if len(report.students) > 1 else ():
        rates = skill_rates(report.cells_of(key, grader=report.graders[0]))
        for name in sorted(rates, key=lambda name: (rates[name].value, name))[:_HARDEST]:
            shown, texts = _skill_entries(rates[name])
            rows.append({"student": report.label(*key), "skill": name, "shown": shown, "texts": texts})
    return table_of(
        "hardest-skills",
        "The hardest skills of each student",
        f"The {_HARDEST} skills that each student shows least often, by its own share of texts under "
        f"{report.graders[0] if rows else ''}; all k and settings together. A share of few texts may be low by chance.",
        rows,
        folds="long",
    )


def _skill_entries(rate: Rate | None) -> tuple[Entry, Entry]:
    return (Estimate(None), Count(None)) if rate is None else (Estimate(rate.value), Count(rate.asked))


def _overall(rates: list[Rate]) -> float:
    return sum(rate.shown for rate in rates) / sum(rate.asked for rate in rates)
