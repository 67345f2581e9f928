"""Commands about one combination, named on the command line: `prompts`, `parse-reply` and `grade-text`."""

import argparse
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skillmix.commands.shared import (
    Commands,
    add_catalog_options,
    add_command,
    add_trust_option,
    catalog_name,
    listed_names,
    positive,
    print_json,
    standard_input,
)
from skillmix.errors import LOG, UserError, errors_of, refuse
from skillmix.render import grounds, wrapped

if TYPE_CHECKING:
    from skillmix.calls import Outcome, Reply, Request, Subject
    from skillmix.catalog.catalog import Catalog
    from skillmix.catalog.combinations import Combination
    from skillmix.checkers.judge import Verdict
    from skillmix.grading.points import Points
    from skillmix.grading.reader import Reading
    from skillmix.prompts.rubric import Rubric


def add_parsers(commands: Commands) -> None:
    """Add the commands `prompts`, `parse-reply` and `grade-text`."""
    parser = add_command(commands, "prompts", prompts)
    _add_combination_options(parser, is_needed=False)
    parser.add_argument("--answer", default="(the student's text)", help="text to put into the grader's prompts")
    parser.add_argument("--copy", type=Path, metavar="DIR", help="copy the prompt set to a new folder, to change it")
    drawn = parser.add_argument_group("a data set of prompts, for trainers that let the model write")
    drawn.add_argument("--dataset", type=Path, metavar="FILE", help="write prompts to FILE.jsonl or FILE.parquet")
    drawn.add_argument("--k", type=positive, nargs="+", help="numbers of skills (default 1 2 3)")
    drawn.add_argument("--n", type=positive, help="combinations for each k (default 100)")
    drawn.add_argument("--setting", metavar="GROUP", help="group of the partition: train (default), held-out, all, …")
    drawn.add_argument("--partition", help="a name, or random-skills:SEED, random-categories:SEED, nested:SEED")
    drawn.add_argument("--exclude", help='skills or exclude lists to leave out, "a; file:PATH"')
    drawn.add_argument("--seed", type=int)

    parser = add_command(commands, "parse-reply", parse_reply)
    _add_combination_options(parser)
    parser.add_argument("--text", type=Path, help="file with the student's text, if known")

    parser = add_command(commands, "grade-text", grade_text)
    add_trust_option(parser)
    _add_combination_options(parser)
    parser.add_argument(
        "--grader", default="rules:", metavar="SPEC", help="a model, or rules: to let code grade (the default)"
    )
    parser.add_argument(
        "--variant", metavar="NAME", help="the grader's prompt: grade-NAME.txt of the prompt set (default: gpt)"
    )
    parser.add_argument("--system", metavar="TEXT", help="system text before the grader's prompt (default: none)")
    parser.add_argument("--rules", default="default", help="default or paper")
    parser.add_argument("--seed", type=int, default=0)


def _add_combination_options(parser: argparse.ArgumentParser, *, is_needed: bool = True) -> None:
    """Add the options that name a combination and its wording; `_combination` reads them."""
    add_catalog_options(parser)
    parser.add_argument("--skills", required=is_needed, help='names separated by ";"')
    parser.add_argument("--topic", required=is_needed)
    parser.add_argument("--prompts", default="standard", metavar="DIR", help="a shipped prompt set or a folder")


def prompts(options: argparse.Namespace) -> int:
    """Show the prompts for one combination as models receive them; copy a prompt set; write a data set of prompts."""
    if options.dataset is not None:
        return _dataset(options)
    _refuse_draw_options(options)
    if options.copy is not None:
        return _copy(options)
    if options.skills is None or options.topic is None:
        raise UserError(
            "--skills and --topic name the combination to show.",
            hint='For example --skills "metaphor; red herring" --topic Sewing. --copy and --dataset need neither.',
        )
    rendered = rendered_prompts(_combination(options), answer=options.answer)
    if options.json:
        return print_json(rendered)
    print("\n\n".join(f"──── {file}\n{prompt}" for file, prompt in rendered.items()))
    return 0


