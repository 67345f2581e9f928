"""Run a grader on the texts of a calibration set.

The texts are imported into a run, and the grader is called through the same scheduler as in every run: each reply is
journaled before it is used, calls in the journal are not repeated, and the budget counts all invocations together.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from signal import SIGINT
from typing import Final, NamedTuple

from skillmix.calls import GenerateKey, Reply, imported_request
from skillmix.errors import Interrupted
from skillmix.experiment.costs import load_prices, tokens_in
from skillmix.experiment.plan import settings_by_model
from skillmix.models.local.model import MODELS, check_chat_template
from skillmix.models.specs import parse_spec, provider_of
from skillmix.runs.budget import Budget, Task
from skillmix.runs.calling import StepContext, serve
from skillmix.runs.conversations import Conversations
from skillmix.runs.journal import JournalWriter
from skillmix.runs.past_calls import PastCalls
from skillmix.runs.progress import RunProgress, Work, watched
from skillmix.runs.run import Run, imported_document, new_run
from skillmix.runs.scheduler import CallCounts
from skillmix.steps.before_run import prices_by_model, probe_settings
from skillmix.steps.calls import counts_line
from skillmix.steps.estimates import CallEstimate, EstimateBasis, EstimatedStep, grader_estimates
from skillmix.validation.calibration import STUDENT, Calibration, CalibrationPlan, calibration_of
from skillmix.validation.known_texts import CalibrationSet, KnownText

_STEP: Final = "calibrate"


class _Numbered(NamedTuple):
    """A text with the key under which its run stores it."""

    known: KnownText
    key: GenerateKey


@MODELS.keeping()
def ask(plan: CalibrationPlan, *, prices: Path | None = None) -> tuple[Run, CallCounts]:
    """Import the texts into the run and make the calls that are missing in its journal."""
    run = new_run(plan.run)
    document = imported_document(run, stage=_STEP, catalog=plan.catalog, prompts=plan.prompts)
    run.require_same_import(document)
    price_by_model = prices_by_model(plan.experiment, load_prices(prices))
    asyncio.run(_probe(plan))
    counts = CallCounts()
    votes = plan.settings.votes if plan.settings.asked else 0
    with RunProgress([Work(_STEP, "calls", votes * len(plan.known.texts))]) as progress, run.write() as journal:
        with journal.transaction():
            texts = _imported(plan.known, journal)
            run.begin_import(document)
        limits = plan.experiment.budget
        budget = Budget(price_by_model, spent=journal.spent(), max_usd=limits.max_usd)
        context = StepContext(plan.experiment, plan.catalog, run, journal, budget, progress)
        try:
            asyncio.run(_make_calls(plan, texts, context, counts))
        except asyncio.CancelledError:
            raise Interrupted(SIGINT) from None
        finally:
            _note_invocation(plan, run)
        progress.end(_STEP, counts_line(_STEP, counts))
    return run, counts


def calibrated(plan: CalibrationPlan, *, prices: Path | None = None) -> Calibration:
    """Make the missing calls of a calibration, and compute the grader's card from all of its votes."""
    run, counts = ask(plan, prices=prices)
    return calibration_of(plan, run, counts)


def estimated(plan: CalibrationPlan, *, prices: Path | None = None) -> list[CallEstimate]:
    """Estimate the calls, tokens and cost of a calibration with an empty run."""
    longest = max(tokens_in(len(text.text)) for text in plan.known.texts)
    past = PastCalls(new_run(plan.run))
    basis = EstimateBasis(plan.experiment, plan.catalog, load_prices(prices), past, longest_text=longest)
    counted = [(text.combination, 1) for text in plan.known.texts]
    return grader_estimates(EstimatedStep(_STEP, "grader"), [plan.grader], counted, basis)


async def _probe(plan: CalibrationPlan) -> None:
    """Detect an unusable model before the run is changed."""
    asked = plan.settings.asked
    if asked is None:
        return
    if plan.settings.additions and provider_of(asked).is_engine:
        await check_chat_template(parse_spec(asked), plan.settings.system, plan.settings.extra_json)
    await probe_settings(settings_by_model(plan.experiment, [], [plan.grader]))


async def _make_calls(
    plan: CalibrationPlan, texts: Sequence[_Numbered], context: StepContext, counts: CallCounts
) -> None:
    prompts = {plan.experiment.prompts: plan.prompts}
    conversations = Conversations(plan.experiment, plan.catalog, prompts, graders=[plan.grader])
    used = settings_by_model(plan.experiment, [], [plan.grader])
    if used:
        async with watched(context.progress, _STEP, counts):
            await serve(used, _votes(texts, conversations), conversations.follow, context, counts)


def _votes(texts: Sequence[_Numbered], conversations: Conversations) -> Iterator[Task]:
    for known, key in texts:
        yield from conversations.votes_on(known.text, key, known.combination)


def _imported(known: CalibrationSet, journal: JournalWriter) -> list[_Numbered]:
    """Store texts that the journal lacks; texts of one skill and topic are samples of a combination.

    A text keeps its number, whatever its place in the set, so that a set can grow without repeated calls.
    """
    journal.add_combinations({text.combination.id: text.combination for text in known.texts}.values())
    numbers = _stored_numbers(journal)
    numbered = []
    for text in known.texts:
        own = numbers[text.combination.id]
        generation = own.setdefault(text.text, len(own))
        numbered.append(_Numbered(text, GenerateKey(STUDENT, text.combination.id, generation, turn=1)))
    outcomes = [(imported_request(key), Reply(text.text)) for text, key in numbered]
    journal.record_all(outcomes, origin="imported-text")
    return numbered


def _stored_numbers(journal: JournalWriter) -> defaultdict[str, dict[str, int]]:
    """Return the numbers of the texts in the journal by combination."""
    numbers: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for combination, generation in sorted(journal.calls_by_conversation(STUDENT)):
        for call in journal.conversation(STUDENT, combination, generation):
            if isinstance(call.key, GenerateKey) and isinstance(call.outcome, Reply):
                numbers[combination][call.outcome.text] = generation
    return numbers


def _note_invocation(plan: CalibrationPlan, run: Run) -> None:
    facts = {
        "command": _STEP,
        "set": plan.known.name,
        "set_hash": plan.known.content_hash(),
        "texts": len(plan.known.texts),
        "grader": plan.settings.model,
    }
    run.note_invocation(facts)
