"""Commands that show the results of a run: `status`, `scores`, `compare`, `texts`, `graders` and `report`."""

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from skillmix.commands import shared as cli
from skillmix.errors import LOG, UserError
from skillmix.render import (
    CUT,
    duration,
    grounds,
    name_hint,
    one_line,
    plural,
    point_line,
    share,
    side_by_side,
    whole,
    wrapped,
)
from skillmix.report import without_cycle_search

if TYPE_CHECKING:
    from skillmix.runs.run import Run
    from skillmix.scores.cells import CellScore
    from skillmix.scores.comparisons import BestText
    from skillmix.scores.safety import OutcomeScore
    from skillmix.scores.sentences import ScoredRun
    from skillmix.scores.text_rows import TextRow

_METRICS: Final = ("full_marks", "all_skills", "skill_fraction")
_METRIC: Final = cli.option("--metric", "metric (default: full_marks)", default="full_marks", choices=_METRICS)


@cli.command("status", cli.TRUST, cli.RUN)
def status(options: argparse.Namespace) -> int:
    """Count the done, missing, failed and unparseable calls of a run, and list its finished steps."""
    from skillmix.runs.run import open_run
    from skillmix.scores.status import run_status
    from skillmix.validation.task import run_progress

    run = open_run(options.run)
    status = run_status(run)
    raters = run_progress(run)
    if options.json:
        people = [{"step": name, **asdict(one)} for name, own in raters.items() for one in own]
        return cli.print_json(status.as_json() | ({"annotations": people} if raters else {}))
    missing = f"{status.missing_bound or ''} {whole(status.missing)} missing".lstrip()
    print(f"calls: {whole(status.done)} done, {missing}, {whole(status.failed)} failed")
    if status.batches:
        worst = sum(part.worst_usd for part in status.batches)
        price = f", at most {worst:.2f} US dollars" if worst else ""
        print(f"in batches: {plural(status.submitted, 'call')}{price}")
        print("\n".join(f"  {part.in_words}" for part in status.batches))
    print(f"unparseable gradings: {whole(status.unreadable)}")
    if status.cut_in_thought:
        print(f"replies truncated while thinking: {whole(status.cut_in_thought)}; raise max_tokens")
    print(status.cost_line())
    for name, own in raters.items():
        print("\n".join(f"{name}: {one.in_words}" for one in own) or f"{name}: no texts to read yet")
    for step, seconds in run.step_seconds.items():
        print(f"{step}: {duration(seconds)}")
    return 0


def score_floor(text: str) -> tuple[str, float]:
    """Parse the value of `--fail-below` into a student ("" for all students) and the lowest passing score."""
    student, _, least = text.rpartition("=")
    try:
        return student, cli.fraction(least)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number from 0 to 1 nor STUDENT=NUMBER") from None


@cli.command(
    "scores",
    cli.TRUST,
    cli.RUN,
    cli.RULES,
    _METRIC,
    cli.flag("--wide", "print every metric and count, one row for each k"),
    cli.flag("--sets", "add rows for reserved and for seen sets of train skills"),
    cli.option(
        "--fail-below",
        "exit with status 1 if a score of --metric is lower or unknown; repeatable",
        action="append",
        default=[],
        type=score_floor,
        metavar="[STUDENT=]SHARE",
    ),
)
def scores(options: argparse.Namespace) -> int:
    """Print the scores of a run, or the outcomes if its graders give outcomes."""
    from skillmix.runs.run import open_run
    from skillmix.scores.scoring import students_without_scores
    from skillmix.scores.sentences import scored_run
    from skillmix.scores.table import cut_lines, set_table, trained_note

    run = open_run(options.run)
    if run.has_outcomes:
        hint = "Its graders give outcomes instead of points; remove the option."
        cli.reject(options, ("fail_below",), "with this run", hint=hint)
        print_outcomes(run, name=options.run, as_json=options.json)
        return 0
    by_sets = options.sets or (not options.json and run.makes_data)
    scored = scored_run(run, rules=options.rules, by_sets=by_sets)
    scores = scored.scores
    ungraded = students_without_scores(run, scores)
    cli.print_notes(f"{student} is omitted, because its texts have no grades yet" for student in ungraded)
    cli.print_notes(scored.notes)
    for line in cut_lines(scores):
        LOG.warning(f"cut: {line}")
    print_scores(
        scored, run=options.run, as_json=options.json, metric=options.metric, wide=options.wide, by_sets=options.sets
    )
    if not options.json:
        for part in (set_table(scores), trained_note(scores)):
            if part:
                print(f"\n{part if part.startswith('|') else wrapped(part, indent=2)}")
    sys.stdout.flush()
    status = 0
    for student, least in options.fail_below:
        rows = [s for s in scores if s.metric == options.metric and s.sets == "all" and student in ("", s.student)]
        if not rows:
            known = list(dict.fromkeys(score.student for score in scores))
            hint = name_hint(student, known, otherwise=f"Students with scores: {', '.join(known) or 'none'}.")
            raise UserError(f"--fail-below: no scores of {student or 'any student'} in this run.", hint=hint)
        for row in (row for row in rows if row.value is None or row.value < least):
            status = 1
            value = "unknown" if row.value is None else f"{row.value:.3f}, below {least:g}"
            place = f"{row.student} by {row.grader}, {row.setting}, k = {row.k}"
            LOG.warning(f"failed: {options.metric} of {place}: {value}")
    return status


