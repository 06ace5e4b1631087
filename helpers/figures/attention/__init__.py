"""Figures of lesson 10: attention by length, tile and hardware unit."""
