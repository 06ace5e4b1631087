"""Figures of lessons 08, 09 and 12: tiles, pipelines, convolutions as matmuls, expert layers."""
