"""The command `share`: the scores and texts of a run in the forms of the hub and of Every Eval Ever."""

import argparse
from pathlib import Path

from skillmix.commands.shared_options import Commands, add_command
from skillmix.commands.streams import print_json, print_notes
from skillmix.render import plural


def add_parsers(commands: Commands) -> None:
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
