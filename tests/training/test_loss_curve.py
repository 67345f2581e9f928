"""The picture of a training run."""

from xml.etree import ElementTree

from skillmix.training.log import loss_curve


def test_a_curve_has_labelled_axes_and_a_line_for_each_loss() -> None:
    picture = loss_curve({"answers": [(n, 3 / n) for n in range(1, 2000)], "validation": [(500, 1.0), (1000, 0.5)]})

    root = ElementTree.fromstring(picture)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert {"optimizer step", "loss (nats a token)", "answers", "validation", "0", "3", "1999"} <= set(words)
    assert len(lines) == 2
    assert [len(line.attrib["points"].split()) for line in lines] == [1999, 2]


def test_a_run_of_one_step_and_no_run_can_be_drawn() -> None:
    for curves in ({}, {"answers": [(1, 0.0)]}, {"answers": [(1, 12.5)]}):
        ElementTree.fromstring(loss_curve(curves))
