"""Commands that only read, or ask one question."""

import argparse
import sys
from dataclasses import asdict

from skillmix.commands.streams import catalog_name, print_json, score_rows, standard_input


def status(options: argparse.Namespace) -> int:
    """What of a run is done and missing."""
    from skillmix.commands.actions.status import run_status

    status = run_status(options.run)
    if options.json:
        return print_json(status.as_json())
    print(f"calls: {status.done} done, {status.missing} missing, {status.failed} failed")
    print(f"unreadable gradings: {status.unreadable}")
    print(f"cost: {status.cost_usd:.2f} US dollars" if status.cost_usd else "cost: unknown or none")
    return 0


def catalog(options: argparse.Namespace) -> int:
    """A catalogue."""
    from skillmix.commands.actions.catalogs import show_catalog

    view = show_catalog(catalog_name(options))
    if options.json:
        return print_json(view.as_json())
    from skillmix.commands.pages.catalog import catalog_page

    print(catalog_page(view.catalog, shipped=view.shipped))
    return 0


def combinations(options: argparse.Namespace) -> int:
    """A draw."""
    from skillmix.commands.actions.catalogs import CombinationsWanted, combination_json, draw

    drawn = draw(
        CombinationsWanted(
            catalog=catalog_name(options),
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
        return print_json([combination_json(combination) for combination in drawn])
    for combination in drawn:
        print(f"{combination.id}  {combination.topic}: {'; '.join(combination.skills)}")
    return 0


def prompts(options: argparse.Namespace) -> int:
    """Prompts as sent."""
    from skillmix.commands.actions.parse_reply import Named, rendered_prompts

    named = Named(catalog_name(options), options.skills, options.topic, options.prompts)
    rendered = rendered_prompts(named, answer=options.answer)
    if options.json:
        return print_json(rendered)
    print("\n\n".join(f"──── {file}\n{prompt}" for file, prompt in rendered.items()))
    return 0


def parse_reply(options: argparse.Namespace) -> int:
    """A grader's reply, read."""
    from skillmix.catalog.yaml import read_text
    from skillmix.commands.actions.parse_reply import Named, parse_reply

    named = Named(catalog_name(options), options.skills, options.topic, options.prompts)
    text = read_text(options.text) if options.text else None
    parsed = parse_reply(named, standard_input(), text=text)
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
    """One text, graded."""
    from skillmix.commands.actions.grade_text import grade_text
    from skillmix.commands.actions.parse_reply import Named
    from skillmix.commands.pages.text import grounds

    named = Named(catalog_name(options), options.skills, options.topic, options.prompts)
    graded = grade_text(
        named,
        standard_input(),
        grader=options.grader,
        variant=options.variant,
        seed=options.seed,
        rules=options.rules,
    )
    if options.json:
        return print_json(graded.as_json())
    if graded.reading.problem:
        print(f"unreadable: {graded.reading.problem}")
    evidence = graded.evidence()
    for criterion, point in zip(graded.rubric.criteria, graded.points, strict=True):
        shown = grounds(evidence.get(criterion.name), graded.reasons.get(criterion.name))
        print(f"{criterion.name}: {'undecided' if point is None else int(point)}" + (f"  {shown}" if shown else ""))
    for note in graded.reading.notes:
        if note not in graded.reasons.values():
            print(f"note: {note}")
    if graded.verdict and graded.verdict.unrequested:
        print(f"shown without being asked for: {', '.join(graded.verdict.unrequested)}")
    return 0


def models(options: argparse.Namespace) -> int:
    """Forms of model specs, and the bundled models."""
    from skillmix.commands.actions.models import list_models

    found = list_models(fetch=options.fetch)
    if options.json:
        return print_json(found.as_json())
    for provider, about in found.providers.items():
        print(f"{provider:<10} {about}")
    for model in found.bundled:
        place = f"in {model.folder}" if model.folder else f"fetched at first use ({model.download_mb} MB)"
        print(f"\n{model.spec}: {model.about}, {model.licence}, from {model.package}; {place}")
    return 0


def texts(options: argparse.Namespace) -> int:
    """Texts with what they earned."""
    from skillmix.commands.actions.texts import run_texts
    from skillmix.commands.pages.text import text_page

    found = run_texts(options.run, student=options.student, k=options.k)[: options.n]
    if options.json:
        return print_json([asdict(text) for text in found])
    print(text_page(found))
    return 0


def novelty(options: argparse.Namespace) -> int:
    """The novelty bound."""
    from skillmix.catalog.novelty import ASSUMPTIONS, NoveltyInputs, novelty

    names = ("skill_frequency", "topic_frequency", "sentences_per_token")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    inputs = NoveltyInputs(**given)
    bound = novelty(options.k, options.tokens, inputs)
    if options.json:
        return print_json({**asdict(bound), "inputs": asdict(inputs), "assumptions": list(ASSUMPTIONS)})
    from skillmix.commands.pages.novelty import novelty_page

    print(novelty_page(bound, inputs, ASSUMPTIONS))
    return 0


def scores(options: argparse.Namespace) -> int:
    """A run's table."""
    from skillmix.runs.run import open_run
    from skillmix.scores.scoring import scored_run, students_without_scores

    run = open_run(options.run)
    by_sets = options.sets or (not options.json and run.makes_data)
    scored = scored_run(run, rules=options.rules, by_sets=by_sets)
    scores = scored.scores
    for student in students_without_scores(run, scores):
        print(f"note: the texts of {student} have no gradings yet, and are in no row", file=sys.stderr)
    if options.json:
        return print_json(score_rows(scores, by_sets=options.sets))
    from skillmix.scores.table import NOTE, change_note, score_table, set_table, trained_note

    if scores:
        print(score_table(scores))
        print(f"\n{NOTE}")
    for part in (change_note(scored.changes), set_table(scores), trained_note(scores)):
        if part:
            print(f"\n{part}")
    return 0
