"""Commands that make a run from texts and gradings of elsewhere: `import-texts` and `import-reference`."""

import argparse
from pathlib import Path

from skillmix.commands.shared_options import Commands, add_command


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


def import_texts(options: argparse.Namespace) -> int:
    """Turn texts and gradings from elsewhere into a run."""
    from skillmix.runs.import_texts import import_texts

    imported = import_texts(options.file, options.run, catalog=options.catalog, prompts=options.prompts)
    print(
        f"{imported.conversations} conversations and {imported.gradings} gradings are in {imported.run}; "
        f"{imported.new} calls are new."
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