def print_scores(
    scored: "ScoredRun",
    *,
    run: str,
    as_json: bool,
    metric: str = "full_marks",
    wide: bool = False,
    by_sets: bool = False,
) -> None:
    """Print warnings about missed formats, the scores, the main result, and each tuned student against its base.

    In JSON, `by_sets` adds the skill sets and the number of combinations that were trained on.
    """
    from skillmix.scores.sentences import shown_lines
    from skillmix.scores.table import NOTE, WIDE_NOTE, score_table, score_title, wide_table

    scores: Sequence[CellScore] = scored.scores
    if as_json:
        hidden = set() if by_sets else {"sets", "trained_on", "seen_pairs"}
        rows = (score.json_row() for score in scores)
        cli.print_json([{name: value for name, value in row.items() if name not in hidden} for row in rows])
        return
    for line in scored.format_first if scores else ():
        print(f"{wrapped(line, indent=2)}\n")
    if scores and wide:
        print(f"{wide_table(scores)}\n\n{wrapped(WIDE_NOTE)}")
    elif scores:
        print(f"{score_title(scores, metric)}:\n\n{score_table(scores, metric)}\n\n{wrapped(NOTE)}")
        others = " or ".join(name for name in _METRICS if name != metric)
        more = f"skillmix scores {quote(run)} --wide"
        print(wrapped(f"More: {more} for every metric and count; --metric {others}; --json"))
    lines = [*scored.result, *shown_lines(scored.changes, run=run)]
    if lines:
        print("\n" + "\n".join(wrapped(line, indent=2) for line in lines))


def print_outcomes(run: "Run", *, name: str, as_json: bool) -> "list[OutcomeScore]":
    """Print and return the outcomes of a run, and print the differences between its students."""
    from skillmix.scores.safety import run_outcome_changes, run_outcomes
    from skillmix.scores.table import OUTCOME_NOTE, outcome_change_note, outcome_table, outcome_title

    scores = run_outcomes(run)
    if as_json:
        cli.print_json([score.json_row() for score in scores])
    elif scores:
        print(f"{outcome_title(scores)}:\n\n{outcome_table(scores)}\n\n{wrapped(OUTCOME_NOTE)}")
        note = outcome_change_note(run_outcome_changes(run))
        if note:
            print("\n" + "\n".join(wrapped(line, indent=2) for line in note.splitlines()))
        print(wrapped(f"More: skillmix texts {quote(name)}; --json"))
    return scores


