"""The ids of calls in batches: the tag of the batch, and a hash of the call."""

from skillmix.hashing import digest


def custom_id(tag: str, request_key: str, request_hash: str) -> str:
    """The id of a call in a batch: letters, digits and a hyphen, at most 64 of them.

    >>> len(custom_id("skx0123456789abcdef0", "generate/s/c/0/1", "ab"))
    61
    """
    return f"{tag}-{digest('custom id', request_key, request_hash, size=20).hex()}"


def tag_in(custom: str) -> str:
    """The tag in the id of a call."""
    return custom.partition("-")[0]
