"""Live charts: sliders that move marks on a chart, fast enough to feel."""

from helpers.explorers.occupancy import occupancy_explorer
from helpers.explorers.roofline import roofline_explorer

__all__ = ["occupancy_explorer", "roofline_explorer"]
