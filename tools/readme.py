"""Write the README's finding and the pages of the studies from result files: `python -m tools.readme [RESULT.json]`.

`tools/result.py` writes a result file and describes its form. Every sentence with a number is generated from this file.
A figure contains the hash of its result file, so that a test can check that figure and result belong together. While
the result file that the README names does not exist, the README and the page say that the study is not finished.
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

from skillmix.files import SHIPPED
from skillmix.render import in_percent, markdown_table, plural, share, share_with_interval, signed_with_interval, whole
from skillmix.report.figures.style import house_style, printed
from skillmix.scores.comparisons import SMALLEST_GAIN
from tools.headline import headline_figure

ROOT = Path(__file__).parents[1]
WRITTEN = "<!-- written by `make readme` from {0} -->"
START, END = "<!-- headline: written by `make readme` from {0} -->", "<!-- end of headline -->"
PENDING = (
    "The study `experiments/composition.yaml` is not finished. `skillmix run quickstart` runs a small version in "
    "minutes."
)
SCRATCH = Path("results/composition.json")
"""The study with models from scratch; the figure of the other study also shows its scores."""


@dataclass(frozen=True)
class Study:
    """The page and the prose of a study."""

    page: Path
    figure: Path
    title: str
    summary: str
    """Students and data, for the README. Slots: weights, texts, low, high, student, control."""
    introduction: str
    """Students and data, for the page, with the same slots."""
    limits: str
    """The limits of the study, for the README."""
    scope: str
    """The limits of the study, for the page."""
    lines: Mapping[str, str]
    """The students in the figure with their labels; empty for the students of the first comparison."""


COMPOSITION = Study(
    page=Path("docs/results-scratch.md"),
    figure=Path("docs/figures/scratch.svg"),
    title="# When does a model from scratch learn to combine skills?",
    summary=(
        "Two language models of {weights:.2f} million weights learn the same {texts} short texts from scratch; code "
        "writes and grades the texts. The requests of {student} name all {low} to {high} skills of a text, those of "
        "its control {control} name one. A skill is a figure with a word, such as “simile with an owl”."
    ),
    introduction=(
        "Two language models of {weights:.2f} million weights learn the same {texts} short English texts from scratch. "
        "Code writes and grades the texts. Each text has {low} to {high} skills; a skill is a figure with a word, such "
        "as “simile with an owl”. {student} learns from requests that name all skills of a text; its control {control} "
        "from requests that name one and say “any skill” for the others. Some skills are held out: training shows them "
        "one at a time, never combined. The control never sees a request for two skills, so its score shows only that "
        "such requests are necessary, not how they help. An unrequested skill costs a point, so full marks mean "
        "exactly the requested skills. The held-out skills are random cells (their figure and their word are combined, "
        "each with others), new words and new figures (never combined)."
    ),
    limits="This does not replicate the paper: nothing is pre-trained.",
    scope=(
        "This does not replicate the paper: nothing is pre-trained, and held-out skills share figures or words with "
        "combined ones. New figures are closest to the categories that the paper holds out; the gain on those does not "
        "appear here, but [it appears with pre-training](results.md). "
        "[What the study shows and does not show](laboratory.md#what-the-study-shows-and-does-not-show)."
    ),
    lines={},
)
PRETRAINING = Study(
    page=Path("docs/results.md"),
    figure=Path("docs/figures/headline.svg"),
    title="# Does a pre-trained model combine skills that it never saw combined?",
    summary=(
        "SmolLM2-135M (starting weights in 4 bits) and the same network with random weights learn {texts} texts of "
        "{low} to {high} skills. A skill is a figure with a word (“simile with an owl”); training shows new "
        "figures alone, never combined. Requests of {student} name all skills of a text, those of its control "
        "{control} one, with “any skill” for the rest."
    ),
    introduction=(
        "SmolLM2-135M ({weights:.1f} million weights, quantized to 4 bits before training) and the same network with "
        "random weights learn the same {texts} short English texts with equally many steps. Code writes and grades "
        "the texts. Each text has {low} to {high} skills; a skill is a figure with a word, such as “simile with an "
        "owl”. {student} learns from requests that name all skills of a text, and so does its twin with random "
        "weights; the control {control} learns from requests that name one and say “any skill” for the others. Some "
        "skills are held out: training shows them one at a time, never combined. New figures are never combined "
        "with any word, new words with any figure, and random cells are new pairs of a combined figure and a combined "
        "word; in the setting both new, figure and word are new. An unrequested skill costs the point for sense, so "
        "full marks mean exactly the requested skills. The control never sees a request for two skills, so its score "
        "shows only that such requests are necessary. m12 learned as many texts with one and two skills. worked is the "
        "untuned model with worked examples in its prompt."
    ),
    limits=(
        "Limits: one small model, texts written and graded by code, and figures instead of the paper's categories."
    ),
    scope=(
        "Limits: one small model, whose starting weights are quantized to 4 bits; texts written and graded by code; "
        "figures instead of the paper's categories of skills; and a different optimizer for each base, chosen on "
        "trained cells of other partitions (AdamW for the pre-trained base, Muon for random weights). A first run "
        "with one other seed had the same verdicts (LOG.md). After each run, the wording of claims was changed "
        "for readers who objected to it; the comparisons were not changed. "
        "One seed of partition 201 was trained and evaluated a second time on the "
        "GPU: all 100 scores were identical. A third base with 270 million weights was planned but not run. "
        "[The same texts with models from scratch](results-scratch.md)."
    ),
    lines={"m123": "pre-trained", "m1any": "pre-trained, asked for one", "random-m123": "random weights"},
)
STUDIES = {"pretraining": PRETRAINING, "composition": COMPOSITION}


def study_of(result: Path) -> Study:
    """Return the study of a result file by its name."""
    return STUDIES.get(result.stem, COMPOSITION)


MANY = 3
"""With more partitions than this, the page has a table of the differences by partition."""


def headline(result: Path) -> str:
    """Return the generated part of the README: a table of the planned comparisons, with their conditions."""
    start = START.format(_named(result))
    if not result.exists():
        return "\n\n".join([start, PENDING, END])
    document = read(result)
    study = study_of(result)
    more = f"[All numbers]({study.page.as_posix()})."
    compared = list(published(study, document))[:1]
    caveats = " ".join([conditions(document), *failed_gates(document), *compared, study.limits, more])
    described = _wrapped(_described(study.summary, document))
    return "\n\n".join([start, described, claim_table(document), _wrapped(caveats), END])


def page(result: Path) -> str:
    """Return the page with the tables, the verdicts, and the facts that a reader needs to judge them."""
    study = study_of(result)
    start = [study.title, WRITTEN.format(_named(result))]
    if not result.exists():
        return "\n\n".join([*start, PENDING]) + "\n"
    document = read(result)
    introduction = " ".join([_described(study.introduction, document), *joined_sentence(document)])
    parts = [*start, introduction, " ".join([*published(study, document), study.scope])]
    parts += [_picture(result, study.figure.relative_to("docs")), *caption(study)]
    parts += ["## Planned comparisons", ORDER, "\n".join(f"- {sentence}" for sentence in findings(document))]
    if len(document["comparisons"][0]["by_partition"]) > MANY:
        parts += [BY_PARTITION, partition_table(document)]
    if document["example"]:
        first, *texts = document["example"]
        parts += ["## Two texts", first, "\n".join(f"- {text}" for text in texts)]
    parts += ["## Gates", *gates(document)]
    if document["doses"]:
        parts += ["## Examples of new figures", DOSES, dose_table(document)]
    if "conditions" in document:
        parts += ["## Attempts to explain the result away", "\n".join(f"- {found}" for found in attacks(document))]
    parts += ["## Scores", f"Full marks with 95% intervals {_over(document)}."]
    for run in document["runs"]:
        rows = [row for row in document["scores"] if row["run"] == run["name"]]
        for name, label in (("one_try", "one try"), ("best", f"best of {rows[0]['generations']}")):
            parts += [f"`{run['name']}`, {label}:", score_table(rows, name)]
    return "\n\n".join([*parts, "## How it was made", "\n".join(f"- {fact}" for fact in facts(document))]) + "\n"


def caption(study: Study) -> Iterator[str]:
    """State the finding of the paper that the figure tests."""
    if study is PRETRAINING:
        yield (
            "The finding of the paper that this figure tests: fine-tuned on texts with 2 and 3 skills of some "
            "categories, a pre-trained model also combines skills of categories that its fine-tuning never combined "
            "(the panel of new figures), and it combines more skills at once than the texts that it learned from "
            "(k = 4 and 5)."
        )


ORDER = (
    "These comparisons were fixed before the first run and are tested in this order until one finds no significant "
    "difference; each p shown is the largest so far. A significant gain that is too small to support a claim does not "
    "end the sequence. Scores are the shares of single texts with full marks."
)
DOSES = (
    "In the table of scores, a dose is the number of composed training texts for all new figures together; each of "
    "these texts combines a new figure with a trained skill."
)
BY_PARTITION = "The differences by partition:"


def read(result: Path) -> dict[str, Any]:
    """Read a result file."""
    document: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return document


def _described(prose: str, document: Mapping[str, Any]) -> str:
    """Fill the slots of a study's prose, and add the partitions and trainings."""
    student, control = (document["comparisons"][0][side] for side in ("student", "against"))
    if "m1any" in document["students"]:
        control = {"student": "m1any"}
    about = document["students"][student]
    numbers = {"weights": about["weights"] / 1e6, "texts": whole(_texts(about))}
    counts = {"low": min(about["texts"]), "high": max(about["texts"])}
    return f"{prose.format(**numbers, **counts, student=student, control=control['student'])} {_units(document)}"


