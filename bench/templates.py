"""Score the template student by each rule: `python bench/templates.py [COMBINATIONS]` (default: 500).

For each form of its clauses, setting and k, the table shows the share of full marks on all combinations, on those
without entailed pairs, then with every skill woven in by any topic word, and with a separate topic word for each skill
(the rule of `woven`). The last student knows the catalog's vocabulary and uses another topic word in every clause.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from skillmix.catalog.catalog import Catalog, Setting
from skillmix.catalog.combinations import Combination, Draw, draw_combinations
from skillmix.catalog.files import load_catalog
from skillmix.checkers.judge import Verdict
from skillmix.checkers.template_student import FORMS, Form, TemplateStudent, TemplateText
from skillmix.runs.verdicts import judge_of

SETTINGS: tuple[Setting, ...] = ("train", "held-out")


def main(count: int) -> None:
    """Print the scores of each form of the template student."""
    catalog = load_catalog("verifiable")
    student = TemplateStudent(catalog.templates, judge_of(catalog))
    print("| topic named | setting | k | full marks | without entailed pairs | any topic word | woven |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for form in FORMS:
        for setting in SETTINGS:
            for k in range(1, 6):
                before = _shares(student, _drawn(catalog, setting, k, count, entailed=True), form)
                after = _shares(student, _drawn(catalog, setting, k, count, entailed=False), form)
                shares = " | ".join(f"{share:.3f}" for share in (before[0], *after))
                print(f"| {'once' if form == 'fixed' else 'in every clause'} | {setting} | {k} | {shares} |")

    for setting in SETTINGS:
        for k in range(1, 6):
            drawn = _drawn(catalog, setting, k, count, entailed=False)
            shares = " | ".join(f"{share:.3f}" for share in _shares(_Insider(catalog), drawn, "slot"))
            print(f"| by vocabulary | {setting} | {k} | – | {shares} |")


class _Insider:
    """Fills the slot of each clause with another word of the vocabulary."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._judge = judge_of(catalog)

    def write(self, skills: Sequence[str], topic: str, form: Form) -> TemplateText | None:
        alone, together = self._catalog.vocabulary[topic][:2]
        clauses = self._catalog.templates
        words = zip(skills, (*alone, *together), strict=False)
        filled = {skill: {str(form): clauses[skill][form].replace("{topic}", f"the {word}")} for skill, word in words}
        return TemplateStudent(filled, self._judge).write(skills, topic, form)


def _drawn(catalog: Catalog, setting: Setting, k: int, count: int, *, entailed: bool) -> list[Combination]:
    side = catalog.pool(setting)
    if entailed:
        side = replace(side, impossible=catalog.impossible)
    return draw_combinations(Draw(side, setting, k, 0), count)


def _shares(student: TemplateStudent | _Insider, drawn: list[Combination], form: Form) -> tuple[float, float, float]:
    """Return the shares of full marks, of full marks with skills woven in one by one, and with all woven in at once."""
    full = alone = together = 0
    for combination in drawn:
        written = student.write(combination.skills, combination.topic, form)
        if written is not None and written.has_full_marks:
            full += 1
            alone += all(_is_woven_alone(written.verdict, skill) for skill in combination.skills)
            together += written.verdict.is_woven(combination.skills) is True
    return full / len(drawn), alone / len(drawn), together / len(drawn)


def _is_woven_alone(verdict: Verdict, skill: str) -> bool:
    """Return whether a skill would be woven in if no other skill used a topic word."""
    return replace(verdict, evidence={skill: verdict.evidence[skill]}).woven[skill]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
