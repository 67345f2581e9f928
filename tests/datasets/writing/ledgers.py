"""What tests know of conversations that a dataset step has begun."""

from skillmix.datasets.writing.decided_texts import ConversationKey, DecidedText
from skillmix.datasets.writing.draw_ahead import DrawAhead, Fate, key_of


class KeysDecided(set[ConversationKey]):
    """A ledger that knows which conversations are decided, and nothing else about them."""

    def note(self, key: ConversationKey, text: DecidedText | None) -> None:
        self.add(key)


def begun(ahead: DrawAhead) -> set[ConversationKey]:
    """The conversations that have begun."""
    return _keys(ahead, frozenset(Fate) - {Fate.NOT_BEGUN})


def undecided(ahead: DrawAhead) -> set[ConversationKey]:
    """The conversations that have begun and are not decided."""
    return _keys(ahead, frozenset({Fate.BEGUN, Fate.CALLED}))


def _keys(ahead: DrawAhead, fates: frozenset[Fate]) -> set[ConversationKey]:
    return {key_of(ahead.sampler.candidates[index]) for index, fate in enumerate(ahead._fates) if fate in fates}
