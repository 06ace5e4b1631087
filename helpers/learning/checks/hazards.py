"""A kernel that does what a GPU would not forgive fails, whatever it computes."""

from helpers.instruments.traffic import Traffic
from helpers.learning.outcome import AnswerError, quoted_line

LOOK_AT = {
    "out-of-bounds read": "which of its lanes have an element? Mask the others",
    "out-of-bounds store": "which of its lanes have an element? Mask the others",
    "out-of-bounds atomic": "which of its lanes have an element? Mask the others",
    "uninitialised read": "nothing was stored there before",
    "race": "two programs store here; each element needs one owner",
}


def refuse_hazards(traffic: Traffic, inputs: str) -> None:
    """Raise AnswerError at the first hazard that the meter saw in a call; `inputs` says what it was called with."""
    for hazard in traffic.hazards:
        raise AnswerError(
            f"{inputs}: {hazard.kind} of {hazard.where}, elements: {hazard.elements}",
            f"{quoted_line(hazard.file, hazard.line)}: {LOOK_AT[hazard.kind]}",
        )