def published(study: Study, document: Mapping[str, Any]) -> Iterator[str]:
    """State the paper's scores on held-out categories, and the score of the models from scratch, for comparison."""
    if study is not PRETRAINING:
        return
    tables = json.loads((SHIPPED / "published.json").read_text(encoding="utf-8"))["tables"]
    rows = {row["trained_on"]: row["values"] for row in tables["table_10"]["rows"] if row["setting"] == "held-out"}
    paper = {name: [in_percent(rows[name][k - 1][0]) for k in (2, 3)] for name in ("D(1,2,3)", "D(1)")}
    scratch = next(c for c in read(ROOT / SCRATCH)["comparisons"] if c["setting"] == "new-figures")
    own = {
        row["k"]: in_percent(row["best"]["value"])
        for row in document["scores"]
        if (row["student"], row["setting"]) == (document["comparisons"][0]["student"], "new-figures")
    }
    yield (
        f"Best of three: {own[2]}% and {own[3]}% with 2 and 3 new figures (the paper's LLaMA-2-13B on held-out "
        f"categories, with other graders: {paper['D(1,2,3)'][0]}% and {paper['D(1,2,3)'][1]}%)."
    )
    yield (
        f"Trained on single skills alone, the paper's model has {paper['D(1)'][0]}% and {paper['D(1)'][1]}%. A model "
        f"of 0.27 million weights, trained from scratch on such texts: {in_percent(scratch['value'])}% with 2, one try."
    )


