"""`skillmix parse-reply` and `skillmix prompts`: one combination by name, what is asked and what is read."""

from dataclasses import dataclass

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination, combination_of
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.grading.reader import Reading, read_grades
from skillmix.prompts.files import load_prompts
from skillmix.prompts.prompt_set import GRADER_VARIANTS, LEAD_FILE, STUDENT_FILES
from skillmix.prompts.rubric import Rubric, rubric_of


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reading with the rubric it follows."""

    rubric: Rubric
    reading: Reading

    def as_json(self) -> dict[str, object]:
        """The documented form of `parse-reply --json`."""
        return {
            "points": self.reading.by_name(self.rubric),
            "problem": self.reading.problem,
            "notes": list(self.reading.notes),
        }


@dataclass(frozen=True, slots=True)
class Named:
    """A combination given by names on the command line."""

    catalog: str
    skills: str
    topic: str
    prompts: str = "standard"

    def resolve(self) -> tuple[Catalog, Combination]:
        """The catalogue, and the combination with its skills in the order given."""
        catalog = load_catalog(self.catalog)
        names = [name.strip() for name in self.skills.split(";") if name.strip()]
        if not names:
            raise UserError(
                "No skill was named.",
                hint='Give names separated by ";", such as --skills "metaphor; red herring".',
            )
        skills = tuple(catalog.skill(name).name for name in names)
        combination = combination_of(skills, catalog.topic(self.topic))
        return catalog, Combination(combination.id, skills, combination.topic)


def parse_reply(named: Named, reply: str, *, text: str | None) -> ParsedReply:
    """Read a grader's reply about a combination."""
    _, combination = named.resolve()
    rubric = rubric_of(combination.skills, combination.topic, phrases=load_prompts(named.prompts).phrases)
    return ParsedReply(rubric, read_grades(rubric, reply, text=text))


def rendered_prompts(named: Named, *, answer: str) -> dict[str, str]:
    """Every prompt of a set as it would be sent, by file name."""
    catalog, named_order = named.resolve()
    combination = combination_of(named_order.skills, named_order.topic)  # in the order that a run would ask in
    prompts = load_prompts(named.prompts)
    lead = [asked for asked, _ in prompts.lead_turns(catalog, combination)]
    rendered = dict(zip([LEAD_FILE], lead, strict=False))
    rendered |= zip(STUDENT_FILES, prompts.student_prompts(catalog, combination), strict=True)
    for variant in GRADER_VARIANTS:
        file = f"grade-{variant}.txt"
        if file in prompts.templates:
            rendered[file] = prompts.grader_prompt(catalog, combination, answer=answer, variant=variant)
    return rendered
