"""Commands that exchange records with other tools: `export`, `share`, and the imports of texts, records and logs."""

import argparse
from pathlib import Path

from skillmix.commands.shared import NEW_RUN, RULES, RUN, TRUST, command, option, print_json, print_notes
from skillmix.render import are, plural


@command(
    "export",
    TRUST,
    RUN,
    option("--what", choices=("texts", "votes", "calls"), required=True, help="which records to write"),
    option("--format", choices=("jsonl", "parquet"), default="jsonl", help="default: jsonl"),
    RULES,
    option("--output", type=Path, metavar="FILE", help="default: a file in the run's folder"),
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
    option("--output", type=Path, required=True, metavar="DIR", help="folder for the files"),
    option(
        "--id",
        dest="ids",
        action="append",
        default=[],
        metavar="STUDENT=OWNER/NAME",
        help="public name of a student, where its spec does not say it; may be repeated",
    ),
    option(
        "--student",
        dest="students",
        action="append",
        default=[],
        metavar="NAME",
        help="only this student; may be repeated",
    ),
    option("--benchmark", metavar="OWNER/NAME", help="data set on the hub; adds files in .eval_results/"),
    option("--source", metavar="URL", help="page about the evaluation, for .eval_results/"),
    RULES,
)
def share(options: argparse.Namespace) -> int:
    """Write model cards and eval results for the Hugging Face hub; nothing is uploaded."""
    from skillmix.exchange.share import share

    shared = share(
        options.run,
        options.output,
        ids=options.ids,
        students=options.students,
        benchmark=options.benchmark,
        source=options.source,
        rules=options.rules,
    )
    print_notes(f"{student} has no score yet, and is left out" for student in shared.left_out)
    if options.json:
        return print_json(shared.as_json())
    print(f"{plural(shared.results, 'result')} of {', '.join(shared.students)}:")
    print("\n".join(str(options.output / file) for file in shared.files))
    return 0


@command(
    "import-texts",
    option("file", type=Path, metavar="FILE.jsonl", help="one text or conversation in each line"),
    NEW_RUN,
    option("--catalog", default="paper", metavar="DIR", help="catalog of the skills and topics (default: paper)"),
    option(
        "--prompts",
        default="standard",
        metavar="DIR",
        help="prompt set whose words the graders used (default: standard)",
    ),
    has_json=False,
)
def import_texts(options: argparse.Namespace) -> int:
    """Turn texts and gradings from elsewhere into a run."""
    from skillmix.exchange.import_texts import import_texts

    imported = import_texts(options.file, options.run, catalog=options.catalog, prompts=options.prompts)
    conversations, gradings = plural(imported.conversations, "conversation"), plural(imported.gradings, "grading")
    print(f"{conversations} and {gradings} are in {imported.run}; {are(imported.new, 'call')} new.")
    return 0


@command(
    "import-reference",
    option("folder", type=Path, metavar="DIR", help="folder with the records of the original code"),
    NEW_RUN,
    has_json=False,
)
def import_reference(options: argparse.Namespace) -> int:
    """Turn records of the original SKILL-MIX code into a run."""
    from skillmix.exchange.import_reference import import_reference

    imported = import_reference(options.folder, options.run)
    print(f"conversations: {imported.conversations}")
    print(f"texts known only from a grader's prompt: {imported.texts_from_prompts}")
    print(f"gradings: {imported.gradings}, of which copies of another vote: {imported.copies}")
    print(f"unreadable: {sum(imported.unreadable.values())} of {imported.gradings - imported.copies} different ones")
    for reason, count in imported.unreadable.items():
        print(f"  {count} × {reason}")
    print(f"gradings without their text: {imported.unmatched}")
    print(f"run: {imported.run}")
    return 0


@command(
    "import-inspect",
    option("logs", nargs="+", type=Path, metavar="LOG", help="a log of Inspect AI, .eval or .json"),
    NEW_RUN,
    option("--student", metavar="NAME", help="name of the student (default: that of the model)"),
    option("--catalog", metavar="DIR", help="folder of the catalog, if the task was run with a folder"),
    option("--prompts", metavar="DIR", help="folder of the prompts, if the task was run with a folder"),
    has_json=False,
)
def import_inspect(options: argparse.Namespace) -> int:
    """Turn logs of the task skillmix/skillmix of Inspect AI into a run."""
    from skillmix.exchange.import_inspect import import_inspect

    imported = import_inspect(
        options.logs, options.run, student=options.student, catalog=options.catalog, prompts=options.prompts
    )
    print_notes(imported.notes)
    conversations, gradings = plural(imported.conversations, "conversation"), plural(imported.votes, "grading")
    print(f"{conversations} and {gradings} are in {imported.run}; {are(imported.new, 'call')} new.")
    if imported.unfinished:
        samples = are(imported.unfinished, "sample", verb=("has", "have"))
        print(f"{samples} no finished conversation: missing in the run.")
    return 0
