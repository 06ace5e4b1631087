"""Functions that plain-Python answers may call if their exercise imports them from here."""

from helpers.instruments.fusion.small_graph import kernel_cost as kernel_cost
