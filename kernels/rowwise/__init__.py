"""Kernels whose unit of work is a row: each program owns one or several whole rows, and programs never communicate.

A row's sum, mean or maximum never leaves the program's registers. Rows too wide for registers are read in chunks,
twice: once to reduce the row and once to write the result.
"""