def _refuse_draw_options(options: argparse.Namespace) -> None:
    names = ("k", "n", "setting", "partition", "exclude", "seed")
    given = [f"--{name}" for name in names if getattr(options, name) is not None]
    if given:
        raise UserError(
            f"{', '.join(given)} belong to --dataset.", hint="Name the file to write: --dataset FILE.jsonl."
        )


def _dataset(options: argparse.Namespace) -> int:
    from skillmix.catalog.combinations import draw_combinations
    from skillmix.catalog.files import load_catalog
    from skillmix.commands.catalog import wanted_draw
    from skillmix.datasets.other_forms import prompt_rows, require_new_rows_file, write_rows_file
    from skillmix.prompts.prompt_set import load_prompts

    if options.copy is not None or options.skills is not None or options.topic is not None:
        raise UserError("--dataset draws combinations.", hint="Leave out --copy, --skills and --topic.")
    require_new_rows_file(options.dataset)
    name = catalog_name(options)
    combinations: list[Combination] = []
    for k in dict.fromkeys(options.k or (1, 2, 3)):
        wanted = wanted_draw(
            name,
            options.setting or "train",
            k=k,
            seed=options.seed or 0,
            partition=options.partition,
            exclude=options.exclude or "",
            purpose="training",
        )
        combinations += draw_combinations(wanted, options.n or 100)
    prompts = load_prompts(options.prompts)
    rows = list(prompt_rows(combinations, load_catalog(name), prompts, catalog_name=name))
    write_rows_file(options.dataset, rows)
    _warn_of_unchecked(combinations)
    if options.json:
        return print_json({"file": str(options.dataset), "rows": len(rows), "prompts_hash": prompts.content_hash()})
    print(options.dataset)
    return 0


def _warn_of_unchecked(combinations: "Sequence[Combination]") -> None:
    from skillmix.checkers.registry import checker_of

    unchecked = {skill for combination in combinations for skill in combination.skills if checker_of(skill) is None}
    if unchecked:
        LOG.warning(
            f"note: code cannot check {len(unchecked)} of these skills, such as {min(unchecked)!r}; the functions of "
            "skillmix.rewards refuse them. The catalogue verifiable has skills that code can check."
        )


def _copy(options: argparse.Namespace) -> int:
    from skillmix.prompts.prompt_set import copy_prompts

    if options.skills is not None or options.topic is not None:
        raise UserError("--copy copies whole files.", hint="Leave out --skills and --topic.")
    files = copy_prompts(options.prompts, options.copy)
    if options.json:
        return print_json({"folder": str(options.copy), "files": files})
    print("\n".join(str(options.copy / file) for file in files))
    LOG.info(f"Change the files, then name the folder: prompts: {_as_path(options.copy)}")
    return 0


def _as_path(folder: Path) -> str:
    """A path that an experiment file takes for a folder, never for the name of a shipped set."""
    return str(folder) if folder.is_absolute() or len(folder.parts) > 1 else f"./{folder}"


def parse_reply(options: argparse.Namespace) -> int:
    """Read a grader's reply on standard input and show its points."""
    from skillmix.files import read_text

    text = read_text(options.text) if options.text else None
    parsed = parsed_reply(_combination(options), standard_input(), text=text)
    if options.json:
        return print_json(parsed.as_json())
    for name, point in (parsed.reading.by_name(parsed.rubric) or {}).items():
        print(f"{name}: {'not given' if point is None else f'{point:g}'}")
    if parsed.reading.problem:
        print(f"unreadable: {parsed.reading.problem}")
    for note in parsed.reading.notes:
        print(f"note: {note}")
    return 0


