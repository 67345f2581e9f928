"""Commands for one combination named on the command line: `prompts`, `parse-reply` and `grade-text`."""

import argparse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skillmix.commands import shared as cli
from skillmix.errors import LOG, UserError, errors_of, refuse
from skillmix.render import grounds, wrapped

if TYPE_CHECKING:
    from skillmix.calls import Outcome, Request
    from skillmix.catalog.catalog import Catalog
    from skillmix.catalog.combinations import Combination
    from skillmix.prompts.prompt_set import PromptSet

_SKILLS: Final = {"about": 'names of skills, separated by ";"', "metavar": '"A; B"'}
_TOPIC: Final = {"about": "name of the topic", "metavar": "NAME"}
_COMBINATION: Final = (
    *cli.CATALOG,
    cli.option("--skills", required=True, **_SKILLS),
    cli.option("--topic", required=True, **_TOPIC),
    cli.PROMPTS,
)
"""The options that select a combination and a prompt set."""


@cli.command(
    "prompts",
    *cli.CATALOG,
    cli.option("--skills", **_SKILLS),
    cli.option("--topic", **_TOPIC),
    cli.PROMPTS,
    cli.option("--answer", "text to insert into the grader's prompts", default="(the student's text)", metavar="TEXT"),
    cli.option("--copy", "copy the prompt set into a new folder for editing", type=Path, metavar="DIR"),
    cli.group(
        "prompts for trainers that sample texts from the model",
        cli.option("--dataset", "write prompts to FILE.jsonl or FILE.parquet", type=Path, metavar="FILE"),
        cli.option("--k", "numbers of skills (default: 1 2 3)", type=cli.positive, nargs="+", default=[1, 2, 3]),
        cli.option("--n", "combinations for each k (default: 100)", type=cli.positive, default=100),
        cli.option("--setting", "train (default), held-out, all or another group", default="train", metavar="GROUP"),
        cli.PARTITION,
        cli.EXCLUDE,
        cli.SEED,
    ),
)
def prompts(options: argparse.Namespace) -> int:
    """Show the prompts for one combination, copy a prompt set, or write prompts for training."""
    from skillmix.catalog.combinations import combination_of
    from skillmix.prompts.prompt_set import LEAD_FILE, STUDENT_FILES, copy_prompts, load_prompts

    if options.dataset is not None:
        return _write_prompts(options)
    hint = "Add the file to write: --dataset FILE.jsonl"
    cli.reject(options, ("k", "n", "setting", "partition", "exclude", "seed"), "without --dataset", hint=hint)
    if options.copy is not None:
        cli.reject(options, ("skills", "topic"), "with --copy", hint="--copy copies the whole prompt set.")
        files = copy_prompts(options.prompts, options.copy)
        if options.json:
            return cli.print_json({"folder": str(options.copy), "files": files})
        print("\n".join(str(options.copy / file) for file in files))
        # In an experiment file, a bare name refers to a shipped set.
        is_path = options.copy.is_absolute() or len(options.copy.parts) > 1
        folder = options.copy if is_path else f"./{options.copy}"
        LOG.info(f"next: edit the files, then use them in an experiment with prompts: {folder}")
        return 0
    if options.skills is None or options.topic is None:
        hint = 'For example: skillmix prompts --skills "metaphor; red herring" --topic Sewing'
        raise UserError("`skillmix prompts` needs --skills and --topic, or --copy, or --dataset.", hint=hint)
    catalog, as_named = _named_combination(options)
    combination = combination_of(as_named.skills, as_named.topic)  # with its skills ordered as in a run's prompts
    prompt_set = load_prompts(options.prompts)
    lead = [prompt for prompt, _ in prompt_set.lead_turns(catalog, combination)]
    rendered = dict(zip([LEAD_FILE], lead, strict=False))
    rendered |= zip(STUDENT_FILES, prompt_set.student_prompts(catalog, combination), strict=False)
    for variant in prompt_set.grader_variants:
        prompt = prompt_set.grader_prompt(catalog, combination, answer=options.answer, variant=variant)
        rendered[prompt_set.grader_file(variant)] = prompt
    if options.json:
        return cli.print_json(rendered)
    print("\n\n".join(f"──── {file}\n{prompt}" for file, prompt in rendered.items()))
    return 0


