"""Tables of scores and outcomes: in the layouts of the paper, by partition, by skill, and of pairs of students."""

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
from skillmix.prompts.rubric import OUTCOMES, TextOutcome
from skillmix.render import expectation
from skillmix.report.records import ComparedPair, Report, RunFacts, StudentKey, by_key
from skillmix.report.registry import (
    CORRECTION,
    Count,
    Entry,
    Estimate,
    ReportTable,
    Row,
    cell_heads,
    estimate,
    p_entry,
    score_entry,
    table,
    table_of,
)
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.outcomes import TOPICS, OutcomeCell
from skillmix.scores.skills import Rate, skill_rates
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS

_MAIN: Final = tuple(metric.name for metric in METRICS.values() if metric.is_main)
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


@table(section="scores", order=20)
def setting_tables(report: Report) -> Iterator[ReportTable]:
    """Students × k for each setting, with the main metrics and with all (tables 1, 3, 10 and 11 of the paper)."""
    following = {of.key: of.following for of in report.cell_texts}
    shows = {"grader": len(report.graders) > 1, "trained on": any(key in report.lineages for key in report.students)}
    for setting in report.settings:
        cells = {c.key: c for c in report.cells if c.key.setting == setting}
        ks = sorted({key.k for key in cells})
        for metrics, suffix, numbers in ((_MAIN, "", "1 and 3"), (tuple(METRICS), "-all-metrics", "10 and 11")):
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
            made = table_of(
                f"scores-{setting}{suffix}",
                f"Scores, setting {setting}" + (", all metrics" if suffix else ""),
                f"{_as_in_paper(f'tables {numbers}')} {_NOTE} {_FURTHER_NOTE}",
                rows,
                folds="always" if suffix else None,
            )
            if made:
                yield replace(made, family="scores", part=setting)


def _as_in_paper(tables: str) -> str:
    """The sentence that names the tables of the paper with the same layout."""
    return f"The layout is that of {tables} of the paper (arXiv 2409.19808)."


def _further_entries(cell: Cell | None, following: int | None) -> dict[str, Entry]:
    """What a table of scores says beside the metrics; `following` counts the texts that follow an example."""
    known = cell if cell and cell.written else None
    full = known.scores[FULL_MARKS] if known else None
    among_valid = estimate(full.among_valid, (full.among_valid_low, full.among_valid_high)) if full else Estimate(None)
    return {
        f"woven {_FULL}": Estimate(full.woven, full.woven_low, full.woven_high) if full else Estimate(None),
        "format valid": Estimate(known.format_valid if known else None),
        f"{_FULL} among valid": among_valid,
        "cut": Count(known.cut if known else None),
        "follows an example": Count(following if known else None),
    }


def _main_entries(cells: Mapping[str, Cell | None]) -> dict[Any, Entry]:
    """The main metrics of cells, each cell under a heading."""
    return {(above, METRICS[m].label): _linked(cell, m) for above, cell in cells.items() for m in _MAIN}


@table(section="scores", order=30)
def change_table(report: Report) -> ReportTable | None:
    """Every tuned student minus its base on the same combinations."""
    rows: list[Row] = []
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
    cells = by_key(report.cells)
    rows: list[Row] = []
    for run, student in report.students:
        places = dict.fromkeys((key.setting, key.grader) for key in cells if key[:2] == (run, student))
        for setting, grader in sorted(places, key=lambda place: report.settings.index(place[0])):
            if sum(other == setting for other, _ in places) > 1:
                own = {f"k = {k}": cells.get(CellKey(run, student, grader, setting, k)) for k in report.ks}
                heads = {"student": report.label(run, student), "setting": setting, "grader": grader}
                rows.append({**heads, **_main_entries(own)})
    return table_of(
        "graders-side-by-side",
        "The same texts under several graders",
        f"{_as_in_paper('table 5')} {_NOTE}",
        rows,
        folds="always",
    )


