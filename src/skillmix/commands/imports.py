"""Commands that make a run from records of elsewhere: `import-texts`, `import-reference` and `import-inspect`."""

import argparse
from pathlib import Path

from skillmix.commands.shared_options import Commands, add_command
from skillmix.commands.streams import print_notes
from skillmix.render import are, plural


def add_parsers(commands: Commands) -> None:
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
    from skillmix.runs.import_texts import import_texts

    imported = import_texts(options.file, options.run, catalog=options.catalog, prompts=options.prompts)
    print(
        f"{plural(imported.conversations, 'conversation')} and {plural(imported.gradings, 'grading')} are in "
        f"{imported.run}; {are(imported.new, 'call')} new."
    )
    return 0


def import_reference(options: argparse.Namespace) -> int:
    """Turn records of the original SKILL-MIX code into a run."""
    from skillmix.runs.import_reference import import_reference

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
