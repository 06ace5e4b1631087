"""Attempts to speed up kernels that miss a target or trail a peer on the H200; `fusion bench` prints them there.

"A for B" means A with the change and B without it, in the same run; times are in us unless another unit is named;
(kept) marks what runs now. Figures are for the kernel as it was in that run. Notes in square brackets are printed once,
from SHARED.
"""

import re
import textwrap
from collections.abc import Iterable

# Kernel, or kernel and "backward" -> what was tried.
TRIED = {
    "attention_scores": (
        "in GB/s written, 3240 full and 3430 causal: one loop for a block's stores and the next one's peaks (2890), 64 "
        "x 128 and 128 x 64 tiles (up to 9 % slower), two stages (14 %), five programs an SM (2840), TMA stores (6 %), "
        "a first pass by 128 keys (level), programs that begin at different keys (3140); the stores alone take longer "
        "than the target allows"
    ),
    "linear_act": (
        "GELU with one exp2 (kept); the hardware's tanh (1 % faster, an error that the tail shows); a "
        "tile finished in the next one's products (9 to 25 % slower); two programs of 128 x 128 an SM (1 to 22 %); the "
        "bias as the sum's first value (half the speed) or under the products (1 %); other parts, stages and tiles (up "
        "to 3 %); warp specialisation (4 to 9 %, NaN with some epilogues in Triton 3.6); warp groups in turns by hand, "
        "in Gluon (level in step, a third slower two steps apart); halves of columns in turns (10 %); stream-K (level "
        "at 8192^3, 10 % at 4096^3); the gated kernel's loops made one (578 TFLOP/s for 781)"
    ),
    "linear_act backward": "behind as a call alone: [calls]",
    "moe_int8": (
        "one launch up to 8 tokens, two up to 64 (both kept); tensor cores for one token (11 us for 8.9), other tiles "
        "(3 to 18 % slower), weights by way of shared memory (492 to 510 us for 456; the table has 502), more stages "
        "(up to 25 %), wider reads of weights (474), dequantising all of them first (5 % faster at 8192 tokens, for "
        "201 MB of memory)"
    ),
    "conv_bn_act": "one program a tile (2 to 13 % slower); the rest stands with the sweep's points; [calls]",
    "residual_act backward": "100000000 elements: no trial is recorded; [calls]",
    "swiglu": (
        "159 us at 100000000 elements: in the sweep of the same day the same code takes 144 at 100000007 (there "
        "torch.compile takes 201, here 159); eager and torch.compile took a tenth longer than in the run before, too; "
        "no cause is known; [calls]"
    ),
    "residual_layer_norm": (
        "registers by order where programs outnumber what an SM holds (kept: 265 us for 341 at 7282 x 18432); no trial "
        "is recorded at 4096 columns"
    ),
    "residual_layer_norm backward": "128 x 8192, within the spread: no trial is recorded; [calls]",
    "rms_norm": (
        "a row held two elements to a register (2 to 3 % slower at 8192 columns), the weight asked for after the "
        "reduction (no gain)"
    ),
    "softmax": (
        "clusters of programs, which hold one row in several SMs' registers as QuACK does in their shared memory (at "
        "2048 x 131072 360 us for 305); a ring of chunks in shared memory (146 for 142 at 2048 x 65536); the last "
        "32768 columns held in their own dtype (kept: 306 for 331)"
    ),
    "swiglu backward": "[few microseconds]; [calls]",
    "add_gelu backward": "blocks of 256 to 8192 elements, no masks, cheaper formulas; [calls]",
    "l2_norm": (
        "128 rows: 4 to 32 warps, no masks, a row read in pieces as torch.compile does; of a few us, one kernel timed "
        "twice differs by 5 %. Of many rows: one of 4096 to a program (2 points of copy bandwidth less), 32 warps for "
        "16384 columns (28 less)"
    ),
    "layer_norm": (
        "128 rows: weight and bias asked for with the row (kept), 4 to 32 warps, one reduction or two; 32768 rows: "
        "both before the reductions (36 % at 16384 columns), 16 elements a thread (6 %), two (1 %)"
    ),
    "layer_norm_int8": (
        "rows in two blocks by 12 warps an SM, a row a program beyond 8192 columns (both kept), below that (a quarter "
        "to three quarters slower)"
    ),
    "layer_norm_act": (
        "a kernel of its own for 16-bit rows of 8193 to 16384 columns, which read them thrice from L1: 96 % of copy "
        "bandwidth against 93, less than the tenth that a second kernel must gain"
    ),
    "softmax backward": (
        "128 rows: 4 to 32 warps, no masks, a row read in pieces; of a few us, one kernel timed twice differs by 5 %. "
        "Of many rows, in per cent of a copy's bandwidth (above 100: it reads two tensors and writes one): 16384 "
        "columns held in fp32 (99; asked for again 103); 32768 by 16 warps with masks (99), by 32 with masks (83) or "
        "without (102), held in fp32 (92), in chunks of 16384 (101) or less (73 to 98). Held packed, two elements to a "
        "register, and loaded without an eviction policy (kept: 740 for 797 at 16384 x 32768); [calls]"
    ),
}

