"""Empty packages in the place of those that only a GPU uses.

The package index has no CPU build of torch for Linux, and its CUDA build requires packages that nothing loads without
a GPU. pip has no option to leave a requirement out: `--no-deps` does it once, but the next `pip install` finds the gap
and fills it. An empty package with the same version and the label `+left.out` satisfies the requirement, now and later,
`pip check` included, and `pip list` shows it. If a requirement changes, pip takes the real package instead.
"""

from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

from tools.setup.plan import LEFT_OUT


def write_left_out(folder: Path, packages: Mapping[str, str]) -> None:
    """Write one empty wheel for each name and version."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, version in packages.items():
        _write_wheel(folder, name, f"{version}+{LEFT_OUT}")


def _write_wheel(folder: Path, name: str, version: str) -> None:
    stem = f"{name.replace('-', '_')}-{version}"
    about = f"{stem}.dist-info"
    files = {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        "Summary: Left out by the set-up of skillmix, because this machine has no GPU.\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: skillmix\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{about}/RECORD"])
    with ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
