"""Measure, compile and predict: any callable, any kernel, on a GPU you may not have."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
