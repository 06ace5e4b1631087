"""The replay of a submission in this process, with its messages as they would travel."""

import json
from collections.abc import Callable

from helpers.grading.replay.replayer import Replayer


def asked_here() -> Callable[[dict, bytes], tuple[dict, bytes]]:
    """What `server.judged` asks, of a replay of its own."""
    replayer = Replayer()

    def ask(question: dict, payload: bytes) -> tuple[dict, bytes]:
        reply, results = replayer.reply(json.loads(json.dumps(question)), payload, [])
        return json.loads(json.dumps(reply)), results

    return ask
