"""The progress of a run in words."""

from skillmix.render import dollars, duration, listed, percent, whole
from skillmix.runs.progress.time_left import TimeLeft, Work


def begin_words(work: Work) -> str:
    """The line at the beginning of a step.

    >>> begin_words(Work("eval", "calls", total=1200, bound="at most"))
    'eval: begins, at most 1,200 calls'
    """
    planned = f", {_total(work)} {_unit(work)}" if work.total and _is_counted(work) else ""
    return f"{work.name}: begins{planned}"


def step_words(work: Work, detail: str = "") -> str:
    """How far a step is.

    >>> step_words(Work("eval", "calls", total=1200, done=300), "12/s")
    'eval: 300 of 1,200 calls, 12/s'
    >>> step_words(Work("m1", "training", total=50, done=3), "loss 2.1")
    'm1: step 3 of 50, loss 2.1'
    """
    if not _is_counted(work):
        return work.name
    known = f" of {_total(work)}" if work.total else ""
    done = whole(work.done)
    progress = f"step {done}{known}" if work.kind == "training" else f"{done}{known} {_unit(work)}"
    return f"{work.name}: {progress}" + (f", {detail}" if detail else "")


def run_words(share: float, left: TimeLeft | None) -> str:
    """How far the whole run is.

    >>> run_words(0.4, TimeLeft(130.0))
    'the run: 40 %, about 2 min left'
    """
    return f"the run: {percent(share)}" + (f", {left_words(left)}" if left else "")


def left_words(left: TimeLeft) -> str:
    """The time left, without the steps that are not measured yet.

    >>> left_words(TimeLeft(200.0, ("m1", "report")))
    'about 3 min left without m1 and report'
    """
    names = left.unmeasured
    shown = names if len(names) < 4 else (*names[:2], f"{len(names) - 2} more steps")
    without = f" without {listed(shown)}" if names else ""
    return f"about {duration(left.seconds)} left{without}"


def call_words(pace: float | None, *, cost_usd: float, retried: int) -> str:
    """The pace, cost and retries of a step of calls.

    >>> call_words(0.25, cost_usd=0.0, retried=0), call_words(1200.4, cost_usd=1.5, retried=3)
    ('0.25/s', '1,200/s, 1.50 US dollars, 3 tried again')
    """
    facts = [
        (f"{pace:.2f}/s" if pace < 10 else f"{pace:,.0f}/s") if pace else "",
        f"{dollars(cost_usd)} US dollars" if cost_usd else "",
        f"{whole(retried)} tried again" if retried else "",
    ]
    return ", ".join(filter(None, facts))


def _is_counted(work: Work) -> bool:
    return work.kind not in ("report", "annotate", "graders")


def _unit(work: Work) -> str:
    return "steps" if work.kind == "training" else "calls"


def _total(work: Work) -> str:
    return ("" if work.bound == "about" else f"{work.bound} ") + whole(max(work.total or 0, work.done))
