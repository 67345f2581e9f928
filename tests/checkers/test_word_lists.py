"""Every list of words has a user, and every user a list."""

import json
import re
from pathlib import Path

from skillmix.checkers import words

FOLDER = Path(words.__file__).parent


def test_each_module_uses_all_of_its_lists_and_no_other() -> None:
    lists = json.loads((FOLDER / "english" / "word_lists.json").read_text(encoding="utf-8"))
    for module, own in lists.items():
        (file,) = FOLDER.rglob(f"{module}.py")
        used = re.findall(r'(?:_LISTS|lists_of\("\w+"\))\[["\']([^"\']+)["\']\]', file.read_text(encoding="utf-8"))
        assert set(own) == set(used), module
        assert all(listed.split() for listed in own.values())
