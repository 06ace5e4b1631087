"""The figures of the lessons, a folder per topic; a figure's file holds its model, its chart and its explorer.

`frame` holds what they share. Public names are listed in `__init__.pyi`, which editors follow; each is imported when it
is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
