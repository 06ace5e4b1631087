"""The learner's tools: predictions, self-tests, checks with outcomes and hints, and progress."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
