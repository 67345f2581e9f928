"""Commands that show the results of a run: `status`, `scores`, `compare`, `texts`, `graders` and `export`."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from skillmix.commands.shared import (
    METRIC_NAMES,
    Commands,
    above_zero,
    add_command,
    add_trust_option,
    not_negative,
    positive,
    print_first,
    print_json,
    print_notes,
    print_outcomes,
    print_result,
    print_scores,
    score_rows,
)
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

if TYPE_CHECKING:
    from skillmix.runs.run import Run
    from skillmix.runs.text_rows import TextRow, TextUnderGrader
    from skillmix.scores.cells import CellScore
    from skillmix.scores.pairs import BestText, DifferingTexts

    DenialWords = Mapping[TextUnderGrader, Mapping[str, str]]
    from skillmix.catalog.novelty import MeasuredFrequencies


def add_parsers(commands: Commands) -> None:
    """Add the commands that read a run."""
    parser = add_command(commands, "status", status)
    add_trust_option(parser)
    parser.add_argument("run", metavar="RUN")

    parser = add_command(commands, "scores", scores)
    add_trust_option(parser)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--rules", help="default or paper (default: the run's own)")
    parser.add_argument("--metric", default="full_marks", choices=METRIC_NAMES, help="default: full_marks")
    parser.add_argument("--wide", action="store_true", help="print every metric and count, one row for each k")
    parser.add_argument(
        "--sets", action="store_true", help="add rows for reserved and for seen skill sets of train skills"
    )
    parser.add_argument(
        "--fail-below",
        action="append",
        default=[],
        type=_floor,
        metavar="[STUDENT=]SHARE",
        help="exit with status 1 if a score of --metric is below this share or unknown; may be repeated",
    )

    parser = add_command(commands, "compare", compare)
    add_trust_option(parser)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("first", metavar="A", help="a student of the run")
    parser.add_argument("second", metavar="B", help="another student; differences are B minus A")
    parser.add_argument("--metric", default="full_marks", choices=METRIC_NAMES, help="default: full_marks")
    parser.add_argument("--rules", help="default or paper (default: the run's own)")
    parser.add_argument("--wide", action="store_true", help="print every column")
    parser.add_argument(
        "--texts", type=positive, metavar="N", help="also show N combinations on which A and B differ, with their texts"
    )

    parser = add_command(commands, "texts", texts)
    add_trust_option(parser)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--n", type=positive, default=10, help="number of texts (default 10)")
    parser.add_argument("--student", help="only texts of this student")
    parser.add_argument("--k", type=not_negative, help="only texts with this number of skills")
    parser.add_argument("--worst", action="store_true", help="show texts with the fewest points first")

    parser = add_command(commands, "graders", graders)
    add_trust_option(parser)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument(
        "--truth",
        metavar="GRADER",
        help="compare with this grader, with rules (code) or with people (default: people, else code, else another)",
    )
    parser.add_argument("--rules", help="default or paper (default: each run's own)")
    parser.add_argument("--wide", action="store_true", help="print every measure, and a table by skill")

    parser = add_command(commands, "export", export, has_json=False)
    add_trust_option(parser)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--what", choices=("texts", "votes", "calls"), required=True)
    parser.add_argument("--format", choices=("jsonl", "parquet"), default="jsonl")
    parser.add_argument("--rules", help="default or paper (default: the run's own)")
    parser.add_argument("--output", type=Path, help="default: a file in the run's folder")


def status(options: argparse.Namespace) -> int:
    """Count the calls of a run that are done, missing, failed or unreadable, and show its steps."""
    from skillmix.runs.run import open_run
    from skillmix.scores.status import run_status
    from skillmix.validation.task import run_progress

    run = open_run(options.run)
    status = run_status(run)
    raters = run_progress(run)
    if options.json:
        people = [{"step": name, **asdict(one)} for name, own in raters.items() for one in own]
        more = {"annotations": people} if raters else {}
        return print_json(status.as_json() | more)
    missing = f"{status.missing_bound or ''} {whole(status.missing)} missing".lstrip()
    print(f"calls: {whole(status.done)} done, {missing}, {whole(status.failed)} failed")
    if status.batches:
        worst = sum(part.worst_usd for part in status.batches)
        price = f", at most {worst:.2f} US dollars" if worst else ""
        print(f"in batches: {plural(status.submitted, 'call')}{price}")
        print("\n".join(f"  {part.in_words}" for part in status.batches))
    print(f"unreadable gradings: {whole(status.unreadable)}")
    if status.cut_in_thought:
        print(f"replies cut in their thought: {whole(status.cut_in_thought)}; raise max_tokens")
    print(status.cost_line())
    for name, own in raters.items():
        print("\n".join(f"{name}: {one.in_words}" for one in own) or f"{name}: there is no text to read yet")
    for step, seconds in run.finished.seconds(run.experiment.steps).items():
        print(f"{step}: {duration(seconds)}")
    return 0


def _floor(text: str) -> tuple[str, float]:
    """The student, or "" for all of them, and the least share of `--fail-below`."""
    student, _, share = text.rpartition("=")
    try:
        least = float(share)
    except ValueError:
        least = -1.0
    if not 0 <= least <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1, nor STUDENT=SHARE")
    return student, least


def scores(options: argparse.Namespace) -> int:
    """Print the score table of a run, or its outcomes where graders name outcomes."""
    from skillmix.runs.run import open_run
    from skillmix.scores.scoring import scored_run, students_without_scores

    run = open_run(options.run)
    if run.has_outcomes:
        if options.fail_below:
            raise UserError(
                "--fail-below needs scores, and the graders of this run name outcomes.", hint="Leave it out."
            )
        print_outcomes(run, name=options.run, as_json=options.json)
        return 0
    by_sets = options.sets or (not options.json and run.makes_data)
    scored = scored_run(run, rules=options.rules, by_sets=by_sets)
    scores = scored.scores
    ungraded = students_without_scores(run, scores)
    print_notes(f"the texts of {student} have no gradings yet, and are in no row" for student in ungraded)
    print_notes(scored.notes)
    from skillmix.scores.table import cut_lines, set_table, trained_note

    for line in cut_lines(scores):
        LOG.warning(f"cut: {line}")
    if options.json:
        print_json(score_rows(scores, by_sets=options.sets))
    elif scores:
        print_first(scored)
        print_scores(scores, run=options.run, metric=options.metric, wide=options.wide)
    if not options.json:
        print_result(scored, run=options.run)
        for part in (set_table(scores), trained_note(scores)):
            if part:
                print(f"\n{part if part.startswith('|') else wrapped(part, indent=2)}")
    sys.stdout.flush()
    return _status_of_floors(scores, options.metric, options.fail_below)


def _status_of_floors(scores: "Sequence[CellScore]", metric: str, floors: Sequence[tuple[str, float]]) -> int:
    """The exit status: 1, after a line for each score that is below a floor or unknown, else 0."""
    status = 0
    for student, least in floors:
        rows = [s for s in scores if s.metric == metric and s.sets == "all" and student in ("", s.student)]
        if not rows:
            known = list(dict.fromkeys(score.student for score in scores))
            raise UserError(
                f"--fail-below finds no score of {student or 'a student'}.",
                hint=name_hint(student, known, otherwise=f"Students with scores: {', '.join(known) or 'none'}."),
            )
        for row in (row for row in rows if row.value is None or row.value < least):
            status = 1
            value = "unknown" if row.value is None else f"{row.value:.3f}, below {least:g}"
            LOG.warning(f"failed: {metric} of {row.student} by {row.grader}, {row.setting}, k = {row.k}: {value}")
    return status


def compare(options: argparse.Namespace) -> int:
    """Compare two students of a run on the combinations that both have complete."""
    from skillmix.runs.run import open_run
    from skillmix.scores.pairs import (
        STILL_NEEDED,
        compare_students,
        comparison_note,
        comparison_table,
        comparison_title,
    )

    run = open_run(options.run)
    comparison = compare_students(
        run, options.first, options.second, metric=options.metric, rules=options.rules, texts=options.texts or 0
    )
    shown = comparison.texts
    if options.json:
        return print_json(asdict(comparison))
    print(f"{comparison_title(comparison)}:\n\n{comparison_table(comparison, wide=options.wide)}")
    print(f"\n{wrapped(comparison_note(comparison))}" + (f"\n{STILL_NEEDED}" if options.wide else ""))
    differing = plural(comparison.differing, "combination")
    if shown:
        print(f"\n{len(shown)} of the {differing} on which they differ; * marks points that differ:\n")
        print("\n\n".join(_both_texts(pair, _words_on_pairs(run, shown)) for pair in shown))
    else:
        print(f"More: --texts 3 shows texts of the {differing} on which they differ; --wide; --json")
    return 0


def _words_on_pairs(run: "Run", pairs: "Sequence[DifferingTexts]") -> "DenialWords":
    """What graders wrote about the points that they denied."""
    from skillmix.runs.text_rows import TextUnderGrader, denial_words

    denied = {
        TextUnderGrader(best.student, pair.combination, best.generation, pair.grader): _without_reason(best)
        for pair in pairs
        for best in (pair.first, pair.second)
    }
    return denial_words(run, denied)


def _without_reason(text: "BestText | TextRow") -> set[str]:
    """The criteria whose point is denied without a reason of code."""
    return {name for name, point in text.points.items() if point is False and name not in text.reasons}


def _to_explain(row: "TextRow") -> set[str]:
    """The criteria on which the grader's words are shown: points that it denied, or the outcome that it named."""
    if row.has_outcome:
        return {row.outcome} if row.outcome and row.outcome not in row.reasons else set()
    return _without_reason(row)


