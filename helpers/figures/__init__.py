"""The pictures and live charts of the lessons, one file a figure: its model, its chart, its explorer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
