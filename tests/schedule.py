"""Which tests one worker does together, and in which order workers take them, when several share the suite."""

from typing import Final

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

TOGETHER: Final = ("tests/report/",)
"""Folders whose files share fixtures that take many seconds; a second worker would make them again."""

LONGEST_FIRST: Final = (
    "tests/report/",
    "tests/models/test_ray.py",
    "tests/hostile/test_hostile.py",
    "tests/steps/test_evaluate.py",
    "tests/models/test_local.py",
    "tests/datasets/test_build.py",
    "tests/datasets/test_window.py",
    "tests/test_linear_time.py",
    "tests/runs/batches/test_faults.py",
    "tests/validation/test_annotate_in_browser.py",
    "tests/models/test_batch_independence.py",
    "tests/training/test_ranks.py",
    "tests/docs/test_blocks.py",
    "tests/steps/test_paper_files.py",
    "tests/steps/test_pretraining_files.py",
    "tests/checkers/test_texts.py",
    "tests/commands/test_main.py",
    "tests/test_truth.py",
    "tests/runs/test_progress.py",
    "tests/training/test_checkpoints.py",
    "tests/catalog/test_combinations.py",
    "tests/steps/test_refused_runs.py",
    "tests/training/test_loop.py",
    "tests/runs/batches/test_kills.py",
    "tests/commands/test_run.py",
    "tests/fuzz/test_experiments.py",
    "tests/docs/test_site.py",
    "tests/steps/test_servers.py",
    "tests/training/test_trl.py",
    "tests/training/step/test_optimizer.py",
    "tests/test_rewards.py",
    "tests/runs/test_streamed_texts.py",
    "tests/checkers/test_own_checkers.py",
)
"""What takes eight seconds or more, roughly by time; short files at the end keep all workers busy until then."""


def unit_of(test: str) -> str:
    """The folder or the file that one worker does as a whole."""
    file = test.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def turn_of(test: str) -> int:
    """The place of a test in the queue; tests with the same place keep their order."""
    unit = unit_of(test)
    return LONGEST_FIRST.index(unit) if unit in LONGEST_FIRST else len(LONGEST_FIRST)


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]  # xdist comes without types
    """Give each worker one unit after the other, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
