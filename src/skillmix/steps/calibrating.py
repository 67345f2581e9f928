"""Run a grader on the texts of a calibration set.

The texts are imported into a run and graded as in any other run: each reply is stored in the journal before it is used,
stored calls are not repeated, and the budget applies to the total cost of all invocations.
"""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Final

from skillmix.calls import GenerateKey, Reply, imported_request
from skillmix.experiment.costs import load_prices, tokens_in
from skillmix.experiment.plan import settings_by_model
from skillmix.models.local.model import MODELS
from skillmix.runs.budget import Budget
from skillmix.runs.calling import StepContext
from skillmix.runs.conversations import Conversations
from skillmix.runs.journal import JournalWriter
from skillmix.runs.progress import RunProgress, Work
from skillmix.runs.run import imported_document, new_run
from skillmix.runs.scheduler import CallCounts
from skillmix.steps.calls import call_models
from skillmix.steps.checks import prices_by_model, probe_settings, require_rendering
from skillmix.steps.estimates import CallEstimate, EstimateBasis, EstimatedStep, PastCalls, grader_estimates
from skillmix.validation.calibration import STUDENT, Calibration, CalibrationPlan, calibration_of
from skillmix.validation.known_texts import CalibrationSet, KnownText

_STEP: Final = "calibrate"


@MODELS.keeping()
def calibrated(plan: CalibrationPlan, *, prices: Path | None = None) -> Calibration:
    """Make the missing calls of a calibration, and compute the grader's card from all of the grader's votes."""
    run = new_run(plan.run)
    document = imported_document(run, stage=_STEP, catalog=plan.catalog, prompts=plan.prompts)
    run.require_same_import(document)
    price_by_model = prices_by_model(plan.experiment, load_prices(prices))
    used = settings_by_model(plan.experiment, [], [plan.grader])
    for settings in used.values():
        require_rendering(settings)
    asyncio.run(probe_settings(used))
    counts = CallCounts()
    votes = plan.settings.votes if plan.settings.asked else 0
    with RunProgress([Work(_STEP, "calls", votes * len(plan.known.texts))]) as progress, run.write() as journal:
        with journal.transaction():
            texts = _imported(plan.known, journal)
            run.begin_import(document)
        budget = Budget(price_by_model, spent=journal.spent(), max_usd=plan.experiment.budget.max_usd)
        context = StepContext(plan.experiment, plan.catalog, run, journal, budget, progress)
        prompts = {plan.experiment.prompts: plan.prompts}
        asked = Conversations(plan.experiment, plan.catalog, prompts, graders=[plan.grader])
        tasks = (task for text, key in texts for task in asked.votes_on(text.text, key, text.combination))
        try:
            call_models(_STEP, used, tasks, asked.follow, context, counts)
        finally:
            facts = {"command": _STEP, "set": plan.known.name, "set_hash": plan.known.content_hash()}
            run.note_invocation({**facts, "texts": len(plan.known.texts), "grader": plan.settings.model})
    return calibration_of(plan, run, counts)


def estimated(plan: CalibrationPlan, *, prices: Path | None = None) -> list[CallEstimate]:
    """Estimate the calls, tokens and cost of a calibration."""
    longest = max(tokens_in(len(text.text)) for text in plan.known.texts)
    past = PastCalls(new_run(plan.run))
    basis = EstimateBasis(plan.experiment, plan.catalog, load_prices(prices), past, longest_text=longest)
    counted = [(text.combination, 1) for text in plan.known.texts]
    return grader_estimates(EstimatedStep(_STEP, "grader"), [plan.grader], counted, basis)


def _imported(known: CalibrationSet, journal: JournalWriter) -> list[tuple[KnownText, GenerateKey]]:
    """Store missing texts in the journal as samples of their combinations, and return all texts with their keys.

    A text keeps its sample number even if its position in the set changes, so no call is repeated when a set grows.
    """
    journal.add_combinations({text.combination.id: text.combination for text in known.texts}.values())
    numbers = _stored_numbers(journal)
    numbered = []
    for text in known.texts:
        own = numbers[text.combination.id]
        generation = own.setdefault(text.text, len(own))
        numbered.append((text, GenerateKey(STUDENT, text.combination.id, generation, turn=1)))
    outcomes = [(imported_request(key), Reply(text.text)) for text, key in numbered]
    journal.record_all(outcomes, origin="imported-text")
    return numbered


def _stored_numbers(journal: JournalWriter) -> defaultdict[str, dict[str, int]]:
    """Map each combination to its texts in the journal and their sample numbers."""
    numbers: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for combination, generation in sorted(journal.calls_by_conversation(STUDENT)):
        for call in journal.conversation(STUDENT, combination, generation):
            if isinstance(call.key, GenerateKey) and isinstance(call.outcome, Reply):
                numbers[combination][call.outcome.text] = generation
    return numbers
