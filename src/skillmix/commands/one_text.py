"""Commands about one combination given on the command line: `prompts`, `parse-reply` and `grade-text`."""

import argparse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skillmix.commands.shared import (
    CATALOG,
    PARTITION,
    TRUST,
    catalog_name,
    command,
    given,
    group,
    listed_names,
    option,
    positive,
    print_json,
    standard_input,
)
from skillmix.errors import LOG, UserError, errors_of, refuse
from skillmix.render import grounds, wrapped

if TYPE_CHECKING:
    from skillmix.calls import Outcome, Request
    from skillmix.catalog.catalog import Catalog
    from skillmix.catalog.combinations import Combination
    from skillmix.prompts.prompt_set import PromptSet

_COMBINATION: Final = (
    *CATALOG,
    option("--skills", 'names separated by ";"', required=True),
    option("--topic", "name of the topic", required=True),
    option("--prompts", "a shipped prompt set or a folder (default: standard)", default="standard", metavar="DIR"),
)
"""The options that determine a combination and its wording."""


@command(
    "prompts",
    *CATALOG,
    option("--skills", 'names separated by ";"'),
    option("--topic", "name of the topic"),
    _COMBINATION[-1],
    option("--answer", "text to put into the grader's prompts", default="(the student's text)"),
    option("--copy", "copy the prompt set to a new folder for editing", type=Path, metavar="DIR"),
    group(
        "data set of prompts, for trainers in which the model writes",
        option("--dataset", "write prompts to FILE.jsonl or FILE.parquet", type=Path, metavar="FILE"),
        option("--k", "numbers of skills (default 1 2 3)", type=positive, nargs="+"),
        option("--n", "combinations for each k (default 100)", type=positive),
        option("--setting", "group of the partition: train (default), held-out, all, …", metavar="GROUP"),
        PARTITION,
        option("--exclude", 'skills or exclude lists to omit, "a; file:PATH"'),
        option("--seed", "seed of the draw (default 0)", type=int),
    ),
)
def prompts(options: argparse.Namespace) -> int:
    """Show the prompts for one combination as models receive them; copy a prompt set; write a data set of prompts."""
    from skillmix.catalog.combinations import combination_of
    from skillmix.prompts.prompt_set import LEAD_FILE, STUDENT_FILES, copy_prompts, load_prompts

    if options.dataset is not None:
        return _write_prompts(options)
    draws = ("k", "n", "setting", "partition", "exclude", "seed")
    of_dataset = [f"--{name}" for name in draws if getattr(options, name) is not None]
    if of_dataset:
        raise UserError(
            f"{', '.join(of_dataset)} belong to --dataset.", hint="Add the file to write: --dataset FILE.jsonl."
        )
    if options.copy is not None:
        if options.skills is not None or options.topic is not None:
            raise UserError("--copy copies whole files and takes no combination.", hint="Remove --skills and --topic.")
        files = copy_prompts(options.prompts, options.copy)
        if options.json:
            return print_json({"folder": str(options.copy), "files": files})
        print("\n".join(str(options.copy / file) for file in files))
        # in an experiment file, a bare name refers to a shipped set
        is_path = options.copy.is_absolute() or len(options.copy.parts) > 1
        LOG.info(
            "Edit the files, then set the folder in the experiment: prompts: "
            f"{options.copy if is_path else f'./{options.copy}'}"
        )
        return 0
    if options.skills is None or options.topic is None:
        raise UserError(
            "--skills and --topic are needed to show prompts.",
            hint='For example: --skills "metaphor; red herring" --topic Sewing. --copy and --dataset need neither.',
        )
    catalog, as_named = _named_combination(options)
    combination = combination_of(as_named.skills, as_named.topic)  # in the same order as in a run's prompts
    prompt_set = load_prompts(options.prompts)
    lead = [asked for asked, _ in prompt_set.lead_turns(catalog, combination)]
    rendered = dict(zip([LEAD_FILE], lead, strict=False))
    rendered |= zip(STUDENT_FILES, prompt_set.student_prompts(catalog, combination), strict=False)
    for variant in prompt_set.grader_variants:
        prompt = prompt_set.grader_prompt(catalog, combination, answer=options.answer, variant=variant)
        rendered[prompt_set.grader_file(variant)] = prompt
    if options.json:
        return print_json(rendered)
    print("\n\n".join(f"──── {file}\n{prompt}" for file, prompt in rendered.items()))
    return 0


def _write_prompts(options: argparse.Namespace) -> int:
    """Write a data set of prompts."""
    from skillmix.catalog.combinations import draw_combinations
    from skillmix.catalog.files import load_catalog
    from skillmix.checkers.registry import checker_of
    from skillmix.commands.catalog import wanted_draw
    from skillmix.datasets.other_forms import prompt_rows, require_new_rows_file, write_rows_file
    from skillmix.prompts.prompt_set import load_prompts

    if options.copy is not None or options.skills is not None or options.topic is not None:
        raise UserError("--dataset draws combinations.", hint="Remove --copy, --skills and --topic.")
    require_new_rows_file(options.dataset)
    name = catalog_name(options)
    combinations: list[Combination] = []
    for k in dict.fromkeys(options.k or (1, 2, 3)):
        chosen: dict[str, Any] = {"setting": "train", "seed": 0} | given(
            options, "setting", "seed", "partition", "exclude"
        )
        wanted = wanted_draw(name, k=k, purpose="training", **chosen)
        combinations += draw_combinations(wanted, options.n or 100)
    prompts = load_prompts(options.prompts)
    rows = list(prompt_rows(combinations, load_catalog(name), prompts, catalog_name=name))
    write_rows_file(options.dataset, rows)
    unchecked = {skill for combination in combinations for skill in combination.skills if checker_of(skill) is None}
    if unchecked:
        LOG.warning(
            f"note: code cannot check {len(unchecked)} of these skills, such as {min(unchecked)!r}; the "
            "functions of skillmix.rewards reject them. The catalog verifiable has skills that code can check."
        )
    if options.json:
        return print_json({"file": str(options.dataset), "rows": len(rows), "prompts_hash": prompts.content_hash()})
    print(options.dataset)
    return 0


