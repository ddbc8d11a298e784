"""Which kernels there are: what `register` collects, and how a name or a path on the command line finds one."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from mla_verify.errors import UsageError
from mla_verify.kernel import CONSUMERS, LIMITS, PRECONDITIONS, VALIDATIONS, Kernel
from sanitizer.finding import CLAUSES
from strategies.limits import DecodeLimits, Limits, UpProjectionLimits

__all__ = ["ARGUMENTS", "add", "check_signature", "register", "registered", "resolve"]

_F = TypeVar("_F", bound=Callable[..., Any])

# What a kernel of each contract is called with, beside `state` where it has a `prepare`.
ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "up-projection": ("x", "w_uv", "out"),
    "decode": (
        "q",
        "kv_buffer",
        "o",
        "lse",
        "qo_indptr",
        "kv_indptr",
        "kv_indices",
        "kv_last_page_lens",
        "block_table",
        "seq_lens",
        "page_size",
        "max_seqlen_q",
        "sm_scale",
        "num_kv_splits",
        "q_scale",
        "kv_scale",
    ),
}

# What an up-projection is called with besides, where its limits have another weight format than "plain".
_QUANTISED_ARGUMENTS: Final = ("weight_format", "w_q", "w_scale")

_KERNELS: dict[str, Kernel] = {}
_OF_CALLABLE: dict[int, Kernel] = {}  # id of a decorated callable → its registration
_SHIPPED: Final = (
    "mla_verify.kernels.aiter_persistent",
    "mla_verify.kernels.aiter_quantised_registered",
    "mla_verify.kernels.aiter_registered",
    "mla_verify.kernels.flashinfer_paged",
    "mla_verify.kernels.flashmla_dense",
    "mla_verify.kernels.shipped",
    "mla_verify.kernels.sglang_triton",
    "mla_verify.kernels.triton_registered",
    "mla_verify.kernels.vllm_adapters",
    "mla_verify.kernels.vllm_quantised",
    "mla_verify.kernels.vllm_triton",
)
_REGISTRATION_FIELDS: Final = frozenset(field.name for field in fields(Kernel)) - {
    "name",
    "contract",
    "load",
    "limits",
    "target",
}


def add(kernel: Kernel) -> Kernel:
    """Put a kernel into the registry, after checking its declarations. A name can be taken once."""
    _check_declarations(kernel)
    other = _KERNELS.get(kernel.name)
    if other is not None and other is not kernel:
        raise UsageError(f"two kernels are called {kernel.name!r}; give one of them another name")
    _KERNELS[kernel.name] = kernel
    return kernel


def register(
    *, contract: str, name: str | None = None, registry: bool = True, **declarations: Any
) -> Callable[[_F], _F]:
    """Declare the decorated callable a kernel under test; it is returned unchanged.

    contract: "up-projection" or "decode". name: what reports call it (its own name where None).
    declarations: fields of `Kernel` (deterministic, preconditions, empty_rows, known_deviations, …) and of the
    contract's limits (dtypes, page_sizes, max_q_len, uniform_q, …). Raises UsageError for one that does not exist.
    """

    def decorate(function: _F) -> _F:
        kernel = _kernel_of(function, name or function.__name__, contract, declarations)
        _OF_CALLABLE[id(function)] = kernel
        if registry:
            add(kernel)
        return function

    return decorate


def registered() -> tuple[Kernel, ...]:
    """Every registered kernel, by name; imports the modules that ship kernels (not the libraries behind them)."""
    for module in _SHIPPED:
        importlib.import_module(module)
    return tuple(_addressable(_KERNELS[name]) for name in sorted(_KERNELS))


def _addressable(kernel: Kernel) -> Kernel:
    """A kernel of ours can be loaded by its name in any process; one that a user registered cannot."""
    ours = kernel.load.__module__.startswith("mla_verify.")
    return replace(kernel, target=kernel.name) if ours and kernel.target is None else kernel


def resolve(target: str, *, contract: str | None = None) -> Kernel:
    """Find a kernel by registered name, `module:callable` or `file.py:callable`.

    Only the last two import anything, and only what the caller named. Raises UsageError in the caller's words.
    """
    if contract is not None and contract not in LIMITS:
        raise UsageError(f"unknown contract {contract!r}; there are {' and '.join(LIMITS)}")
    where, colon, attribute = target.rpartition(":")
    if not colon:
        return _resolve_name(target, contract)
    if not where or not attribute:
        raise UsageError(f"{target!r} is no target; write a registered name, module:callable or file.py:callable")
    module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    function = getattr(module, attribute, None)
    if function is None:
        names = sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
        raise UsageError(f"{where} has no {attribute!r}; it has {', '.join(names) or 'no public callable'}")
    if isinstance(function, Kernel):
        return replace(function, target=target)
    known = _OF_CALLABLE.get(id(function))
    if known is not None:
        if contract not in (None, known.contract):
            raise UsageError(f"{target} is registered for the contract {known.contract!r}, not {contract!r}")
        return replace(known, target=target)
    if not callable(function):
        raise UsageError(f"{target} is {type(function).__name__}, not a callable")
    if contract is None:
        raise UsageError(f"{target} is not registered: say which contract it keeps, --contract {' or '.join(LIMITS)}")
    return replace(_kernel_of(function, attribute, contract, {}), target=target)


def check_signature(
    function: Callable[..., Any], contract: str, *, name: str, prepared: bool, limits: Limits | None = None
) -> None:
    """Raise UsageError unless `function` can be called with the contract's keyword arguments."""
    quantised = isinstance(limits, UpProjectionLimits) and limits.weight_formats != ("plain",)
    passed = (
        *ARGUMENTS[contract],
        *(_QUANTISED_ARGUMENTS if quantised else ()),
        *(("state",) if prepared else ()),
    )
    if inspect.isclass(function):
        raise UsageError(f"{name} is a class; name an instance of it that can be called, or a function")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise UsageError(f"{name} is an async function or a generator: calling it runs nothing; wrap it in a function")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built-in functions may have no signature to look at
        return
    takes_rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = {
        parameter.name: parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    foreign = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and (parameter.kind is parameter.POSITIONAL_ONLY or (parameter.name in named and parameter.name not in passed))
    ]
    hidden = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY]
    if hidden:
        raise UsageError(
            f"{name} takes {', '.join(hidden)} by position only; kernels are called with keyword arguments"
        )
    if foreign:
        raise UsageError(
            f"{name} takes {', '.join(foreign)}, which the contract {contract!r} does not pass by keyword; "
            f"it passes {', '.join(passed)}"
        )
    missing = [argument for argument in passed if argument not in named]
    if missing and not takes_rest:
        raise UsageError(
            f"{name} does not take {', '.join(missing)}; end its parameters with **_ to leave arguments unused"
        )


