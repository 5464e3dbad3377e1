# SPDX-License-Identifier: Apache-2.0
"""Batch systems (LRMs): the contract of a plugin, finding installed plugins, and what all plugins use.

The names in ``__all__`` are the door for authors of plugins. Beside them: ``commands`` for plugins that run commands,
``rate`` for bounds of requests, ``listing`` and ``starts`` for the parts of koala that use plugins, and ``drmaa`` for
submitting through a DRMAA library.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from koala_adapter.lrm.contract import (
        ENTRY_POINT_GROUP,
        INTERFACE_VERSION,
        NOWHERE,
        Capabilities,
        CheckResult,
        ClusterContext,
        Lrm,
        PinnedStart,
        PluginDefinition,
        RenderedSubmission,
        Submission,
        load_plugins,
    )
    from koala_adapter.lrm.discovery import Discovery, FoundCluster, LeftOut, Surroundings, readable_text

__all__ = [
    "ENTRY_POINT_GROUP",
    "INTERFACE_VERSION",
    "NOWHERE",
    "Capabilities",
    "CheckResult",
    "ClusterContext",
    "Discovery",
    "FoundCluster",
    "LeftOut",
    "Lrm",
    "PinnedStart",
    "PluginDefinition",
    "RenderedSubmission",
    "Submission",
    "Surroundings",
    "load_plugins",
    "readable_text",
]


def __getattr__(name: str) -> object:
    """Import the contract with the first name that is asked for (PEP 562).

    The DRMAA helper process is a module below this package, and needs neither the contract nor what that imports.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from koala_adapter.lrm import contract, discovery  # noqa: PLC0415 - see above

    found: object = getattr(contract, name, None) or getattr(discovery, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return what there is, imported or not."""
    return sorted({*globals(), *__all__})
