"""A kernel that does what a GPU would not forgive fails, whatever it computes."""

from helpers.instruments.traffic import Traffic
from helpers.learning.outcome import AnswerError, quoted_line

LOOK_AT = {
    "out-of-bounds read": "which of its lanes have an element? Mask the others",
    "out-of-bounds store": "which of its lanes have an element? Mask the others",
    "out-of-bounds atomic": "which of its lanes have an element? Mask the others",
    "uninitialised read": "nothing was stored there before",
    "race": "two programs store here; each element needs one owner",
    "unsynchronised read": "another program of the same launch stored this, and on a GPU may not have done so yet",
}


def require_no_hazards(traffic: Traffic, inputs: str, otherwise: str = "") -> None:
    """Raise AnswerError at the first hazard that the meter saw in a call.

    Args:
        traffic: of the call.
        inputs: what it was called with.
        otherwise: where to look instead of at a mask, of tensors that do not lie in order.
    """
    # A store past a row's end meets the next row's owner first, and leaves the tensor only at the last.
    for hazard in sorted(traffic.hazards, key=lambda each: not each.kind.startswith("out-of-bounds")):
        look_at = otherwise if otherwise and hazard.kind.startswith("out-of-bounds") else LOOK_AT[hazard.kind]
        raise AnswerError(
            f"{inputs}: {hazard.kind} of {hazard.where}, elements: {hazard.elements}",
            f"{quoted_line(hazard.file, hazard.line)}: {look_at}",
        )
