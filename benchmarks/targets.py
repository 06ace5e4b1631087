"""What each kernel must reach on an H200, in the run that timed it.

Shares are of the row's ceiling: the copy bandwidth on the least bytes, the read-only or write-only bandwidth where
almost all is read or written.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Target:
    """At least this `share` of the ceiling, this many `flops_per_second`, this many times as fast as named providers.

    A provider named in `ahead` is judged by that ratio alone; every other one may be at most 3 % faster.
    """

    share: float = 0.0
    flops_per_second: float = 0.0
    ahead: dict[str, float] = field(default_factory=dict)


_HUNDRED_MILLION = (100_000_000,)
_ROWS = {columns: (32768, columns) for columns in (1024, 4096, 8192, 16384)}
_WIDE = {32768: (16384, 32768), 65536: (8192, 65536), 131072: (4096, 131072)}

_SHARES: dict[tuple[str, tuple[int, ...]], float] = {("bias_dropout_residual", (16384, 4096)): 0.88}
for _name in ("add_gelu", "residual_act", "swiglu", "geglu"):
    _SHARES |= {(_name, _HUNDRED_MILLION): 0.96, (f"{_name} backward", _HUNDRED_MILLION): 0.96}
for _name in ("layer_norm", "layer_norm_act", "rms_norm", "l2_norm", "softmax"):
    _SHARES |= {(_name, shape): 0.86 if columns == 1024 else 0.93 for columns, shape in _ROWS.items()}
for _name in ("residual_layer_norm", "residual_rms_norm"):
    _SHARES |= {(_name, shape): 0.92 if columns == 1024 else 0.95 for columns, shape in _ROWS.items()}
_SHARES |= {("layer_norm_int8", shape): 0.75 if columns == 1024 else 0.88 for columns, shape in _ROWS.items()}
_SHARES |= {("softmax", shape): 0.90 if columns == 32768 else 0.82 for columns, shape in _WIDE.items()}
_SHARES |= {("cross_entropy", shape): 0.88 for shape in (_ROWS[16384], _WIDE[65536], _WIDE[131072])}
_SHARES |= {("softmax_topk", shape): 0.60 for shape in (_ROWS[1024], _ROWS[4096], (16384, 16384))}
for _name in ("layer_norm backward", "rms_norm backward"):
    _SHARES |= {(_name, _ROWS[columns]): 0.78 for columns in (4096, 8192, 16384)}
_SHARES |= {("softmax backward", _ROWS[columns]): 0.90 for columns in (4096, 16384)}

TARGETS = {key: Target(share=share) for key, share in _SHARES.items()}
