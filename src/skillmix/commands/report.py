"""`skillmix report`: pages, tables and figures of runs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from skillmix.commands.shared_options import Commands, above_zero, add_command, add_trust_option, positive
from skillmix.commands.streams import print_json

if TYPE_CHECKING:
    from skillmix.catalog.novelty import MeasuredFrequencies


def add_parsers(commands: Commands) -> None:
    """Add the command `report`."""
    parser = add_command(commands, "report", report)
    add_trust_option(parser)
    parser.add_argument("targets", nargs="+", metavar="RUN|EXPERIMENT.yaml", help="runs, or an experiment file")
    parser.add_argument("--rules", choices=("default", "paper", "both"), help="default: each run's own")
    parser.add_argument("--published", action="store_true", help="show the paper's published figures beside the run's")
    parser.add_argument(
        "--tokens", type=above_zero, metavar="N", help="corpus size for the novelty bound (default 2e12)"
    )
    parser.add_argument(
        "--frequencies",
        type=Path,
        metavar="FILE.json",
        help="frequencies.json of `skillmix frequency`, for a novelty bound with the frequency of each skill",
    )
    parser.add_argument("--no-figures", action="store_true", help="write only pages and tables")
    parser.add_argument(
        "--style",
        choices=("paper", "slide"),
        help="also draw the figures for a paper (as wide as a column or a page) or for slides, as PDF and PNG",
    )
    parser.add_argument(
        "--texts", type=positive, metavar="N", help="show a sample of N texts of a larger run (default 200,000)"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: report/ in the run's folder")


def report(options: argparse.Namespace) -> int:
    """Write pages, tables and figures about an experiment or about runs."""
    from skillmix.report.read import MOST_TEXTS
    from skillmix.report.write import ReportOptions, report

    report_options = ReportOptions(
        rules=options.rules,
        published=options.published,
        tokens=options.tokens,
        frequencies=_frequencies(options.frequencies),
        figures=not options.no_figures,
        style=options.style,
        texts=options.texts or MOST_TEXTS,
    )
    written = report(options.targets, output=options.output, options=report_options)
    if options.json:
        facts = {"page": str(written.page), "texts": written.texts, "files": written.files, "bytes": written.bytes}
        return print_json({**facts, "missing": list(written.gaps)})
    print(written.page)
    return 0


def _frequencies(file: Path | None) -> "MeasuredFrequencies | None":
    from skillmix.catalog.novelty import MeasuredFrequencies
    from skillmix.frequencies.frequency_file import load_result, upper_shares

    if file is None:
        return None
    result = load_result(file)
    return MeasuredFrequencies(str(file), upper_shares(result), result.sentences_per_passage)
