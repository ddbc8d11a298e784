"""Problems as plain data, and how to draw them.

Here belong: problems (frozen dataclasses of plain values), the layouts of tensors in memory, what a kernel's
limits leave to draw, and the Hypothesis strategies. Nothing here knows a kernel, an oracle or a tensor.
"""