def attacks(document: Mapping[str, Any]) -> Iterator[str]:
    """State the scores of runs that change one condition, and the results of the checks on texts."""
    first, checks = document["comparisons"][0], document["checks"]
    own = first["by_partition"][0]
    scores = {
        (row["condition"], row["student"], row["k"]): share_with_interval(
            *(row["one_try"][x] for x in ("value", "low", "high"))
        )
        for row in document["conditions"]
    }
    texts = {
        "nonce": "Names of figures that the model knows: with nonce words as names of the new figures",
        "few-frames": "The teacher's grammar: with one sentence frame of each kind",
        "requests": (
            "Length of the request: if new figures also occur in requests with two and three items, of which all but "
            'one say "any skill"'
        ),
    }
    for name, text in texts.items():
        for student in dict.fromkeys(who for other, who, _ in scores if other == name):
            by_k = ", ".join(
                f"{score} at k = {k}" for (other, who, k), score in scores.items() if (other, who) == (name, student)
            )
            without = own["value" if student == first["student"] else "against_value"]
            yield (
                f"{text}, {student} of {own['partition']} has full marks on new figures in {by_k}; {share(without)} at "
                f"k = {first['k']} without the change."
            )
    yield (
        f"Position: beside a trained skill, a new figure has full marks in {share(checks['first'])} of the texts if "
        f"the request names it first, and in {share(checks['second'])} if second."
    )
    yield (
        f"Copying: the clauses of {in_percent(checks['copied'])}% of the {checks['copied_of']} texts by "
        f"{first['student']} of {own['partition']} with two new figures and full marks all occur in the training texts "
        "word for word."
    )
    clauses = ", ".join(f"{name} {count}" for name, count in checks["clauses"].items())
    yield (
        f"Number of clauses: texts for two new figures have this many on average: {clauses}. The control and the twin "
        "with random weights write fewer, so not writing a second clause explains part of their failure."
    )


