"""Reports for people: maps on a terminal, one HTML page, images, SARIF.

Everything here shows what a `Report` says already; nothing here decides a verdict. jinja2 and matplotlib are imported
where a page or an image is made.
"""
