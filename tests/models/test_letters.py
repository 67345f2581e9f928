"""Requests on their way to the process of the local models."""

import pickle

from skillmix.calls import Decoding, GenerateKey, GradeKey, Message, Request
from skillmix.models.local.apart.letters import Ask


def test_requests_arrive_as_they_were_sent() -> None:
    shared = Message("user", "Write a sentence.")
    sent = [
        Request(GenerateKey("s", "c", 1, 2), "m", (shared, Message("assistant", "")), Decoding(0.7, 64), 5),
        Request(GenerateKey("s", "c", 2, 1), "m", (shared,), Decoding(None, None, 0.9, '{"a":1}'), None),
        Request(GradeKey("s", "c", 1, "t", "g", 0, 1), "m", (Message("system", "x"), shared), Decoding(0.7, 64), 6),
    ]
    letter = Ask(1, [(number, request.without_subject()) for number, request in enumerate(sent)])
    arrived = [request for _, request in pickle.loads(pickle.dumps(letter)).questions]
    assert arrived == sent
    assert [request.content_hash for request in arrived] == [request.content_hash for request in sent]
    assert arrived[0].messages[0] is arrived[1].messages[0]
