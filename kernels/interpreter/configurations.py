"""Choose a configuration of an `@triton.autotune`d kernel without timing any.

On a GPU, Triton times a kernel's configurations at the first call and keeps the fastest. Here the first configuration
that passes the kernel's own rules runs: `prune_configs_by` is called as Triton calls it, configurations whose static
assertions fail are skipped, and `@triton.heuristics` are evaluated as usual. A GPU's earlier choice for these arguments
is reused. Hooks run as at the first call with these arguments: `pre_hook` and `reset_to_zero` once, because the end of
tuning resets what tuning wrote. Nothing has to be restored (`restore_value`), because nothing was tried.

Shared memory is not checked: compile_for (helpers.instruments) compiles for a GPU and skips what does not fit.
"""

import weakref
from collections.abc import Iterator

import triton
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import AutotunerError

# The arguments of each kernel's earlier calls, by tuning key.
_called: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def shown(config: triton.Config) -> str:
    """Return a configuration as one line: its parameters, and launch options that differ from Triton's defaults."""
    named = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    named |= {"num_ctas": config.num_ctas} if config.num_ctas not in (None, 1) else {}
    named |= {"maxnreg": config.maxnreg} if config.maxnreg is not None else {}
    return ", ".join(f"{name}={value}" for name, value in named.items())


def pruned(tuner: Autotuner, arguments: dict, named: dict) -> list[triton.Config]:
    """Return the configurations that `prune_configs_by` leaves, in the order in which Triton would try them.

    A performance model that needs a GPU is skipped: it only chooses among correct configurations.

    Args:
        arguments: positional arguments of the launch, by parameter.
        named: its keyword arguments.

    Raises:
        AutotunerError: `early_config_prune` failed, or left none.
    """
    name = tuner.base_fn.__name__
    tuner.nargs = arguments
    try:
        found = tuner.configs
        if tuner.early_config_prune:
            try:
                found = tuner.early_config_prune(tuner.configs, arguments, **named)
            except Exception as error:
                told = " ".join(str(error).split()) or type(error).__name__
                raise AutotunerError(
                    f"{name}: its early_config_prune failed without a GPU ({told}): launch {name}.fn with "
                    "the parameters of one configuration"
                ) from None
            if not found:
                raise AutotunerError(f"{name}: its early_config_prune left no configuration: relax it for this size")
        if tuner.perf_model and len(found) > 1:
            try:
                times = {config: tuner.perf_model(**arguments, **named, **config.all_kwargs()) for config in found}
                found = sorted(found, key=times.get)
            except Exception:  # it needs a GPU
                return list(found)
        return list(found)
    finally:
        tuner.nargs = None


def _key(tuner: Autotuner, arguments: dict) -> tuple:
    """Return the key that Autotuner.run would use."""
    given = {name: value for name, value in arguments.items() if name in tuner.arg_names}
    key = [given[name] for name in tuner.keys if name in given]
    return tuple(key + [str(value.dtype) for value in given.values() if hasattr(value, "dtype")])


def candidates(tuner: Autotuner, arguments: dict, named: dict) -> Iterator[tuple[triton.Config, str]]:
    """Yield each configuration to try and why it is chosen, in order, after running the hooks that tuning runs once.

    Args:
        arguments: positional arguments of the launch, by parameter.
        named: its keyword arguments.

    Raises:
        ValueError: the launch itself sets a tuned parameter.
    """
    name = tuner.base_fn.__name__
    conflicts = named.keys() & {each for config in tuner.configs for each in config.kwargs}
    if conflicts:
        raise ValueError(
            f"{name} is autotuned and sets {', '.join(sorted(conflicts))} itself: leave it out, or launch {name}.fn"
        )
    if len(tuner.configs) == 1:
        yield tuner.configs[0], "the only configuration"
        return
    key = _key(tuner, arguments | named)
    if key in tuner.cache:
        yield tuner.cache[key], f"timed best of {len(tuner.configs)} configurations on this GPU"
        return
    found = pruned(tuner, arguments, named)
    before = _called.setdefault(tuner, set())
    if key not in before:
        before.add(key)
        tuner.pre_hook(arguments | named | found[0].all_kwargs(), reset_only=True)
    for config in found:
        yield config, f"the first of {len(tuner.configs)} configurations that fits"