def _write_prompts(options: argparse.Namespace) -> int:
    """Write training prompts for drawn combinations to a file."""
    from skillmix.catalog.combinations import draw_combinations
    from skillmix.catalog.files import load_catalog
    from skillmix.checkers.registry import checker_of
    from skillmix.commands.catalog import wanted_draw
    from skillmix.datasets.other_forms import prompt_rows, require_new_rows_file, write_rows_file
    from skillmix.prompts.prompt_set import load_prompts

    cli.reject(options, ("copy", "skills", "topic"), "with --dataset", hint="--dataset draws skills and topics itself.")
    require_new_rows_file(options.dataset)
    name, draw = cli.catalog_name(options), cli.taken(options, "setting", "seed", "partition", "exclude")
    combinations: list[Combination] = []
    for k in dict.fromkeys(options.k):
        combinations += draw_combinations(wanted_draw(name, k=k, purpose="training", **draw), options.n)
    prompts = load_prompts(options.prompts)
    rows = list(prompt_rows(combinations, load_catalog(name), prompts, catalog_name=name))
    write_rows_file(options.dataset, rows)
    unchecked = {skill for combination in combinations for skill in combination.skills if checker_of(skill) is None}
    if unchecked:
        LOG.warning(
            f"note: {len(unchecked)} of these skills, such as {min(unchecked)!r}, have no checker, so the functions of "
            "skillmix.rewards reject them. In the catalog verifiable, all skills have a checker."
        )
    if options.json:
        return cli.print_json({"file": str(options.dataset), "rows": len(rows), "prompts_hash": prompts.content_hash()})
    print(options.dataset)
    return 0


@cli.command(
    "parse-reply",
    *_COMBINATION,
    cli.option("--text", "file with the graded text, if available", type=Path, metavar="FILE"),
)
def parse_reply(options: argparse.Namespace) -> int:
    """Parse a grader's reply from standard input and print its points."""
    from skillmix.files import read_text
    from skillmix.grading.reader import read_grades
    from skillmix.prompts.prompt_set import load_prompts
    from skillmix.prompts.rubric import rubric_of

    text = read_text(options.text) if options.text else None
    reply = cli.standard_input()
    _, combination = _named_combination(options)
    rubric = rubric_of(combination.skills, combination.topic, phrases=load_prompts(options.prompts).phrases)
    reading = read_grades(rubric, reply, text=text)
    points = reading.by_name(rubric)
    if options.json:
        return cli.print_json({"points": points, "problem": reading.problem, "notes": list(reading.notes)})
    for name, point in (points or {}).items():
        print(f"{name}: {'not given' if point is None else f'{point:g}'}")
    if reading.problem:
        print(f"unparseable: {reading.problem}")
    for note in reading.notes:
        print(f"note: {note}")
    return 0


def _named_combination(options: argparse.Namespace) -> "tuple[Catalog, Combination]":
    """Return the catalog, and the combination with its skills in the order of `--skills`."""
    from skillmix.catalog.combinations import Combination, combination_of
    from skillmix.catalog.files import load_catalog

    catalog = load_catalog(cli.catalog_name(options))
    names = cli.listed_names(options.skills)
    if not names:
        hint = 'For example: --skills "metaphor; irony"'
        raise UserError(f"--skills {options.skills!r} does not contain a skill.", hint=hint)
    errors = errors_of([lambda: catalog.require_skills(names), lambda: catalog.topic(options.topic)])
    refuse("The combination", errors, hint=f"`skillmix catalog {catalog.name}` lists all skills and topics.")
    skills = tuple(skill.name for skill in catalog.require_skills(names))
    combination = combination_of(skills, catalog.topic(options.topic))
    return catalog, Combination(combination.id, skills, combination.topic)


