"""Jitted functions of the corpus, imported at the first launch: Triton reads names from the module around them."""
