"""The task of an annotate step: its settings come from the experiment, and simulated raters answer at once."""

from dataclasses import dataclass

from skillmix.annotation.shown_texts import AnnotationItem
from skillmix.annotation.task import AnnotationTask, NothingToRead, TaskSettings, make_task
from skillmix.errors import UserError
from skillmix.experiment.people_steps import AnnotateStep
from skillmix.models.scripted_rater import ScriptedRater, scripted_rater
from skillmix.render import name_hint, plural, whole
from skillmix.runs.graders.human_votes import HumanAnswer
from skillmix.runs.run import Run


@dataclass(frozen=True, slots=True)
class RaterProgress:
    """How far a rater of a step is."""

    rater: str
    texts: int
    answered: int
    is_simulated: bool

    @property
    def left(self) -> int:
        """Texts without an answer."""
        return self.texts - self.answered

    @property
    def in_words(self) -> str:
        """The rater, and how many texts have an answer."""
        kind = " (simulated)" if self.is_simulated else ""
        return f"{self.rater}{kind} has answered {whole(self.answered)} of {plural(self.texts, 'text')}"


def annotate_step_of(run: Run, name: str) -> AnnotateStep:
    """The annotate step of a run by its name."""
    steps = [step for step in run.experiment.steps if isinstance(step, AnnotateStep)]
    found = next((step for step in steps if step.name == name), None)
    if found is None:
        known = [step.name for step in steps]
        listed = f"Its annotate steps: {', '.join(known)}." if known else "Name people with --rater instead."
        raise UserError(
            f"The run {run.name} has no annotate step {name!r}.", hint=name_hint(name, known, otherwise=listed)
        )
    return found


def step_task(step: AnnotateStep, run: Run) -> AnnotationTask:
    """The task of a step, with the answers so far."""
    settings = TaskSettings(
        raters=tuple(step.raters),
        n=step.n,
        width=step.width,
        agreement=step.agreement,
        overlap=step.overlap,
        seed=step.seed,
        students=step.read_students or (),
        ks=tuple(step.k or ()),
    )
    return make_task(run, settings)


def step_progress(step: AnnotateStep, task: AnnotationTask) -> list[RaterProgress]:
    """How far each rater of a step is."""
    return [
        RaterProgress(
            rater=rater,
            texts=len(task.texts(rater)),
            answered=len(task.texts(rater)) - len(task.open_texts(rater)),
            is_simulated=rater in step.simulated,
        )
        for rater in task.raters
    ]


def run_progress(run: Run) -> dict[str, list[RaterProgress]]:
    """How far the raters of each annotate step of a run are; a step without texts has nobody."""
    found: dict[str, list[RaterProgress]] = {}
    for step in run.experiment.steps:
        if isinstance(step, AnnotateStep):
            try:
                found[step.name] = step_progress(step, step_task(step, run))
            except NothingToRead:
                found[step.name] = []
    return found


def answer_by_script(step: AnnotateStep, task: AnnotationTask) -> int:
    """Let the simulated raters answer their open texts; return the number of new answers."""
    stored = 0
    for rater, spec in step.simulated.items():
        with task.answering(rater, model=spec) as store:
            script = scripted_rater(spec)
            stored += store.store_all({item.id: _answer(script, rater, item) for item in task.open_texts(rater)})
    return stored


def _answer(script: ScriptedRater, rater: str, item: AnnotationItem) -> HumanAnswer:
    names = [criterion.name for criterion in item.criteria]
    return HumanAnswer(script.votes(rater, item.combination, item.words, names))
