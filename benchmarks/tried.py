"""What was tried on the kernels that miss a target or stand behind a peer on the H200; `fusion bench` prints it there.

A figure is of the kernel's speed as it stands, in the run that tried it.
"""

_BACKWARD_OF_FEW_ROWS = "fewer launches; what is left of a call is autograd's and Triton's own Python, with each launch"

# Kernel, or kernel and "backward" -> what was tried.
TRIED = {
    "attention_scores": (
        "in GB/s written, 3240 full and 3430 causal: one loop for a block's stores and the next one's peaks (2890), "
        "64 x 128 and 128 x 64 tiles (up to 9 % slower), two stages (14 %), five programs an SM (2840), TMA stores "
        "(6 %), a first pass by 128 keys (level), programs that begin at different keys (3140); the stores alone take "
        "longer than the target allows"
    ),
    "linear_act": (
        "GELU in one special instruction (kept); the hardware's tanh (1 % faster, an error that the tail shows); a "
        "tile finished in the next one's products (9 to 25 % slower); two programs of 128 x 128 an SM (1 to 22 %); "
        "the bias as the sum's first value (half the speed) or under the products (1 %); other parts, stages and "
        "tiles (up to 3 %); warp specialisation (4 to 9 %, NaN with some epilogues in Triton 3.6); warp groups in "
        "turns by hand, in Gluon (level in step, a third slower two steps apart); halves of columns in turns (10 %); "
        "stream-K (level at 8192^3, 10 % at 4096^3); the gated kernel's loops made one (578 TFLOP/s for 781)"
    ),
    "linear_act backward": _BACKWARD_OF_FEW_ROWS,
    "moe_int8": (
        "one launch up to 8 tokens, two up to 64 (both kept); tensor cores for one token (11 us for 8.9), other tiles "
        "(3 to 18 % slower), weights by way of shared memory (492 to 510 us for 456), more stages (up to 25 %), wider "
        "reads of weights (474), dequantising all of them first (5 % faster at 8192 tokens, for 201 MB of memory)"
    ),
    "conv_bn_act": (
        "what follows from the shapes is worked out once (kept), the rest of a call is Triton's, and checks; one "
        "program a tile (2 to 13 % slower)"
    ),
    "flash_attention": (
        "warps that take roles for heads of 128 (kept: 579 / 462 TFLOP/s full / causal, without 488 / 417) and of 64 "
        "(403 / 287 for 474 / 409), programs in order of their length (kept: 483 causal for 463), eight sums a row and "
        "v early for heads of 64 (kept: 492 / 439 for 484 / 431), exponentials by polynomial (481 / 434), persistent "
        "programs (591 / 512 at 4096 tokens, 545 for 564 at 16384), separate loops for whole and masked tiles "
        "(481 / 429), a tile's scores before the last one's exponentials (376 / 338)"
    ),
    "flash_attention backward": (
        "programs in order of their length (kept: 399 causal for 384); heads of 128 without roles in grad_q (412 / 330 "
        "for 477 / 383) or grad_kv (366 / 321); heads of 64 with them (336 / 280 for 375 / 316)"
    ),
    "add_gelu backward": "blocks of 256 to 8192 elements, no masks, cheaper formulas",
    "l2_norm": (
        "4 to 32 warps, no masks, a row read in pieces as torch.compile does; identical kernels differ by 5 %. Of many "
        "rows: one of 4096 to a program (2 points of copy bandwidth less), 32 warps for 16384 columns (28 less)"
    ),
    "layer_norm": (
        "128 rows: weight and bias asked for with the row (kept), 4 to 32 warps, one reduction or two; 32768 rows: "
        "both before the reductions (36 % at 16384 columns), 16 elements a thread (6 %), two (1 %)"
    ),
    "layer_norm_act": (
        "a kernel of its own for 16-bit rows of 8193 to 16384 columns, which read them thrice from L1: 96 % of copy "
        "bandwidth against 93, less than the tenth that a second kernel must gain"
    ),
    "layer_norm backward": _BACKWARD_OF_FEW_ROWS,
    "layer_norm_act backward": _BACKWARD_OF_FEW_ROWS,
    "softmax backward": (
        "4 to 32 warps, no masks, a row read in pieces; identical kernels differ by 5 %. Of many rows, per cent of "
        "copy bandwidth: 16384 columns held (99; asked for again 103); 32768 by 16 warps with masks (99), by 32 with "
        "masks (83) or without (102, kept), held (92), in chunks of 16384 (101) or less (73 to 98)"
    ),
    "bias_dropout_residual backward": "one launch in place of three (kept); the rest of a call is Python",
}

# The same of points between the table's sizes, where the recorded sweep has one behind a peer, and why it is there.
SWEPT: dict[str, str] = {}
