"""Every list of words has a user, and every user a list."""

import json
import re

from skillmix.checkers import words

PACKAGE = words.__file__.removesuffix("words.py")


def test_each_module_uses_all_of_its_lists_and_no_other() -> None:
    with open(f"{PACKAGE}english/word_lists.json", encoding="utf-8") as stored:
        lists = json.load(stored)
    for module, own in lists.items():
        folder = "" if module in ("meaning", "topics", "verbs", "words") else "skills/"
        with open(f"{PACKAGE}{folder}{module}.py", encoding="utf-8") as file:
            used = re.findall(r'(?:_LISTS|lists_of\("\w+"\))\["([^"]+)"\]', file.read())
        assert set(own) == set(used), module
        assert all(listed.split() for listed in own.values())
