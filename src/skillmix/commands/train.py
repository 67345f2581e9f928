"""Commands that make models: `train` and `merge`."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skillmix.commands.run import add_experiment_options, add_step_option, dry_run
from skillmix.commands.shared_options import Commands, add_command, positive
from skillmix.commands.streams import print_json

if TYPE_CHECKING:
    from skillmix.training.masks import ShownConversation


def add_parsers(commands: Commands) -> None:
    """Add the commands `train` and `merge`."""
    parser = add_command(commands, "train", train)
    add_experiment_options(parser)
    add_step_option(parser)
    parser.add_argument(
        "--show-mask", action="store_true", help="print conversations token by token and mark the trained tokens"
    )
    parser.add_argument("--n", type=positive, default=1, help="number of conversations of --show-mask (default 1)")

    parser = add_command(commands, "merge", merge, has_json=False)
    parser.add_argument("model", metavar="MODEL+ADAPTER", help="such as local:PATH+ADAPTER")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a folder that does not exist yet")


def train(options: argparse.Namespace) -> int:
    """Run the train steps of an experiment: fine-tune models on data sets."""
    if options.show_mask:
        return _show_mask(options)
    if options.dry_run:
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
    """Merge a model and its adapter into one checkpoint."""
    from skillmix.training.merging import merge_adapters

    print(merge_adapters(options.model, options.output))
    return 0


def _show_mask(options: argparse.Namespace) -> int:
    from skillmix.training.masks import shown_masks

    shown = list(shown_masks(options.experiment, changes=options.set, only=options.step, count=options.n))
    if options.json:
        return print_json([asdict(conversation) for conversation in shown])
    print("\n\n".join(map(mask_page, shown)))
    return 0


_MARK: Final = "█"


def mask_page(shown: "ShownConversation") -> str:
    """One line for each token of a conversation: its position, its id, a mark if it is trained, and its text."""
    trained = sum(token.is_trained for token in shown.tokens)
    lines = [f"{shown.step}: {shown.key}: {len(shown.tokens)} tokens, {trained} of them trained ({_MARK})"]
    lines += [
        f"{position:>6} {token.id:>7} {_MARK if token.is_trained else ' '} {_quoted(token.text)}"
        for position, token in enumerate(shown.tokens)
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Quote a token, so that its blanks show and no character of it acts on a terminal."""
    return (
        "'"
        + "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
        + "'"
    )
