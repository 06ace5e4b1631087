"""What measures, compiles and computes: any callable, any kernel, a GPU that need not be there."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
