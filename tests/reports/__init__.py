"""What is shown of a run: maps, the page, images, SARIF, progress."""