def claim_table(document: Mapping[str, Any]) -> str:
    """Return a table with a row for each planned comparison, in the order of the tests."""
    rows = []
    for one in document["comparisons"]:
        numbers = signed_with_interval(one["difference"], one["low"], one["high"])
        claim = one["claim"] or one["title"]
        p = one["words"].rpartition(", ")[2]
        sides = [f"{in_percent(one['value'])}%", f"{in_percent(one['against_value'])}%"]
        rows.append([f"{claim[0].upper()}{claim[1:]}", one["title"], *sides, f"{numbers}, {p}", one["verdict"]])
    return markdown_table(["claim", "students, skills, k", "first", "second", "difference [95%]", "verdict"], rows)


def conditions(document: Mapping[str, Any]) -> str:
    """Explain the numbers in the table, and state the condition of each claim."""
    smallest = (
        f"Scores are shares of texts with full marks, one try each; each p is the largest so far; a claim needs a gain "
        f"of {share(SMALLEST_GAIN)}."
    )
    conditions = [one["condition"] for one in document["comparisons"]]
    return " ".join([smallest, *(f"Claim {row}: {text}" for row, text in enumerate(conditions, start=1) if text)])


def failed_gates(document: Mapping[str, Any]) -> Iterator[str]:
    """State how many of the scores that the comparisons require are too low, and by how much."""
    failed = [gate for gate in document["gates"] if not gate["holds"]]
    if failed:
        short = max(gate["least"] - gate["value"] for gate in failed)
        yield (f"{len(failed)} of {len(document['gates'])} preconditions fail, by {short:.3f} at most.")
    yield from joined_sentence(document)


def joined_sentence(document: Mapping[str, Any]) -> Iterator[str]:
    """State the score of the reference texts that code joins from the first student's single-skill texts."""
    first = document["comparisons"][0]
    names = [first["student"], f"{first['student']}-joined"]
    found = {
        row["student"]: row["one_try"]["value"]
        for row in document["scores"]
        if row["student"] in names and (row["setting"], row["k"]) == (first["setting"], first["k"])
    }
    if len(found) == len(names):
        yield (
            f"On the skills of claim 1, code that joins {names[0]}'s single-skill texts earns "
            f"{in_percent(found[names[1]])}%."
        )


def _units(document: Mapping[str, Any]) -> str:
    run = document["runs"][0]
    trained = plural(len(run["partitions"]) * len(run["seeds"]), "training")
    if len(run["partitions"]) == 1:
        return "All numbers hold for one partition of the skills alone."
    return f"Means over {plural(len(run['partitions']), 'partition')}, {trained} of each model."


def _texts(about: Mapping[str, Any]) -> int:
    return sum(about["texts"].values())


def findings(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each planned comparison, and one about the doses."""
    for one in document["comparisons"]:
        other, k = one["against"], one["k"]
        sides = [(one["student"], one["setting"], k), (other["student"], other["setting"], other["k"])]
        first, second = (f"{name} on {setting.replace('-', ' ')}" for name, setting, _ in sides)
        skills = f"{k} skills" if k == other["k"] else f"{k} against {other['k']} skills"
        numbers = signed_with_interval(one["difference"], one["low"], one["high"])
        claim = one["claim"] or one["title"]
        yield (
            f"**{one['verdict'].capitalize()}: {claim}.** With {skills} in one text, {first} has full marks in "
            f"{in_percent(one['value'])}% of its texts, {second} in {in_percent(one['against_value'])}%: {numbers}, "
            f"{one['words']}{_too_small(one)}." + (f" {one['condition']}" if one["condition"] else "")
        )
    if document["doses"]:
        yield dose_sentence(document)
    failed = [gate for gate in document["gates"] if not gate["holds"]]
    if failed:
        short = max(gate["least"] - gate["value"] for gate in failed)
        yield (
            f"**Gates that fail:** {'; '.join(map(_gate, failed))}. That is {len(failed)} of {len(document['gates'])} "
            f"gates, by {short:.3f} at most: part of a low score there is due to single skills, not to combining them."
        )


def _too_small(one: Mapping[str, Any]) -> str:
    """Return a clause about a gain that is too small to support a claim; empty for any other result."""
    is_small = one["verdict"] == "not supported" and one["words"].startswith("a gain")
    return f", but less than {share(SMALLEST_GAIN)}, the smallest gain worth claiming" if is_small else ""


BASES = {"": "", "random-": "random weights: "}
"""The labels of dose curves, keyed by the first part of the students' names."""


def dose_curves(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, list[dict[str, Any]]]]]:
    """Yield for each base the doses with and without other composed texts."""
    for base in BASES:
        own = [dose for dose in document["doses"] if dose["student"].startswith("random-") == bool(base)]
        if own:
            yield base, {others: [d for d in own if d["others"] == others] for others in ("with", "without")}