@cli.command(
    "compare",
    cli.TRUST,
    cli.RUN,
    cli.option("first", "a student of the run", metavar="A"),
    cli.option("second", "another student of the run; differences are B minus A", metavar="B"),
    _METRIC,
    cli.RULES,
    cli.flag("--wide", "print all columns"),
    cli.option("--texts", "also show texts of N combinations on which A and B differ", type=cli.positive, metavar="N"),
)
def compare(options: argparse.Namespace) -> int:
    """Compare two students of a run on the combinations that both completed."""
    from skillmix.runs.run import open_run
    from skillmix.scores.comparisons import (
        STILL_NEEDED,
        compare_students,
        comparison_note,
        comparison_table,
        comparison_title,
    )
    from skillmix.scores.text_rows import TextUnderGrader, denial_words

    run = open_run(options.run)
    comparison = compare_students(
        run, options.first, options.second, metric=options.metric, rules=options.rules, texts=options.texts or 0
    )
    if options.json:
        return cli.print_json(asdict(comparison))
    print(f"{comparison_title(comparison)}:\n\n{comparison_table(comparison, wide=options.wide)}")
    print(f"\n{wrapped(comparison_note(comparison))}" + (f"\n{STILL_NEEDED}" if options.wide else ""))
    differing, shown = plural(comparison.differing, "combination"), comparison.texts
    if not shown:
        print(f"More: --texts 3 shows texts of the {differing} on which they differ; --wide; --json")
        return 0
    print(f"\n{len(shown)} of the {differing} on which they differ; * marks points that differ:\n")
    sides = [
        (best, TextUnderGrader(best.student, pair.combination, best.generation, pair.grader))
        for pair in shown
        for best in (pair.first, pair.second)
    ]
    words = denial_words(run, {key: _denied_without_reason(best) for best, key in sides})
    columns = []
    for best, key in sides:
        own = words.get(key, {})
        why = {n: grounds(best.evidence.get(n), best.reasons.get(n), grader_words=own.get(n)) for n in best.points}
        text = (one_line(best.text) or "(no text)") + (f" [{CUT}]" if best.cut else "")
        points = [point_line(name, point, why[name]) for name, point in best.points.items()]
        columns.append([f"{best.student} ({share(best.value)})", text, "", *points])
    blocks = []
    for pair, first, second in zip(shown, columns[::2], columns[1::2], strict=True):
        marked = [False] * 3 + [pair.first.points[name] != pair.second.points[name] for name in pair.first.points]
        heading = f"{pair.grader}, {pair.setting}, k = {pair.k}: {'; '.join(pair.skills)} on {pair.topic}"
        blocks.append(f"{wrapped(heading, indent=2)}\n\n{side_by_side(first, second, marked=marked)}")
    print("\n\n".join(blocks))
    return 0


def _denied_without_reason(text: "BestText | TextRow") -> set[str]:
    """Return the criteria whose point was denied without a reason from code."""
    return {name for name, point in text.points.items() if point is False and name not in text.reasons}


@cli.command(
    "texts",
    cli.TRUST,
    cli.RUN,
    cli.option("--n", "number of texts (default: 10)", type=cli.positive, default=10),
    cli.STUDENT,
    cli.option("--k", "only texts with this number of skills", type=cli.not_negative),
    cli.flag("--worst", "show the texts with the fewest points first"),
)
def texts(options: argparse.Namespace) -> int:
    """Show texts of a run with their points and the reasons for lost points, best first."""
    from skillmix.runs.run import open_run
    from skillmix.scores.text_rows import TextUnderGrader, denial_words, first_texts

    run = open_run(options.run)
    rows, total = first_texts(run, options.n, student=options.student, k=options.k, worst=options.worst)
    keys = [TextUnderGrader(row.student, row.combination, row.generation, row.grader) for row in rows]
    # Quote the grader's comments on denied points, or on the chosen outcome.
    unexplained: dict[TextUnderGrader, Collection[str]] = {}
    for key, row in zip(keys, rows, strict=True):
        chosen: set[str] = {row.outcome} if row.outcome and row.outcome not in row.reasons else set()
        unexplained[key] = chosen if row.has_outcome else _denied_without_reason(row)
    found = denial_words(run, unexplained)
    words: list[Mapping[str, str]] = [found.get(key, {}) for key in keys]
    if options.json:
        return cli.print_json([{**asdict(row), "grader_words": own} for row, own in zip(rows, words, strict=True)])
    names_grader = len({row.grader for row in rows}) > 1
    pages = [_paragraph(row, own, names_grader=names_grader) for row, own in zip(rows, words, strict=True)]
    print("\n\n".join(pages) or "There are no graded texts.")
    if total > len(rows):
        print(f"\n{len(rows)} of {total} graded texts. More: --n N, --worst, --student S, --k K, --json")
    return 0


