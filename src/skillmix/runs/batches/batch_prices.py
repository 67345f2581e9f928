"""What the calls of a model cost, in its batches or outside."""

from skillmix.experiment.costs import Price, price_of
from skillmix.experiment.plan import Settings
from skillmix.models.batches.dialects import dialect_of
from skillmix.models.specs import parse_spec


def batch_share(settings: Settings, prices: dict[str, Price]) -> float | None:
    """The cost of a model's calls in batches as a share of direct calls; None if it has no batches."""
    spec = parse_spec(str(settings.asked))
    dialect = None if spec.replicas else dialect_of(spec, settings.batch or True)
    price = price_of(spec, prices)
    if dialect is None or price is None:
        return None
    return dialect.factor if price.batch is None else price.batch


def price_of_calls(settings: Settings, prices: dict[str, Price]) -> Price | None:
    """The price of the calls that a model gets; None if it is not known."""
    spec = parse_spec(str(settings.asked))
    price = price_of(spec, prices)
    dialect = dialect_of(spec, settings.batch) if settings.batch else None
    return price if price is None or dialect is None else price.in_batch(dialect.factor)
