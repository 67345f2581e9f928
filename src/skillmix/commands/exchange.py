"""Commands that exchange records with other tools: `export`, `share`, and the imports of texts, records and logs."""

import argparse
from pathlib import Path

from skillmix.commands.shared import NEW_RUN, RULES, RUN, TRUST, command, option, print_json, print_notes, taken
from skillmix.render import are, plural


@command(
    "export",
    TRUST,
    RUN,
    option("--what", "which records to write", choices=("texts", "votes", "calls"), required=True),
    option("--format", "default: jsonl", choices=("jsonl", "parquet"), default="jsonl"),
    RULES,
    option("--output", "default: a file in the run's folder", type=Path, metavar="FILE"),
    has_json=False,
)
def export(options: argparse.Namespace) -> int:
    """Write the texts, votes or calls of a run to a file."""
    from skillmix.exchange.export import export

    path = export(
        options.run, what=options.what, file_format=options.format, rules=options.rules, output=options.output
    )
    print(path)
    return 0


@command(
    "share",
    RUN,
    option("--output", "folder for the files", type=Path, required=True, metavar="DIR"),
    option(
        "--id",
        "public name of a student, if its model string does not contain it; repeatable",
        dest="ids",
        action="append",
        default=[],
        metavar="STUDENT=OWNER/NAME",
    ),
    option("--student", "only this student; repeatable", dest="students", action="append", default=[], metavar="NAME"),
    option("--benchmark", "data set on the hub, for files in .eval_results/", metavar="OWNER/NAME"),
    option("--source", "page about the evaluation, for .eval_results/", metavar="URL"),
    RULES,
)
def share(options: argparse.Namespace) -> int:
    """Write model cards and eval results for the Hugging Face hub; nothing is uploaded."""
    from skillmix.exchange.share import share

    shared = share(options.run, options.output, **taken(options, "ids", "students", "benchmark", "source", "rules"))
    print_notes(f"{student} has no score yet and is omitted" for student in shared.left_out)
    if options.json:
        return print_json(shared.as_json())
    print(f"{plural(shared.results, 'result')} of {', '.join(shared.students)}:")
    print("\n".join(str(options.output / file) for file in shared.files))
    return 0


@command(
    "import-texts",
    option("file", "file with one text or conversation per line", type=Path, metavar="FILE.jsonl"),
    NEW_RUN,
    option("--catalog", "catalog of the skills and topics (default: paper)", default="paper", metavar="DIR"),
    option("--prompts", "prompt set that the graders used (default: standard)", default="standard", metavar="DIR"),
    has_json=False,
)
def import_texts(options: argparse.Namespace) -> int:
    """Import texts and gradings from elsewhere as a run."""
    from skillmix.exchange.import_texts import import_texts

    imported = import_texts(options.file, options.run, **taken(options, "catalog", "prompts"))
    conversations, gradings = plural(imported.conversations, "conversation"), plural(imported.gradings, "grading")
    print(f"{conversations} and {gradings} are in {imported.run}; {are(imported.new, 'call')} new.")
    return 0


@command(
    "import-reference",
    option("folder", "folder with the records of the original code", type=Path, metavar="DIR"),
    NEW_RUN,
    has_json=False,
)
def import_reference(options: argparse.Namespace) -> int:
    """Import records of the original SKILL-MIX code as a run."""
    from skillmix.exchange.import_reference import import_reference

    imported = import_reference(options.folder, options.run)
    print(f"conversations: {imported.conversations}")
    print(f"texts known only from a grader's prompt: {imported.texts_from_prompts}")
    print(f"gradings: {imported.gradings}, of which copies of another vote: {imported.copies}")
    print(f"unparseable: {sum(imported.unreadable.values())} of {imported.gradings - imported.copies} different ones")
    for reason, count in imported.unreadable.items():
        print(f"  {count} × {reason}")
    print(f"gradings without their text: {imported.unmatched}")
    print(f"run: {imported.run}")
    return 0


@command(
    "import-inspect",
    option("logs", "a log of Inspect AI, .eval or .json", nargs="+", type=Path, metavar="LOG"),
    NEW_RUN,
    option("--student", "name of the student (default: the model's)", metavar="NAME"),
    option("--catalog", "folder of the catalog, if the task used a folder", metavar="DIR"),
    option("--prompts", "folder of the prompts, if the task used a folder", metavar="DIR"),
    has_json=False,
)
def import_inspect(options: argparse.Namespace) -> int:
    """Import logs of the Inspect AI task skillmix/skillmix as a run."""
    from skillmix.exchange.import_inspect import import_inspect

    imported = import_inspect(options.logs, options.run, **taken(options, "student", "catalog", "prompts"))
    print_notes(imported.notes)
    conversations, gradings = plural(imported.conversations, "conversation"), plural(imported.votes, "grading")
    print(f"{conversations} and {gradings} are in {imported.run}; {are(imported.new, 'call')} new.")
    if imported.unfinished:
        samples = are(imported.unfinished, "sample", verb=("has", "have"))
        print(f"{samples} without a finished conversation: missing in the run.")
    return 0