def _paragraph(row: "TextRow", words: Mapping[str, str], *, names_grader: bool) -> str:
    """Format a text and its points for a terminal."""
    grader = f", graded by {row.grader}" if names_grader else ""
    settings = f", {' and '.join(row.settings) or 'in no score'}"
    cut = f" [{CUT}]" if row.cut else ""
    text = one_line(row.text) or "(no text)"
    lines = [wrapped(f"{row.student}, k = {row.k}{settings}, on {row.topic}{grader}: {text}{cut}", indent=2)]
    if row.has_outcome:
        outcome: str = row.outcome or "undecided"
        why = grounds(None, row.reasons.get(outcome), grader_words=words.get(outcome))
        return "\n".join([*lines, "  " + wrapped(f"{outcome}: {why}" if why else outcome, indent=6)])
    for name, point in row.points.items():
        shown = grounds(
            row.evidence.get(name),
            row.reasons.get(name),
            woven=row.woven.get(name),
            grader_words=words.get(name) if point is False else None,
        )
        lines.append("  " + wrapped(point_line(name, point, shown), indent=6))
    return "\n".join(lines)


@cli.command(
    "graders",
    cli.TRUST,
    cli.option("runs", "names of runs, or paths of their folders", nargs="+", metavar="RUN"),
    cli.option(
        "--truth",
        "reference labels: a grader, rules (code) or people (default: people, else code, else another grader)",
        metavar="GRADER",
    ),
    cli.RULES,
    cli.flag("--wide", "print all measures, and a table by skill"),
)
def graders(options: argparse.Namespace) -> int:
    """Print a card for each grader: agreement with reference labels, bias, consistency, cost and corrected scores."""
    from skillmix.scores.grader_cards import CORRECTED_NOTE, NOTE, card_text, cards_as_json, run_cards

    cards = run_cards(options.runs, truth=options.truth, rules=options.rules)
    if options.json:
        return cli.print_json(cards_as_json(cards))
    if not cards:
        print("There are no graded texts.")
        return 0
    print("\n\n".join(card_text(card, wide=options.wide) for card in cards))
    if any(card.by_kind for card in cards):
        print(f"\n{wrapped(NOTE)}")
    if any(card.corrected for card in cards):
        print(wrapped(CORRECTED_NOTE))
    if not options.wide and any(card.by_kind for card in cards):
        print("More: --wide for alpha and a table by skill; --truth GRADER, rules or people; --json")
    return 0


@cli.command(
    "report",
    cli.TRUST,
    cli.option("targets", "runs, or an experiment file", nargs="+", metavar="RUN|EXPERIMENT.yaml"),
    cli.option("--rules", "scoring rules (default: each run's own)", choices=("default", "paper", "both")),
    cli.flag("--published", "show the paper's published figures next to those of the run"),
    cli.option("--tokens", "corpus size for the novelty bound (default: 2e12)", type=cli.above_zero, metavar="N"),
    cli.option("--frequencies", "output of `skillmix frequency` for the novelty bound", type=Path, metavar="FILE.json"),
    cli.flag("--no-figures", "write only pages and tables"),
    cli.option("--style", "also draw figures for a paper or slides, as PDF and PNG", choices=("paper", "slide")),
    cli.option(
        "--texts",
        "maximum number of texts to show; a larger report shows a sample (default: 200,000)",
        type=cli.positive,
        metavar="N",
    ),
    cli.option("--output", "output folder (default: report/ in the run's folder)", type=Path, metavar="DIR"),
)
@without_cycle_search()
def report(options: argparse.Namespace) -> int:
    """Write pages, tables and figures about an experiment or about runs."""
    from skillmix.report.records import MOST_TEXTS, ReportOptions
    from skillmix.report.write import report

    frequencies, file = None, options.frequencies
    if file is not None:
        from skillmix.catalog.novelty import MeasuredFrequencies
        from skillmix.frequencies.frequency_file import load_result, upper_shares

        result = load_result(file)
        frequencies = MeasuredFrequencies(str(file), upper_shares(result), result.sentences_per_passage)
    report_options = ReportOptions(
        frequencies=frequencies,
        figures=not options.no_figures,
        texts=options.texts or MOST_TEXTS,
        **cli.taken(options, "rules", "published", "tokens", "style"),
    )
    written = report(options.targets, output=options.output, options=report_options)
    if options.json:
        facts = {"page": str(written.page), "texts": written.texts, "files": written.files, "bytes": written.bytes}
        return cli.print_json({**facts, "missing": list(written.gaps)})
    print(written.page)
    return 0
