"""Copy a prompt set, so that a user can change it."""

from pathlib import Path
from shutil import rmtree

from skillmix.errors import UserError
from skillmix.prompts.files import load_prompts, prompt_folder


def copy_prompts(name: str, folder: Path) -> list[str]:
    """Copy the files of a prompt set to a folder that does not exist or is empty; return their names."""
    load_prompts(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder.", hint="Name a new folder.")
    source = prompt_folder(name)
    names = sorted(file.name for file in source.iterdir() if file.suffix in (".txt", ".yaml"))
    was_there = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for file in names:
            (folder / file).write_bytes((source / file).read_bytes())
    except OSError:
        if not was_there:
            rmtree(folder, ignore_errors=True)
        raise
    return names
