# A tally that nested functions add to, sets of names, and a recursion.


# %% grade_id="count-affine"
def tally():
    launches = nbytes = 0

    def launch(reads, writes, itemsize=4):
        nonlocal launches, nbytes
        launches, nbytes = launches + 1, nbytes + itemsize * (sum(reads) + writes)
        return launches, nbytes

    return launch


def count_affine(rows, columns):
    launch = tally()
    for _ in {"weight", "bias"}:
        seen = launch(
            {rows * columns: 1, columns: 2}.keys() if rows > 1 else [columns] * 2, rows * columns
        )
    return seen


# %% grade_id="count-in-place"
def count_in_place(rows, columns):
    launch = tally()
    return [launch(reads=(rows * columns,), writes=rows * columns) for _ in range(2)][-1]


# %% grade_id="count-turned"
def count_turned(rows, columns):
    return tally()([columns] * rows, columns * rows)


# %% grade_id="count-centred"
def count_centred(rows, columns):
    launch, x = tally(), rows * columns
    launch([x], rows)
    return launch(filter(None, (x, rows)), writes=x)


# %% grade_id="count-chosen"
def count_chosen(rows, columns):
    one, nbytes = tally()((columns for tensor in range(2) for row in range(rows)), rows * columns)
    return one, nbytes + rows * columns


# %% grade_id="count-halved"
def count_halved(rows, columns):
    def of(itemsizes):
        if not itemsizes:
            return 0
        first, *rest = itemsizes
        return first * rows * columns + of(rest)

    return 2, of([4, 2, 2, 2])


# %% grade_id="count-linear-gelu"
def linear_gelu(rows, features):
    tensors = {
        "x": (rows, features),
        "w": (features, features),
        "b": (features,),
        "z": (rows, features),
    }

    def nbytes(*names):
        total = 0
        for name in names:
            size = 4
            for side in tensors[name]:
                size *= side
            total += size
        return total

    return nbytes(*"xwbzzz"[:3], *"zzz"), nbytes(*tensors)
