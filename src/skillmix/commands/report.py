"""The command that writes a report."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from skillmix.commands.arguments import above_zero
from skillmix.commands.streams import print_json


def report(options: argparse.Namespace) -> int:
    """A folder of pages, tables and figures."""
    from skillmix.report.write import Wishes, report

    wishes = Wishes(
        rules=options.rules,
        published=options.published,
        tokens=options.tokens,
        figures=not options.no_figures,
    )
    made = report(options.targets, output=options.output, wishes=wishes)
    if options.json:
        facts = {"page": str(made.page), "texts": made.texts, "files": made.files, "bytes": made.bytes}
        return print_json({**facts, "missing": list(made.gaps)})
    print(made.page)
    return 0


def tell_pages(pages: Iterable[Path]) -> None:
    """Say what can be opened now."""
    for page in pages:
        print(f"report: open {page} in a browser", file=sys.stderr)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("targets", nargs="+", metavar="RUN|EXPERIMENT.yaml", help="runs, or an experiment file")
    parser.add_argument("--rules", choices=("default", "paper", "both"), help="each run's own if not given")
    parser.add_argument("--published", action="store_true", help="set the paper's published figures beside")
    parser.add_argument(
        "--tokens", type=above_zero, metavar="N", help="corpus size for the novelty bound (default 2e12)"
    )
    parser.add_argument("--no-figures", action="store_true", help="only pages and tables")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: report/ in the run's folder")
