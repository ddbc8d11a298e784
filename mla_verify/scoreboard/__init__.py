"""The scoreboard: which seeded faults which method finds, how soon, and whom it blames without reason.

Here belong the methods that others use, on the same problems as the suite; what one of them does with one kernel (a
cell); the board of all cells; and how that is printed. The faults themselves are in `mla_verify.faults`.
"""
