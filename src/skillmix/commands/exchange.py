"""Commands that exchange records with other programs: `export`, `share`, `import-texts` and the other imports."""

import argparse
from pathlib import Path

from skillmix.commands import shared as cli
from skillmix.render import are, plural


@cli.command(
    "export",
    cli.TRUST,
    cli.RUN,
    cli.option("--what", "records to write", choices=("texts", "votes", "calls"), required=True),
    cli.option("--format", "file format (default: jsonl)", choices=("jsonl", "parquet"), default="jsonl"),
    cli.RULES,
    cli.option("--output", "output file (default: in the run's folder)", type=Path, metavar="FILE"),
    has_json=False,
)
def export(options: argparse.Namespace) -> int:
    """Write the texts, votes or calls of a run to a file."""
    from skillmix.exchange.export import export

    print(export(options.run, file_format=options.format, **cli.taken(options, "what", "rules", "output")))
    return 0


@cli.command(
    "share",
    cli.RUN,
    cli.option("--output", "output folder", type=Path, required=True, metavar="DIR"),
    cli.option(
        "--id",
        "Hub id of a student whose model string has none; repeatable",
        dest="ids",
        action="append",
        default=[],
        metavar="STUDENT=OWNER/NAME",
    ),
    cli.option(
        "--student", "only this student; repeatable", dest="students", action="append", default=[], metavar="NAME"
    ),
    cli.option("--benchmark", "benchmark's data set on the Hub, for .eval_results/", metavar="OWNER/NAME"),
    cli.option("--source", "web page about the evaluation, for .eval_results/", metavar="URL"),
    cli.RULES,
)
def share(options: argparse.Namespace) -> int:
    """Write model cards and evaluation results for the Hugging Face Hub, without uploading them."""
    from skillmix.exchange.share import share

    shared = share(options.run, options.output, **cli.taken(options, "ids", "students", "benchmark", "source", "rules"))
    cli.print_notes(f"{student} is omitted, because it has no scores yet" for student in shared.left_out)
    if options.json:
        return cli.print_json(shared.as_json())
    print(f"{plural(shared.results, 'result')} of {', '.join(shared.students)}:")
    print("\n".join(str(options.output / file) for file in shared.files))
    return 0


@cli.command(
    "import-texts",
    cli.option("file", "JSON Lines file with one text or conversation per line", type=Path, metavar="FILE.jsonl"),
    cli.NEW_RUN,
    cli.CATALOG_OPTION,
    cli.PROMPTS,
    has_json=False,
)
def import_texts(options: argparse.Namespace) -> int:
    """Import texts and gradings from other programs as a run."""
    from skillmix.exchange.import_texts import import_texts

    imported = import_texts(options.file, options.run, **cli.taken(options, "catalog", "prompts"))
    conversations, gradings = plural(imported.conversations, "conversation"), plural(imported.gradings, "grading")
    print(f"{conversations} and {gradings} are in {imported.run}; {are(imported.new, 'call')} new.")
    return 0


@cli.command(
    "import-reference",
    cli.option("folder", "folder with records of the original code", type=Path, metavar="DIR"),
    cli.NEW_RUN,
    has_json=False,
)
def import_reference(options: argparse.Namespace) -> int:
    """Import records of the original SKILL-MIX code as a run."""
    from skillmix.exchange.import_reference import import_reference

    imported = import_reference(options.folder, options.run)
    print(f"conversations: {imported.conversations}")
    print(f"texts known only from a grader's prompt: {imported.texts_from_prompts}")
    print(f"gradings: {imported.gradings}, including {imported.copies} copies of other votes")
    print(
        f"unparseable: {sum(imported.unreadable.values())} of {imported.gradings - imported.copies} different gradings"
    )
    for reason, count in imported.unreadable.items():
        print(f"  {count} × {reason}")
    print(f"gradings without their text: {imported.unmatched}")
    print(f"run: {imported.run}")
    return 0


@cli.command(
    "import-inspect",
    cli.option("logs", "logs of Inspect AI (.eval or .json)", nargs="+", type=Path, metavar="LOG"),
    cli.NEW_RUN,
    cli.option("--student", "name of the student (default: the name of the model)", metavar="NAME"),
    cli.option("--catalog", "the catalog's folder, if the task used one", metavar="DIR"),
    cli.option("--prompts", "the prompt set's folder, if the task used one", metavar="DIR"),
    has_json=False,
)
def import_inspect(options: argparse.Namespace) -> int:
    """Import logs of the Inspect AI task skillmix/skillmix as a run."""
    from skillmix.exchange.import_inspect import import_inspect

    imported = import_inspect(options.logs, options.run, **cli.taken(options, "student", "catalog", "prompts"))
    cli.print_notes(imported.notes)
    conversations, gradings = plural(imported.conversations, "conversation"), plural(imported.gradings, "grading")
    print(f"{conversations} and {gradings} are in {imported.run}; {are(imported.new, 'call')} new.")
    if imported.unfinished:
        print(f"Not imported: {plural(imported.unfinished, 'sample')} without a finished conversation.")
    return 0
