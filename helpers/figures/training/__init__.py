"""Figures of training: recomputation, checkpointing, dropout, loss curves."""
