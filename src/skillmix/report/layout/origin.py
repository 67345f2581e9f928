"""Where runs come from: which models are simulated, when and where runs were made, and how to make the page again."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from skillmix.calls import HUMAN
from skillmix.experiment.experiment import Experiment
from skillmix.render.wording import listed
from skillmix.report.records import Report, RunFacts
from skillmix.runs.run import Run

_HASH_LINE = re.compile(r"^(catalog_hash|prompts_hash): .*\n", re.MULTILINE)


def experiment_files(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """The experiment of every run that was not imported, as a file that `skillmix run` accepts."""
    for run in runs:
        if not run.is_imported:
            text = run.experiment_file.read_text(encoding="utf-8")
            hashes = "".join(f"# {found[0]}" for found in _HASH_LINE.finditer(text))
            about = "# The experiment of this report, with every default written out: skillmix run FILE\n"
            yield f"experiments/{run.name}.yaml", about + hashes + _HASH_LINE.sub("", text)


def reproducing_command(runs: Sequence[Run], options: Sequence[str]) -> str:
    """The commands that make the page again, from the experiment files in the report's folder."""
    made = [f"skillmix run {shlex.quote(f'experiments/{run.name}.yaml')}" for run in runs if not run.is_imported]
    names = [shlex.quote(run.name if not run.is_imported else str(run.path)) for run in runs]
    return "\n".join([*made, " ".join(["skillmix report", *names, *options])])


def decoding_in_words(experiment: Experiment) -> dict[str, str]:
    """The sampling settings of every student and grader that is a model."""
    asked = {name: grader for name, grader in experiment.graders.items() if grader.asked}
    return {
        **{name: _sampling(s.temperature, s.max_tokens, s.top_p) for name, s in experiment.students.items()},
        **{name: _sampling(g.temperature, g.max_tokens, g.top_p) for name, g in asked.items()},
    }


def _sampling(temperature: float, max_tokens: int, top_p: float | None) -> str:
    words = f"temperature {temperature:g}, at most {max_tokens:,} tokens"
    return words if top_p is None else f"{words}, top-p {top_p:g}"


def simulated_models(report: Report) -> str:
    """Sentences that name the students, graders and raters that are scripted; empty if there is none."""
    return " ".join(filter(None, (_simulated_models(report), _simulated_raters(report))))


def _simulated_raters(report: Report) -> str:
    names = sorted({rater.removeprefix(HUMAN) for card in report.cards for rater in card.simulated})
    if not names:
        return ""
    if len(names) == 1:
        return f"The rater {names[0]} is simulated: a script with rates of error set in advance, no person."
    return f"The raters {listed(names)} are simulated: scripts with rates of error set in advance, no people."


def _simulated_models(report: Report) -> str:
    facts = {run.name: run for run in report.runs}
    writers = dict.fromkeys((cell.key.run, cell.key.student) for cell in report.all_cells)
    students = {report.label(*key): facts[key[0]].students.get(key[1], "") for key in writers}
    judges = dict.fromkeys((cell.key.run, cell.key.grader) for cell in report.all_cells)
    graders = {report.label(*key): facts[key[0]].graders.get(key[1], "") for key in judges}
    named = [words for role, specs in (("student", students), ("grader", graders)) if (words := _scripted(role, specs))]
    if not named:
        return ""
    simulated = " and ".join(text for text, _ in named)
    if sum(count for _, count in named) == 1:
        return f"{_capital(simulated)} is simulated: a scripted model with rates set in advance, no language model."
    return f"{_capital(simulated)} are simulated: scripted models with rates set in advance, no language model."


def _scripted(role: str, specs: Mapping[str, str]) -> tuple[str, int] | None:
    """The scripted models of a role in words, and their number; their names only if other models have the role too."""
    names = [name for name, spec in specs.items() if spec.startswith("scripted:")]
    if not names:
        return None
    which = "" if len(names) == len(specs) else f" {listed(names)}"
    return f"the {role}{'' if len(names) == 1 else 's'}{which}", len(names)


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def period(facts: RunFacts) -> str:
    """When the calls of a run were made, in words; when it was noted first if it made none.

    The times are those that the run recorded, so that a report of the same run stays the same.
    """
    times = sorted([total.first for total in facts.calls] + [total.last for total in facts.calls])
    times = times or ([facts.invocations.began] if facts.invocations.began else [])
    if not times:
        return "unknown"
    first, last = (datetime.fromisoformat(at) for at in (times[0], times[-1]))
    start = f"{first.day} {first:%B %Y, %H:%M}"
    if f"{first:%Y-%m-%d %H:%M}" == f"{last:%Y-%m-%d %H:%M}":
        return f"{start} UTC"
    end = f"{last:%H:%M}" if first.date() == last.date() else f"{last.day} {last:%B %Y, %H:%M}"
    return f"{start} to {end} UTC"
