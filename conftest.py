"""Loads the plugin when the suite runs from an uninstalled checkout; registering it twice is harmless."""

pytest_plugins = ["mla_verify.pytest_plugin"]