def _both_texts(pair: "DifferingTexts", words: "DenialWords") -> str:
    """A combination with the best text of each student, side by side, and the points that differ marked."""
    from skillmix.runs.text_rows import TextUnderGrader

    columns = []
    for best in (pair.first, pair.second):
        own = words.get(TextUnderGrader(best.student, pair.combination, best.generation, pair.grader), {})
        points = [
            point_line(
                name, point, grounds(best.evidence.get(name), best.reasons.get(name), grader_words=own.get(name))
            )
            for name, point in best.points.items()
        ]
        text = one_line(best.text) or "(no text)"
        columns.append(
            [f"{best.student} ({share(best.value)})", f"{text}{f' [{CUT}]' if best.cut else ''}", "", *points]
        )
    marked = [pair.first.points[name] != pair.second.points[name] for name in pair.first.points]
    heading = f"{pair.grader}, {pair.setting}, k = {pair.k}: {'; '.join(pair.skills)} on {pair.topic}"
    return f"{wrapped(heading, indent=2)}\n\n{side_by_side(*columns, marked=[False, False, False, *marked])}"


def texts(options: argparse.Namespace) -> int:
    """Show texts of a run with their points and why points were lost, best first."""
    from skillmix.runs.run import open_run
    from skillmix.runs.text_rows import denial_words, first_texts

    run = open_run(options.run)
    rows, total = first_texts(run, options.n, student=options.student, k=options.k, worst=options.worst)
    words = denial_words(run, {_text_key(row): _to_explain(row) for row in rows})
    if options.json:
        return print_json([{**asdict(row), "grader_words": words.get(_text_key(row), {})} for row in rows])
    print(text_page(rows, words))
    if total > len(rows):
        print(f"\n{len(rows)} of {total} graded texts. More: --n N, --worst, --student S, --k K, --json")
    return 0