@cli.command(
    "grade-text",
    cli.TRUST,
    *_COMBINATION,
    cli.option("--grader", "a model, or rules: to grade by code (default: rules:)", default="rules:", metavar="SPEC"),
    *cli.GRADER_PROMPT,
    cli.option("--rules", "scoring rules (default: default)", default="default", choices=("default", "paper")),
    cli.SEED,
)
def grade_text(options: argparse.Namespace) -> int:
    """Grade the text on standard input by code, or with one call to a model."""
    import asyncio

    from skillmix.grading.answers import plain_answer
    from skillmix.grading.points import METRICS, decide_points, reasons_of, text_score, woven_full_marks
    from skillmix.grading.reader import read_grades, words_about
    from skillmix.models.request_fields import system_fault
    from skillmix.models.specs import asked_model, check_spec, uses_code
    from skillmix.prompts.prompt_set import load_prompts
    from skillmix.prompts.rubric import rubric_of
    from skillmix.runs.run import rules_named
    from skillmix.runs.verdicts import RulesGrader, applicable_reasons, reading_of, require_checkers, with_verdict

    rules, answer = rules_named(options.rules), plain_answer(cli.standard_input())
    if answer.status == "empty":
        raise UserError("Standard input contains no text.", hint="Pipe the text in: skillmix grade-text … < FILE")
    check_spec(options.grader)
    asked = asked_model(options.grader)
    if asked is None:
        cli.reject(options, ("system",), "with rules:, which is code", hint="Choose a model with --grader.")
    elif options.system is not None and (fault := system_fault(options.system)) is not None:
        raise UserError(f"--system: {fault}.", hint='For example: --system "You are a strict grader."')
    catalog, combination = _named_combination(options)
    skills, prompts = combination.skills, load_prompts(options.prompts)
    if options.variant is not None:
        prompts.grader_file(options.variant)
    if prompts.phrases.outcomes:
        hint = "Use the set in an experiment, or parse a reply with `skillmix parse-reply`."
        raise UserError(f"The prompt set {prompts.name!r} asks graders for outcomes instead of points.", hint=hint)
    rubric = rubric_of(skills, combination.topic, phrases=prompts.phrases)
    grader_words: dict[str, str] = {}
    verdict = None
    if uses_code(options.grader):
        verdict = RulesGrader(catalog).verdict(answer.text, skills=skills, topic=combination.topic)
    if asked is None:
        require_checkers(catalog, skills, options.grader)
        assert verdict is not None  # code decides all points
        reading = reading_of(verdict, skills)
    else:
        reply = asyncio.run(_reply_of(asked, options, prompts, catalog, combination, answer.text))
        reading = read_grades(rubric, reply, text=answer.text)
        about = {c.name: words_about(rubric, index, reply) for index, c in enumerate(rubric.criteria)}
        grader_words = {name: words for name, words in about.items() if words}
        if verdict is not None:
            reading = with_verdict(reading, skills, verdict)
    points = decide_points(rubric, answer, [reading], rounds=1, rules=rules)
    denials = applicable_reasons(verdict, is_alone=asked is None) if verdict else {}
    reasons = dict(reasons_of(points, skills, answer, rules, denials))
    by_name = dict(zip((criterion.name for criterion in rubric.criteria), points, strict=True))
    evidence = {name: verdict.quote(verdict.evidence.get(name)) if verdict else None for name in skills}
    woven = dict(verdict.woven) if verdict else {}
    if options.json:
        earned = {name: None if point is None else float(point) for name, point in by_name.items()}
        return cli.print_json(
            {
                "points": None if reading.points is None else earned,
                "problem": reading.problem,
                "notes": list(reading.notes),
                "scores": {metric: text_score(points, metric) for metric in METRICS},
                "woven_full_marks": woven_full_marks(points, verdict.is_woven(list(skills))) if verdict else None,
                "evidence": evidence,
                "woven": woven if verdict else None,
                "reasons": reasons,
                "grader_words": grader_words,
                "unrequested": list(verdict.unrequested) if verdict else None,
            }
        )
    if reading.problem:
        print(f"unparseable: {reading.problem}")
    for name, point in by_name.items():
        words = grader_words.get(name) if point is False else None
        shown = grounds(evidence.get(name), reasons.get(name), woven=woven.get(name), grader_words=words)
        earned_point = "undecided" if point is None else int(point)
        print(wrapped(f"{name}: {earned_point}" + (f"  {shown}" if shown else ""), indent=4))
    for note in reading.notes:
        if note not in reasons.values():
            print(f"note: {note}")
    if verdict and verdict.unrequested:
        print(f"shown but not requested: {', '.join(verdict.unrequested)}")
    return 0


_MAX_TOKENS: Final = 1024
"""The maximum length of a grader's reply, in tokens."""
_HINTS: Final = {
    "fatal": "Check the model's name, its URL and the key in the environment.",
    "final": "This grader refuses to grade this text; use another grader.",
    "failed": "This grader cannot grade this text; use another grader.",
    "passing": "The problem may be temporary; rerun the command.",
}


async def _reply_of(
    asked: str, options: argparse.Namespace, prompts: "PromptSet", catalog: "Catalog", about: "Combination", text: str
) -> str:
    """Ask a model to grade a text, trying its servers in turn until one accepts the call."""
    from skillmix.calls import CallProblem, Decoding, GradeKey, Message, Request, Subject, seed_for, text_id
    from skillmix.models.local.model import check_chat_template
    from skillmix.models.specs import ModelOptions, open_model, parse_spec, provider_of
    from skillmix.prompts.prompt_set import DEFAULT_VARIANT

    variant = options.variant or DEFAULT_VARIANT
    messages = [Message("user", prompts.grader_prompt(catalog, about, answer=text, variant=variant))]
    if options.system is not None:
        messages.insert(0, Message("system", options.system))
    key = GradeKey("text", about.id, 0, text_id(text), "grader", 0, 0)
    subject = Subject(about, prompts.criteria(about), text)
    decoding = Decoding(max_tokens=_MAX_TOKENS)
    request = Request(key, asked, tuple(messages), decoding, seed_for(options.seed, key), subject)
    spec = parse_spec(asked)
    model = open_model(spec, ModelOptions(concurrency=1))

    async def only() -> "AsyncIterator[Request]":
        yield request

    outcome: Outcome = CallProblem("passing", "not called", may_move=True)
    try:
        if options.system is not None and provider_of(spec).is_engine:
            await check_chat_template(spec, options.system, None)
        while isinstance(outcome, CallProblem) and outcome.may_move:
            async for _, answer in model.serve(only()):
                outcome = answer
    finally:
        await model.close()
    if isinstance(outcome, CallProblem):
        raise UserError(
            f"The grader did not reply: {outcome.reason}. {outcome.detail}".strip(), hint=_HINTS[outcome.kind]
        )
    return outcome.text
