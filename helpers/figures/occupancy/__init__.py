"""Figures of occupancy: registers, warps, waves."""
