"""Charts of performance: rooflines, timings, sweeps, curves over one quantity."""
