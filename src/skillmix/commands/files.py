"""Commands that move records in and out."""

import argparse


def import_texts(options: argparse.Namespace) -> int:
    """Texts and gradings made elsewhere."""
    from skillmix.runs.import_texts import import_texts

    imported = import_texts(options.file, options.run, catalog=options.catalog, prompts=options.prompts)
    print(
        f"{imported.conversations} conversations and {imported.gradings} gradings are in {imported.run}; "
        f"{imported.new} calls are new."
    )
    return 0


def import_reference(options: argparse.Namespace) -> int:
    """Records of the original code."""
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


def export(options: argparse.Namespace) -> int:
    """A file of texts, votes or calls."""
    from skillmix.runs.export import export

    path = export(
        options.run, what=options.what, file_format=options.format, rules=options.rules, output=options.output
    )
    print(path)
    return 0
