"""Tasks, which are calls to make, and the limits on the number and cost of a run's calls."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from skillmix.calls import CallKey, CallProblem, Outcome, Reply, Request, is_count
from skillmix.experiment.costs import Price

_ROUNDING_USD: Final = 1e-6
"""If the reserved total is this close to the limit in US dollars, it is recomputed from the individual amounts."""


class Task(NamedTuple):
    """A request, and the name of the model that should answer it."""

    model: str
    request: Request


class Budget:
    """Enforces the limits of a run across all its invocations."""

    def __init__(
        self,
        prices: Mapping[str, Price | None],
        *,
        spent: tuple[int, float] = (0, 0.0),
        max_calls: int | None = None,
        max_usd: float | None = None,
    ) -> None:
        self._prices = prices
        self.calls, self.usd = spent
        self._max_calls = max_calls
        self._max_usd = max_usd
        self._reserved: dict[CallKey, float] = {}
        self._held: set[CallKey] = set()
        """Calls in batches of an earlier invocation that have reserved amounts but have not been queued again."""
        self._shares: dict[CallKey, float] = {}
        """For calls that an earlier invocation sent in batches, the price as a share of the current price."""
        self._reserved_usd = 0.0
        """The sum of all reserved amounts. It is approximate, because rounding errors accumulate."""

    def reserve(self, task: Task) -> bool:
        """Reserve the worst-case cost of a call; return False if the call would exceed a limit."""
        key = task.request.key
        if self._held and key in self._held:
            self._held.discard(key)
            return True
        worst = self.worst(task) or 0.0
        if not self._may_spend(worst) or (self._max_calls is not None and self.calls >= self._max_calls):
            return False
        self.calls += 1
        self._reserved[key] = worst
        self._reserved_usd += worst
        return True

    def worst(self, task: Task) -> float | None:
        """Return the worst-case cost of a call; None if the model's price is unknown."""
        price = self._prices[task.model]
        return price.worst(task.request) if price else None

    def hold(self, key: CallKey, worst: float, share: float = 1.0) -> None:
        """Reserve the worst-case cost of a call in a batch, given its price as a share of the model's current price."""
        self._held.add(key)
        self._shares[key] = share
        self._reserved[key] = worst
        self._reserved_usd += worst
        self.calls += 1

    def release(self, task: Task) -> None:
        """Release the amount that was reserved for a call that must be repeated."""
        self._reserved_usd -= self._reserved.pop(task.request.key, 0.0)
        self._shares.pop(task.request.key, None)

    def at_risk(self, task: Task) -> float | None:
        """Return the worst-case cost of one attempt; None if there is no limit."""
        has_limit = self._max_calls is not None or self._max_usd is not None
        return self._reserved.get(task.request.key, 0.0) if has_limit else None

    def charge(self, task: Task, problem: CallProblem) -> float | None:
        """Charge the worst-case cost for an attempt without a reply, unless the attempt is known to be free."""
        price = self._prices[task.model]
        if problem.is_free or price is None:
            return None
        cost = self._cost(task, price, problem.tokens, self._reserved.get(task.request.key, 0.0))
        self.usd += cost
        return cost

    def settle(self, task: Task, outcome: Outcome) -> Outcome:
        """Add the cost to an outcome: the worst-case cost if token counts are missing or impossible."""
        worst = self._reserved.pop(task.request.key, 0.0)
        self._reserved_usd -= worst
        price = self._prices[task.model]
        if not isinstance(outcome, Reply) or price is None:
            return outcome
        if price.is_zero:
            return outcome.with_cost(0.0)
        # A server that reports zero tokens for a prompt or a text has not counted the tokens.
        has_counted = outcome.input_tokens and (outcome.output_tokens or not outcome.text)
        counted = (outcome.input_tokens, outcome.output_tokens) if has_counted else (None, None)
        cost = self._cost(task, price, counted, worst)
        self.usd += cost
        return outcome.with_cost(cost)

    def _cost(self, task: Task, price: Price, tokens: tuple[int | None, int | None], worst: float) -> float:
        """Compute the cost of the tokens that a server counted, capped at the worst-case cost."""
        first, second = tokens
        if first is None or second is None or not is_count(first) or not is_count(second):
            return worst
        share = self._shares.get(task.request.key, 1.0) if self._shares else 1.0
        return min(share * price.of(first, second), worst)

    def _may_spend(self, more: float) -> bool:
        if self._max_usd is None or not more:
            return self._max_usd is None or self.usd <= self._max_usd
        room = self._max_usd - self.usd - more
        if abs(room - self._reserved_usd) > _ROUNDING_USD:
            return self._reserved_usd < room
        return sum(self._reserved.values()) <= room
