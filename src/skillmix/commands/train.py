"""Commands that make models."""

import argparse
from dataclasses import asdict

from skillmix.commands.streams import print_json


def train(options: argparse.Namespace) -> int:
    """The train steps of an experiment."""
    if options.show_mask:
        return _show_mask(options)
    if options.dry_run:
        from skillmix.commands.run import dry_run

        return dry_run(options)
    from skillmix.steps.run import train_steps
    from skillmix.training.job import is_first_rank

    trained = train_steps(options.experiment, changes=options.set, only=options.step)
    if not is_first_rank():
        return 0
    if options.json:
        return print_json([{**asdict(one), "folder": str(one.folder)} for one in trained])
    for one in trained:
        print(one.folder)
    return 0


def merge(options: argparse.Namespace) -> int:
    """One checkpoint of a model and its adapter."""
    from skillmix.commands.actions.merge import merge_adapters

    print(merge_adapters(options.model, options.output))
    return 0


def _show_mask(options: argparse.Namespace) -> int:
    from skillmix.commands.actions.show_mask import shown_masks
    from skillmix.commands.pages.mask import mask_page

    shown = list(shown_masks(options.experiment, changes=options.set, only=options.step, count=options.n))
    if options.json:
        return print_json([asdict(one) for one in shown])
    pages = [mask_page(one.step, one.key, [(t.id, t.text, t.is_trained) for t in one.tokens]) for one in shown]
    print("\n\n".join(pages))
    return 0