@command("parse-reply", *_COMBINATION, option("--text", "file with the student's text, if known", type=Path))
def parse_reply(options: argparse.Namespace) -> int:
    """Parse a grader's reply from standard input and show its points."""
    from skillmix.files import read_text
    from skillmix.grading.reader import read_grades
    from skillmix.prompts.prompt_set import load_prompts
    from skillmix.prompts.rubric import rubric_of

    text = read_text(options.text) if options.text else None
    reply = standard_input()
    _, combination = _named_combination(options)
    rubric = rubric_of(combination.skills, combination.topic, phrases=load_prompts(options.prompts).phrases)
    reading = read_grades(rubric, reply, text=text)
    points = reading.by_name(rubric)
    if options.json:
        return print_json({"points": points, "problem": reading.problem, "notes": list(reading.notes)})
    for name, point in (points or {}).items():
        print(f"{name}: {'not given' if point is None else f'{point:g}'}")
    if reading.problem:
        print(f"unreadable: {reading.problem}")
    for note in reading.notes:
        print(f"note: {note}")
    return 0


def _named_combination(options: argparse.Namespace) -> "tuple[Catalog, Combination]":
    """Return the catalog and the combination, whose skills are in the order of `--skills`."""
    from skillmix.catalog.combinations import Combination, combination_of
    from skillmix.catalog.files import load_catalog

    catalog = load_catalog(catalog_name(options))
    names = listed_names(options.skills)
    if not names:
        raise UserError(
            f"--skills {options.skills!r} contains no skill.",
            hint='Give names separated by ";", such as --skills "metaphor; red herring".',
        )
    errors = errors_of([lambda: catalog.require_skills(names), lambda: catalog.topic(options.topic)])
    refuse(f"Catalog {catalog.name!r}", errors, hint=f"`skillmix catalog {catalog.name}` lists all names.")
    skills = tuple(skill.name for skill in catalog.require_skills(names))
    combination = combination_of(skills, catalog.topic(options.topic))
    return catalog, Combination(combination.id, skills, combination.topic)


@command(
    "grade-text",
    TRUST,
    *_COMBINATION,
    option("--grader", "grader: a model, or rules: to grade by code (default)", default="rules:", metavar="SPEC"),
    option("--variant", "the grader's prompt: grade-NAME.txt of the prompt set (default: gpt)", metavar="NAME"),
    option("--system", "system prompt before the grader's prompt (default: none)", metavar="TEXT"),
    option("--rules", "scoring rules: default or paper (default: default)", default="default"),
    option("--seed", "seed of the call (default 0)", type=int, default=0),
)
def grade_text(options: argparse.Namespace) -> int:
    """Grade the text on standard input, by code or with one call to a model."""
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

    rules, answer = rules_named(options.rules), plain_answer(standard_input())
    if answer.status == "empty":
        raise UserError("There is no text to grade.", hint="Give the student's text on standard input.")
    check_spec(options.grader)
    asked = asked_model(options.grader)
    if options.system is not None:
        if asked is None:
            raise UserError("--system is for models, but rules: is code.", hint="Choose a model with --grader.")
        fault = system_fault(options.system)
        if fault is not None:
            raise UserError(f"--system: {fault}.", hint="Give a text such as 'You are a strict grader.'")
    catalog, combination = _named_combination(options)
    skills, prompts = combination.skills, load_prompts(options.prompts)
    if options.variant is not None:
        prompts.grader_file(options.variant)
    if prompts.phrases.outcomes:
        raise UserError(
            f"The graders of prompt set {prompts.name!r} give outcomes instead of points.",
            hint="`skillmix parse-reply` reads such a reply; an experiment grades texts with the set.",
        )
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
        return print_json(
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
        print(f"unreadable: {reading.problem}")
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
"""The sampling settings for a grader's reply."""
_HINTS: Final = {
    "fatal": "Check the model's name, its URL and the key in the environment.",
    "final": "This grader refuses to grade this text; try another grader.",
    "failed": "This grader cannot grade this text; try another grader.",
    "passing": "The cause may be temporary; rerun the command.",
}


async def _reply_of(
    asked: str, options: argparse.Namespace, prompts: "PromptSet", catalog: "Catalog", about: "Combination", text: str
) -> str:
    """Let a model grade a text with one call, trying its servers in turn until one accepts the call."""
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
        problem = f"The grader did not answer: {outcome.reason}. {outcome.detail}".strip()
        raise UserError(problem, hint=_HINTS[outcome.kind])
    return outcome.text
