"""Skill frequencies as JSON, as a table for a terminal, and as an exclude list for experiments.

The sample is a simple random sample of the distinct passages in a corpus, so Wilson's interval is valid for the share
in that corpus. An answer that cannot be parsed is unknown: it does not count in the share, but one bound counts it as
yes and the other as no.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError

from skillmix.catalog.catalog import fold_name
from skillmix.errors import UserError
from skillmix.files import located_fault, read_text, with_listed_skills, write_whole
from skillmix.frequencies.documents import SampledPassage
from skillmix.render import markdown_table, name_hint
from skillmix.scores.statistics.intervals import CONFIDENCE, Interval, t_quantile, wilson_interval

Answers = Mapping[str, Mapping[str, bool | None]]
"""Whether each passage shows each skill, by passage id and skill; None if the answer is unknown.

A skill is absent if no grader was asked about it, for example because the budget was spent."""
_Share = Annotated[float, Field(ge=0, le=1)] | None


@dataclass(frozen=True, slots=True)
class SkillShare:
    """The measured frequency of one skill, with its bounds."""

    skill: str
    asked: int
    """The number of passages about which a grader was asked."""
    shown: int
    unknown: int
    """The number of passages whose answer is missing or cannot be parsed."""
    share: _Share
    """The share among passages with a known answer; None if no answer is known."""
    low: _Share
    high: _Share
    """The upper end of Wilson's 95% interval for the share in this corpus."""
    bound_low: _Share
    bound_high: _Share
    """The share if all unknown passages show the skill; for `bound_low`, if none does."""
    share_with_repeats: _Share
    """The share if each passage counts as often as it occurs in the corpus."""
    documents_low: _Share
    documents_high: _Share
    """The upper end of a 95% interval that also covers the choice of documents; None for fewer than two documents."""
    is_common: bool | None
    """Whether the share is at or above the threshold; None if the share is unknown."""
    is_decided: bool
    """Whether the interval and the bounds are all on the same side of the threshold."""


def skill_shares(
    skills: Iterable[str], passages: Sequence[SampledPassage], answers: Answers, *, threshold: float
) -> list[SkillShare]:
    """Compute the shares of all skills, starting with the most common."""
    shares = []
    for skill in skills:
        found = [(p, answers[p.id][skill]) for p in passages if skill in answers.get(p.id, {})]
        known = [(passage, shown) for passage, shown in found if shown is not None]
        shown = sum(answer for _, answer in known)
        asked, unknown = len(found), len(found) - len(known)
        share = shown / len(known) if known else None
        interval = wilson_interval(share, len(known)) if share is not None else None
        bounds = Interval(shown / asked, (shown + unknown) / asked) if asked else None
        wider = _for_documents(known, share) if share is not None else None
        ends = [end for pair in (interval, bounds) if pair for end in pair]
        weight = sum(passage.occurrences for passage, _ in known)
        with_repeats = sum(p.occurrences for p, answer in known if answer) / weight if weight else None
        low, high = interval or (None, None)
        bound_low, bound_high = bounds or (None, None)
        documents_low, documents_high = wider or (None, None)
        shares.append(
            SkillShare(
                *(skill, asked, shown, unknown),
                *(share, low, high, bound_low, bound_high, with_repeats, documents_low, documents_high),
                is_common=None if share is None else share >= threshold,
                is_decided=bool(interval) and (min(ends) >= threshold or max(ends) < threshold),
            )
        )
    return sorted(shares, key=lambda one: (one.share is None, -(one.share or 0.0), one.skill))


def _for_documents(known: Sequence[tuple[SampledPassage, bool]], share: float) -> Interval | None:
    """Compute an interval that also covers the choice of documents, each of which may have several passages.

    This is Wilson's interval with an effective number of passages, which is derived from the variance between documents
    and a t quantile. If all or no passages show the skill, the effective number is the number of documents.
    """
    by_document: dict[str, list[bool]] = defaultdict(list)
    for passage, answer in known:
        by_document[passage.document].append(answer)
    documents = len(by_document)
    if documents < 2:
        return None
    if documents == len(known):
        return wilson_interval(share, len(known))
    spread = sum((sum(group) - share * len(group)) ** 2 for group in by_document.values())
    variance = spread * documents / (documents - 1) / len(known) ** 2
    quantile = (1 + CONFIDENCE) / 2
    narrower = (NormalDist().inv_cdf(quantile) / t_quantile(quantile, documents - 1)) ** 2
    effective = share * (1 - share) / variance * narrower if 0 < share < 1 and variance > 0 else documents
    return wilson_interval(share, max(1, round(min(effective, len(known)))))


RESULT_FILE: Final = "frequencies.json"
LIST_FILE: Final = "exclude.yaml"
COMMON: Final = "common"
"""The value of `--exclude` that excludes the common skills of a result."""
_HEAD: Final = "# Written by `skillmix frequency`; an experiment names it as exclude: [file:PATH]."
"""The first line of every exclude list, by which the command recognizes files that it may replace."""
_NEXT: Final = 10
"""The number of rows that the table has below the last common or undecided skill."""


