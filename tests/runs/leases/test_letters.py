"""Letters between processes: they come out of a pickle as they went in, and what was hashed is not hashed again."""

import pickle
from unittest import mock

import pytest

from skillmix import calls
from skillmix.calls import Decoding, GenerateKey, GradeKey, Message, Reply, Request, Subject
from skillmix.catalog.combinations import Combination
from skillmix.runs.budget import Task
from skillmix.runs.leases.lease import LeaveAsked, LentTry, TriesMade
from skillmix.runs.leases.mailbox import Packet

KEYS = (GenerateKey("s", "0f", 1, 2), GradeKey("s", "0f", 1, "text", "g", 2, 3))


def request() -> Request:
    messages = (Message("system", "Be \ud800 kind."), Message("user", "Grüße"))
    subject = Subject(Combination("0f", ("a",), "t"), ("x",), "text")
    return Request(KEYS[1], "m", messages, Decoding(0.5, 9), 7, subject)


@pytest.mark.parametrize("key", KEYS)
def test_tries_come_out_of_a_pickle_as_they_went_in(key: GenerateKey | GradeKey) -> None:
    reply = Reply("Grüße \udfff", "stop", 4, -1, 0.5, ("seed",))
    packet = Packet(1, 2, (TriesMade(3, (LentTry(4, key, reply, 0.5, True),)),))

    assert pickle.loads(pickle.dumps(packet)) == packet
    assert pickle.loads(pickle.dumps(reply)).with_cost(2.0).cost_usd == 2.0


def test_a_request_goes_to_the_owner_with_its_hash_and_without_its_subject() -> None:
    sent = LeaveAsked(1, (Task("grader:g", request().without_subject()),))

    with mock.patch.object(calls, "digest", side_effect=AssertionError):
        got = pickle.loads(pickle.dumps(sent)).tasks[0].request
        with mock.patch.object(calls, "content_address", side_effect=AssertionError):
            hashes = [got.content_hash, *(message.content_hash for message in got.messages)]

    assert got == request()
    assert got.subject is None
    assert hashes == [request().content_hash, *(message.content_hash for message in request().messages)]
