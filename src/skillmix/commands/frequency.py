"""`skillmix frequency`: count how common each skill is in a corpus."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillmix.commands.shared_options import Commands, above_zero, add_command, positive
from skillmix.commands.streams import print_json
from skillmix.render.layout import wrapped

if TYPE_CHECKING:
    from skillmix.frequency.measure import Counted, FrequencyWanted


def add_parsers(commands: Commands) -> None:
    """Add the command `frequency`."""
    parser = add_command(commands, "frequency", frequency)
    parser.add_argument("--catalog", default="paper", metavar="NAME", help="a shipped catalogue or a folder")
    parser.add_argument(
        "--corpus", type=Path, nargs="+", required=True, metavar="PATH", help="text, JSON Lines or Parquet; or folders"
    )
    parser.add_argument("--grader", required=True, metavar="SPEC", help="a model, or rules: to decide by code")
    parser.add_argument("--n", type=positive, default=1000, help="number of passages (default 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--words", type=positive, default=100, help="words of a passage (default 100)")
    parser.add_argument("--field", default="text", metavar="KEY", help="where records keep their text, such as a.b")
    parser.add_argument("--skills-per-call", type=positive, default=20, metavar="N", help="skills in a call (20)")
    parser.add_argument("--threshold", type=above_zero, default=0.05, help="share of a common skill (default 0.05)")
    parser.add_argument("--run", default="frequency", metavar="NAME", help="the run that keeps everything")
    parser.add_argument("--exclude-list", type=Path, metavar="FILE", help="also write the exclude list here")
    parser.add_argument("--readers", type=positive, metavar="N", help="processes that read the corpus")
    asking = parser.add_argument_group("how a model is asked")
    asking.add_argument("--prompt", type=Path, metavar="FILE", help="your own prompt")
    asking.add_argument("--temperature", type=float)
    asking.add_argument("--max-tokens", type=positive, metavar="N")
    asking.add_argument("--concurrency", type=positive, metavar="N")
    asking.add_argument("--key", metavar="NAME", help="the environment variable that holds the key of an address")
    asking.add_argument("--max-usd", type=above_zero, metavar="X", help="the most that all calls of the run may cost")
    asking.add_argument("--prices", type=Path, metavar="FILE", help="your own price file")
    asking.add_argument("--dry-run", action="store_true", help="print calls, tokens and cost without calling a model")


def frequency(options: argparse.Namespace) -> int:
    """Count how common each skill of a catalogue is in a corpus; the same command again continues."""
    from skillmix.frequency.measure import count_skills, estimate_counting

    wanted = _wanted(options)
    if options.dry_run:
        estimate = estimate_counting(wanted)
        if options.json:
            return print_json(estimate.as_json())
        cost = "unknown" if estimate.cost_usd is None else f"{estimate.cost_usd:.2f}"
        print(
            f"{estimate.passages:,} passages, {estimate.calls:,} calls, about {estimate.input_tokens:,} tokens in and "
            f"{estimate.output_tokens:,} out, {cost} US dollars"
        )
        return 0
    counted = count_skills(wanted)
    return _show(counted, as_json=options.json)


def _wanted(options: argparse.Namespace) -> "FrequencyWanted":
    from skillmix.frequency.measure import FrequencyWanted

    names = ("temperature", "max_tokens", "concurrency", "key")
    grader: dict[str, Any] = {"model": options.grader}
    grader |= {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return FrequencyWanted(
        corpus=tuple(options.corpus),
        grader=grader,
        catalog=options.catalog,
        n=options.n,
        seed=options.seed,
        words=options.words,
        text_field=options.field,
        skills_per_call=options.skills_per_call,
        threshold=options.threshold,
        run=options.run,
        list_file=options.exclude_list,
        prompt=options.prompt,
        prices=options.prices,
        max_usd=options.max_usd,
        readers=options.readers,
    )


def _show(counted: "Counted", *, as_json: bool) -> int:
    from skillmix.frequency.result import LIST_FILE, result_lines, result_table
    from skillmix.runs.progress.stopping import signal_of

    for key, problem in list(counted.failed.items())[:1]:
        print(f"failed: {len(counted.failed)} calls, such as {key}: {problem.reason}", file=sys.stderr)
    stopped = counted.counts.stopped
    number = signal_of(stopped)
    if number is not None:
        print(f"interrupted; all answers are in {counted.run.path}: run the same command to go on", file=sys.stderr)
        return 128 + number
    if stopped is not None:
        print(f"stopped: {stopped.value}; raise it and run again to go on", file=sys.stderr)
    result = counted.result
    if as_json:
        print_json(result.as_json())
    else:
        print(result_table(result) + "\n")
        for line in result_lines(result):
            print(wrapped(line))
    sys.stdout.flush()
    for reason, count in result.corpus["skipped"].items():
        print(f"corpus: {count:,} {reason}", file=sys.stderr)
    if result.unknown:
        print(f"unknown: {result.unknown:,} answers are missing or cannot be read", file=sys.stderr)
    print(f"exclude list: exclude: [file:{counted.run.path / LIST_FILE}]", file=sys.stderr)
    return 0 if counted.is_complete else 1
