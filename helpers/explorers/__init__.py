"""Live charts: sliders that move marks on a chart, fast enough to feel."""

from helpers.explorers.launches import launch_explorer
from helpers.explorers.occupancy import occupancy_explorer
from helpers.explorers.roofline import roofline_explorer
from helpers.explorers.warp import warp_explorer

__all__ = ["launch_explorer", "occupancy_explorer", "roofline_explorer", "warp_explorer"]