# These are behind as a call alone, at the table's small sizes.
_CALLS_ALONE = (
    "add_gelu",
    "bias_dropout_residual backward",
    "cross_entropy backward",
    "geglu",
    "geglu backward",
    "layer_norm backward",
    "layer_norm_act backward",
    "residual_rms_norm",
    "residual_rms_norm backward",
    "rms_norm backward",
    "softmax_dropout backward",
)
TRIED |= dict.fromkeys(_CALLS_ALONE, "behind as a call alone: [calls]")

# What several reasons name in square brackets.
SHARED = {
    "calls": (
        "launches and autograd's functions are Python, where eager's are C++. A call without gradients of a kind made "
        "before goes straight to its launches (kept: in a trial softmax's took 12.9, in the run recorded before it "
        "24.6); one that is to have gradients goes through autograd's Python each time"
    ),
    "clusters": (
        "QuACK's clusters hold one of the widest rows in the shared memory of several SMs, and load it there "
        "asynchronously, which Triton 3.6 does not for a cluster. Ours held it in registers, beyond 65536 columns "
        "where two tensors are read (softmax's gradient at 2048 x 131072 440 us for 507, at 2048 x 262144 931 for "
        "1167; RMSNorm of x + residual 570 for 653, 1188 for 1447) and up to 32 rows (softmax at 16 x 131072 8.7 for "
        "16.2). Of many rows of one tensor the barrier costs more than a second read from the SM's L1 cache (softmax "
        "at 2048 x 131072 360 for 305, RMSNorm 322 for 279); 40 to 128 registers a thread, 4 to 16 programs a row, "
        "clusters that walk over rows with the next in registers (up to twice the time). Ordinary programs that share "
        "a row, publish their sums in memory and poll for the others' took the place of softmax's clusters (kept, in "
        "trials on an H100: the gradient of 512 x 262144 287 us for 321, of 1046 x 128256 269 for 313; softmax of 512 "
        "x 262144 198 for 241, of 883 x 151936 187 for 212, of 2048 x 65536 183 for 191), each by a ticket drawn at "
        "the start in place of its number (kept: level); with loads marked evict_first (2 to 5 % slower), x held in "
        "place of its exponentials (1 to 2 % slower, 4 % faster at 262144), maxima per lane and one reduction of pairs "
        "(4 % slower), 2048 to 32768 elements by 2 to 32 warps (up to a tenth slower)"
    ),
    "walks": (
        "programs alone on an SM that walk over rows and read the next one while they write this one again from L1 "
        "(RMSNorm of 1024 x 131072 174 us for 149, 512 x 262144 193 for 182, 2048 x 65536 160 for 141; of x + residual "
        "353 for 295, 384 for 310, 298 for 280)"
    ),
    "by element": (
        "of 8 but not 16: Triton compiles one kernel for every width that 16 doesn't divide, and loads such rows "
        "element by element; the kernel is told what divides the row, and loads 16 bytes at a time (kept)"
    ),
    "few microseconds": (
        "a few microseconds, most of them a launch's start and end; two runs of one kernel differ by up to a half "
        "there. 2048 rows of 64 to 4096 columns by 1 to 32 rows per program, 1 to 16 warps and one masked block in "
        "place of two (on an H200, forward): at each width some are 5 to 10 % faster in one run, none of them in the "
        "next"
    ),
}

