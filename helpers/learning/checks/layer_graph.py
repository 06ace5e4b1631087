"""Build a transformer layer as a small graph for helpers.instruments.fusion.small_graph to partition."""


def transformer_layer(tokens: int, width: int, itemsize: int = 2) -> dict:
    """Return a decoder layer: attention as a library kernel, a gated feed-forward layer of 4 x width, dropout,
    residuals.

    Args:
        tokens: rows of x.
        width: columns of x.
        itemsize: bytes per element.
    """
    tensors, operations = {}, []

    def add(name: str, kind: str, columns: int, reads: list[str], written: str, elsewhere=(), inner: int = 0) -> None:
        if inner:  # a product's weights
            tensors[f"w_{name}"] = itemsize * inner * columns
            reads = elsewhere = [*reads, f"w_{name}"]
        tensors[written] = itemsize * tokens * columns
        operations.append(
            {
                "name": name,
                "kind": kind,
                "rows": tokens,
                "columns": columns,
                "reads": reads,
                "elsewhere": list(elsewhere),
                "writes": [written],
                "flops": 2 * tokens * inner * columns,
            }
        )

    tensors["x"] = itemsize * tokens * width
    add("norm_1", "rows", width, ["x"], "n1")
    add("qkv", "matmul", 3 * width, ["n1"], "heads", inner=width)
    add("rotary", "elementwise", 3 * width, ["heads"], "turned", elsewhere=["heads"])
    add("attention", "opaque", width, ["turned"], "mixed")
    add("project", "matmul", width, ["mixed"], "p", inner=width)
    add("dropout_1", "elementwise", width, ["p"], "p1")
    add("residual_1", "elementwise", width, ["x", "p1"], "x")
    add("norm_2", "rows", width, ["x"], "n2")
    add("gate", "matmul", 4 * width, ["n2"], "g", inner=width)
    add("up", "matmul", 4 * width, ["n2"], "u", inner=width)
    add("silu", "elementwise", 4 * width, ["g"], "s")
    add("mul", "elementwise", 4 * width, ["s", "u"], "m")
    add("down", "matmul", width, ["m"], "o", inner=4 * width)
    add("dropout_2", "elementwise", width, ["o"], "o1")
    add("residual_2", "elementwise", width, ["x", "o1"], "x")
    return {"tensors": tensors, "operations": operations, "results": ["x"]}
