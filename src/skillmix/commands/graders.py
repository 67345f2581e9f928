"""Commands that check graders: `annotate` collects labels from people, `calibrate` tests a grader on known labels."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from skillmix.commands import shared as cli
from skillmix.commands.run import print_estimates
from skillmix.errors import LOG, UserError
from skillmix.render import are, name_hint, plural, share, whole

if TYPE_CHECKING:
    from skillmix.experiment.steps import AnnotateStep
    from skillmix.validation.task import AnnotationTask

_FRACTION: Final = {"type": cli.fraction, "metavar": "SHARE"}
_PORT: Final = cli.number(int, "a port from 0 to 65535", lambda port: 0 <= port < 65536)
_DECIDED: Final = ("n", "width", "agreement", "overlap", "student", "k", "seed")
"""The options that choose each rater's texts; with `--step`, the annotate step sets them instead."""


@cli.command(
    "annotate",
    cli.TRUST,
    cli.RUN,
    cli.option("--rater", "name of a rater; repeatable", action="append", metavar="NAME"),
    cli.option("--step", "annotate step of the run's experiment, which sets raters and texts", metavar="NAME"),
    cli.option("--n", "texts per rater (default: 50)", type=cli.positive),
    cli.option("--width", "instead of --n: width of the agreement interval", type=cli.above_zero, metavar="W"),
    cli.option("--agreement", "expected agreement, for --width (default: 0.5, the worst case)", **_FRACTION),
    cli.option("--overlap", "share of the texts that all raters read (default: 0.3)", **_FRACTION),
    cli.STUDENT,
    cli.option("--k", "only texts with this number of skills", type=cli.positive),
    cli.option("--seed", "seed for the choice of texts (default: 0)", type=cli.integer, metavar="N"),
    cli.option("--port", "port of the page (default: the previous one, or any free one)", type=_PORT, metavar="N"),
    cli.flag("--new-links", "make new links and invalidate the old ones"),
    cli.option("--export", "write the texts to a spreadsheet instead", type=Path, metavar="FILE.csv"),
    cli.option("--import", "import the votes from a spreadsheet", type=Path, metavar="FILE.csv", dest="filled"),
)
def annotate(options: argparse.Namespace) -> int:
    """Serve a local web page where people grade a run's texts blind. Stop with Ctrl-C; rerun to continue.

    Each answer is stored at once as a vote of the grader human:NAME.
    """
    from skillmix.runs.run import open_run
    from skillmix.validation.sample import width_of
    from skillmix.validation.spreadsheet import read_spreadsheet, write_spreadsheet
    from skillmix.validation.task import TaskSettings, annotate_step_of, make_task, step_task

    if options.filled is not None:
        cli.reject(options, ("export",), "with --import", hint="Give only one of them.")
    raters = tuple(options.rater or ())
    if options.step is not None:
        run = open_run(options.run)
        step = annotate_step_of(run, options.step)
        raters = _people_of(step, options)
    elif raters:
        chosen = cli.given(options, "n", "width", "agreement", "overlap", "seed")
        students = () if options.student is None else (options.student,)
        ks = () if options.k is None else (options.k,)
        settings = TaskSettings(raters=raters, students=students, ks=ks, **chosen)
    else:
        hint = "Add --rater NAME for each person, or --step NAME for an annotate step of the experiment."
        raise UserError("`skillmix annotate` needs a rater or a step.", hint=hint)
    if (options.export is not None or options.filled is not None) and len(raters) > 1:
        raise UserError("A spreadsheet is for one person.", hint="Give one --rater; repeat the command for the others.")
    task = make_task(open_run(options.run), settings) if options.step is None else step_task(step, run)
    if options.filled is not None:
        read = read_spreadsheet(task, raters[0], options.filled)
        with task.answering(raters[0]) as store:
            new = store.store_all(read.answers)
        if options.json:
            return cli.print_json({"rater": raters[0], "answers": len(read.answers), "new": new, "empty": read.empty})
        answers, empty = plural(len(read.answers), "answer"), are(read.empty, "text")
        print(f"{raters[0]}: {answers}, {whole(new)} of them new; {empty} empty")
        return 0
    for rater in raters:
        texts, agreement = len(task.assignment.texts[rater]), task.settings.agreement
        wanted = task.settings.texts
        short = "" if texts == wanted else f" instead of {whole(wanted)}, because the run has no more"
        width = share(width_of(texts, agreement=agreement))
        interval = f"the agreement interval is {width} wide at {share(agreement)} agreement"
        LOG.info(f"{rater} reads {plural(texts, 'text')}{short}; {interval}")
    if len(task.raters) > 1:
        shared = task.assignment.shared
        LOG.info(f"{plural(shared, 'text')} for all raters, {whole(task.assignment.distinct)} in total")
    if options.export is None:
        return _serve(task, raters, options)
    if not write_spreadsheet(task, raters[0], options.export):
        raise UserError(
            f"{options.export} exists and may contain votes that have not been imported.",
            hint="Nothing was changed. Import the file first, or choose another name.",
        )
    if options.json:
        return cli.print_json({"file": str(options.export), "texts": len(task.texts(raters[0]))})
    print(options.export)
    words = "".join(f" --{name} {quote(str(value))}" for name, value in cli.given(options, "step", *_DECIDED).items())
    name = f"skillmix annotate {quote(options.run)}{words} --rater {raters[0]} --import {quote(str(options.export))}"
    LOG.info(f"next: fill the column vote with 1, 0 or ?, then: {name}")
    return 0


