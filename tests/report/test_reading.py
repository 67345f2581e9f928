"""Replies read with help are those read without, in the same order."""

from skillmix.core.rubric import Phrases
from skillmix.core.texts import read_calls, student_texts
from skillmix.engine.run_folder import RunFolder
from skillmix.stages.report_reading import read_gradings
from tests.report.worlds import World


def test_a_second_process_changes_nothing(world: World) -> None:
    with RunFolder(world.run).read() as journal:
        texts = student_texts(journal.calls("generate"), journal.combinations(), turns=2)
        alone = list(read_calls(texts, journal.calls("grade"), phrases=Phrases()))

        helped = list(read_gradings(texts, journal.calls("grade"), phrases=Phrases(), here=100))

    assert len(alone) > 2000
    assert helped == alone
