"""Stand-ins that behave as the documentation of what they stand for says; nothing here has met a GPU."""
