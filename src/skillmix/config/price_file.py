"""The price file: model specs to dollars per million tokens."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from skillmix.config.catalogs import SHIPPED
from skillmix.config.yaml_files import read_yaml
from skillmix.core.errors import faults_error
from skillmix.core.prices import Price

_Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    input: _Dollars
    output: _Dollars


def load_prices(path: Path | None) -> dict[str, Price]:
    """The user's prices, or those that come with the package."""
    file = path or SHIPPED / "prices.yaml"
    try:
        entries = TypeAdapter(dict[str, _Entry]).validate_python(read_yaml(file))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors()]
        raise faults_error(str(file), faults, hint="A line is openai:gpt-4o: {input: 2.5, output: 10.0}.") from None
    return {spec: Price(entry.input, entry.output) for spec, entry in entries.items()}