@table(section="scores", order=50)
def efficiency_table(report: Report) -> ReportTable | None:
    """Tuned students with the size of their data (table 4 of the paper)."""
    tuned = [key for key in report.students if key in report.lineages]
    setting = "all" if "all" in report.settings else next(iter(report.settings), "")
    ks = [k for k in report.ks if k >= 2] or report.ks
    rows: list[Row] = []
    for key in sorted(tuned, key=lambda k: (report.lineages[k].rows or 0, report.lineages[k].k)):
        cells = {c.key.k: c for c in report.cells_of(key, grader=report.graders[0], setting=setting)}
        lineage = report.lineages[key]
        heads: Row = {
            "student": report.label(*key),
            "trained on": short_name(lineage.k),
            "conversations": Count(lineage.rows),
        }
        if cells:
            rows.append({**heads, **_main_entries({f"k = {k}": cells.get(k) for k in ks})})
    return table_of(
        "data-efficiency",
        f"Data efficiency, setting {setting}",
        f"{_as_in_paper('table 4')} Conversations counts each conversation of the data sets once. {_NOTE}",
        rows,
        folds="always",
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
        f"Drawn combinations with none of the {len(report.common_skills)} skills on the catalog's list of common "
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
    settings = list(dict.fromkeys(c.key.setting for c in cells))
    rows: list[Row] = []
    for run, student, grader in dict.fromkeys((c.key.run, c.key.student, c.key.grader) for c in cells):
        own = {c.key.setting: c for c in cells if (c.key.run, c.key.student, c.key.grader) == (run, student, grader)}
        shown = {(setting, METRICS[m].label): score_entry(own.get(setting), m) for setting in settings for m in _MAIN}
        rows.append({"student": report.label(run, student), "grader": grader, **shown})
    return table_of(
        "common-skills-removed",
        f"Common skills removed, k = {k}",
        f"{_as_in_paper('table 6')} {how} {_bound_in_words(report, k, novelty_bound(report, k, cells))}",
        rows,
        folds="always",
    )


@table(section="scores", order=40)
def seen_table(report: Report) -> ReportTable | None:
    """Skill sets that training data may contain, and skill sets kept back."""
    rows: list[Row] = []
    for cell in report.cells:
        parts = dict(zip(("seen", "kept back"), _seen_and_kept_back(cell, report), strict=True))
        if all(part.combinations for part in parts.values()):
            scores = {(of, METRICS[m].label): score_entry(part, m) for of, part in parts.items() for m in _MAIN}
            rows.append({**cell_heads(report, cell.key), **scores})
    return table_of(
        "seen-and-reserved",
        "Skill sets seen in training, and skill sets kept back",
        f"Seen: skill sets that training data may contain; kept back: skill sets in no training data. {_NOTE}",
        rows,
        folds="always",
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
    rows: list[Row] = []
    for key in cells[names[0]]:
        first, second = (cells[name][key].scores[FULL_MARKS].value for name in names[:2])
        change = None if first is None or second is None else second - first
        scores = {name: score_entry(cells[name][key], FULL_MARKS) for name in names}
        rows.append({**cell_heads(report, key), **scores, "difference": Estimate(change, is_signed=True)})
    return table_of(
        "rules-side-by-side",
        f"Full marks by rules: {' and '.join(names)}",
        f"The same texts and votes under several rules; the difference is {names[1]} minus {names[0]}. {_NOTE}",
        rows,
        folds="always",
    )


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
_COMPARED_NOTE: Final = (
    "A row B − A has full marks of B minus those of A, best of the generations, on the combinations that both have "
    "complete, with the 95% interval. p comes from a permutation test within combinations. "
    f"{CORRECTION} Wins, ties and losses of B count combinations. Still needed: further combinations for 80% power at "
    "the observed difference. `skillmix compare RUN A B` shows any pair with the texts that differ."
)
_StudentPair = tuple[str, str]


def chosen_pairs(report: Report, run: RunFacts) -> list[_StudentPair]:
    """All pairs of a run, or 10 of them: pairs with one base, if there are any, and else the first pairs.

    The base of a student without a lineage is its own model.
    """
    students = [student for of, student in report.students if of == run.name]
    every = list(combinations(students, 2))
    bases = {student: _base(report, run, student) for student in students}
    related = [(first, second) for first, second in every if bases[first] == bases[second]]
    return every if len(every) <= MOST_PAIRS else (related or every)[:MOST_PAIRS]


def _base(report: Report, run: RunFacts, student: str) -> str:
    lineage = report.lineages.get((run.name, student))
    return lineage.base if lineage else run.students.get(student, student)


def compared_pairs(report: Report) -> Iterator[ComparedPair]:
    """The chosen pairs of students of each run, by grader, setting and k."""
    for run in report.runs:
        for first, second in chosen_pairs(report, run):
            for row in report.compared(run.name, first, second):
                yield ComparedPair(run.name, first, second, row)


@table(section="compare", order=10)
def pair_table(report: Report) -> ReportTable | None:
    """The chosen pairs of students of each run, by grader, setting and k."""
    notes = [_COMPARED_NOTE]
    for run in report.runs:
        shown, students = len(chosen_pairs(report, run)), sum(of == run.name for of, _ in report.students)
        if shown < students * (students - 1) // 2:
            notes.append(f"{run.name}: the table has {shown} of {students * (students - 1) // 2} pairs.")
    return table_of(
        "students-compared",
        "Pairs of students",
        " ".join(notes),
        (
            {
                "students": report.label(c.run, f"{c.second} − {c.first}"),
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
    rows: list[Row] = []
    for name in sorted(names, key=lambda name: (_overall([r[name] for r in rates if name in r]), name)):
        known = report.definitions.get(name)
        row: dict[Any, Entry] = {"skill": name}
        row |= {"category": known.category if known else "–", "side": known.side if known else "–"}
        for key, of_student in zip(report.students, rates, strict=True):
            shown, texts = _skill_entries(of_student.get(name))
            row |= {(report.label(*key), "shown"): shown, (report.label(*key), "texts"): texts}
        rows.append(row)
    return table_of(
        "skills",
        "Skills, the hardest for all students first",
        f"Shown: the share of texts that show the skill, of the texts that were asked for it and that {grader} "
        "decided; all k and settings together. Ordered by the share over all students.",
        rows,
    )


@table(section="skills", order=6)
def hardest_table(report: Report) -> ReportTable | None:
    """The hardest skills of each student, where a report has several students."""
    rows: list[Row] = []
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


_OUTCOME_NOTE: Final = (
    "Shares of texts in which the student complies with the request, refuses it or evades it: mean over complete "
    "combinations, with 95% intervals over combinations. Probes are mild requests, controls their harmless twins, so "
    "that a refused control is an over-refusal. k counts the innocent writing skills that the request is mixed with; "
    "k = 0 is the request alone. The intervals are for these probes; other probes could give other shares."
)
_BOUNDS_NOTE: Final = (
    "If every text without an outcome had another outcome (at least), or this one where its votes allow it (at most). "
    "Texts have no outcome if they are not written, if their grades cannot be read, or if the rounds have no majority."
)
_CHANGES_NOTE: Final = (
    "The share of the second student minus that of the first on the combinations that both have complete, with 95% "
    "intervals. p comes from a permutation test within combinations and is corrected by Holm over the rows of the same "
    "students, topics and outcome."
)


@table(section="safety", order=10)
def outcome_shares(report: Report) -> ReportTable | None:
    """The three shares by student, grader, setting, probes or controls, and k."""
    return table_of(
        "outcomes",
        "Outcomes by k",
        _OUTCOME_NOTE,
        (
            {
                **_outcome_heads(report, cell),
                **{outcome: _linked_share(cell, outcome) for outcome in OUTCOMES},
                "combinations": Count(len(cell.cell.combinations)),
                "undecided": Count(cell.share(OUTCOMES[0]).undecided),
            }
            for cell in _by_student(report)
        ),
    )


def _by_student(report: Report) -> list[OutcomeCell]:
    """The cells in the order of students, then of graders and settings, then probes before controls, by k."""
    places = list(dict.fromkeys((c.key.run, c.key.student, c.key.grader, c.key.setting) for c in report.outcomes))
    students = list(dict.fromkeys(place[:2] for place in places))
    return sorted(
        report.outcomes,
        key=lambda c: (students.index(c.key[:2]), places.index(c.key[:4]), TOPICS.index(c.topics), c.key.k),
    )


def _outcome_heads(report: Report, cell: OutcomeCell) -> Row:
    run, student, grader, setting, k = cell.key
    names = {"student": report.label(run, student), "grader": grader, "setting": setting, "topics": cell.topics}
    return {**names, "k": str(k)}


def _linked_share(cell: OutcomeCell, outcome: TextOutcome) -> Entry:
    share = cell.share(outcome)
    key = cell.key
    filters = {
        "a": f"{key.run}/{key.student}",
        "grader": f"{key.run}/{key.grader}",
        "setting": key.setting,
        "k": key.k,
        "outcome": outcome,
        "request": cell.topics,
    }
    link = f"texts.html#{urlencode(filters)}"
    return replace(estimate(share.value, (share.low, share.high)), link=link)


@table(section="safety", order=30)
def outcome_bounds(report: Report) -> ReportTable | None:
    """The bounds of the shares in cells with undecided texts."""
    rows: list[Row] = []
    for cell in _by_student(report):
        bounds: dict[Any, Entry] = {}
        for outcome in OUTCOMES:
            share = cell.share(outcome)
            bounds[outcome, "at least"], bounds[outcome, "at most"] = (
                Estimate(share.bound_low),
                Estimate(share.bound_high),
            )
        if cell.share(OUTCOMES[0]).undecided:
            rows.append({**_outcome_heads(report, cell), **bounds})
    return table_of("outcome-bounds", "Bounds of the outcomes with undecided texts", _BOUNDS_NOTE, rows, folds="always")


@table(section="safety", order=40)
def outcome_change_table(report: Report) -> ReportTable | None:
    """Tuned students against their bases, or else each student against the first of its run."""
    is_tuned = all(change.is_tuned for change in report.outcome_changes)
    return table_of(
        "outcomes-compared",
        "Outcomes before and after tuning" if is_tuned else "Outcomes of students compared",
        _CHANGES_NOTE,
        (
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
                "combinations": Count(c.combinations),
            }
            for c in report.outcome_changes
        ),
    )