def _text_key(row: "TextRow") -> "TextUnderGrader":
    from skillmix.runs.text_rows import TextUnderGrader

    return TextUnderGrader(row.student, row.combination, row.generation, row.grader)


def graders(options: argparse.Namespace) -> int:
    """Print a card for each grader: agreement with the truth, bias, steadiness, cost, and corrected scores."""
    from skillmix.scores.cards import CORRECTED_NOTE, NOTE, card_text, cards_as_json, run_cards

    cards = run_cards(options.runs, truth=options.truth, rules=options.rules)
    if options.json:
        return print_json(cards_as_json(cards))
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


def export(options: argparse.Namespace) -> int:
    """Write the texts, votes or calls of a run to a file."""
    from skillmix.exchange.export import export

    path = export(
        options.run, what=options.what, file_format=options.format, rules=options.rules, output=options.output
    )
    print(path)
    return 0


def text_page(rows: "Sequence[TextRow]", words: "DenialWords | None" = None) -> str:
    """One paragraph for each text, for a terminal; the grader is named if there are several."""
    several = len({row.grader for row in rows}) > 1
    known = words or {}
    pages = [_paragraph(row, known.get(_text_key(row), {}), names_grader=several) for row in rows]
    return "\n\n".join(pages) or "There are no graded texts."


def _paragraph(row: "TextRow", words: Mapping[str, str], *, names_grader: bool) -> str:
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


def add_report(commands: Commands) -> None:
    """Add the command `report`."""
    parser = add_command(commands, "report", report)
    add_trust_option(parser)
    parser.add_argument("targets", nargs="+", metavar="RUN|EXPERIMENT.yaml", help="runs, or an experiment file")
    parser.add_argument("--rules", choices=("default", "paper", "both"), help="default: each run's own")
    parser.add_argument("--published", action="store_true", help="show the paper's published figures beside the run's")
    parser.add_argument(
        "--tokens", type=above_zero, metavar="N", help="corpus size for the novelty bound (default 2e12)"
    )
    parser.add_argument(
        "--frequencies",
        type=Path,
        metavar="FILE.json",
        help="frequencies.json of `skillmix frequency`, for a novelty bound with the frequency of each skill",
    )
    parser.add_argument("--no-figures", action="store_true", help="write only pages and tables")
    parser.add_argument(
        "--style",
        choices=("paper", "slide"),
        help="also draw the figures for a paper (as wide as a column or a page) or for slides, as PDF and PNG",
    )
    parser.add_argument(
        "--texts", type=positive, metavar="N", help="show a sample of N texts of a larger run (default 200,000)"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: report/ in the run's folder")


def report(options: argparse.Namespace) -> int:
    """Write pages, tables and figures about an experiment or about runs."""
    from skillmix.report.read import MOST_TEXTS
    from skillmix.report.write import ReportOptions, report

    report_options = ReportOptions(
        rules=options.rules,
        published=options.published,
        tokens=options.tokens,
        frequencies=_frequencies(options.frequencies),
        figures=not options.no_figures,
        style=options.style,
        texts=options.texts or MOST_TEXTS,
    )
    written = report(options.targets, output=options.output, options=report_options)
    if options.json:
        facts = {"page": str(written.page), "texts": written.texts, "files": written.files, "bytes": written.bytes}
        return print_json({**facts, "missing": list(written.gaps)})
    print(written.page)
    return 0


def _frequencies(file: Path | None) -> "MeasuredFrequencies | None":
    from skillmix.catalog.novelty import MeasuredFrequencies
    from skillmix.frequencies.frequency_file import load_result, upper_shares

    if file is None:
        return None
    result = load_result(file)
    return MeasuredFrequencies(str(file), upper_shares(result), result.sentences_per_passage)
