"""The `skillmix` command: words in, results out; no logic.

Standard output is for data, standard error for everything else. Exit status 0: done; 1: finished with missing or
unreadable items; 2: the user must change something; 130: interrupted.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from skillmix import __version__
from skillmix.core.errors import UserError

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and say how it went."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    options = _parser().parse_args(arguments)
    command: Command = options.command
    try:
        status = command(options)
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output is gone, as with `| head`; nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        print(f"error: {error.strerror or error}{place}", file=sys.stderr)
        print("hint: Check the path, its permissions and the space on the disk.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="skillmix",
        description="Measure whether a chat model can combine language skills, and teach it to.",
    )
    parser.add_argument("--version", action="version", version=f"skillmix {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = _command(commands, "run", _run, "every step of an experiment; run it again to go on")
    run.add_argument("experiment", type=Path, metavar="EXPERIMENT.yaml")
    run.add_argument("--dry-run", action="store_true", help="print calls, tokens and cost, and call nothing")
    run.add_argument("--prices", type=Path, metavar="FILE", help="your own price file")

    status = _command(commands, "status", _status, "what of a run is done, missing, failed or unreadable")
    status.add_argument("run", metavar="RUN")

    catalog = _command(commands, "catalog", _catalog, "skills, topics and partitions of a catalogue")
    _catalog_choice(catalog)

    combinations = _command(commands, "combinations", _combinations, "draw combinations of skills and a topic")
    _catalog_choice(combinations)
    combinations.add_argument("--setting", choices=("train", "held-out", "all"), default="all")
    combinations.add_argument("--k", type=int, required=True, help="number of skills")
    combinations.add_argument("--n", type=int, default=10, help="number of combinations (default 10)")
    combinations.add_argument("--seed", type=int, default=0)
    combinations.add_argument("--partition", help="a name, or random-skills:SEED, random-categories:SEED")
    combinations.add_argument("--exclude", default="", help='skills or exclude lists to leave out, "a; b"')
    combinations.add_argument("--purpose", choices=("evaluation", "training"), default="evaluation")
    combinations.add_argument("--ladder", action="store_true", help="each extends the one of k - 1 in its place")

    prompts = _command(commands, "prompts", _prompts, "the prompts for one combination, as they are sent")
    _named_combination(prompts)
    prompts.add_argument("--answer", default="(the student's text)", help="text to put into the grader's prompts")

    parse_reply = _command(commands, "parse-reply", _parse_reply, "read a grader's reply on standard input")
    _named_combination(parse_reply)
    parse_reply.add_argument("--text", type=Path, help="file with the student's text, if known")

    grade = _command(commands, "grade-text", _grade_text, "grade the text on standard input with one call")
    _named_combination(grade)
    grade.add_argument("--grader", required=True, metavar="SPEC", help="model that grades, such as openai:gpt-4o")
    grade.add_argument("--variant", choices=("gpt", "claude", "llama2"), default="gpt", help="which grader's prompt")
    grade.add_argument("--rules", default="default", help="default or paper")
    grade.add_argument("--seed", type=int, default=0)

    _command(commands, "models", _models, "the forms of model specs")

    novelty = _command(commands, "novelty", _novelty, "how often a combination can occur in a corpus")
    novelty.add_argument("--k", type=int, required=True, help="number of skills")
    novelty.add_argument("--tokens", type=float, required=True, help="size of the corpus, such as 2e12")
    novelty.add_argument("--skill-frequency", type=float, help="share of sentences that show one skill, at most")
    novelty.add_argument("--topic-frequency", type=float, help="share of sentences on one topic, at most")
    novelty.add_argument("--sentences-per-token", type=float)

    texts = _command(commands, "import-texts", _import_texts, "texts and gradings made elsewhere become a run")
    texts.add_argument("file", type=Path, metavar="FILE.jsonl")
    texts.add_argument("--run", required=True, help="name of the run, or a path to it")
    texts.add_argument("--catalog", default="paper", help="catalogue that the skills and topics are from")
    texts.add_argument("--prompts", default="standard", metavar="DIR", help="prompt set whose words the graders used")

    reference = _command(
        commands, "import-reference", _import_reference, "records of the original SKILL-MIX code become a run"
    )
    reference.add_argument("folder", type=Path, metavar="DIR")
    reference.add_argument("--run", required=True, help="name of the run, or a path to it")

    scores = _command(commands, "scores", _scores, "the score table of a run")
    scores.add_argument("run", metavar="RUN")
    scores.add_argument("--rules", help="default or paper; the run's own if not given")

    export = _command(commands, "export", _export, "texts, votes or calls of a run as a file")
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
    if name not in ("export", "import-texts", "import-reference"):
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


def _catalog_name(options: argparse.Namespace) -> str:
    if options.name and options.catalog and options.name != options.catalog:
        raise UserError("Two catalogues were named.", hint="Give NAME or --catalog, not both.")
    return str(options.name or options.catalog or "paper")


def _run(options: argparse.Namespace) -> int:
    from skillmix.stages.evaluate import run_experiment
    from skillmix.stages.scores import run_scores

    if options.dry_run:
        return _dry_run(options)
    result = run_experiment(options.experiment, prices=options.prices)
    for key, reason in result.failed.items():
        print(f"failed: {key}: {reason}", file=sys.stderr)
    if result.stopped:
        print(f"stopped: {result.stopped}; raise it and run again to go on", file=sys.stderr)
    print(f"{result.called} calls made, {result.found} found in {result.run.path}", file=sys.stderr)
    scores = run_scores(str(result.run.path))
    if options.json:
        _print_json([asdict(score) for score in scores])
    elif scores:
        from skillmix.render.score_table import NOTE, score_table

        print(score_table(scores))
        print(f"\n{NOTE}")
    return 0 if result.is_complete else 1


def _dry_run(options: argparse.Namespace) -> int:
    from skillmix.render.estimate_table import estimate_table
    from skillmix.stages.dry_run import estimates

    found = estimates(options.experiment, prices=options.prices)
    if options.json:
        return _print_json([asdict(estimate) for estimate in found])
    rows = [(e.step, e.model, e.calls, e.input_tokens, e.output_tokens, e.cost_usd) for e in found]
    print(estimate_table(rows))
    return 0


def _status(options: argparse.Namespace) -> int:
    from skillmix.stages.status import run_status

    status = run_status(options.run)
    if options.json:
        return _print_json(status.as_json())
    print(f"calls: {status.done} done, {status.missing} missing, {status.failed} failed")
    print(f"unreadable gradings: {status.unreadable}")
    print(f"cost: {status.cost_usd:.2f} US dollars" if status.cost_usd else "cost: unknown or none")
    return 0


def _catalog(options: argparse.Namespace) -> int:
    from skillmix.stages.catalog import show_catalog

    view = show_catalog(_catalog_name(options))
    if options.json:
        return _print_json(view.as_json())
    from skillmix.render.catalog_page import catalog_page

    print(catalog_page(view.catalog, shipped=view.shipped))
    return 0


def _combinations(options: argparse.Namespace) -> int:
    from skillmix.stages.catalog import CombinationsWanted, combination_json, draw

    drawn = draw(
        CombinationsWanted(
            catalog=_catalog_name(options),
            setting=options.setting,
            k=options.k,
            count=options.n,
            seed=options.seed,
            partition=options.partition,
            exclude=tuple(name.strip() for name in options.exclude.split(";") if name.strip()),
            purpose=options.purpose,
            ladder=options.ladder,
        )
    )
    if options.json:
        return _print_json([combination_json(combination) for combination in drawn])
    for combination in drawn:
        print(f"{combination.id}  {combination.topic}: {'; '.join(combination.skills)}")
    return 0


def _prompts(options: argparse.Namespace) -> int:
    from skillmix.stages.parse_reply import Named, rendered_prompts

    named = Named(_catalog_name(options), options.skills, options.topic, options.prompts)
    rendered = rendered_prompts(named, answer=options.answer)
    if options.json:
        return _print_json(rendered)
    print("\n\n".join(f"──── {file}\n{prompt}" for file, prompt in rendered.items()))
    return 0


def _parse_reply(options: argparse.Namespace) -> int:
    from skillmix.config.yaml_files import read_text
    from skillmix.stages.parse_reply import Named, parse_reply

    named = Named(_catalog_name(options), options.skills, options.topic, options.prompts)
    text = read_text(options.text) if options.text else None
    parsed = parse_reply(named, _standard_input(), text=text)
    if options.json:
        return _print_json(parsed.as_json())
    for name, point in (parsed.reading.by_name(parsed.rubric) or {}).items():
        print(f"{name}: {'not given' if point is None else f'{point:g}'}")
    if parsed.reading.problem:
        print(f"unreadable: {parsed.reading.problem}")
    for note in parsed.reading.notes:
        print(f"note: {note}")
    return 0


def _grade_text(options: argparse.Namespace) -> int:
    from skillmix.stages.grade_text import grade_text
    from skillmix.stages.parse_reply import Named

    named = Named(_catalog_name(options), options.skills, options.topic, options.prompts)
    graded = grade_text(
        named,
        _standard_input(),
        grader=options.grader,
        variant=options.variant,
        seed=options.seed,
        rules=options.rules,
    )
    if options.json:
        return _print_json(graded.as_json())
    if graded.reading.problem:
        print(f"unreadable: {graded.reading.problem}")
    for criterion, point in zip(graded.rubric.criteria, graded.points, strict=True):
        print(f"{criterion.name}: {'undecided' if point is None else int(point)}")
    return 0


def _models(options: argparse.Namespace) -> int:
    from skillmix.core.specs import PROVIDERS

    if options.json:
        return _print_json(PROVIDERS)
    for provider, about in PROVIDERS.items():
        print(f"{provider:<10} {about}")
    return 0


def _novelty(options: argparse.Namespace) -> int:
    from skillmix.core.novelty import ASSUMPTIONS, NoveltyInputs, novelty

    names = ("skill_frequency", "topic_frequency", "sentences_per_token")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    inputs = NoveltyInputs(**given)
    bound = novelty(options.k, options.tokens, inputs)
    if options.json:
        return _print_json({**asdict(bound), "inputs": asdict(inputs), "assumptions": list(ASSUMPTIONS)})
    from skillmix.render.novelty_page import novelty_page

    print(novelty_page(bound, inputs, ASSUMPTIONS))
    return 0


def _import_texts(options: argparse.Namespace) -> int:
    from skillmix.stages.import_texts import import_texts

    imported = import_texts(options.file, options.run, catalog=options.catalog, prompts=options.prompts)
    print(
        f"{imported.conversations} conversations and {imported.gradings} gradings are in {imported.run}; "
        f"{imported.new} calls are new."
    )
    return 0


def _import_reference(options: argparse.Namespace) -> int:
    from skillmix.stages.import_reference import import_reference

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


def _scores(options: argparse.Namespace) -> int:
    from skillmix.stages.scores import run_scores, students_without_scores

    scores = run_scores(options.run, rules=options.rules)
    for student in students_without_scores(options.run, scores):
        print(f"note: the texts of {student} have no gradings yet, and are in no row", file=sys.stderr)
    if options.json:
        return _print_json([asdict(score) for score in scores])
    from skillmix.render.score_table import NOTE, score_table

    if scores:
        print(score_table(scores))
        print(f"\n{NOTE}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from skillmix.stages.export import export

    path = export(
        options.run, what=options.what, file_format=options.format, rules=options.rules, output=options.output
    )
    print(path)
    return 0


def _standard_input() -> str:
    try:
        if sys.stdin.isatty():
            print("reading standard input; end it with Ctrl-D", file=sys.stderr)
        raw = sys.stdin.buffer.read()
    except (AttributeError, ValueError):
        raise UserError("Standard input is closed.", hint="Give the grader's reply there.") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"Standard input is not UTF-8 text (byte {error.start}).", hint="Give the grader's reply as text."
        ) from None


def _print_json(value: object) -> int:
    print(json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False))
    return 0
