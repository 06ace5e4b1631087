"""What was tried on the kernels that miss a target or stand behind a peer on the H200; `fusion bench` prints it there.

Figures behind each sentence stand in the kernel's file, with its settings.
"""

# Kernel, or kernel and "backward" -> what was tried.
TRIED = {
    "linear_act": "cheaper GELUs, quarter-tile epilogues, other tiles and stages, two CTAs an SM, warp specialisation",
}
