"""Commands that show the results of a run: `status`, `scores`, `compare`, `texts` and `export`."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skillmix.commands.shared_options import Commands, add_command, positive
from skillmix.commands.streams import grounds, print_json, print_notes, score_rows
from skillmix.render.numbers import share
from skillmix.render.untrusted import one_line

if TYPE_CHECKING:
    from skillmix.runs.reading.texts import TextRow
    from skillmix.scores.pairs import DifferingTexts


def add_parsers(commands: Commands) -> None:
    """Add the commands that read a run."""
    add_command(commands, "status", status).add_argument("run", metavar="RUN")

    parser = add_command(commands, "scores", scores)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--rules", help="default or paper (default: the run's own)")
    parser.add_argument(
        "--sets", action="store_true", help="add rows for reserved and for seen skill sets of train skills"
    )

    parser = add_command(commands, "compare", compare)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("first", metavar="A", help="a student of the run")
    parser.add_argument("second", metavar="B", help="another student; differences are B minus A")
    parser.add_argument("--metric", default="full_marks", help="full_marks, all_skills or skill_fraction")
    parser.add_argument("--rules", help="default or paper (default: the run's own)")
    parser.add_argument(
        "--texts", type=positive, metavar="N", help="also show N combinations on which A and B differ, with their texts"
    )

    parser = add_command(commands, "texts", texts)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--n", type=positive, default=10, help="number of texts (default 10)")
    parser.add_argument("--student", help="only texts of this student")
    parser.add_argument("--k", type=positive, help="only texts with this number of skills")

    parser = add_command(commands, "export", export, has_json=False)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--what", choices=("texts", "votes", "calls"), required=True)
    parser.add_argument("--format", choices=("jsonl", "parquet"), default="jsonl")
    parser.add_argument("--rules", help="default or paper (default: the run's own)")
    parser.add_argument("--output", type=Path, help="default: a file in the run's folder")


def status(options: argparse.Namespace) -> int:
    """Count the calls of a run that are done, missing, failed or unreadable."""
    from skillmix.scores.status import run_status

    status = run_status(options.run)
    if options.json:
        return print_json(status.as_json())
    print(f"calls: {status.done} done, {status.missing} missing, {status.failed} failed")
    print(f"unreadable gradings: {status.unreadable}")
    print(f"cost: {status.cost_usd:.2f} US dollars" if status.cost_usd else "cost: unknown or none")
    return 0


def scores(options: argparse.Namespace) -> int:
    """Print the score table of a run."""
    from skillmix.runs.run import open_run
    from skillmix.scores.scoring import scored_run, students_without_scores

    run = open_run(options.run)
    by_sets = options.sets or (not options.json and run.makes_data)
    scored = scored_run(run, rules=options.rules, by_sets=by_sets)
    scores = scored.scores
    ungraded = students_without_scores(run, scores)
    print_notes(f"the texts of {student} have no gradings yet, and are in no row" for student in ungraded)
    print_notes(scored.notes)
    from skillmix.scores.table import NOTE, change_note, cut_lines, score_table, set_table, trained_note

    for line in cut_lines(scores):
        print(f"cut: {line}", file=sys.stderr)
    if options.json:
        return print_json(score_rows(scores, by_sets=options.sets))
    if scores:
        print(score_table(scores))
        print(f"\n{NOTE}")
    for part in (change_note(scored.changes), set_table(scores), trained_note(scores)):
        if part:
            print(f"\n{part}")
    return 0


def compare(options: argparse.Namespace) -> int:
    """Compare two students of a run on the combinations that both have complete."""
    from skillmix.scores.pairs import compare_students, comparison_note, comparison_table

    comparison = compare_students(
        options.run, options.first, options.second, metric=options.metric, rules=options.rules
    )
    shown = comparison.texts[: options.texts or 0]
    if options.json:
        return print_json({**asdict(comparison), "texts": [asdict(pair) for pair in shown]})
    print(comparison_table(comparison))
    print(f"\n{comparison_note(comparison)}")
    if options.texts:
        print(f"\n{len(shown)} of the {len(comparison.texts)} combinations on which they differ:")
        print("\n\n".join(map(_both_texts, shown)))
    return 0


def _both_texts(pair: "DifferingTexts") -> str:
    """A combination with the best text of each student, for a terminal."""
    lines = [f"{pair.grader}, {pair.setting}, k = {pair.k}: {'; '.join(pair.skills)} on {pair.topic}"]
    for best in (pair.first, pair.second):
        lines.append(f"  {best.student} ({share(best.value)}): {one_line(best.text)}")
        lines.append("    " + ", ".join(f"{_SIGNS[point]} {name}" for name, point in best.points.items()))
    return "\n".join(lines)


def texts(options: argparse.Namespace) -> int:
    """Show texts of a run with their points, best first."""
    from skillmix.runs.reading.texts import run_texts

    rows = run_texts(options.run, student=options.student, k=options.k)[: options.n]
    if options.json:
        return print_json([asdict(row) for row in rows])
    print(text_page(rows))
    return 0


def export(options: argparse.Namespace) -> int:
    """Write the texts, votes or calls of a run to a file."""
    from skillmix.runs.export import export

    path = export(
        options.run, what=options.what, file_format=options.format, rules=options.rules, output=options.output
    )
    print(path)
    return 0


def text_page(rows: "Sequence[TextRow]") -> str:
    """One paragraph for each text, for a terminal."""
    return "\n\n".join(_paragraph(row) for row in rows) or "There are no graded texts."


def _paragraph(row: "TextRow") -> str:
    lines = [f"{row.student}, k = {len(row.skills)}, on {row.topic}: {one_line(row.text)}"]
    for name, point in row.points.items():
        shown = grounds(row.evidence.get(name), row.reasons.get(name), woven=row.woven.get(name))
        lines.append(f"  {_SIGNS[point]} {name}" + (f": {shown}" if shown else ""))
    return "\n".join(lines)


_SIGNS: Final = {True: "+", False: "-", None: "?"}
