"""The table of covered instructions says what the executor has, no more and no less."""

import re

from helpers.instruments import cuda
from helpers.instruments.cuda import access, arithmetic, basic_blocks, decode, matrix, mbarriers, ptx, warp

ROW = re.compile(
    r"    (?:arithmetic|comparison|conversion|bits|control|memory|barriers|warp|matrix|hints) +([a-z0-9 ]+)$", re.M
)


def test_the_table_is_the_executors_own():
    listed = set(" ".join(ROW.findall(cuda.__doc__)).split())
    builders = (access.BUILDERS, warp.BUILDERS, matrix.BUILDERS, mbarriers.BUILDERS, arithmetic.BUILDERS)
    covered = {name for family in builders for name in family} - {"bar.warp"}
    # These are taken where they are met: calls by the parser, address spaces by the decoder.
    covered |= set(ptx.CARRYING)
    covered |= basic_blocks.JUMPS | basic_blocks.BARRIERS | decode.FENCES | decode.NO_EFFECT
    covered |= {"call", "cvta", "isspacep"}
    assert listed == covered
