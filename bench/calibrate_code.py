"""Write a calibration set for the code that grades `verifiable`: `python bench/calibrate_code.py SET.yaml`.

The texts are test data whose writers had not seen the code: `blind.yaml`, with five texts that show each skill and five
near misses, and the texts of `blind_labelled.jsonl` with one skill, which also have labels for topic and sense. Texts
that fail both are excluded, because an entry of a set can fail only one of them. This command then makes the card:

    skillmix calibrate rules: --set SET.yaml --catalog verifiable
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

TEXTS = Path(__file__).parents[1] / "tests/checkers"


def main(file: Path) -> None:
    """Write the calibration set and print its size."""
    entries = [*_near_misses(), *_labelled()]
    file.write_text(yaml.safe_dump(entries, allow_unicode=True, sort_keys=False), encoding="utf-8")
    print(f"{len(entries)} texts are in {file}")


def _near_misses() -> Iterator[dict[str, Any]]:
    for skill, texts in yaml.safe_load((TEXTS / "blind.yaml").read_text(encoding="utf-8")).items():
        for kind, label in (("shown", "shows"), ("not_shown", "near")):
            yield from ({"skill": skill, "text": text, "label": label} for text in texts[kind])


def _labelled() -> Iterator[dict[str, Any]]:
    for line in (TEXTS / "blind_labelled.jsonl").read_text(encoding="utf-8").splitlines():
        text = json.loads(line)
        if len(text["skills"]) == 1 and (text["sense"] or text["about_topic"]):  # an entry has one fault at most
            off = "topic" if not text["about_topic"] else None if text["sense"] else "sense"
            entry = {"skill": text["skills"][0], "topic": text["topic"], "text": text["text"]}
            yield entry | {"label": "shows" if text["shows"] else "near"} | ({"off": off} if off else {})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
