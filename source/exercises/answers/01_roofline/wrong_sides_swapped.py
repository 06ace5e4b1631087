# Left of the ridge taken for compute-bound.
# rejected by: bound
# told: got 'memory', expected 'compute'


# %% grade_id="bound-answer"
def ridge(peak, bandwidth):
    return peak / bandwidth


def bound(flops, nbytes, peak, bandwidth):
    return "compute" if flops / nbytes < ridge(peak, bandwidth) else "memory"
