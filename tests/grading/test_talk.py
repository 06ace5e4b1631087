"""A conversation with a process that may say anything, at any time, or nothing."""

import json
import socket
import threading
import time

import pytest

from helpers.grading.replay.channel import HEAD, Channel, ChannelError


def conversation(other, most_json=1000, seconds=60.0):
    """What asking comes to where the other end is served by `other(connection)`."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=other, args=[theirs], daemon=True)
    thread.start()
    with ours:
        try:
            return Channel(ours, most_json).ask({"x": 1}, b"ab" * 100_000, seconds=seconds)
        finally:
            theirs.close()


def asked(connection) -> bytes:
    """The nonce of a question, which is read to its end."""
    nonce, text, rest = HEAD.unpack(connection.recv(HEAD.size, socket.MSG_WAITALL))
    connection.recv(text + rest, socket.MSG_WAITALL)
    return nonce


def answer(nonce: bytes, text: bytes, payload: bytes = b"") -> bytes:
    return HEAD.pack(nonce, len(text), len(payload)) + text + payload


def says(make):
    def other(connection):
        connection.sendall(make(asked(connection)))
        time.sleep(2)

    return other


def drips(connection):
    nonce = asked(connection)
    for byte in answer(nonce, json.dumps({"x": "y" * 500}).encode()):
        try:
            connection.sendall(bytes([byte]))
        except OSError:
            return
        time.sleep(0.01)


def test_an_answer_comes_with_its_nonce_and_its_bytes():
    said = conversation(says(lambda nonce: answer(nonce, b'{"y": 2}', b"bytes")))
    assert said == ({"y": 2}, b"bytes")


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda connection: connection.shutdown(socket.SHUT_RDWR), "ended without a result"),
        (says(lambda nonce: answer(bytes(16), b"{}")), "answered a question that it wasn't asked"),
        (says(lambda nonce: answer(nonce, b"{}") + b"x"), "sent more than its answer"),
        (says(lambda nonce: answer(nonce, b"{}") * 2), "sent more than its answer"),
        (says(lambda nonce: answer(nonce, b" " * 1001)), "said too much"),
        (says(lambda nonce: HEAD.pack(nonce, 2, 1 << 62) + b"{}"), "said too much"),
        (says(lambda nonce: answer(nonce, b"[]")), "sent an invalid message"),
        (says(lambda nonce: answer(nonce, b"[" * 1000)), "sent an invalid message"),
        (says(lambda nonce: answer(nonce, b"\xff")), "sent an invalid message"),
    ],
)
def test_what_is_no_answer_ends_the_conversation(other, told):
    with pytest.raises(ChannelError, match=told):
        conversation(other)


@pytest.mark.parametrize(
    "other",
    [
        lambda connection: time.sleep(2),  # reads nothing
        asked,
        drips,  # in 5 s all of it
        says(lambda nonce: HEAD.pack(nonce, 900, 0) + b"{}"),
    ],
    ids=["nothing read", "nothing said", "drop by drop", "a part"],
)
def test_an_answer_has_an_end_in_time(other):
    with pytest.raises(ChannelError, match=r"took over 0\.5 s"):
        conversation(other, seconds=0.5)


def test_what_was_said_before_a_question_ends_it():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer(bytes(16), b"{}"))
        with pytest.raises(ChannelError, match="sent a message without being asked"):
            Channel(ours).ask({}, seconds=0.5)
