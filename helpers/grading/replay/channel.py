"""Exchange messages between two processes when one doesn't trust the other.

A message is a JSON object and the bytes that it describes, each limited in size. A question carries a nonce, which the
answer must repeat. Sending and receiving share one deadline, and any other message ends the conversation.
"""

import json
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence

HEAD = struct.Struct("!16sQQ")  # nonce, bytes of JSON, bytes of the rest
MAX_JSON = 8 << 20  # bytes; JSON is up to 20x larger as Python objects
MAX_BYTES = 256 << 20
PART = 1 << 20  # bytes of one read or write


class ChannelError(Exception):
    """The other process broke the protocol, so the conversation must end. One line."""


class Channel:
    """One end of a conversation.

    Args:
        connection: a stream socket.
        most_json: the maximum bytes of JSON in one message.
    """

    def __init__(self, connection: socket.socket, most_json: int = MAX_JSON):
        self._connection = connection
        self._most_json = most_json

    def close(self) -> None:
        self._connection.close()

    def ask(
        self, question: dict, payload: bytes = b"", *, seconds: float, descriptors: Sequence[int] = ()
    ) -> tuple[dict, bytes]:
        """Send a question and wait for its answer.

        Raises:
            ChannelError: no answer within `seconds`, or another message.
        """
        deadline = time.monotonic() + seconds
        if self._waiting():
            raise ChannelError("sent a message without being asked")
        nonce = secrets.token_bytes(16)
        try:
            self._send(nonce, question, payload, deadline, descriptors)
            answered, answer, rest, _ = self._receive(deadline)
        except TimeoutError:
            raise ChannelError(f"took over {seconds:g} s") from None
        except OSError:
            raise ChannelError("ended without a result") from None
        if answered != nonce:
            raise ChannelError("answered a question that it wasn't asked")
        if self._waiting():
            raise ChannelError("sent more than its answer")
        return answer, rest

    def serve(self, reply: Callable[[dict, bytes, list[int]], tuple[dict, bytes]]) -> None:
        """Answer questions until the other end is closed; descriptors that came with a question are closed after it."""
        while True:
            try:
                nonce, question, payload, descriptors = self._receive(None)
            except ConnectionError:
                return
            answer = reply(question, payload, descriptors)
            self._send(nonce, *answer, None)

    def _waiting(self) -> bool:
        return bool(select.select([self._connection], [], [], 0)[0]) and bool(
            self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        )

    def _send(
        self, nonce: bytes, said: dict, payload: bytes, deadline: float | None, descriptors: Sequence[int] = ()
    ) -> None:
        text = json.dumps(said).encode()
        head = HEAD.pack(nonce, len(text), len(payload))
        self._within(deadline)
        if descriptors:
            socket.send_fds(self._connection, [head[:1]], descriptors)
            head = head[1:]
        for part in (head + text, payload):
            view = memoryview(part)
            while view:
                self._within(deadline)
                view = view[self._connection.send(view[:PART]) :]

    def _receive(self, deadline: float | None) -> tuple[bytes, dict, bytes, list[int]]:
        self._within(deadline)
        first, descriptors, _, _ = socket.recv_fds(self._connection, 1, 4)
        if not first:
            raise ConnectionError("the other end is closed")
        nonce, text_size, payload_size = HEAD.unpack(first + self._read(HEAD.size - 1, deadline))
        if text_size > self._most_json or payload_size > MAX_BYTES:
            raise ChannelError("said too much")
        text, payload = self._read(text_size, deadline), self._read(payload_size, deadline)
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise ChannelError("sent an invalid message")
        return nonce, said, payload, descriptors

    def _read(self, size: int, deadline: float | None) -> bytes:
        # Don't allocate the announced size, only what arrives.
        parts, left = [], size
        while left:
            self._within(deadline)
            part = self._connection.recv(min(left, PART))
            if not part:
                raise ConnectionError("the other end is closed")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _within(self, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
