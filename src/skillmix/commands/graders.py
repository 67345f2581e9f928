"""Commands that check graders: `annotate` collects human labels, and `calibrate` tests a grader on labeled texts."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from skillmix.commands.run import print_estimates
from skillmix.commands.shared import (
    DRY_RUN,
    PRICES,
    RUN,
    TRUST,
    WIDE_DRY_RUN,
    above_zero,
    command,
    flag,
    given,
    number,
    option,
    positive,
    print_json,
    say_why_stopped,
)
from skillmix.errors import LOG, UserError
from skillmix.render import are, name_hint, plural, share, whole

if TYPE_CHECKING:
    from skillmix.experiment.steps import AnnotateStep
    from skillmix.validation.task import AnnotationTask

_DECIDED: Final = ("n", "width", "agreement", "overlap", "student", "k", "seed")
"""The options that select the texts to annotate; an annotate step has the same settings."""


@command(
    "annotate",
    TRUST,
    RUN,
    option("--rater", "name of a rater; repeatable", action="append", metavar="NAME"),
    option("--step", "annotate step of the run's experiment, which assigns texts to raters", metavar="NAME"),
    option("--n", "texts per rater (default 50)", type=positive),
    option(
        "--width", "instead of --n: as many texts as narrow the interval of agreement to this width", type=above_zero
    ),
    option("--agreement", "expected agreement for --width (default .5, the worst case)", type=float),
    option("--overlap", "share of a rater's texts that all raters read (default .3)", type=float),
    option("--student", "only texts of this student"),
    option("--k", "only texts with this number of skills", type=positive),
    option("--seed", "seed for the choice of texts (default 0)", type=int),
    option(
        "--port",
        "port of the page (default: the previous one, or any free one)",
        type=number(int, "a port from 0 to 65535", lambda port: 0 <= port < 65536),
    ),
    flag("--new-links", "make new links; the old ones become invalid"),
    option("--export", "write the task to a spreadsheet instead", type=Path, metavar="FILE.csv"),
    option("--import", "import the votes from a spreadsheet", type=Path, metavar="FILE.csv", dest="filled"),
)
def annotate(options: argparse.Namespace) -> int:
    """Serve a local web page where people grade a run's texts blind. Stop with Ctrl-C; rerun to continue.

    Each answer is stored at once, as a vote of the grader human:NAME.
    """
    from skillmix.runs.run import open_run
    from skillmix.validation.sample import width_of
    from skillmix.validation.spreadsheet import read_spreadsheet, write_spreadsheet
    from skillmix.validation.task import TaskSettings, annotate_step_of, make_task, step_task

    if options.export is not None and options.filled is not None:
        raise UserError("--export and --import cannot go together.", hint="Give only one of them.")
    raters = tuple(options.rater or ())
    if options.step is not None:
        run = open_run(options.run)
        step = annotate_step_of(run, options.step)
        raters = _people_of(step, options)
    elif raters:
        chosen = given(options, "n", "width", "agreement", "overlap", "seed")
        students = () if options.student is None else (options.student,)
        ks = () if options.k is None else (options.k,)
        settings = TaskSettings(raters=raters, students=students, ks=ks, **chosen)
    else:
        raise UserError(
            "No raters given.", hint="Add --rater NAME for each person, or --step NAME for an annotate step."
        )
    if (options.export is not None or options.filled is not None) and len(raters) > 1:
        raise UserError("A spreadsheet is for one person.", hint="Give one --rater, and repeat the command for others.")
    task = make_task(open_run(options.run), settings) if options.step is None else step_task(step, run)
    if options.filled is not None:
        read = read_spreadsheet(task, raters[0], options.filled)
        with task.answering(raters[0]) as store:
            new = store.store_all(read.answers)
        if options.json:
            return print_json({"rater": raters[0], "answers": len(read.answers), "new": new, "empty": read.empty})
        answers, empty = plural(len(read.answers), "answer"), are(read.empty, "text")
        print(f"{raters[0]}: {answers}, {whole(new)} of them new; {empty} empty")
        return 0
    for rater in raters:
        texts, agreement = len(task.assignment.texts[rater]), task.settings.agreement
        wanted = task.settings.texts
        short = "" if texts == wanted else f" instead of {whole(wanted)}: the run has no more"
        width = (
            f"interval of agreement {share(width_of(texts, agreement=agreement))} wide at {share(agreement)} agreement"
        )
        LOG.info(f"{rater} reads {plural(texts, 'text')}{short}; {width}")
    if len(task.raters) > 1:
        shared = task.assignment.shared
        LOG.info(f"{plural(shared, 'text')} for all raters, {whole(task.assignment.distinct)} in all")
    if options.export is None:
        return _serve(task, raters, options)
    texts = write_spreadsheet(task, raters[0], options.export)
    if options.json:
        return print_json({"file": str(options.export), "texts": texts})
    print(options.export)
    words = "".join(f" --{name} {quote(str(value))}" for name, value in given(options, "step", *_DECIDED).items())
    name = f"skillmix annotate {quote(options.run)}{words} --rater {raters[0]} --import {quote(str(options.export))}"
    LOG.info(f"fill the column vote with 1, 0 or ?, then: {name}")
    return 0


def _people_of(step: "AnnotateStep", options: argparse.Namespace) -> tuple[str, ...]:
    """Return the people in a step, or only the people listed in `--rater`."""
    decided = [f"--{name}" for name in _DECIDED if getattr(options, name) is not None]
    if decided:
        raise UserError(
            f"The step {step.name} already assigns the texts, so {' and '.join(decided)} cannot be combined "
            "with --step.",
            hint="Change the step in the experiment file and rerun it.",
        )
    people = tuple(dict.fromkeys(options.rater or step.people))
    for rater in people:
        if rater not in step.people:
            fault = "is simulated and needs no person" if rater in step.raters else "is not one of its raters"
            listed = f"The people of the step: {', '.join(step.people) or 'none'}."
            raise UserError(
                f"The step {step.name}: {rater} {fault}.", hint=name_hint(rater, step.people, otherwise=listed)
            )
    if not people:
        raise UserError(f"All raters of the step {step.name} are simulated.", hint="No person needs to answer.")
    return people


def _serve(task: "AnnotationTask", raters: Sequence[str], options: argparse.Namespace) -> int:
    """Serve one page per person until Ctrl-C."""
    import asyncio

    from skillmix.validation.server import links_of, serve

    def ready(addresses: Mapping[str, str]) -> None:
        if options.json:
            print_json([{"rater": rater, "address": address} for rater, address in addresses.items()])
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


@command(
    "calibrate",
    TRUST,
    option("grader", "grader: a model string, or rules: to grade by code", metavar="GRADER"),
    option(
        "--set",
        "texts with known labels: paper (shipped), a YAML file or a folder of them, or bigbench:TASK",
        required=True,
        metavar="NAME|FILE",
    ),
    option("--catalog", "a shipped catalog or a folder (default: paper)", default="paper", metavar="DIR"),
    option("--run", "name of the run, or a path to it (default: set and grader)", metavar="NAME"),
    option("--n", "use only N texts of the set, chosen by hash", type=positive, metavar="N"),
    option("--rounds", "gradings of a text, an odd number (default: 3)", type=positive, metavar="R"),
    option("--prompts", "a shipped prompt set or a folder (default: standard)", default="standard", metavar="DIR"),
    option("--variant", "the grader's prompt: grade-NAME.txt of the prompt set (default: gpt)", metavar="NAME"),
    option("--system", "system prompt before the grader's prompt (default: none)", metavar="TEXT"),
    option("--temperature", "sampling temperature of the grader (default: 0.7)", type=float, metavar="T"),
    option("--max-tokens", "of a reply (default: 1,024)", type=positive, metavar="N"),
    option("--attempts", "most calls until a reply can be parsed (default: 3)", type=positive, metavar="N"),
    option("--concurrency", "simultaneous calls", type=positive, metavar="N"),
    option("--key", "environment variable that holds the key for the model's URL", metavar="VARIABLE"),
    option("--seed", "seed of the calls (default 0)", type=int, default=0),
    option("--max-usd", "budget in US dollars", type=above_zero, metavar="X"),
    PRICES,
    option("--bigbench", "source archive of the package bigbench, or a folder with it", type=Path, metavar="PATH"),
    DRY_RUN,
    WIDE_DRY_RUN,
)
def calibrate(options: argparse.Namespace) -> int:
    """Grade texts with known labels and print the grader's report; rerun the same command to continue."""
    from skillmix.steps.calibrating import calibrated, estimated
    from skillmix.validation.calibration import card_lines, planned, write_card

    names = ("rounds", "system", "temperature", "max_tokens", "attempts", "concurrency", "key")
    variant = {} if options.variant is None else {"prompts": options.variant}
    plan = planned(
        {"model": options.grader, **given(options, *names), **variant},
        set=options.set,
        catalog=options.catalog,
        prompts=options.prompts,
        run=options.run,
        size=options.n,
        seed=options.seed,
        max_usd=options.max_usd,
        bigbench=options.bigbench,
    )
    if options.dry_run:
        print_estimates(estimated(plan, prices=options.prices), plan.experiment.budget, options)
        return 0
    calibration = calibrated(plan, prices=options.prices)
    counts = calibration.counts
    signal_status = say_why_stopped(counts.stopped, calibration.run.path, counts.failed)
    if signal_status is not None:
        return signal_status
    page = write_card(calibration)
    if options.json:
        print_json(calibration.as_json())
    else:
        print(card_lines(calibration))
    sys.stdout.flush()
    LOG.info(f"card: open {page} in a browser")
    return 0 if calibration.is_complete else 1
