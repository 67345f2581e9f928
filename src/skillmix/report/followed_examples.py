"""Count the texts of each cell that follow an example of the prompts."""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence

from skillmix.datasets.build import prompt_examples
from skillmix.datasets.copies import FOLLOWS, example_shares
from skillmix.datasets.corpus import corpus_of
from skillmix.errors import UserError
from skillmix.grading.ballots import Ballot
from skillmix.grading.points import FULL_MARKS, Points, text_score
from skillmix.report.records import FollowedExamples
from skillmix.runs.reading.graded_conversations import ConversationKey
from skillmix.runs.run import Run
from skillmix.scores.cells import Cell


def texts_following_examples(run: Run, decided: Sequence[tuple[Ballot, Points]]) -> frozenset[ConversationKey] | None:
    """The texts that follow an example; None if the catalogue of the run is unknown."""
    examples = _examples(run)
    if not examples:
        return None
    texts = list({id(ballot.text): ballot.text for ballot, _ in decided}.values())
    shares = example_shares(corpus_of(text.answer.text for text in texts), examples)
    return frozenset(text.conversation for text, share in zip(texts, shares.tolist(), strict=True) if share >= FOLLOWS)


def followed_examples(
    run: Run,
    cells: Iterable[Cell],
    decided: Sequence[tuple[Ballot, Points]],
    following: Container[ConversationKey] | None,
) -> Iterator[FollowedExamples]:
    """The counts of every cell; none if it is unknown which texts follow an example."""
    if following is None:
        return
    by_combination: dict[tuple[str, str, str], list[tuple[int, bool, bool]]] = defaultdict(list)
    for ballot, points in decided:
        text = ballot.text
        outcome = (text.generation, text.conversation in following, text_score(points, FULL_MARKS) == 1.0)
        by_combination[text.student, text.combination.id, ballot.grader].append(outcome)
    for cell in cells:
        _, student, grader, _, _ = cell.key
        texts = [
            (follows, is_full)
            for combination, planned in zip(cell.combinations, cell.points, strict=True)
            for generation, follows, is_full in by_combination.get((student, combination.id, grader), ())
            # The journal may hold more generations than the experiment now asks for.
            if run.is_imported or generation < len(planned)
        ]
        yield FollowedExamples(
            key=cell.key,
            texts=len(texts),
            following=sum(follows for follows, _ in texts),
            full_marks=sum(is_full for _, is_full in texts),
            full_marks_following=sum(follows and is_full for follows, is_full in texts),
        )


def _examples(run: Run) -> list[str]:
    """The examples of the catalogue and, where the prompt sets are still there, their worked examples."""
    catalog = run.unchanged_catalog
    if catalog is None:
        return []
    prompts = {settings.prompts or run.experiment.prompts for settings in run.experiment.students.values()}
    try:
        return prompt_examples(catalog, prompts)
    except UserError:
        return prompt_examples(catalog, ())
