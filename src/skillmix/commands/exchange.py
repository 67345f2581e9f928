"""Commands that exchange records with other tools: `share`, `import-texts`, `import-reference` and `import-inspect`."""

import argparse
from pathlib import Path

from skillmix.commands.shared import Commands, add_command, print_json, print_notes
from skillmix.render import are, plural


def add_share(commands: Commands) -> None:
    """Add the command that writes files for others."""
    parser = add_command(commands, "share", share)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for the files")
    parser.add_argument("--organization", required=True, metavar="NAME", help="who publishes the records")
    parser.add_argument(
        "--relationship",
        choices=("first_party", "third_party", "collaborative", "other"),
        default="other",
        help="of the publisher to the makers of the models (default: other)",
    )
    parser.add_argument(
        "--id",
        dest="ids",
        action="append",
        default=[],
        metavar="STUDENT=OWNER/NAME",
        help="public name of a student or a grader, where its spec does not say it",
    )
    parser.add_argument("--student", dest="students", action="append", default=[], help="only this student")
    parser.add_argument("--benchmark", metavar="OWNER/NAME", help="data set on the hub; adds files in .eval_results/")
    parser.add_argument("--source", metavar="URL", help="page about the evaluation, for .eval_results/")
    parser.add_argument("--rules", help="default or paper (default: the run's own)")
    parser.add_argument("--no-samples", action="store_true", help="leave out the texts")


def share(options: argparse.Namespace) -> int:
    """Write cards and eval results for the hub, and records for Every Eval Ever; nothing is uploaded."""
    from skillmix.exchange.share import ShareChoices, share

    choices = ShareChoices(
        organization=options.organization,
        relationship=options.relationship,
        ids=options.ids,
        students=options.students,
        benchmark=options.benchmark,
        source=options.source,
        rules=options.rules,
        has_samples=not options.no_samples,
    )
    shared = share(options.run, options.output, choices)
    print_notes(f"{student} has no score yet, and is left out" for student in shared.left_out)
    if options.json:
        return print_json(shared.as_json())
    print(f"{plural(shared.results, 'result')} and {plural(shared.samples, 'sample')} of {', '.join(shared.students)}:")
    print("\n".join(str(shared.folder / file) for file in shared.files))
    return 0


def add_imports(commands: Commands) -> None:
    """Add the commands that import a run."""
    parser = add_command(commands, "import-texts", import_texts, has_json=False)
    parser.add_argument("file", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--run", required=True, help="name of the run, or a path to it")
    parser.add_argument("--catalog", default="paper", help="catalogue of the skills and topics")
    parser.add_argument("--prompts", default="standard", metavar="DIR", help="prompt set whose words the graders used")

    parser = add_command(commands, "import-reference", import_reference, has_json=False)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--run", required=True, help="name of the run, or a path to it")

    parser = add_command(commands, "import-inspect", import_inspect, has_json=False)
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="a log of Inspect AI, .eval or .json")
    parser.add_argument("--run", required=True, help="name of the run, or a path to it")
    parser.add_argument("--student", metavar="NAME", help="name of the student (default: that of the model)")
    parser.add_argument("--catalog", metavar="DIR", help="folder of the catalogue, if the task was run with a folder")
    parser.add_argument("--prompts", metavar="DIR", help="folder of the prompts, if the task was run with a folder")


def import_texts(options: argparse.Namespace) -> int:
    """Turn texts and gradings from elsewhere into a run."""
    from skillmix.exchange.import_texts import import_texts

    imported = import_texts(options.file, options.run, catalog=options.catalog, prompts=options.prompts)
    print(
        f"{plural(imported.conversations, 'conversation')} and {plural(imported.gradings, 'grading')} are in "
        f"{imported.run}; {are(imported.new, 'call')} new."
    )
    return 0


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


def import_inspect(options: argparse.Namespace) -> int:
    """Turn logs of the task skillmix/skillmix of Inspect AI into a run."""
    from skillmix.exchange.import_inspect import ImportChoices, import_inspect

    choices = ImportChoices(options.student, options.catalog, options.prompts)
    imported = import_inspect(options.logs, options.run, choices)
    print_notes(imported.notes)
    print(
        f"{plural(imported.conversations, 'conversation')} and {plural(imported.votes, 'grading')} are in "
        f"{imported.run}; {are(imported.new, 'call')} new."
    )
    if imported.unfinished:
        print(
            f"{are(imported.unfinished, 'sample', verb=('has', 'have'))} no finished conversation: missing in the run."
        )
    return 0
