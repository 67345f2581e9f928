"""The commands and their options."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from skillmix import __version__
from skillmix.commands import dataset, files, runs, train
from skillmix.commands import report as reporting
from skillmix.commands import run as running
from skillmix.commands.arguments import positive

Command = Callable[[argparse.Namespace], int]
_Commands = "argparse._SubParsersAction[argparse.ArgumentParser]"
_STAGES: Final = {
    "generate": "the generate steps of an experiment: students write",
    "grade": "the grade steps of an experiment: graders vote on what is written",
    "evaluate": "the evaluate steps of an experiment: write and grade",
}


def parser_of_all() -> argparse.ArgumentParser:
    """Every command with its options."""
    parser = argparse.ArgumentParser(
        prog="skillmix",
        description="Measure whether a chat model can combine language skills, and teach it to.",
    )
    parser.add_argument("--version", action="version", version=f"skillmix {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    _experiment_command(commands, "run", "every step of an experiment; run it again to go on")
    for stage, about in _STAGES.items():
        _experiment_command(commands, stage, about, stage=stage)
    _train_command(commands)

    merge = _command(commands, "merge", train.merge, "a model and its adapter become one checkpoint")
    merge.add_argument("model", metavar="MODEL+ADAPTER", help="such as local:PATH+ADAPTER")
    merge.add_argument("--output", type=Path, required=True, metavar="DIR", help="a folder that is not there yet")

    about = "conversations with full marks as training data, from an experiment's dataset steps or from runs"
    dataset.add_options(_command(commands, "dataset", dataset.dataset, about))

    status = _command(commands, "status", runs.status, "what of a run is done, missing, failed or unreadable")
    status.add_argument("run", metavar="RUN")

    catalog = _command(commands, "catalog", runs.catalog, "skills, topics and partitions of a catalogue")
    _catalog_choice(catalog)

    combinations = _command(commands, "combinations", runs.combinations, "draw combinations of skills and a topic")
    _catalog_choice(combinations)
    combinations.add_argument("--setting", choices=("train", "held-out", "all"), default="all")
    combinations.add_argument("--k", type=int, required=True, help="number of skills")
    combinations.add_argument("--n", type=int, default=10, help="number of combinations (default 10)")
    combinations.add_argument("--seed", type=int, default=0)
    combinations.add_argument("--partition", help="a name, or random-skills:SEED, random-categories:SEED")
    combinations.add_argument("--exclude", default="", help='skills or exclude lists to leave out, "a; b"')
    combinations.add_argument("--purpose", choices=("evaluation", "training"), default="evaluation")
    combinations.add_argument("--ladder", action="store_true", help="each extends the one of k - 1 in its place")

    prompts = _command(commands, "prompts", runs.prompts, "the prompts for one combination, as they are sent")
    _named_combination(prompts)
    prompts.add_argument("--answer", default="(the student's text)", help="text to put into the grader's prompts")

    parse_reply = _command(commands, "parse-reply", runs.parse_reply, "read a grader's reply on standard input")
    _named_combination(parse_reply)
    parse_reply.add_argument("--text", type=Path, help="file with the student's text, if known")

    grade = _command(commands, "grade-text", runs.grade_text, "grade the text on standard input with one call")
    _named_combination(grade)
    grade.add_argument(
        "--grader",
        default="rules:",
        metavar="SPEC",
        help="rules: (code, the default) or a model",
    )
    grade.add_argument("--variant", choices=("gpt", "claude", "llama2"), default="gpt", help="which grader's prompt")
    grade.add_argument("--rules", default="default", help="default or paper")
    grade.add_argument("--seed", type=int, default=0)

    models = _command(commands, "models", runs.models, "the forms of model specs, and the bundled models")
    models.add_argument("--fetch", action="store_true", help="bring the bundled models into the cache")

    texts = _command(commands, "texts", runs.texts, "texts of a run with what each earned, best first")
    texts.add_argument("run", metavar="RUN")
    texts.add_argument("--n", type=positive, default=10, help="how many (default 10)")
    texts.add_argument("--student", help="only of this student")
    texts.add_argument("--k", type=positive, help="only with so many skills")

    novelty = _command(commands, "novelty", runs.novelty, "how often a combination can occur in a corpus")
    novelty.add_argument("--k", type=int, required=True, help="number of skills")
    novelty.add_argument("--tokens", type=float, required=True, help="size of the corpus, such as 2e12")
    novelty.add_argument("--skill-frequency", type=float, help="share of sentences that show one skill, at most")
    novelty.add_argument("--topic-frequency", type=float, help="share of sentences on one topic, at most")
    novelty.add_argument("--sentences-per-token", type=float)

    texts = _command(commands, "import-texts", files.import_texts, "texts and gradings made elsewhere become a run")
    texts.add_argument("file", type=Path, metavar="FILE.jsonl")
    texts.add_argument("--run", required=True, help="name of the run, or a path to it")
    texts.add_argument("--catalog", default="paper", help="catalogue that the skills and topics are from")
    texts.add_argument("--prompts", default="standard", metavar="DIR", help="prompt set whose words the graders used")

    reference = _command(
        commands, "import-reference", files.import_reference, "records of the original SKILL-MIX code become a run"
    )
    reference.add_argument("folder", type=Path, metavar="DIR")
    reference.add_argument("--run", required=True, help="name of the run, or a path to it")

    scores = _command(commands, "scores", runs.scores, "the score table of a run")
    scores.add_argument("run", metavar="RUN")
    scores.add_argument("--rules", help="default or paper; the run's own if not given")
    scores.add_argument("--sets", action="store_true", help="reserved and seen skill sets of train skills apart, too")

    report = _command(commands, "report", reporting.report, "pages, tables and figures of an experiment or of runs")
    reporting.add_options(report)

    export = _command(commands, "export", files.export, "texts, votes or calls of a run as a file")
    export.add_argument("run", metavar="RUN")
    export.add_argument("--what", choices=("texts", "votes", "calls"), required=True)
    export.add_argument("--format", choices=("jsonl", "parquet"), default="jsonl")
    export.add_argument("--rules", default="default", help="default or paper")
    export.add_argument("--output", type=Path, help="default: in the run's folder")
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, run: Command, about: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    parser.set_defaults(command=run)
    if name not in ("export", "import-texts", "import-reference", "merge"):
        parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _catalog_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="a shipped catalogue or a folder (default: paper)")
    parser.add_argument("--catalog", metavar="DIR", help="the same as NAME")


def _named_combination(parser: argparse.ArgumentParser) -> None:
    _catalog_choice(parser)
    parser.add_argument("--skills", required=True, help='names separated by ";"')
    parser.add_argument("--topic", required=True)
    parser.add_argument("--prompts", default="standard", metavar="DIR", help="a shipped prompt set or a folder")


def _train_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _experiment_command(
        commands, "train", "the train steps of an experiment: fine-tune on data sets", stage="train"
    )
    parser.set_defaults(command=train.train)
    parser.add_argument(
        "--show-mask", action="store_true", help="print conversations token by token, trained ones marked"
    )
    parser.add_argument("--n", type=positive, default=1, help="with --show-mask: how many conversations (default 1)")


def _experiment_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, about: str, *, stage: str | None = None
) -> argparse.ArgumentParser:
    parser = _command(commands, name, running.run, about)
    parser.set_defaults(stage=stage, step=None)
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT.yaml")
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="change a value of the experiment; may be repeated"
    )
    parser.add_argument("--dry-run", action="store_true", help="print calls, tokens and cost, and call nothing")
    parser.add_argument("--prices", type=Path, metavar="FILE", help="your own price file")
    if stage:
        parser.add_argument("--step", metavar="NAME", help="only the step of that name")
    return parser
