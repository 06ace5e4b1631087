"""The learner's side: predictions, self-tests, checks with their outcomes and hints, progress."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
