# Bytes per FLOP, consistently, so that the bounds come out right.
# rejected by: ridge
# told: ridge\(2e\+12, 1e\+12\): got 0.5, expected 2


# %% grade_id="bound-answer"
def ridge(peak, bandwidth):
    return bandwidth / peak


def bound(flops, nbytes, peak, bandwidth):
    return "memory" if nbytes / flops > ridge(peak, bandwidth) else "compute"
