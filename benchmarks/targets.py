"""What each kernel must reach on an H200: the share of the copy bandwidth measured in the same run.

Where almost nothing is written (cross entropy's forward), it is the share of the read-only bandwidth.
"""

_HUNDRED_MILLION = (100_000_000,)
_ROWS = {columns: (32768, columns) for columns in (1024, 4096, 8192, 16384)}
_WIDE = {32768: (16384, 32768), 65536: (8192, 65536), 131072: (4096, 131072)}

TARGETS: dict[tuple[str, tuple[int, ...]], float] = {("bias_dropout_residual", (16384, 4096)): 0.88}
for _name in ("add_gelu", "residual_act", "swiglu", "geglu"):
    TARGETS |= {(_name, _HUNDRED_MILLION): 0.96, (f"{_name} backward", _HUNDRED_MILLION): 0.96}
for _name in ("layer_norm", "layer_norm_act", "rms_norm", "l2_norm", "softmax"):
    TARGETS |= {(_name, shape): 0.86 if columns == 1024 else 0.93 for columns, shape in _ROWS.items()}
for _name in ("residual_layer_norm", "residual_rms_norm"):
    TARGETS |= {(_name, shape): 0.92 if columns == 1024 else 0.95 for columns, shape in _ROWS.items()}
TARGETS |= {("layer_norm_int8", shape): 0.75 if columns == 1024 else 0.88 for columns, shape in _ROWS.items()}
TARGETS |= {("softmax", shape): 0.90 if columns == 32768 else 0.82 for columns, shape in _WIDE.items()}
TARGETS |= {("cross_entropy", shape): 0.88 for shape in (_ROWS[16384], _WIDE[65536], _WIDE[131072])}
TARGETS |= {("softmax_topk", shape): 0.60 for shape in (_ROWS[1024], _ROWS[4096], (16384, 16384))}
for _name in ("layer_norm backward", "rms_norm backward"):
    TARGETS |= {(_name, _ROWS[columns]): 0.78 for columns in (4096, 8192, 16384)}
TARGETS |= {("softmax backward", _ROWS[columns]): 0.90 for columns in (4096, 16384)}