def grade_text(options: argparse.Namespace) -> int:
    """Grade the text on standard input, by code or with one call to a model."""
    graded = graded_text(
        _combination(options),
        standard_input(),
        grader=options.grader,
        variant=options.variant,
        system=options.system,
        seed=options.seed,
        rules=options.rules,
    )
    if options.json:
        return print_json(graded.as_json())
    if graded.reading.problem:
        print(f"unreadable: {graded.reading.problem}")
    evidence, woven = graded.evidence(), graded.woven()
    for criterion, point in zip(graded.rubric.criteria, graded.points, strict=True):
        name = criterion.name
        words = graded.grader_words.get(name) if point is False else None
        shown = grounds(evidence.get(name), graded.reasons.get(name), woven=woven.get(name), grader_words=words)
        earned = "undecided" if point is None else int(point)
        print(wrapped(f"{name}: {earned}" + (f"  {shown}" if shown else ""), indent=4))
    for note in graded.reading.notes:
        if note not in graded.reasons.values():
            print(f"note: {note}")
    if graded.verdict and graded.verdict.unrequested:
        print(f"shown without being asked for: {', '.join(graded.verdict.unrequested)}")
    return 0


@dataclass(frozen=True, slots=True)
class NamedCombination:
    """A combination by the names of its parts, and the prompt set that words it."""

    catalog: str
    skills: str
    topic: str
    prompts: str = "standard"

    def resolve(self) -> "tuple[Catalog, Combination]":
        """The catalog, and the combination with its skills in the order given."""
        from skillmix.catalog.combinations import Combination, combination_of
        from skillmix.catalog.files import load_catalog

        catalog = load_catalog(self.catalog)
        names = listed_names(self.skills)
        if not names:
            raise UserError(
                f"--skills {self.skills!r} names no skill.",
                hint='Give names separated by ";", such as --skills "metaphor; red herring".',
            )
        errors = errors_of([lambda: catalog.require_skills(names), lambda: catalog.topic(self.topic)])
        refuse(f"Catalogue {catalog.name!r}", errors, hint=f"`skillmix catalog {catalog.name}` lists all names.")
        skills = tuple(skill.name for skill in catalog.require_skills(names))
        combination = combination_of(skills, catalog.topic(self.topic))
        return catalog, Combination(combination.id, skills, combination.topic)


def _combination(options: argparse.Namespace) -> NamedCombination:
    return NamedCombination(catalog_name(options), options.skills, options.topic, options.prompts)


def rendered_prompts(named: NamedCombination, *, answer: str) -> dict[str, str]:
    """Every prompt of a prompt set with its slots filled, by file name."""
    from skillmix.catalog.combinations import combination_of
    from skillmix.prompts.prompt_set import LEAD_FILE, STUDENT_FILES, load_prompts

    catalog, named_order = named.resolve()
    combination = combination_of(named_order.skills, named_order.topic)  # in the order of a run's prompts
    prompts = load_prompts(named.prompts)
    lead = [asked for asked, _ in prompts.lead_turns(catalog, combination)]
    rendered = dict(zip([LEAD_FILE], lead, strict=False))
    rendered |= zip(STUDENT_FILES, prompts.student_prompts(catalog, combination), strict=False)
    for variant in prompts.grader_variants:
        prompt = prompts.grader_prompt(catalog, combination, answer=answer, variant=variant)
        rendered[prompts.grader_file(variant)] = prompt
    return rendered


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reading with the rubric it follows."""

    rubric: "Rubric"
    reading: "Reading"

    def as_json(self) -> dict[str, object]:
        """The documented form of `parse-reply --json`."""
        return {
            "points": self.reading.by_name(self.rubric),
            "problem": self.reading.problem,
            "notes": list(self.reading.notes),
        }


def parsed_reply(named: NamedCombination, reply: str, *, text: str | None) -> ParsedReply:
    """Read a grader's reply about a combination."""
    from skillmix.grading.reader import read_grades
    from skillmix.prompts.prompt_set import load_prompts
    from skillmix.prompts.rubric import rubric_of

    _, combination = named.resolve()
    rubric = rubric_of(combination.skills, combination.topic, phrases=load_prompts(named.prompts).phrases)
    return ParsedReply(rubric, read_grades(rubric, reply, text=text))


