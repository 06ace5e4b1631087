"""Grading of exercise notebooks."""
