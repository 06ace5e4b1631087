"""The area drawn is the grid: as many block slots filled as there are blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.figures.occupancy.waves import waves_chart
from helpers.instruments.occupancy_calculator import Waves


@given(st.integers(1, 5000), st.integers(1, 10**6))
def test_the_bars_hold_every_block_of_the_grid(per_wave, grid):
    waves = Waves(per_wave, *divmod(grid, per_wave))
    axes = waves_chart(waves).figure.axes[0]
    assert sum(bar.get_width() * bar.get_height() for bar in axes.patches) == pytest.approx(grid)
    assert axes.get_xlim() == (0, waves.count)
    assert max(bar.get_height() for bar in axes.patches) <= per_wave


def test_titles_by_hand():
    # 3000 blocks, 396 at once: 7 full waves and 228 blocks; 8 x 396 - 3000 = 168 of 3168 slots stay empty.
    chart = waves_chart(Waves(396, 7, 228))
    assert chart.figure.texts[0].get_text() == "5.3% of the slots stay empty, all in the last of 8 waves"
    assert chart.text.endswith("8 waves of 396 blocks, 228 in the last: 95% of the slots used")
    assert waves_chart(Waves(396, 2, 0)).figure.texts[0].get_text() == "2 full waves: every slot is used"


def test_an_empty_grid_is_refused():
    with pytest.raises(ValueError, match="an empty grid has no wave to draw"):
        waves_chart(Waves(396, 0, 0))
