"""The length of slots on a GPU."""

from typing import Final

from skillmix.models.local.kv_cache import CacheShape

_TYPICAL_LENGTH: Final = 1024
_SHARE_OF_MEMORY: Final = 0.6
"""The share of the device's memory that longer slots than necessary may take."""


def roomy_length(length: int, shape: CacheShape, *, slots: int, memory: int, limit: int | None) -> int:
    """A length with room for later turns and longer prompts, if the memory allows it, else the length itself.

    Slots that become too short are expensive: all rows must end before longer ones are made, no prompt is known any
    more, and everything is captured again. `limit` is the number of positions that the model supports.
    """
    roomy = max(_TYPICAL_LENGTH, 3 * length // 2)
    if limit is not None:
        roomy = min(roomy, limit)
    size = slots * roomy * shape.bytes_per_token
    return max(length, roomy) if size <= _SHARE_OF_MEMORY * memory else length