def dose_sentence(document: Mapping[str, Any]) -> str:
    """State the scores on new figures after each dose of composed texts, and the dose for a score of one half."""
    sentences = []
    for base, curves in dose_curves(document):
        examples = ", ".join(str(dose["examples"]) for dose in curves["with"])
        values = {others: ", ".join(share(dose["value"]) for dose in line) for others, line in curves.items()}
        partitions = plural(curves["with"][0]["partitions"], "partition")
        start = (
            f"With random weights, these shares are {values['with']}"
            if base
            else f"**Examples of new figures.** After {examples} composed texts of each new figure, each beside a "
            f"trained skill, two new figures in one text have full marks in {values['with']} of the texts "
            f"({partitions})"
        )
        half = {others: _half_dose(line) for others, line in curves.items()}
        sentences.append(
            f"{start}; without the other composed texts in {values['without']}. A share of one half takes "
            f"{half['with']} composed texts of each new figure, and {half['without']} without the others."
        )
    return " ".join(sentences)


def _half_dose(line: Sequence[Mapping[str, Any]]) -> str:
    """Estimate by linear interpolation after how many examples half of the texts have full marks."""
    for before, after in pairwise(line):
        if before["value"] < 0.5 <= after["value"]:
            part = (0.5 - before["value"]) / (after["value"] - before["value"])
            return f"about {before['examples'] + part * (after['examples'] - before['examples']):.0f}"
    return f"more than {line[-1]['examples']}" if line[-1]["value"] < 0.5 else "no"


def dose_table(document: Mapping[str, Any]) -> str:
    """Return a table with a row for each number of examples."""
    curves = [
        (f"{BASES[base]}{others} other composed texts", {d["examples"]: d for d in line})
        for base, by_others in dose_curves(document)
        for others, line in by_others.items()
    ]
    rows = []
    for n in sorted({n for _, line in curves for n in line}):
        doses = [line.get(n) for _, line in curves]
        shown = (share_with_interval(d["value"], d["low"], d["high"]) if d else "–" for d in doses)
        rows.append([str(n), *shown])
    return markdown_table(["composed texts of each new figure", *(name for name, _ in curves)], rows)


def gates(document: Mapping[str, Any]) -> list[str]:
    """List the scores that the comparisons require, and whether each is reached."""
    held = sum(gate["holds"] for gate in document["gates"])
    head = f"Single-text scores that the comparisons require; {held} of {len(document['gates'])} hold:"
    return [
        head,
        "\n".join(f"- {_gate(gate)}, {'met' if gate['holds'] else '**not met**'}" for gate in document["gates"]),
    ]


def _gate(gate: Mapping[str, Any]) -> str:
    place = f"{gate['student']}, {gate['setting'].replace('-', ' ')}, k = {gate['k']}"
    return f"{place}: {gate['value']:.3f} (required: {gate['least']:.2f})"


def partition_table(document: Mapping[str, Any]) -> str:
    """Return a table with a row for each partition and a column for each comparison."""
    titles = [one["title"] for one in document["comparisons"]]
    by_place = {
        (part["partition"], one["title"]): f"{share(part['value'])} − {share(part['against_value'])}"
        for one in document["comparisons"]
        for part in one["by_partition"]
    }
    partitions = list(dict.fromkeys(place[0] for place in by_place))
    rows = [[partition, *(by_place.get((partition, title), "–") for title in titles)] for partition in partitions]
    return markdown_table(["partition", *titles], rows)