# Why kernels stand behind a peer between the table's sizes, in the recorded sweep, and what was tried there.
SWEPT = {
    "residual_act": "4099 elements: [few microseconds]",
    "conv_bn_act": (
        "eight tiles for how many there are and how long they sum (kept: 3x3, 256 to 256 at 28 x 28 45 us for 53; 512"
        " at 7 x 7 20 for 24; 1x1 of one picture 4.3 for 5.8), large ones that leave in halves (kept: 1x1, 512 to "
        "2048 28 us for 30), copies of what cannot be described, with all that a filter's row sees side by side "
        "(kept: 52 us for 70 at 40 channels, 5x5, 57 for 63 at 72, 94 for 107 at 248, 18 for 27 at 3 channels, 3x3). "
        "A sum split over two or three programs (24 to 36 us for 18 to 20), two programs of 256 x 64 an SM (up to "
        "twice as slow), two of 128 x 128 (a quarter to a third slower), scale and shift asked for before the sum (0 "
        "to 5 % slower); 1x1 by linear_act's kernel (10.8 us for 10.6 at 1024 to 256, 14.5 for 14.4 at 256 to 1024), "
        "and its way of tiles (a trial: 9.7 to 10 us for 10.7 at 2048 to 512). On an H100 a tile of 64 pixels by 128 "
        "outputs (kept: 3x3, 512 at 7 x 7 18.9 us for 22.0), steps of 32 channels where rows are odd (3x3, 16.8 us "
        "for 18.1 at 96 channels, 60.7 for 61.3 at 72, but 25.3 for 20.6 at 3: not kept for 3; in a later trial, with "
        "the tile of 256 pixels by 128 outputs alone, 16.8 for 18.9 at 96, 58.1 for 60.7 at 72, kept for both; 119 for "
        "101 at 248), for 64 outputs no tile of 128 (kept: 9 x 160 x 25 x 25, which the sweep does not have, in a "
        "trial 14.0 for 24.8), tiles of 128 x 128 with six"
        " stages (in trials 15.8 for 16.4 at 256 to 1024, 193 for 178 at 128 to 256). 512 to 512 with a stride takes "
        "21 us for 19 in the record before: no cause is known. Rows that begin between halves of cache lines take the"
        " copy engine twice as long; [calls]"
    ),
    "cross_entropy": (
        "rows a program, warps and columns at a time by trials (the best kept); the first columns asked for before "
        "the label's logit, which waits for the label (kept: 62.9 us for 66.7 at 134218 x 1000, 62.2 for 64.8 at "
        "65536 x 2048, 81 for 88 at 2097152 x 64), and few rows by warps of 2 KB (kept, both: 1.8 us for 2.6 at 2048 "
        "x 64, 3.2 for 4.2 at 2048 x 768); the logit read after the row (75 for 68 at 134218 x 1000); the next "
        "columns on their way (kept for few rows: 5.4 for 5.9 at 2048 x 2560, 6.6 for 7.0 at 2048 x 3584; of 8192 and"
        " 10000 columns 7 to 14 % slower, of 13824 not tried, of many rows 73 for 68 at 13422 x 10000), loops "
        "unrolled (no gain). Narrow rows: [few microseconds]; on an H100 rows of 24577 to 32768 classes by 8 warps "
        "(kept: 7 % at 28672); 2048 rows with half to twice the rows, columns and warps each (a trial's best gains 5 "
        "to 15 % of 6 us in one run, nothing in the next), as many rows as make 256 MB with the same or one to three "
        "blocks in flight (at most 1 %); on an H100 rows that nearly fill a block of 4096 or 8192 read at once (kept,"
        " in a trial: 87.9 us for 91.3 at 37449 x 3584, 88.1 for 90.6 at 18725 x 7168), and blocks of 8192 by 16 "
        "warps from 24577 classes on where little of the last is idle (kept: 89.7 for 90.5 at 4194 x 32000); one or "
        "two blocks ahead in registers (1 to 10 % slower), evict_first or .cg (within 1 %); with at least 8192 classes "
        "half to twice the columns and warps, three blocks in flight, 24 to 64 registers, labels not checked (within "
        "1.5 %, or slower; on an H200 8 warps take 33.9 us for 35.1 at 2048 x 32000, on an H100 46.7 for 46.2); on an "
        "H100 whole rows of 13824 or 14336 at once by 8 warps (kept, in a trial: 88.3 us for 89.9 at 9362 x 14336 and "
        "for 90.0 at 9709 x 13824), of 10000 to 32000 otherwise, or in two or four blocks (up to 22 % slower; level at "
        "4681 x 28672), 2048 rows of 128 to 3584 columns by 1 to 32 rows, 1 to 8 warps, blocks of 128 to 4096 (no gain)"
    ),
    "cross_entropy backward": (
        "as many columns at a time and warps as a trial liked best; 2048 rows with rims by a program each (kept: 3.8 "
        "us for 5.1 at 515 columns); of many narrow rows 2 KB by a warp (kept: 150 us for 157 at 2097152 x 64, 145 "
        "for 170 at 260617 x 515, 147 for 149 at 174763 x 768); 2048 rows of up to 512 columns by eight of 128 "
        "columns and 4 warps (kept: 3.4 us for 4.2 at 127, 4.7 for 5.7 at 512); [calls]"
    ),
    "flash_attention backward": (
        "FlashAttention-4 is ahead at most sizes. On an H100: grad_q a step late, so that groups of warps need not "
        "keep in step (kept: 1340 us for 1507 full and 769 for 864 causal at 4 x 16 x 4096 x 64, 2323 for 2386 full "
        "with heads of 128; of 256 tokens 430 for 415), queries from last to first (kept: 1332 for 1351 causal with "
        "heads of 128, 1537 for 1561 of 2 x 32 heads with 8 of keys, 513 for 544 with one; 2628 for 2551 at 16384 x "
        "64; in the sweep of both together 1612 for 1661 there, but of 256 tokens, causal, 422 for 356), all heads of "
        "a group at one tile of queries before the next (1987 for 1633 at 2 x 32 heads with 8 of keys, causal, from "
        "last to first 1657), a program per block of keys (809 for 769, 1359 for 1340 at 4 x 16 x 4096 x 64; with few "
        "blocks 518 for 541, 490 for 508), the next step's scores started in this one (1751 for 1491: an accumulator "
        "in flight over a loop's end makes ptxas serialise), lse and delta subtracted after the matmuls, not as their "
        "first values (1529 for 1507, 2459 for 2386), all blocks of a head by one program where there are four or "
        "eight (547 for 460 causal and 679 for 500 full at 32 x 16 x 512 x 128, 454 for 303 causal at 16 x 16 x 1024 x "
        "64); on an H200, delta and the zeros in one launch (35 for 19 and 16), as many as eight heads side by side "
        "(1243 for 1255 full at 4 x 16 x 4096 x 64, elsewhere up to 1.6 times as long)"
    ),
    "flash_attention": (
        "256 tokens most of all. Tried in all: roles by hand in Gluon for heads of 128 (kept: 837 / 478 us full / "
        "causal at 4 x 16 x 4096, by the compiler 943 / 573), of 256 (kept: 202 / 130 for 282 / 164 at 4 x 8 x 2048),"
        " of 64 (kept: 57 / 51 for 61 / 59 at 64 x 16 x 256, 42 for 55 at 8 x 10 x 4096 x 77); there, its groups in "
        "turns (1 % slower), the next tile's first scores under the last one's end (kept: 82 for 88 full at 64 x 16 x"
        " 256 x 128, 136 for 147 at 32 x 16 x 512), all tiles of a head by one program that loads its keys once (81 "
        "us for 80 causal at 64 x 16 x 256 x 128), exponentials while the last probabilities' product runs, by a wait"
        " that ptxas moves none of them past (78 for 81 causal there, 49 for 51 with heads of 64; on an H100 141 for "
        "132 at 32 x 16 x 512, and it spills with three groups: not kept), a program a multiprocessor for long causal"
        " tiles too (kept: 253 for 291 at 8 x 16 x 2048, 445 for 480 at 4 x 16 x 4096), the longest tiles first of "
        "the heads at work at a time (kept: 107 at 32 x 16 x 512; of one head 112, of all 133), masks in inline "
        "assembly (kept: 154 for 163 causal at 16 x 16 x 1024); by the compiler: in TFLOP/s, full / causal: warps "
        "that take roles for heads of 128 (kept: 579 / 462, without 488 / 417) and of 64 (403 / 287 for 474 / 409), "
        "programs in order of their length (kept: 483 causal for 463), eight sums a row and v early for heads of 64 "
        "(kept: 492 / 439 for 484 / 431), exponentials by polynomial (481 / 434), persistent programs (591 / 512 at "
        "4096 tokens, 545 for 564 at 16384), separate loops for whole and masked tiles (481 / 429), a tile's scores "
        "before the last one's exponentials (376 / 338); on an H100, by hand: three groups of warps for long heads of"
        " 64 (kept: 525 for 570 full at 4 x 16 x 4096, where two take 573, 1070 for 1172 causal at 1 x 16 x 16384; "
        "325 for 316 causal at 4096, 136 for 112 at 1024), one for few or short tiles (kept: 51.7 for 55.7 at 77 x "
        "4096, 93 for 101 at 128 x 16 x 128, but causal 113 for 103 in the sweep; 160 for 116 at 512 x 4096), eight "
        "sums a row that stay in their threads (kept: 795 for 803 at 4 x 16 x 4096 x 128, 207 for 213 with heads of "
        "256), sums that shrink under the next scores (kept up to heads of 64: 525 for 565; with 128 813 for 801), "
        "the next scores in flight over the loop's end (1051 for 801), keys by 64 (762 for 587), three or four stages"
        " (level); one query of 64 x 2048 keys with two stages of keys, for three programs an SM (kept: 180 for 198);"
        " [calls]"
    ),
    "l2_norm": (
        "4 to 32 warps (16 kept at 10000 and 12288 columns: 132 us for 136), one pass or a walk over rows, rows held "
        "two elements to a register (no gain), rows read again from L1 in chunks of 1024 to 8192 elements (145 us for "
        "138 at 32768, 128 for 133 at 8192); of 20481 to 32767 columns 16384 held and the rest read again (189 us for "
        "216 at 4681 x 28672, on an H100), until both blocks were summed in one exchange between warps (kept, in a "
        "trial: 183 us for 188 there, 29.7 for 30.8 at 2048 x 10000); on an H100 2048 rows of 515 by 4 warps (4.2 for "
        "4.4), of 18432 by 32 (52.9 for 53.8), neither kept"
    ),
    "layer_norm": (
        "weight and bias asked for with few rows, of up to 256 columns by more threads (kept: 2.0 us for 2.7 at 2048 x "
        "64), or of others that leave part of their block idle (kept: 3.7 for 4.0 at 2048 x 768, 4.2 for 4.7 at 2048 x "
        "1000, 5.6 for 7.1 at 2048 x 1536, 9.5 for 10.7 at 2048 x 2560; not kept: 12.2 for 11.8 at 2048 x 3584, 4.8 "
        "for 4.5 at 2048 x 1024, 7.9 for 7.6 at 2048 x 2048); [few microseconds]; [calls]; rows of 12289 columns and "
        "more by half as many threads (kept: 189 us for 285 at 9362 x 14336, 192 for 205 at 4096 x 32768). 1000 "
        "columns, a multiple [by element]; on an H100 weight and bias asked for before the reductions up to 4096 "
        "columns, and one exchange between warps for both blocks (kept, in a trial: 11.3 us for 12.9 at 2048 x 2560, "
        "13.7 for 14.5 at 2048 x 3584, 14.9 for 16.3 at 2048 x 4096); with wider rows asked for so early they take up "
        "to 1.5 times as long; of 2048 rows 1 to 32 a program by 1 to 16 warps, in one block or two (kept, in a trial: "
        "2.8 us for 3.0 at 64 columns, 2.8 for 3.1 at 128, 5.7 for 6.3 at 1024, 6.1 for 6.2 at 1000; 9.3 for 9.9 at "
        "2048, 26.5 for 26.8 at 8192: not kept; at 256, 512, 768 and 2560 to 7168 none gains more than 2 %)"
    ),
    "layer_norm backward": (
        "2048 rows: 1 to 4 rows and warps, 64 to 255 registers, three stages or one: at 1000 columns four warps of "
        "128 registers take 0.9 of the time here and 1.26 of it at 134218 rows; [few microseconds]; [calls]"
    ),
    "linear_act": (
        "on an H100, beside cuBLASLt's epilogue: six stages for tiles of 128 x 128 (kept: 27.1 us for 30.6 at 512 x "
        "4096 x 4096), groups of 8 rows of tiles of 256 rows (kept: 146 for 158 at 3000 x 4096 x 4104), results stored "
        "through addresses (kept: in trials 10.4 for 10.9 at 512 x 768 x 3072, in the sweep 10.5 for 10.5); eleven "
        "other tiles, steps of 32 and 128 along K and groups of 4 to 64 (level or slower: at 2047 x 2056 x 8200, where "
        "rows start 16 bytes after a cache line, 150 at best for 115), K split over two or four programs that add "
        "their sums in memory, with a launch that clears counters (43 for 31 at 512 rows, 27 for 21 at 256, 20 for 14 "
        "at 1000^3); [calls]"
    ),
    "layer_norm_act backward": "behind as a call alone: [calls]",
    "residual_layer_norm": (
        "weight and bias asked for with few rows, of up to 256 columns by more threads (kept: 1.9 us for 3.4 at 2048 "
        "x 64, 2.4 for 3.7 at 2048 x 128, 3.3 for 3.9 at 2048 x 256), or of others that leave part of their block "
        "idle (kept: 9.2 for 10.4 at 2048 x 1536, 17.8 for 18.8 at 2048 x 3584); [few microseconds]; 262144 columns: "
        "no trial is recorded; [calls]; 18432 columns by 8 warps (360 us for 432; LayerNorm takes 1.4 times as long "
        "by them: not kept); 1000 columns, a multiple [by element]; on an H100 18432 columns by 8 warps with both "
        "asked for first (in a trial 107 us for 132 at 2048 rows, 361 for 435 at 7282; kept, in the sweep 107 for 131"
        " and 362 for 434, without asking first); on an H100 weight and bias asked for before the reductions up to "
        "1024 columns (kept where rows are loaded 16 bytes at a time: 3.0 for 3.4 at 2048 x 64; 436 for 399 at "
        "1056833 x 127)"
    ),
    "residual_layer_norm backward": (
        "1025 columns: one warp, or two of 128 registers (443 us for 582 at 130944 rows, but of 1000 columns 1 to 34 "
        "% slower: not kept); [calls]"
    ),
    "residual_rms_norm": (
        "[clusters]; [walks]; narrow rows: [few microseconds], and no trial is recorded; 1056833 rows of 127: no "
        "trial is recorded; 1000 columns, a multiple [by element]; on an H100 the weight asked for before the "
        "reduction (in a trial 0.94 to 1.02 of the time at 2048 rows of up to 2048 columns, 1.12 at 32768: kept up to"
        " 1024, 7.1 us for 7.4 at 768 and 3.9 for 4.3 at 256; with 8 rows by 4 warps up to 128 columns 3.1 for 3.7 at"
        " 128), one exchange for both blocks (0.92 at 2048 x 12289, 1.13 where TAIL is a quarter of HEAD: not kept); "
        "half the warps for 2048 columns (kept: 12.7 us for 14.5 at 2048 x 2048), half the rows per program for 127 "
        "(kept: 380 for 398), two rows of 768 (7.1 for 7.3) and one block of 64 (2.8 for 2.9: neither kept)"
    ),
    "residual_rms_norm backward": (
        "as rms_norm's, with which it shares the kernel; rows of 16385 to 32768 columns read again from L1 in one pass "
        "over both (kept: 329 us for 405 at 4096 x 32768), with the next row read meanwhile (549 to 605), by 8 or 16 "
        "warps (402 to 677); 1056833 rows of 127 by 8 warps in one stage (600 us for 1071), on an H100 by 24 programs "
        "an SM of 2 rows and 2 warps (kept: 465 for 601); 524288 rows of 256 by 8 warps (kept: 371 for 396); [calls]"
    ),
    "rms_norm": (
        "[clusters]; 2048 narrow rows: [few microseconds]; 1 to 16 of them per program by 1 to 4 warps (on an H100 "
        "within the spread). Held in fp32, 8 warps at 18432 columns (146 us for 179), 4 at 12288 (3 % faster, at 10000 "
        "12 % slower); the weight asked for after the reduction (no gain), a row read twice, the second time from L1 "
        "(3 % at 28672 columns, no gain at 32768), a row held two elements to a register (132 us for 142 at 12288, 134 "
        "for 145 at 28672, 135 for 141 at 32768, on an H100 at most 7 %, less than the tenth that a second kernel must "
        "gain; at 8192 and 10000 2 to 3 % slower); [walks]; [calls]; 1000 columns, a multiple [by element]; on an H100 "
        "the weight asked for before the reduction, and one exchange between warps for both blocks (kept, in a trial: "
        "17.3 us for 18.1 at 2048 x 5120, 37.3 for 38.8 at 2048 x 12288, 314 for 334 at 10922 x 12289); twice the "
        "warps for 1025 to 8192 columns (in a trial 13.0 for 14.6 at 2048 x 4096, in the sweep 14.3 for 14.8 there and "
        "293 for 180 at 52429 x 2560: not kept), half of them for 12289 (in a trial 236 for 319 at 10922 rows, in the "
        "sweep 309 for 318: not kept); on an H100, of 2048 rows 1 to 32 a program by 1 to 16 warps, in one block or "
        "two (kept, in a trial: 4.9 us for 5.3 at 768 columns, 5.6 for 5.7 to 5.8 at 1000 and 1024, 10.2 for 11.0 at "
        "2047, 8.5 for 8.7 at 2048; 2.5 for 2.8 at 64: not kept; at 128, 256, 512 and 2560 to 8192 none gains more "
        "than 2 %)"
    ),
    "rms_norm backward": (
        "rows of 2560 to 12288 columns loaded two turns ahead (kept: 283 us for 372 at 52429 x 2560, 293 for 427 at "
        "26214 x 5120, 283 for 360 at 18725 x 7168), 2048 elements a turn of 65 to 256 columns (kept: 307 for 372 at "
        "524288 x 256; at 768 columns 13 % faster with many rows and 21 % slower with 2048: not kept). 1000 columns, a "
        "multiple [by element]; 127, 2047, 4099 and 12289: 1 to 4 rows, 4 to 16 warps, one to three stages by trial; "
        "of 2047 the best without a residual (428 us for 510) takes half as long again with one; on an H100 without "
        "loads in advance and with at most 128 registers (kept: 361 us for 617 at 260617 x 515, 346 for 507 at 65568 x "
        "2047, 614 for 776 at 10922 x 12289; with a residual 518 for 870, 495 for 630, 734 for 844), twice as many "
        "programs or other warps so (within 5 %, or slower); 127 columns so (no gain), 768 (299 us for 328: not kept); "
        "on an H100, more than 4096 rows: 127 columns by 16 programs an SM of 4 rows and 2 warps (kept: 363 for 457; "
        "2048 rows so 9.8 for 7.6), 2 rows of 768 (kept: 285 for 328), 4 of 512 (kept: 301 for 307), 8 warps for 256 "
        "(kept: 293 for 309)"
    ),
    "softmax": (
        "rows held two 16-bit elements to a register: up to 20480 columns (kept), loaded without an eviction policy "
        "(kept: 136 us at 14336 to 18432, with evict_first 145 to 147), by 512 or 128 threads (136 to 156); one of "
        "65536 to an SM (175 us for 142), walking over rows with the next one asked for (172), a quarter held (146); "
        "walks at 12288 to 32768 (up to a fifth slower). Beyond 65536 columns the last 32768 are held, in their own "
        "dtype (kept: 306 us for 331 packed at 2048 x 131072, 678 for 786 at 2048 x 262144). In Gluon, a program an "
        "SM that keeps a ring of chunks in shared memory filled (cp.async) while it computes and stores: of whole "
        "rows (146 us for 142 at 2048 x 65536, 141 for 138 at 4096 x 32768, 144 for 139 at 4681 x 28672; faster at "
        "2668 x 50304 alone, 146 for 162), or of parts of one on 2 to 8 SMs that tell each other by way of memory "
        "(321 for 303 at 2048 x 131072, 644 for 673 at 2048 x 262144, 193 for 168 at 883 x 152064). Few narrow rows "
        "by more threads (kept: 2.2 us for 2.3 at 2048 x 64, 2.4 for 2.5 at 2048 x 256); [few microseconds]; "
        "[clusters]; [calls]; 20481 to 32768 columns by 1024 threads (kept, on an H100: 4 to 7 % faster), wider rows "
        "by 256 to 1024 threads that hold none to four chunks (no gain), by clusters of 4, 8 or 16 programs of 8 to "
        "32 warps (on an H100 1.25 to 2.2 times as long at 50264 to 262144 columns); half the warps of 2048 rows of "
        "512 to 10000 columns (0.93 to 1.05), of many rows 2560 to 12288 wide (no gain); on an H100 both blocks of a "
        "row asked for before the first is reduced, and one exchange between warps for both (kept, in a trial: 12.2 "
        "us for 13.8 at 2048 x 3584, 30.2 for 32.6 at 2048 x 10000), so that aligned rows of up to 16384 columns no "
        "longer need the packed kernel; 2048 rows of 64 to 768 columns in one block by other rows and warps (level), "
        "18432 to 32768 by 8 to 32 warps (1 to 42 % slower)"
    ),
    "softmax backward": (
        "rows held two 16-bit elements to a register, loaded without an eviction policy: 10241 to 32768 columns "
        "wholly (kept: 190 us for 207 at 12288, 190 for 196 at 16384, 192 for 206 at 32768; with evict_first 210, "
        "209, 207) or read again (193 to 268 us); of wider ones 49152 (kept: 217 us for 236 with 16384 and 229 with "
        "32768 at 50304; 214 for 228 with none at 65536); walks over rows (up to a third slower); a ring of chunks in"
        " shared memory, as the forward (238 for 210 at 2668 x 50304, 220 for 206 at 2048 x 65536, 195 for 189 at "
        "4096 x 32768, 447 for 444 at 2048 x 131072). Of 2048 narrow rows 4 a program, or 2, by more threads (kept: "
        "in a trial 2.1 us for 2.6 at 64 columns, 2.6 for 3.1 at 256, 3.5 for 3.7 at 512; the sweep shows it at 512 "
        "alone); [few microseconds]; [clusters]; [calls]; on an H100 held packed from 8193 columns on (kept: 268 us "
        "for 327 at 9709 x 13824, 272 for 300 at 13422 x 10000); both blocks asked for before the first is reduced "
        "(kept: no trial beside peers is recorded); 2048 rows of up to 512 columns by 4 warps (in a sweep without "
        "QuACK 4.8 us for 5.6 at 512, 4.0 for 4.3 at 256, 3.1 for 3.2 at 64, but 3.8 for 3.1 at 128), then in one "
        "block, 8 to 2 rows a program (kept, in a trial: 3.5 us for 3.7 at 256, 4.6 for 4.8 at 512, 2.5 for 2.6 at 64, "
        "2.9 for 3.0 at 128), in the sweep 4.0 for 4.3 at 256 and no gain else; more rows of 768 to 1536 (1 to 3 % "
        "faster: not kept)"
    ),
    "softmax_dropout backward": (
        "warps, rows at a time and columns held by trial (the best kept); fewer registers by order, so that an SM has "
        "two rows (282 us for 368 at 10000 columns held in fp32; kept packed: 254); more chunks held up to 20480 "
        "columns (kept: 287 for 324 at 18432), beyond with few spills (314 for 332 at 32768); 2048 narrow rows by "
        "more threads (kept: 2.5 us for 4.1 at 128 columns); many rows of 128: no trial is recorded; [calls]; 1000 "
        "columns, a multiple [by element]; on an H200 2048 rows of 64 to 256 columns in one block by 4 warps (2.2 us "
        "for 2.9 at 128; not measured on an H100, not kept), of 515 by other rows, warps and blocks (1.2 to 2 times as "
        "long with 260617 rows; on an H100 1.23 to 1.55 times), 2048 rows of 64 by fours (3.1 for 3.2: not kept)"
    ),
    "swiglu backward": "[few microseconds]; odd sizes: no trial is recorded",
}


def shared_by(reasons: Iterable[str]) -> list[str]:
    """Yield the lines of each note in SHARED that these reasons name."""
    named = set(re.findall(r"\[([^]]*)\]", " ".join(reasons)))
    return [line for label, text in SHARED.items() if label in named for line in wrapped(f"[{label}]: {text}")]


def wrapped(text: str) -> list[str]:
    """Return a reason as lines for a terminal."""
    return textwrap.wrap(text, 120, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)
