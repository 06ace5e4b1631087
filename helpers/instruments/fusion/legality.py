"""Decide which operations one kernel can do, with the reason if not.

A kernel is built around the elements of one shape ("pointwise"), the rows of a reduction ("rows"), the tiles of a
matmul or a convolution with its epilogue ("matmul", "convolution"), or attention's two matmuls with a softmax between.
No block waits for another.
"""

import functools
import math

from helpers.instruments.fusion.graph_nodes import POINTWISE, PRODUCTS, FusionNode, Link
from helpers.instruments.fusion.operator_kinds import SOFTMAX, WINDOWS

ROWS = ("reduction", "normalisation")
SPLIT_KEPT = 64  # fewer results, of more than SPLIT_LENGTH elements each, take several blocks per result
SPLIT_LENGTH = 2**14
COLUMNS = 32  # results adjacent in memory: 64 to 128 bytes, fetched together
MANY_BLOCKS = 128  # about as many as a large GPU has SMs
INDEXED = frozenset(["self", "weight", "input"])  # arguments that a gather reads at data-dependent positions
LARGEST = 64  # maximum operations per kernel: a larger one is unreadable


class NotLegalError(ValueError):
    """One kernel cannot do it; the message says why in a few words."""


@functools.lru_cache(maxsize=2**16)
def bits(mask: int) -> tuple[int, ...]:
    """Return the positions of the set bits, ascending."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(found)


class Legality:
    """The rules for what can share a kernel, for one graph.

    Args:
        epilogues: whether kernels may be built around matmuls and convolutions.
    """

    def __init__(self, nodes: list[FusionNode], epilogues: bool = True):
        self.nodes, self.epilogues = nodes, epilogues
        self.up = [0] * len(nodes)  # for each node, bits of all nodes before it
        for node in nodes:
            for source in bits(node.before):
                self.up[node.index] |= self.up[source] | 1 << source
        self.down = [0] * len(nodes)
        for node in reversed(nodes):
            for source in bits(node.before):
                self.down[source] |= self.down[node.index] | 1 << node.index
        self.readers = [0] * len(nodes)
        for node in nodes:
            for link in node.links:
                self.readers[node.index] |= 1 << link.target
        self.neighbours = _neighbours(nodes)
        self._kinds: dict[tuple[int, int], str | NotLegalError] = {}

    def between(self, mask: int) -> int:
        """Return the outside nodes that wait for a node inside and that another node inside waits for."""
        up = down = 0
        for place in bits(mask):
            up |= self.up[place]
            down |= self.down[place]
        return up & down & ~mask

    def _is_connected(self, mask: int) -> bool:
        found = waiting = mask & -mask
        while waiting:
            around = 0
            for place in bits(waiting):
                around |= self.neighbours[place]
            waiting = around & mask & ~found
            found |= waiting
        return found == mask

    def stored(self, mask: int, placed: int) -> int:
        """Return the nodes inside whose results go to memory: kept, read by a node placed outside, or unread (those
        PyTorch writes anyway)."""
        found = 0
        for place in bits(mask):
            readers = self.readers[place]
            if self.nodes[place].kept or readers & placed & ~mask or not readers:
                found |= 1 << place
        return found

    def kind(self, mask: int, stored: int) -> str:
        """Return what the kernel of these nodes is built around.

        Raises:
            NotLegalError: there is no such kernel.
        """
        found = self._kinds.get((mask, stored))
        if found is None:
            try:
                found = self._kind([self.nodes[place] for place in bits(mask)], mask, stored)
            except NotLegalError as error:
                found = error
            self._kinds[mask, stored] = found
        if isinstance(found, NotLegalError):
            raise found
        return found

    def is_legal(self, mask: int, stored: int) -> bool:
        try:
            self.kind(mask, stored)
        except NotLegalError:
            return False
        return True

    def _kind(self, group: list[FusionNode], mask: int, stored: int) -> str:
        if len(group) == 1:
            return _alone(group[0])
        if len(group) > LARGEST:
            raise NotLegalError(f"more than {LARGEST} operations in one kernel")
        if not self._is_connected(mask):
            raise NotLegalError("they share no tensor")
        if between := self.between(mask):
            raise NotLegalError(f"{self.nodes[bits(between)[0]].step.name} has to run between them")
        _refuse_chance(group)
        inside = [link for node in group for link in node.links if mask >> link.target & 1]
        for node in group:
            if node.kind in ("opaque", "attention"):
                raise NotLegalError(f"{node.name} is a separate kernel with unknown internals")
            for source, aligned in node.aligned.items():
                if mask >> source & 1 and not aligned:
                    raise NotLegalError(f"{node.name} overwrites elements that the kernel has yet to read")
        for link in inside:
            _through(self.nodes[link.source], self.nodes[link.target], link, self.epilogues)
        products = [node for node in group if node.kind in PRODUCTS]
        if products and not self.epilogues:
            raise NotLegalError(f"{products[0].name} stays a library call")
        if len(products) > 1:
            return self._attention(group, products, inside, stored)
        if products:
            return self._tiles(group, products[0], inside, mask, stored)
        if any(node.kind in ROWS for node in group):
            return self._rows(group, inside, mask, stored)
        return self._pointwise(group, inside, stored)

    def _pointwise(self, group, inside, stored) -> str:
        points = max((node.points for node in group if stored >> node.index & 1), default=group[-1].points)
        self._sizes(group, inside, stored, {points})
        return "pointwise"

    def _rows(self, group, inside, mask, stored) -> str:
        spaces = {node.space for node in group if node.kind in ROWS}
        if len(spaces) > 1:
            raise NotLegalError("they reduce different dimensions, or rows of different lengths")
        (space,) = spaces
        kept = math.prod(size for size, reduced in space if not reduced)
        total = math.prod(size for size, _ in space)
        made_of_rows = self._after_rows(group, inside)
        for link in inside:
            if link.permuted and (
                link.source in made_of_rows
                or any(not other.permuted for other in inside if other.source == link.source)
            ):
                raise NotLegalError("the layout changes between them: rows of one are not rows of the other")
            target = self.nodes[link.target]
            wide = target.points > kept or target.kind in ROWS
            # A normalisation with many blocks per row is two kernels; other operations may join the second.
            reduced = self.nodes[link.source].kind != "normalisation"
            if link.source in made_of_rows and reduced and wide and is_split(space):
                raise NotLegalError("the reduction spans several blocks: each would have to wait for all the others")
        summed = any(node.name == "nll_loss_forward" for node in group)
        self._sizes(group, inside, stored, {total, kept, 1} if summed else {total, kept})
        return "rows"

    def _after_rows(self, group, inside) -> set[int]:
        found = {node.index for node in group if node.kind in ROWS}
        for node in group:
            if node.index in found:
                found |= {link.target for link in inside if link.source == node.index}
        return found

    def _sizes(self, group, inside, stored, allowed) -> None:
        """Check that every node has as many elements as the kernel, or is computed where it is read and not stored."""
        for node in group:
            if node.points in allowed or node.kind in ROWS:
                continue
            if stored >> node.index & 1 or not any(link.source == node.index for link in inside):
                raise NotLegalError(f"{node.name} works on a different number of elements")

    def _tiles(self, group, product, inside, mask, stored) -> str:
        made = max(write.points for write in product.step.writes)
        after = {product.index}
        for node in group:
            if node.index == product.index:
                continue
            if node.kind not in POINTWISE and self.down[node.index] >> product.index & 1:
                raise NotLegalError(
                    f"each tile of {product.name} would have to recompute the whole rows that {node.name} needs"
                )
            if node.kind not in POINTWISE:
                raise NotLegalError(
                    f"{node.name} needs whole rows, and a tile of {product.name} holds only parts of them"
                )
            if self.up[node.index] & sum(1 << place for place in after):
                after.add(node.index)
                if node.points != made:
                    raise NotLegalError(f"{node.name} doesn't work on the elements of a tile of {product.name}")
        for link in inside:
            if link.target == product.index and product.kind == "convolution":
                raise NotLegalError("several windows of a convolution read each input, and each would recompute it")
            if link.source in after and link.part:
                raise NotLegalError("the parts it reads are in different tiles")
        for node in group:
            if node.index in after:
                continue
            if stored >> node.index & 1:
                raise NotLegalError(
                    f"the result of {node.name} is also stored, and each column of tiles would recompute it"
                )
            if any(link.target == product.index for link in inside if link.source == node.index):
                made_of = sum(read.nbytes for read in node.reads)
                if made_of > sum(write.nbytes for write in node.step.writes):
                    raise NotLegalError(
                        f"each column of tiles would reread the inputs of {node.name}, which are larger than its result"
                    )
        return product.kind

    def _attention(self, group, products, inside, stored) -> str:
        softmax = [node for node in group if node.name in SOFTMAX and node.kind == "normalisation"]
        if (
            len(products) != 2
            or len(softmax) != 1
            or any(node.name not in ("bmm", "baddbmm", "mm") for node in products)
        ):
            if self.down[products[0].index] >> products[-1].index & 1:
                raise NotLegalError("two matmuls: the second needs whole rows of the first")
            raise NotLegalError("two matmuls: the analyser builds a kernel around one")
        first, last = products
        scores = softmax[0].points
        chain = self.down[first.index] >> softmax[0].index & 1 and self.down[softmax[0].index] >> last.index & 1
        if (
            not chain
            or softmax[0].space[-1:] != ((softmax[0].space[-1][0], True),)
            or first.step.writes[0].points != scores
        ):
            raise NotLegalError("two matmuls without a softmax over rows between them")
        for node in group:
            if node is not last and stored >> node.index & 1:
                raise NotLegalError(
                    f"the result of {node.name} is needed later: fused attention doesn't store its scores"
                )
            if node.kind in POINTWISE and node.points > scores:
                raise NotLegalError(f"{node.name} works on more elements than the scores have")
            if node.kind not in POINTWISE and node not in (first, last, softmax[0]):
                raise NotLegalError(f"{node.name} is not part of attention")
        if any(link.target == last.index and link.argument not in ("self", "batch1", "") for link in inside):
            raise NotLegalError("the scores are the right-hand operand")
        return "attention"


def _neighbours(nodes: list[FusionNode]) -> list[int]:
    """Return, for each node, the bit mask of the nodes that it shares a tensor with."""
    found = [0] * len(nodes)
    readers: dict[int, int] = {}
    for node in nodes:
        for link in node.links:
            found[node.index] |= 1 << link.target
            found[link.target] |= 1 << node.index
        for read in node.reads:
            readers[read.key[0]] = readers.get(read.key[0], 0) | 1 << node.index
    for together in readers.values():
        for place in bits(together):
            found[place] |= together & ~(1 << place)
    return found


def is_split(space) -> bool:
    """Return whether a reduction takes several blocks for each of its results."""
    kept = math.prod(size for size, reduced in space if not reduced)
    length = math.prod(size for size, reduced in space if reduced)
    if space and not space[-1][1]:  # neighbours in memory belong to different results: a block handles COLUMNS of them
        return kept < COLUMNS * MANY_BLOCKS and length > MANY_BLOCKS
    return kept < SPLIT_KEPT and length > SPLIT_LENGTH


def _refuse_chance(group: list[FusionNode]) -> None:
    """Reject operations whose element counts match here but not for every size that the model leaves open."""
    counts: dict[int, tuple[str, str]] = {}
    for node in group:
        for points, count in node.extents.items():
            first, known = counts.setdefault(points, (node.step.name, count))
            if count != known:
                raise NotLegalError(f"{first} works on {known} elements, {node.step.name} on {count}: these can differ")


def _alone(node: FusionNode) -> str:
    if node.kind in POINTWISE or node.kind in ("gather", "scatter"):
        return "pointwise"
    if node.kind in ROWS:
        return "rows"
    return "eager"


def _through(source: FusionNode, target: FusionNode, link: Link, by_hand: bool) -> None:
    """Check that a value can stay in registers between two nodes of these kinds."""
    if source.name == "nll_loss_forward" and target.points > 1:
        raise NotLegalError(f"{target.name} needs the sum over all rows first")
    if source.kind == "scatter":
        raise NotLegalError(f"{source.name} writes to arbitrary positions, so its result can't be read before it ends")
    if target.kind == "gather" and link.argument in INDEXED:
        picks = target.name == "nll_loss_forward" and source.name == "_log_softmax"
        # Inductor stores the input of pooling (realize_hint in max_pool2d's and avg_pool2d's lowering).
        windows = by_hand and target.name in WINDOWS and source.kind in POINTWISE
        if not (picks or windows):
            raise NotLegalError(f"{target.name} reads it at positions that other threads compute")
    if target.kind == "scatter" and link.argument == "self":
        raise NotLegalError(f"{target.name} writes to arbitrary positions of it")
