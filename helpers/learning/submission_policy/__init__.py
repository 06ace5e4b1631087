"""Decide from the text of a submission's answers what may be graded."""