def _people_of(step: "AnnotateStep", options: argparse.Namespace) -> tuple[str, ...]:
    """Return the human raters of a step, or only those given with `--rater`."""
    hint = f"The step {step.name} already determines them; change it in the experiment file and rerun the experiment."
    cli.reject(options, _DECIDED, "with --step", hint=hint)
    people = tuple(dict.fromkeys(options.rater or step.people))
    for rater in people:
        if rater not in step.people:
            fault = "is simulated" if rater in step.raters else "is not a rater of the step"
            hint = name_hint(rater, step.people, otherwise=f"Its people: {', '.join(step.people) or 'none'}.")
            raise UserError(f"Step {step.name}: {rater} {fault}.", hint=hint)
    if not people:
        raise UserError(
            f"Step {step.name}: all raters are simulated.", hint="Run the experiment; simulated raters need no page."
        )
    return people


def _serve(task: "AnnotationTask", raters: Sequence[str], options: argparse.Namespace) -> int:
    """Serve one page per person until Ctrl-C."""
    import asyncio

    from skillmix.validation.server import links_of, serve

    def ready(addresses: Mapping[str, str]) -> None:
        if options.json:
            cli.print_json([{"rater": rater, "address": address} for rater, address in addresses.items()])
        else:
            for rater, address in addresses.items():
                print(f"{rater}: {address}")
        LOG.info("open each person's link in a browser on this machine; stop with Ctrl-C")
        sys.stdout.flush()

    with ExitStack() as opened:
        stores = {rater: opened.enter_context(task.answering(rater)) for rater in raters}
        links = links_of(task.run, raters, new=options.new_links)
        try:
            asyncio.run(serve(task, stores, links, port=options.port, ready=ready))
        finally:
            for rater, store in stores.items():
                done = store.answered(task.texts(rater))
                LOG.info(f"{rater}: {whole(sum(done))} of {plural(len(done), 'text')} answered")
    return 0


@cli.command(
    "calibrate",
    cli.TRUST,
    cli.option("grader", "a model, or rules: to grade by code", metavar="GRADER"),
    cli.option(
        "--set",
        "texts with known labels: paper (shipped), a YAML file, a folder of YAML files, or bigbench:TASK",
        required=True,
        metavar="NAME|FILE",
    ),
    cli.CATALOG_OPTION,
    cli.option("--run", "name of the run, or path of its folder (default: from set and grader)", metavar="NAME"),
    cli.option("--n", "use only N texts of the set, chosen by hash", type=cli.positive, metavar="N"),
    cli.option("--rounds", "gradings per text, an odd number (default: 3)", type=cli.positive, metavar="R"),
    cli.PROMPTS,
    *cli.GRADER_PROMPT,
    cli.option(
        "--attempts",
        "maximum calls per grading if replies cannot be parsed (default: 3)",
        type=cli.positive,
        metavar="N",
    ),
    *cli.CALLS,
    cli.SEED,
    cli.option("--bigbench", "source archive of the package bigbench, or its folder", type=Path, metavar="PATH"),
    cli.PRICES,
    cli.DRY_RUN,
    cli.WIDE_DRY_RUN,
)
def calibrate(options: argparse.Namespace) -> int:
    """Grade texts with known labels and print the grader's card. Rerun the same command to continue."""
    from skillmix.steps.calibrating import calibrated, estimated
    from skillmix.validation.calibration import card_lines, planned, write_card

    names = ("rounds", "system", "temperature", "max_tokens", "attempts", "concurrency", "key")
    variant = {} if options.variant is None else {"prompts": options.variant}
    plan = planned(
        {"model": options.grader, **cli.given(options, *names), **variant},
        size=options.n,
        **cli.taken(options, "set", "catalog", "prompts", "run", "seed", "max_usd", "bigbench"),
    )
    if options.dry_run:
        print_estimates(estimated(plan, prices=options.prices), plan.experiment.budget, options)
        return 0
    calibration = calibrated(plan, prices=options.prices)
    counts = calibration.counts
    signal_status = cli.say_why_stopped(counts.stopped, calibration.run.path, counts.failed)
    if signal_status is not None:
        return signal_status
    page = write_card(calibration)
    if options.json:
        cli.print_json(calibration.as_json())
    else:
        print(card_lines(calibration))
    sys.stdout.flush()
    LOG.info(f"card: open {page} in a browser")
    return 0 if calibration.is_complete else 1
