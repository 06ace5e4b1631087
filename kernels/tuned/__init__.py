"""Tuned kernels: faster than an operation's plain kernel on some calls.

Each module holds the kernels of one idea, states which calls they take and what they gain over the plain kernel there,
and registers them with kernels.variants.tuned. Plain files do not import this package.
"""

from kernels.tuned import layer_norm_pairs
