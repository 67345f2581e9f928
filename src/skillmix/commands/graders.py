"""Commands that check graders: `annotate` lets people read texts, `calibrate` asks a grader about known texts."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from skillmix.commands.shared import Commands, above_zero, add_command, add_trust_option, positive, print_json
from skillmix.errors import LOG, UserError
from skillmix.render import are, name_hint, plural, share, whole, wrapped

if TYPE_CHECKING:
    from skillmix.validation.task import AnnotationTask, AnswerStore

    _Asked = tuple[tuple[str, ...], Callable[[], AnnotationTask]]
    """The people whose pages or spreadsheet are asked for, and what makes their task; that reads the run."""
    from skillmix.validation.calibration import CalibrationPlan


_DECIDED = ("n", "width", "agreement", "overlap", "student", "k", "seed")
"""The options that decide which texts are read; a step decides the same."""


def add_annotate(commands: Commands) -> None:
    """Add the command `annotate`."""
    parser = add_command(commands, "annotate", annotate)
    add_trust_option(parser)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--rater", action="append", metavar="NAME", help="a person who reads; repeat it for several")
    parser.add_argument(
        "--step", metavar="NAME", help="an annotate step of the run's experiment, which says who reads which texts"
    )
    parser.add_argument("--n", type=positive, help="texts for each person (default 50)")
    parser.add_argument(
        "--width", type=above_zero, help="instead of --n: as many texts as make the interval of agreement this narrow"
    )
    parser.add_argument(
        "--agreement", type=float, help="the agreement to expect for --width (default .5, the worst case)"
    )
    parser.add_argument("--overlap", type=float, help="the share of a person's texts that everybody reads (default .3)")
    parser.add_argument("--student", help="only texts of this student")
    parser.add_argument("--k", type=positive, help="only texts with this number of skills")
    parser.add_argument("--seed", type=int, help="another seed chooses other texts (default 0)")
    parser.add_argument("--port", type=_port, help="default: the port of last time, or any free one")
    parser.add_argument("--new-links", action="store_true", help="make new links on the same port; the old ones end")
    parser.add_argument("--export", type=Path, metavar="FILE.csv", help="write the task as a spreadsheet instead")
    parser.add_argument(
        "--import", type=Path, metavar="FILE.csv", dest="filled", help="store the votes of a spreadsheet"
    )


def _port(text: str) -> int:
    """Read the number of a port."""
    if not (text.isascii() and text.isdecimal() and int(text[:9]) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def annotate(options: argparse.Namespace) -> int:
    """Let people grade texts of a run blind, on a page of this machine; Ctrl-C ends it, and the next start goes on.

    Each answer is stored at once, as a vote of the grader human:NAME.
    """
    if options.export is not None and options.filled is not None:
        raise UserError("--export and --import cannot go together.", hint="Give one of them.")
    raters, make = _asked_by_options(options) if options.step is None else _asked_by_step(options)
    if (options.export or options.filled) and len(raters) > 1:
        raise UserError("A spreadsheet is for one person.", hint="Name one --rater; run the command again for others.")
    task = make()
    if options.filled is not None:
        return _import(task, raters[0], options)
    _print_task(task, raters)
    return _export(task, raters[0], options) if options.export is not None else _serve(task, raters, options)


def _asked_by_options(options: argparse.Namespace) -> "_Asked":
    """The people and the task that the options describe."""
    from skillmix.runs.run import open_run
    from skillmix.validation.task import TaskSettings, make_task

    if not options.rater:
        raise UserError("Nobody is named who reads.", hint="Name each person with --rater, or a step with --step.")
    settings = TaskSettings(
        raters=tuple(options.rater),
        n=options.n,
        width=options.width,
        agreement=0.5 if options.agreement is None else options.agreement,
        overlap=0.3 if options.overlap is None else options.overlap,
        seed=options.seed or 0,
        students=() if options.student is None else (options.student,),
        ks=() if options.k is None else (options.k,),
    )
    return settings.raters, lambda: make_task(open_run(options.run), settings)


def _asked_by_step(options: argparse.Namespace) -> "_Asked":
    """The people of a step of the experiment that `--rater` names, or all, and the task of the step."""
    from skillmix.runs.run import open_run
    from skillmix.validation.task import annotate_step_of, step_task

    given = [f"--{name}" for name in _DECIDED if getattr(options, name) is not None]
    if given:
        raise UserError(
            f"The step {options.step} decides who reads which texts, so {' and '.join(given)} cannot go with --step.",
            hint="Change the step in the experiment file, and run it again.",
        )
    run = open_run(options.run)
    step = annotate_step_of(run, options.step)
    people = tuple(options.rater or step.people)
    for rater in people:
        if rater not in step.people:
            fault = "is simulated, and nobody answers for it" if rater in step.raters else "is not one of its raters"
            listed = f"The people of the step: {', '.join(step.people) or 'none'}."
            raise UserError(
                f"The step {step.name}: {rater} {fault}.", hint=name_hint(rater, step.people, otherwise=listed)
            )
    if not people:
        raise UserError(f"All raters of the step {step.name} are simulated.", hint="Nobody has to answer.")
    return tuple(dict.fromkeys(people)), lambda: step_task(step, run)


def _print_task(task: "AnnotationTask", raters: Sequence[str]) -> None:
    """Say on standard error how many texts each person reads, and how wide an interval of agreement they give."""
    from skillmix.validation.sample import width_of

    settings = task.settings
    for rater in raters:
        number = len(task.assignment.texts[rater])
        short = "" if number == settings.texts else f" instead of {whole(settings.texts)}: the run has no more"
        width = share(width_of(number, agreement=settings.agreement))
        at = f"interval of agreement {width} wide at {share(settings.agreement)}"
        LOG.info(f"{rater} reads {plural(number, 'text')}{short}; {at}")
    if len(task.raters) > 1:
        shared = task.assignment.shared
        LOG.info(f"{plural(shared, 'text')} for everybody, {whole(task.assignment.distinct)} in all")


def _export(task: "AnnotationTask", rater: str, options: argparse.Namespace) -> int:
    from skillmix.validation.spreadsheet import write_spreadsheet

    texts = write_spreadsheet(task, rater, options.export)
    if options.json:
        return print_json({"file": str(options.export), "texts": texts})
    print(options.export)
    names = ("step", *_DECIDED)
    given = "".join(
        f" --{name} {quote(str(getattr(options, name)))}" for name in names if getattr(options, name) is not None
    )
    name = f"skillmix annotate {quote(options.run)}{given} --rater {rater} --import {quote(str(options.export))}"
    LOG.info(f"fill the column vote with 1, 0 or ?, then: {name}")
    return 0


def _import(task: "AnnotationTask", rater: str, options: argparse.Namespace) -> int:
    from skillmix.validation.spreadsheet import read_spreadsheet

    read = read_spreadsheet(task, rater, options.filled)
    with task.answering(rater) as store:
        new = store.store_all(read.answers)
    if options.json:
        return print_json({"rater": rater, "answers": len(read.answers), "new": new, "empty": read.empty})
    print(f"{rater}: {plural(len(read.answers), 'answer')}, {whole(new)} of them new; {are(read.empty, 'text')} empty")
    return 0


def _serve(task: "AnnotationTask", raters: Sequence[str], options: argparse.Namespace) -> int:
    import asyncio
    from contextlib import ExitStack

    from skillmix.validation.server import links_of, serve

    def ready(addresses: Mapping[str, str]) -> None:
        if options.json:
            print_json([{"rater": rater, "address": address} for rater, address in addresses.items()])
        else:
            for rater, address in addresses.items():
                print(f"{rater}: {address}")
        LOG.info("open the link of each person in a browser of this machine; Ctrl-C ends")
        sys.stdout.flush()

    with ExitStack() as opened:
        stores = {rater: opened.enter_context(task.answering(rater)) for rater in raters}
        links = links_of(task.run, raters, new=options.new_links)
        try:
            asyncio.run(serve(task, stores, links, port=options.port, ready=ready))
        finally:
            _print_answers(task, stores)
    return 0


def _print_answers(task: "AnnotationTask", stores: "Mapping[str, AnswerStore]") -> None:
    for rater, store in stores.items():
        done = store.answered(task.texts(rater))
        LOG.info(f"{rater}: {whole(sum(done))} of {plural(len(done), 'text')} answered")


def add_calibrate(commands: Commands) -> None:
    """Add the command `calibrate`."""
    parser = add_command(commands, "calibrate", calibrate)
    add_trust_option(parser)
    parser.add_argument("grader", metavar="GRADER", help="a model spec, or rules: to let code grade")
    parser.add_argument(
        "--set",
        required=True,
        metavar="NAME|FILE",
        help="texts with known labels: paper (shipped), a YAML file or a folder of them, or bigbench:TASK",
    )
    parser.add_argument("--catalog", default="paper", metavar="DIR", help="a shipped catalogue or a folder")
    parser.add_argument("--run", metavar="NAME", help="name of the run, or a path to it (default: set and grader)")
    parser.add_argument("--n", type=positive, metavar="N", help="take only N texts of the set, chosen by hash")
    parser.add_argument("--rounds", type=positive, metavar="R", help="gradings of a text, an odd number (default: 3)")
    parser.add_argument("--prompts", default="standard", metavar="DIR", help="a shipped prompt set or a folder")
    parser.add_argument(
        "--variant", metavar="NAME", help="the grader's prompt: grade-NAME.txt of the prompt set (default: gpt)"
    )
    parser.add_argument("--system", metavar="TEXT", help="system text before the grader's prompt (default: none)")
    parser.add_argument("--temperature", type=float, metavar="T", help="of the grader's replies (default: 0.7)")
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="of a reply (default: 1,024)")
    parser.add_argument("--attempts", type=positive, metavar="N", help="calls until a reply is readable (default: 3)")
    parser.add_argument("--concurrency", type=positive, metavar="N", help="simultaneous calls")
    parser.add_argument("--key", metavar="VARIABLE", help="environment variable with the key for the model's address")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-usd", type=above_zero, metavar="X", help="stop before the calls cost more")
    parser.add_argument("--prices", type=Path, metavar="FILE", help="your own price file")
    parser.add_argument(
        "--bigbench", type=Path, metavar="PATH", help="source archive of the package bigbench, or a folder with it"
    )
    parser.add_argument("--dry-run", action="store_true", help="print calls, tokens and cost without calling a model")
    parser.add_argument("--wide", action="store_true", help="with --dry-run: print the whole table")


def calibrate(options: argparse.Namespace) -> int:
    """Ask a grader about texts with known labels, and print its card; run the same command again to continue."""
    from skillmix.validation.calibration import CalibrationWish, planned

    names = ("rounds", "system", "temperature", "max_tokens", "attempts", "concurrency", "key")
    settings = {name: getattr(options, name) for name in names} | {"prompts": options.variant}
    given = {name: value for name, value in settings.items() if value is not None}
    plan = planned(
        CalibrationWish(
            grader={"model": options.grader, **given},
            set=options.set,
            catalog=options.catalog,
            prompts=options.prompts,
            run=options.run,
            size=options.n,
            seed=options.seed,
            max_usd=options.max_usd,
            bigbench=options.bigbench,
        )
    )
    return _dry_run(plan, options) if options.dry_run else _calibrate(plan, options)


def _calibrate(plan: "CalibrationPlan", options: argparse.Namespace) -> int:
    from skillmix.models.local.importing import import_lean
    from skillmix.runs.stopping import signal_of
    from skillmix.steps.calibrating import calibrated
    from skillmix.validation.calibration import card_lines, write_card

    import_lean()
    calibration = calibrated(plan, prices=options.prices)
    for key, problem in list(calibration.counts.failed.items())[:1]:
        failed = plural(len(calibration.counts.failed), "call")
        LOG.warning(f"failed: {failed}, such as {key}: {problem.reason}")
    stopped = calibration.counts.stopped
    signal = signal_of(stopped)
    if signal is not None:
        LOG.warning(f"interrupted; all answers are in {calibration.run.path}: run the same command to go on")
        return 128 + signal
    if stopped is not None:
        LOG.warning(f"stopped: {stopped.value}; raise it and run again to go on")
    page = write_card(calibration)
    if options.json:
        print_json(calibration.as_json())
    else:
        print(card_lines(calibration))
    sys.stdout.flush()
    LOG.info(f"card: open {page} in a browser")
    return 0 if calibration.is_complete else 1


def _dry_run(plan: "CalibrationPlan", options: argparse.Namespace) -> int:
    from skillmix.steps.calibrating import estimated
    from skillmix.steps.estimates import budget_warnings, estimate_notes, estimate_table

    estimates = estimated(plan, prices=options.prices)
    if options.json:
        print_json([asdict(estimate) for estimate in estimates])
    else:
        print(estimate_table(estimates, wide=options.wide))
        for note in estimate_notes(estimates):
            print(f"\n{wrapped(note)}")
    sys.stdout.flush()
    for warning in budget_warnings(estimates, plan.experiment.budget):
        LOG.warning(f"warning: {warning}")
    return 0
