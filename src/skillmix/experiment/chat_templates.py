"""Chat templates by the name of their format, for checkpoints that have no template.

Each format is one file, `data/chat_formats/NAME.jinja`; an experiment file names it with `format: NAME`.
"""

from typing import Final

from skillmix.catalog.files import SHIPPED

_FOLDER: Final = SHIPPED / "chat_formats"
CHAT_TEMPLATES: Final = {
    file.stem: file.read_text(encoding="utf-8").removesuffix("\n") for file in sorted(_FOLDER.glob("*.jinja"))
}
