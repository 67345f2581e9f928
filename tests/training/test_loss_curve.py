"""The picture of a training run."""

import re
from xml.etree import ElementTree

from skillmix.training.log import loss_curve


def test_a_curve_has_labelled_axes_and_a_line_for_each_loss() -> None:
    curves = {"answers": [(n, 3 / n) for n in range(1, 2000)], "validation": [(500, 1.0), (1000, 0.5)]}
    picture = loss_curve(curves)

    root = ElementTree.fromstring(picture)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"optimizer step", "loss (nats a token)", "answers", "validation", "0.0", "3.0", "2000"} <= set(words)
    assert len(re.findall("stroke-dasharray: [1-9]", picture)) == 2, (
        "the line of the validation, here and in the legend"
    )
    assert loss_curve(curves) == picture


def test_a_run_of_one_step_and_no_run_can_be_drawn() -> None:
    for curves in ({}, {"answers": [(1, 0.0)]}, {"answers": [(1, 12.5)]}):
        ElementTree.fromstring(loss_curve(curves))