def score_table(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return a table with a row for each setting and student, and a column for each k."""
    ks = sorted({row["k"] for row in rows})
    entries = {
        (row["setting"], _student(row), row["k"]): share_with_interval(
            *(row[name][x] for x in ("value", "low", "high"))
        )
        for row in rows
    }
    places = dict.fromkeys((setting, student) for setting, student, _ in entries)
    order = list(dict.fromkeys(setting for setting, _ in places))
    lines = [
        [setting.replace("-", " "), student, *(entries.get((setting, student, k), "–") for k in ks)]
        for setting, student in sorted(places, key=lambda place: order.index(place[0]))
    ]
    return markdown_table(["setting", "student", *(f"k = {k}" for k in ks)], lines)


def _student(row: Mapping[str, Any]) -> str:
    values = ", ".join(f"{name} {value}" for name, value in row["values"].items())
    return f"{row['student']} ({values})" if values else str(row["student"])


def _over(document: Mapping[str, Any]) -> str:
    several = len(document["runs"][0]["partitions"]) > 1
    return "over partitions (Student's t)" if several else "over combinations, in one partition"


def facts(document: Mapping[str, Any]) -> Iterator[str]:
    """List the facts in the result file that a reader needs to judge the numbers."""
    for run in document["runs"]:
        names = ", ".join(run["partitions"])
        yield (
            f"`{run['command']}`: {plural(len(run['partitions']), 'partition')} ({names}), {whole(run['texts'])} texts "
            f"graded by {run['grader']}."
        )
    for name, about in document["students"].items():
        by_k = ", ".join(f"{whole(number)} with k = {k}" for k, number in sorted(about["texts"].items()))
        yield f"{name}: {whole(about['weights'])} weights, {whole(_texts(about))} texts ({by_k})."
    yield f"`{document['made_by']}` wrote the result file; `make readme` wrote this page from it."


def figure(result: Path) -> bytes:
    """Draw the figure, which contains the hash of its result file."""
    study, document = study_of(result), read(result)
    others = [("from scratch, 0.27 M", read(ROOT / SCRATCH))] if study is PRETRAINING else []
    with house_style():
        return printed(headline_figure(document, study.lines, others), about=f"drawn from {digest(result)}").svg


def digest(result: Path) -> str:
    """Hash a result file, which identifies the result."""
    return sha256(result.read_bytes()).hexdigest()


def _picture(result: Path, path: Path) -> str:
    return f"![Full marks against k, from {result.name}]({path.as_posix()})"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 130, break_long_words=False, break_on_hyphens=False)


def _named(result: Path) -> str:
    return result.relative_to(ROOT).as_posix()


def with_headline(readme: str, part: str) -> str:
    """Return the README with its generated part replaced."""
    pattern = re.escape(START).replace(re.escape("{0}"), r"\S+") + ".*?" + re.escape(END)
    found, count = re.subn(pattern, lambda _: part, readme, flags=re.DOTALL)
    if count != 1:
        raise SystemExit("README.md must hold the marks of the headline once")
    return found


def named_result(readme: str) -> Path:
    """Return the path of the result file that the README names."""
    found = re.search(re.escape(START).replace(re.escape("{0}"), r"(\S+)"), readme)
    if found is None:
        raise SystemExit("README.md has no headline")
    return ROOT / found[1]


def main() -> None:
    """Write the figures, the pages and the generated part of the README."""
    file = ROOT / "README.md"
    readme = file.read_text(encoding="utf-8")
    named = (Path.cwd() / sys.argv[1]).resolve() if len(sys.argv) > 1 else named_result(readme)
    for result in {named, *(ROOT / "results" / f"{name}.json" for name in STUDIES)}:
        study = study_of(result)
        if result.exists():
            (ROOT / study.figure).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / study.figure).write_bytes(figure(result))
        (ROOT / study.page).write_text(page(result), encoding="utf-8")
    file.write_text(with_headline(readme, headline(named)), encoding="utf-8")


if __name__ == "__main__":
    main()