@dataclass(frozen=True, slots=True)
class GradedText:
    """A grader's reading of a text, and the points after the rules that code decides."""

    rubric: "Rubric"
    reading: "Reading"
    points: "Points"
    verdict: "Verdict | None"
    """What code found, if code was a grader."""
    reasons: Mapping[str, str]
    """Why code denied a point, by criterion."""
    grader_words: Mapping[str, str] = field(default_factory=dict)
    """What the model wrote about each criterion, where it wrote more than a point."""

    def as_json(self) -> dict[str, object]:
        """The documented form of `grade-text --json`."""
        from skillmix.grading.points import METRICS, text_score, woven_full_marks

        names = [criterion.name for criterion in self.rubric.criteria]
        earned = [None if point is None else float(point) for point in self.points]
        return {
            "points": None if self.reading.points is None else dict(zip(names, earned, strict=True)),
            "problem": self.reading.problem,
            "notes": list(self.reading.notes),
            "scores": {metric: text_score(self.points, metric) for metric in METRICS},
            "woven_full_marks": woven_full_marks(self.points, self.is_woven) if self.verdict else None,
            "evidence": self.evidence(),
            "woven": self.woven() if self.verdict else None,
            "reasons": dict(self.reasons),
            "grader_words": dict(self.grader_words),
            "unrequested": list(self.verdict.unrequested) if self.verdict else None,
        }

    @property
    def is_woven(self) -> bool | None:
        """Whether the text shows every skill about the topic; None where no code says so."""
        names = [criterion.name for criterion in self.rubric.criteria[: self.rubric.k]]
        return self.verdict.is_woven(names) if self.verdict else None

    def woven(self) -> dict[str, bool]:
        """Whether the text shows each skill about the topic, for skills that code checks."""
        return dict(self.verdict.woven) if self.verdict else {}

    def evidence(self) -> dict[str, str | None]:
        """The words that show each skill, where code found them."""
        spans = self.verdict.evidence if self.verdict else {}
        names = [criterion.name for criterion in self.rubric.criteria[: self.rubric.k]]
        return {name: self.verdict.quote(spans.get(name)) if self.verdict else None for name in names}


def graded_text(
    named: NamedCombination,
    text: str,
    *,
    grader: str,
    variant: str | None,
    seed: int,
    rules: str,
    system: str | None = None,
) -> GradedText:
    """Grade a text that is the answer itself, with at most one call to a model.

    A `variant` must be in the prompt set even if no model is called.
    """
    from skillmix.calls import Subject
    from skillmix.grading.answers import plain_answer
    from skillmix.grading.points import decide_points, reasons_of
    from skillmix.grading.reader import read_grades, words_about
    from skillmix.models.specs import asked_model, check_spec, uses_code
    from skillmix.prompts.prompt_set import DEFAULT_VARIANT, load_prompts
    from skillmix.prompts.rubric import rubric_of
    from skillmix.runs.run import rules_named
    from skillmix.runs.verdicts import RulesGrader, applicable_reasons, reading_of, require_checkers, with_verdict

    chosen = rules_named(rules)
    answer = plain_answer(text)
    if answer.status == "empty":
        raise UserError("There is no text to grade.", hint="Give the student's text on standard input.")
    check_spec(grader)
    _check_system(grader, system)
    catalog, combination = named.resolve()
    prompts = load_prompts(named.prompts)
    if variant is not None:
        prompts.grader_file(variant)
    if prompts.phrases.outcomes:
        raise UserError(
            f"The graders of prompt set {prompts.name!r} name outcomes and give no points.",
            hint="`skillmix parse-reply` reads such a reply; an experiment grades texts with the set.",
        )
    rubric = rubric_of(combination.skills, combination.topic, phrases=prompts.phrases)
    verdict = None
    grader_words: dict[str, str] = {}
    if uses_code(grader):
        verdict = RulesGrader(catalog).verdict(answer.text, skills=combination.skills, topic=combination.topic)
    asked = asked_model(grader)
    if asked is None:
        require_checkers(catalog, combination.skills, grader)
        assert verdict is not None
        reading = reading_of(verdict, combination.skills)
    else:
        prompt = prompts.grader_prompt(catalog, combination, answer=answer.text, variant=variant or DEFAULT_VARIANT)
        subject = Subject(combination, prompts.criteria(combination), answer.text)
        reply = _reply_to(_grading_request(asked, prompt, subject, system=system, seed=seed))
        reading = read_grades(rubric, reply.text, text=answer.text)
        about = {c.name: words_about(rubric, index, reply.text) for index, c in enumerate(rubric.criteria)}
        grader_words = {name: words for name, words in about.items() if words}
        if verdict is not None:
            reading = with_verdict(reading, combination.skills, verdict)
    points = decide_points(rubric, answer, [reading], rounds=1, rules=chosen)
    denials = applicable_reasons(verdict, is_alone=asked is None) if verdict else {}
    reasons = reasons_of(points, combination.skills, answer, chosen, denials)
    return GradedText(rubric, reading, points, verdict, reasons, grader_words)