def _kernel_of(function: Callable[..., Any], name: str, contract: str, declarations: dict[str, Any]) -> Kernel:
    """Build a registration from a callable and its flat declarations."""
    if contract not in LIMITS:
        raise UsageError(f"{name}: unknown contract {contract!r}; there are {' and '.join(LIMITS)}")
    limit_fields = {field.name for field in fields(LIMITS[contract])}
    limits: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key, value in declarations.items():
        if key in limit_fields and key != "padding_rows":  # a limit and a declaration share that word
            limits[key] = value
        elif key in _REGISTRATION_FIELDS:
            rest[key] = tuple(value) if isinstance(value, list) else value
        else:
            known = ", ".join(sorted(limit_fields | _REGISTRATION_FIELDS))
            raise UsageError(f"{name}: there is no declaration {key!r}; there are {known}")
    within = LIMITS[contract](**limits)
    check_signature(function, contract, name=name, prepared=rest.get("prepare") is not None, limits=within)
    kernel = Kernel(name=name, contract=contract, load=lambda: function, limits=within, **rest)
    _check_declarations(kernel)
    return kernel


def _check_declarations(kernel: Kernel) -> None:
    """Raise UsageError for a word that is not one of ours."""
    if kernel.contract not in LIMITS:
        raise UsageError(f"{kernel.name}: unknown contract {kernel.contract!r}; there are {' and '.join(LIMITS)}")
    groups = (
        ("precondition", kernel.preconditions, PRECONDITIONS),
        ("validates", kernel.validates, VALIDATIONS),
        ("clause of a known deviation", [known.clause for known in kernel.known_deviations], CLAUSES),
        ("empty_rows", [kernel.empty_rows], ("zero", "unspecified")),
        ("empty_lse", [kernel.empty_lse], ("-inf", "+inf", "unspecified")),
        ("padding_rows", [kernel.padding_rows], ("untouched", "written", "zero", "unspecified")),
        ("consumer", kernel.consumers, CONSUMERS),
    )
    for what, words, known in groups:
        for word in words:
            if word not in known:
                raise UsageError(f"{kernel.name}: {what} {word!r} is unknown; there are {', '.join(known)}")
    limits = kernel.limits or LIMITS[kernel.contract]()
    padded = isinstance(limits, DecodeLimits) and (limits.padding_rows or limits.empty_requests)
    if kernel.consumers and not padded:
        raise UsageError(
            f"{kernel.name}: consumers={'/'.join(kernel.consumers)} is about rows of padding, of which its contract or "
            "its limits leave none; leave it out"
        )


def _resolve_name(name: str, contract: str | None) -> Kernel:
    names = {kernel.name: kernel for kernel in registered()}
    if name not in names:
        raise UsageError(
            f"no kernel is called {name!r}{_close_to(name, list(names))}; `mla-verify list` shows them all"
        )
    if contract not in (None, names[name].contract):
        raise UsageError(f"{name} is registered for the contract {names[name].contract!r}, not {contract!r}")
    return names[name]


def _close_to(name: str, names: Sequence[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, names, n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _load_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name!r} is no module name; write module:callable or file.py:callable")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: a module beside the user is found
    try:
        return importlib.import_module(name)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot import {name}: {type(error).__name__}: {error}") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    name = f"mla_verify_target_{path.stem}_{abs(hash(path.resolve())):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Its neighbours import as they would from a script in that folder.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(1, folder)
    try:
        spec.loader.exec_module(module)
    except UsageError:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(f"cannot import {path}: {type(error).__name__}: {error}") from error
    return module
