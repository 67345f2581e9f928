"""A call that is to be made, and the limits on how many calls a run makes and what they cost."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from skillmix.calls import CallKey, CallProblem, Outcome, Reply, Request, is_count
from skillmix.experiment.prices import Price


class Task(NamedTuple):
    """A request for one of the models by name."""

    model: str
    request: Request


class Budget(Protocol):
    """Decides whether a call may start, and learns what it cost."""

    def may_start(self, task: Task) -> bool:
        """Whether the limit holds even if all calls in flight and this one cost their worst."""
        ...

    def release(self, task: Task) -> None:
        """Hold nothing back for a call that has to start again."""
        ...

    def at_risk(self, task: Task) -> float | None:
        """The most that one try may cost; None where no limit is kept."""
        ...

    def charge(self, task: Task, problem: CallProblem) -> float | None:
        """What a try without a reply may have cost, which is spent from now on; None for nothing."""
        ...

    def settle(self, task: Task, outcome: Outcome) -> Outcome:
        """The outcome with its price, now that the call is over."""
        ...


class LimitedBudget:
    """Holds a run to its budget over all its resumes."""

    def __init__(
        self,
        prices: Mapping[str, Price | None],
        *,
        spent: tuple[int, float],
        max_calls: int | None,
        max_usd: float | None,
    ) -> None:
        self._prices = prices
        self.calls, self.usd = spent
        self._max_calls = max_calls
        self._max_usd = max_usd
        self._flying: dict[CallKey, float] = {}

    def may_start(self, task: Task) -> bool:
        """Whether the limits hold even if all calls in flight and this one cost their worst."""
        price = self._prices[task.model]
        worst = price.worst(task.request) if price else 0.0
        if not self._may_spend(worst) or not self._may_call():
            return False
        self._flying[task.request.key] = worst
        return True

    def release(self, task: Task) -> None:
        """Hold nothing back for a call that has to start again."""
        self._flying.pop(task.request.key, None)

    def at_risk(self, task: Task) -> float | None:
        """The most that one try may cost; None where no limit is kept."""
        has_limit = self._max_calls is not None or self._max_usd is not None
        return self._flying.get(task.request.key, 0.0) if has_limit else None

    def charge(self, task: Task, problem: CallProblem) -> float | None:
        """A try without a reply costs its worst case, unless it is known that nobody bills it."""
        price = self._prices[task.model]
        if problem.is_free or price is None:
            return None
        cost = self._cost(price, problem.tokens, self._flying.get(task.request.key, 0.0))
        self.usd += cost
        return cost

    def settle(self, task: Task, outcome: Outcome) -> Outcome:
        """The outcome with its price; tokens that nobody counted, or that cannot be, cost what they could have."""
        worst = self._flying.pop(task.request.key, 0.0)
        price = self._prices[task.model]
        if not isinstance(outcome, Reply) or price is None:
            return outcome
        # A text of no tokens from a prompt of no tokens is a count that nobody made.
        has_counted = outcome.input_tokens and (outcome.output_tokens or not outcome.text)
        counted = (outcome.input_tokens, outcome.output_tokens) if has_counted else (None, None)
        cost = self._cost(price, counted, worst)
        self.usd += cost
        return replace(outcome, cost_usd=cost)

    def _cost(self, price: Price, tokens: tuple[int | None, int | None], worst: float) -> float:
        """What a server counted, if it can be true: neither below nothing nor beyond the worst case."""
        first, second = tokens
        if first is None or second is None or not is_count(first) or not is_count(second):
            return worst
        return min(price.of(first, second), worst)

    def _may_spend(self, more: float) -> bool:
        return self._max_usd is None or self.usd + sum(self._flying.values()) + more <= self._max_usd

    def _may_call(self) -> bool:
        if self._max_calls is not None and self.calls + 1 > self._max_calls:
            return False
        self.calls += 1
        return True