_MAX_TOKENS: Final = 1024
"""Of a grader's reply."""


def _check_system(grader: str, system: str | None) -> None:
    """Refuse a system text that no model reads, or that no request may carry."""
    from skillmix.models.request_fields import system_fault
    from skillmix.models.specs import asked_model

    if system is None:
        return
    if asked_model(grader) is None:
        raise UserError("--system is for models, and rules: is code.", hint="Name a model with --grader.")
    fault = system_fault(system)
    if fault is not None:
        raise UserError(f"--system: {fault}.", hint="Give a text such as 'You are a strict grader.'")


def _grading_request(model: str, prompt: str, subject: "Subject", *, system: str | None, seed: int) -> "Request":
    from skillmix.calls import Decoding, GradeKey, Message, Request, seed_for, text_id

    key = GradeKey("text", subject.combination.id, 0, text_id(subject.text), "grader", 0, 0)
    decoding = Decoding(max_tokens=_MAX_TOKENS)
    before = () if system is None else (Message("system", system),)
    return Request(key, model, (*before, Message("user", prompt)), decoding, seed_for(seed, key), subject)


def _reply_to(request: "Request") -> "Reply":
    """Call the model of a request once; a call without a reply is an error."""
    import asyncio

    from skillmix.calls import CallProblem

    outcome = asyncio.run(_outcome_of(request))
    if isinstance(outcome, CallProblem):
        raise UserError(
            f"The grader did not answer: {outcome.reason}. {outcome.detail}".strip(), hint=_HINTS[outcome.kind]
        )
    return outcome


_HINTS: Final = {
    "fatal": "Check the model's name, its address and the key in the environment.",
    "final": "This grader refuses to grade this text; try another grader.",
    "failed": "This grader cannot be asked about this text; try another grader.",
    "passing": "The cause may be temporary; run the command again.",
}


async def _outcome_of(request: "Request") -> "Outcome":
    from skillmix.calls import CallProblem
    from skillmix.models.local.model import check_chat_template
    from skillmix.models.specs import ModelOptions, open_model, parse_spec, provider_of

    spec = parse_spec(request.model)
    model = open_model(spec, ModelOptions(concurrency=1))

    async def only() -> "AsyncIterator[Request]":
        yield request

    outcome: Outcome = CallProblem("passing", "not called", may_move=True)
    try:
        if request.messages[0].role == "system" and provider_of(spec).is_engine:
            await check_chat_template(spec, request.messages[0].content, None)
        while isinstance(outcome, CallProblem) and outcome.may_move:
            async for _, answer in model.serve(only()):
                outcome = answer
    finally:
        await model.close()
    return outcome
