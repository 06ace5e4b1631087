"""Figures of launches: their overhead, timelines and traces."""
