"""The errors that a caller may want to catch.

Every message says what was asked, what was received and what to do. The command line
turns each of these into one line on standard error and an exit code; nothing else is caught there.
"""

from __future__ import annotations


class DnnMemError(Exception):
    """Base class of every error this package raises on purpose."""


class UsageError(DnnMemError, ValueError):
    """An argument, option or configuration that cannot be meant (exit code 2)."""


class UnknownDeviceError(UsageError):
    """A GPU that is not in the catalogue."""


class WorkloadError(DnnMemError):
    """The user's workload cannot be found, loaded or run (exit code 1)."""


class TraceError(DnnMemError):
    """Recording a workload failed: it raised, hung, died, or outgrew its limits (exit code 1)."""


class UnsupportedError(TraceError):
    """The workload uses something that cannot be traced; the message names it."""


class MissingPackageError(DnnMemError, ImportError):
    """A front-end or host needs a package that is not installed; the message names the extra."""