@dataclass(frozen=True, slots=True)
class FrequencyResult:
    """The shares of skills in a corpus, and the settings of the measurement."""

    catalog: str
    catalog_hash: str
    grader: str
    prompt_hash: str | None
    """The hash of the prompt; None if the grader is code."""
    seed: int
    words: int
    threshold: float
    corpus: Mapping[str, Any]
    """The numbers of files, documents and passages, and of skipped lines and files by reason."""
    passages: int
    """The number of passages in the sample."""
    documents: int
    """The number of documents in the sample."""
    repeated: int
    """The number of passages in the sample that occur more than once in the corpus."""
    sentences_per_passage: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    words_per_passage: float
    skills: Annotated[tuple[SkillShare, ...], Field(min_length=1)]
    """The skills, starting with the most common."""

    @property
    def common(self) -> list[str]:
        """Return the skills at or above the threshold."""
        return [one.skill for one in self.skills if one.is_common]

    @property
    def undecided(self) -> list[str]:
        """Return the skills whose interval and bounds are not all on one side of the threshold."""
        return [one.skill for one in self.skills if not one.is_decided]

    @property
    def unknown(self) -> int:
        """Count the answers that are missing or cannot be parsed."""
        return sum(one.unknown for one in self.skills)

    def as_json(self) -> dict[str, Any]:
        """Return the content of `frequencies.json`."""
        document = asdict(self)
        return {**document, "skills": list(document["skills"]), "common": self.common, "undecided": self.undecided}

    def exclude_list(self) -> str:
        """Return the common skills as an exclude list in YAML."""
        source = f"{self.passages} passages, grader {self.grader}, seed {self.seed}"
        rows = [f"  - {json.dumps(skill, ensure_ascii=False)}" for skill in self.common]
        lines = [
            _HEAD,
            f"catalog: {json.dumps(self.catalog, ensure_ascii=False)}",
            f"source: {json.dumps(source, ensure_ascii=False)}",
            f"threshold: {self.threshold!r}",
            "skills:" if rows else "skills: []",
            *rows,
        ]
        return "\n".join(lines) + "\n"

    def store(self, folder: Path, *, list_file: Path | None = None) -> None:
        """Write the result and the exclude list into a run's folder; `list_file` is a second file for the list."""
        if list_file is not None:
            require_own_list(list_file)
        write_whole(folder / RESULT_FILE, json.dumps(self.as_json(), ensure_ascii=False, indent=1) + "\n")
        write_whole(folder / LIST_FILE, self.exclude_list())
        if list_file is not None:
            write_whole(list_file, self.exclude_list())


def require_own_list(file: Path) -> None:
    """Raise an error unless the file is new or an exclude list that this command wrote."""
    if file.is_dir() or (file.exists() and not read_text(file).startswith(_HEAD)):
        raise UserError(
            f"{file} exists but was not written by `skillmix frequency`.",
            hint="Nothing was changed. Name another file with --exclude-list.",
        )
    if not file.parent.is_dir():
        raise UserError(f"There is no folder {file.parent}.", hint="Create it, or name another --exclude-list.")


def load_result(file: Path) -> FrequencyResult:
    """Read a stored result, or raise an error with its first fault."""
    try:
        return TypeAdapter(FrequencyResult).validate_json(read_text(file), strict=True)
    except ValidationError as error:
        raise UserError(
            f"{file} is not a result of `skillmix frequency`: {located_fault(error.errors()[0], FrequencyResult)}.",
            hint=f"Name the {RESULT_FILE} of a run, or measure again.",
        ) from None


def upper_shares(result: FrequencyResult, *, exclude: Sequence[str] = ()) -> dict[str, float]:
    """Return the upper end of each skill's interval, counting unknown answers as yes; 1 if no question was asked.

    In `exclude`, `common` stands for the common skills of the result, and `file:PATH` for an exclude list.
    """
    named = [s for name in exclude for s in (result.common if name == COMMON else with_listed_skills([name]))]
    known = {fold_name(one.skill): one.skill for one in result.skills}
    unknown = [name for name in named if fold_name(name) not in known]
    if unknown:
        raise UserError(
            f"The result has no skill {unknown[0]!r}.",
            hint=name_hint(unknown[0], [COMMON, *known.values()], otherwise="Its skills are under `skills`."),
        )
    left_out = {known[fold_name(name)] for name in named}
    return {
        one.skill: wilson_interval(one.bound_high, one.asked).high if one.bound_high is not None and one.asked else 1.0
        for one in result.skills
        if one.skill not in left_out
    }


def result_table(result: FrequencyResult) -> str:
    """Format the common and undecided skills, and the next ten skills, as a Markdown table."""
    last = max((n for n, one in enumerate(result.skills) if one.is_common or not one.is_decided), default=-1)
    rows = []
    for one in result.skills[: last + 1 + _NEXT]:
        if one.share is None or one.low is None or one.high is None:
            rows.append([one.skill, "–", "–", str(one.unknown), "unknown"])
            continue
        interval = f"{100 * one.low:.1f}–{100 * one.high:.1f}"
        common = ("yes" if one.is_common else "no") + ("" if one.is_decided else ", undecided")
        rows.append([one.skill, f"{100 * one.share:.1f}%", interval, str(one.unknown), common])
    return markdown_table(["skill", "share", "95%", "unknown", "common"], rows, right=frozenset({1, 2, 3}))


def result_lines(result: FrequencyResult) -> Sequence[str]:
    """Describe the sample behind the table, and count the common and undecided skills."""
    corpus = result.corpus
    return [
        f"{result.passages:,} of {corpus['passages']:,} passages, from {result.documents:,} of {corpus['documents']:,} "
        f"documents; {result.words_per_passage:.0f} words and {result.sentences_per_passage:.1f} sentences each.",
        f"{len(result.common)} of {len(result.skills)} skills are in {100 * result.threshold:g}% of the passages or "
        f"more; {len(result.undecided)} are undecided: their interval or their unknown answers span the threshold.",
    ]
